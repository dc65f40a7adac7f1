//! Earliest deadline first among those that can still make it.
//!
//! The deadline that counts is the latest time of a sequence's next token from which the rest can
//! still be in time. The latency class has a head start of a minute before the throughput class.
//! Who cannot make it even alone
//! on the device is not worth starting: in overload plain earliest-deadline-first would serve
//! exactly those (Locke 1986), and everybody would be late.

use super::{AGING, Decoding, Kept, Rank, SchedulerPolicy, StepState, View, cheapest};
use crate::class::Class;
use crate::scheduler::SchedulerConfig;
use crate::sequence::Sequence;
use crate::time::Micros;

/// Bulk work is placed as if it were due this much later than it is: latency work goes before it,
/// and the gate sees to it that bulk promises are kept behind it. Whoever waits for longer than
/// that has its turn, so latency work cannot starve it.
const HEAD_START: Micros = Micros(60_000_000);

/// Prefill tokens that a step may always have, however tight the gap promised to those that decode.
const MIN_CHUNK: u32 = 8;

/// What a step may take of the gap promised to latency work inside: 98 %. The promise is one of a
/// mean, in which the noise of single steps evens out.
const fn step_limit(tpot: Micros) -> Micros {
    Micros(tpot.0 / 100 * 98)
}

/// Earliest deadline first with feasibility.
#[derive(Clone, Copy, Debug)]
pub struct DeadlinePolicy;

impl DeadlinePolicy {
    fn is_hopeless(view: &View<'_>, seq: &Sequence) -> bool {
        let next = seq.earliest_token(view.now, view.cost, view.config.max_num_batched_tokens);
        let late_first = seq.generated == 0 && seq.first_due.get().is_some_and(|due| next > due);
        let more = seq.remaining_at_least() - 1;
        let last = next.plus(view.cost.decode(1, u64::from(seq.known() + 1), more));
        late_first || seq.last_due.get().is_some_and(|due| last > due)
    }
}

impl SchedulerPolicy for DeadlinePolicy {
    fn name(&self) -> &'static str {
        "deadline"
    }

    /// A sequence without a deadline is placed as if it were due when it has aged.
    fn rank(&self, view: &View<'_>, seq: &Sequence) -> Option<Rank> {
        if Self::is_hopeless(view, seq) {
            return None;
        }
        let due = seq.latest_token(view.cost).unwrap_or_else(|| seq.arrival.plus(AGING));
        let head_start = match seq.class {
            Class::Latency => Micros(0),
            Class::Throughput => HEAD_START,
        };
        Some(Rank::of(seq, due.plus(head_start)))
    }

    /// Lengths matter for the last token only: a longer answer has to begin earlier.
    fn best_rank(&self, view: &View<'_>, seq: &Sequence) -> Rank {
        match seq.last_due.get() {
            Some(_) => Rank::FIRST_NEW,
            None => self.rank(view, seq).unwrap_or(Rank::LAST),
        }
    }

    /// Hopeless ones first.
    fn victim(&self, view: &View<'_>, candidates: &[&Sequence]) -> Option<usize> {
        cheapest(view, candidates, |seq| Self::is_hopeless(view, seq))
    }

    /// While latency work is inside, its gap bounds the step. What its own tokens leave of that is
    /// for bulk work that decodes; what does not fit waits for its turn.
    fn turns(&self, view: &View<'_>, state: &StepState) -> u32 {
        let (Some(pace), Decoding { seqs: patient @ 1.., context_tokens }) =
            (state.tightest_pace, state.patient)
        else {
            return state.patient.seqs;
        };
        let least = if state.prefills { MIN_CHUNK } else { 0 };
        let prefill = view.cost.prefill_work(state.prefill_start, state.latency_prefill.max(least));
        let steady = view.cost.decode(state.steady.seqs, state.steady.context_tokens, 1);
        let room = step_limit(pace).minus(steady).minus(prefill);
        let each = view.cost.decode_work_ns(context_tokens / u64::from(patient)).max(1);
        u32::try_from(room.0.saturating_mul(1_000) / each).unwrap_or(patient).min(patient)
    }

    /// The prefill chunk is what fits beside those that decode into the gap promised to latency
    /// work. Bulk work has what its pace leaves besides its own chunks.
    fn token_budget(&self, view: &View<'_>, state: &StepState, decoding: &Decoding) -> u32 {
        let full = view.config.max_num_batched_tokens;
        let room = full.saturating_sub(decoding.seqs);
        let decode = view.cost.decode(decoding.seqs, decoding.context_tokens, 1);
        let within = |gap: Option<Micros>, least: u32| {
            let Some(gap) = gap else { return room };
            let time = step_limit(gap).minus(decode);
            view.cost.chunk_within(time, state.prefill_start, room).max(least)
        };
        let pace = state.tightest_pace.filter(|_| state.bulk);
        let paced = within(pace, 0).max(state.latency_prefill);
        let reserved = state.reserved_pace.filter(|_| state.borrowers);
        let paced = paced.min(within(reserved, 0).max(state.reserved_prefill));
        decoding.seqs + within(state.tightest_tpot, MIN_CHUNK).min(paced).min(room)
    }

    fn step_limit(&self, tpot: Micros) -> Option<Micros> {
        Some(step_limit(tpot))
    }

    /// A sixteenth for the latency class, so that interactive work need not wait until bulk work
    /// ends.
    fn keeps(&self, config: &SchedulerConfig, class: Class) -> Kept {
        match class {
            Class::Latency => {
                Kept { slots: config.slots().div_ceil(16), blocks: config.num_blocks / 16 }
            }
            Class::Throughput => Kept::default(),
        }
    }
}
