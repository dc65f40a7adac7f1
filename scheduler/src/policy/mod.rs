//! Scheduling policies: who is next, whom to preempt, how big a step may be. One file each.
//!
//! A new policy is one file beside these and one line in the table of [`by_name`]; it has to answer
//! one question, [`SchedulerPolicy::rank`], and may answer more. Most policies look at nothing but
//! the sequences. Those that keep count of what was served are told so ([`Change`]); the gate,
//! which asks its own copy for ranks, gets their counts with each timeline, and a record writes
//! them down.

mod deadline;
mod edf;
mod fcfs;
mod mlfq;
#[cfg(feature = "serde")]
pub(crate) mod named;
mod sjf;
mod srpt;
#[cfg(test)]
mod tests;
mod victim;
mod vtc;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt::Debug;

use crate::class::Class;
use crate::cost::CostModel;
use crate::plan::Chunk;
use crate::scheduler::SchedulerConfig;
use crate::sequence::Sequence;
use crate::time::Micros;

pub use deadline::DeadlinePolicy;
pub use edf::EdfPolicy;
pub use fcfs::FcfsPolicy;
pub use mlfq::MlfqPolicy;
pub use sjf::SjfPolicy;
pub use srpt::SrptPolicy;
pub use victim::cheapest;
pub use vtc::VtcPolicy;

/// A sequence without a deadline is placed as if it were due after so long a wait.
pub const AGING: Micros = Micros(60_000_000);

/// After so long a wait a sequence stands before all that come from then on, whatever they are, so
/// nobody starves: bulk work ages twice as slowly. Policies that order by something else than time
/// keep it, or have a bound of their own.
pub const LONGEST_AGING: Micros = Micros(2 * AGING.0);

/// What a policy may look at besides the sequences: the same in the scheduler, in the forecast and
/// in the gate.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The time.
    pub now: Micros,
    /// Limits.
    pub config: &'a SchedulerConfig,
    /// What steps cost.
    pub cost: &'a CostModel,
}

/// A rank is a tier above a key. The key of those who borrow is a round above the policy's tier, in
/// four bits, and its key in about milliseconds.
const KEY_BITS: u32 = 56;
const BORROWED: u64 = 128;
const ROUND_BITS: u32 = 40;
const ROUND_KEY_BITS: u32 = 36;
const MOST_TIERS: u64 = 15;

/// A place in the queue: the smaller goes first. Ties go by arrival, then by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rank(u64);

impl Rank {
    /// Before everybody but those who were preempted.
    pub const FIRST_NEW: Rank = Rank::new(1, Micros(0));

    /// Behind everybody.
    pub const LAST: Rank = Rank::new(u8::MAX, Micros::MAX);

    /// Tiers are compared first; tier 0 is for preempted sequences, which return before anybody
    /// new. Tiers from 128 on are for those who borrow. Within a tier keys are compared, usually
    /// times; from 2^56 microseconds (two thousand years) on they are equal.
    #[must_use]
    pub const fn new(tier: u8, key: Micros) -> Rank {
        let most = (1 << KEY_BITS) - 1;
        let key = if key.0 < most { key.0 } else { most };
        Rank((tier as u64) << KEY_BITS | key)
    }

    /// Where a sequence stands that borrows: behind all that are within their tenants'
    /// reservations, by the round in which its tenant is served, then as the policy says, to a
    /// millisecond. Preempted sequences return first all the same.
    pub(crate) const fn borrowed(self, round: u16) -> Rank {
        let tier = self.0 >> KEY_BITS;
        if tier == 0 || tier >= BORROWED {
            return self;
        }
        let tier = if tier < MOST_TIERS { tier } else { MOST_TIERS };
        let key = (self.0 & ((1 << KEY_BITS) - 1)) >> 10;
        let key = if key < 1 << ROUND_KEY_BITS { key } else { (1 << ROUND_KEY_BITS) - 1 };
        let order = tier << ROUND_KEY_BITS | key;
        Rank(BORROWED << KEY_BITS | (round as u64) << ROUND_BITS | order)
    }

    /// The same place in another round.
    pub(crate) const fn moved_to(self, round: u16) -> Rank {
        let order = self.0 & ((1 << ROUND_BITS) - 1);
        Rank(BORROWED << KEY_BITS | (round as u64) << ROUND_BITS | order)
    }

    /// The round, and the place within it, of a sequence that borrows.
    pub(crate) const fn in_round(self) -> Option<(u16, u64)> {
        if self.0 >> KEY_BITS != BORROWED {
            return None;
        }
        let order = self.0 & ((1 << ROUND_BITS) - 1);
        Some(((self.0 >> ROUND_BITS) as u16, order))
    }

    /// `key`, in the tier of new or of preempted sequences, whichever `seq` is.
    #[must_use]
    pub const fn of(seq: &Sequence, key: Micros) -> Rank {
        Rank::new(if seq.preemptions > 0 { 0 } else { 1 }, key)
    }

    /// For who is not worth going on with and yet cannot be dropped: as if it were due when it has
    /// waited for [`LONGEST_AGING`], so that it comes to its end.
    #[must_use]
    pub const fn late(seq: &Sequence) -> Rank {
        Rank::new(1, seq.arrival.plus(LONGEST_AGING))
    }
}

/// Sequences that decode, and the context tokens that they read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoding {
    /// How many.
    pub seqs: u32,
    /// Of all of them together.
    pub context_tokens: u64,
}

/// What happened to a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It came and waits.
    Queued,
    /// It was taken in: its prefill begins. After a preemption again.
    Started,
    /// These tokens of it were computed.
    Served(Chunk),
    /// It lost its blocks and waits again.
    Preempted,
    /// It left before it was taken in: it expired, or its client left.
    Left,
}

/// The demand for a step to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepState {
    /// Sequences that decode in each step.
    pub steady: Decoding,
    /// Sequences that decode and may wait for a turn: bulk work that was promised no gap.
    pub patient: Decoding,
    /// The tightest gap promised to latency work that decodes or has tokens to prefill.
    pub tightest_tpot: Option<Micros>,
    /// The tightest gap that the targets of such latency work leave, whether promised or not: bulk
    /// work should not make a step longer.
    pub tightest_pace: Option<Micros>,
    /// The same of what is within reservations: those who borrow should not make a step longer.
    pub reserved_pace: Option<Micros>,
    /// Bulk work is inside, running or waiting.
    pub bulk: bool,
    /// Who borrows is inside.
    pub borrowers: bool,
    /// Somebody has tokens to prefill.
    pub prefills: bool,
    /// Position at which the first prefill chunk begins.
    pub prefill_start: u32,
    /// Prefill tokens of latency work that go before those of others, as far as it has slots. Not
    /// counted beyond one step.
    pub latency_prefill: u32,
    /// Those of them that are within reservations.
    pub reserved_prefill: u32,
}

impl StepState {
    /// With `turns` of the patient sequences only, which read their share of the context: the
    /// decoding part of a step.
    #[must_use]
    pub fn decoding(&self, turns: u32) -> Decoding {
        let patient = self.patient.context_tokens * u64::from(turns);
        Decoding {
            seqs: self.steady.seqs + turns,
            context_tokens: self.steady.context_tokens
                + patient / u64::from(self.patient.seqs.max(1)),
        }
    }

    /// How many of the patient sequences go if a policy says `turns`: so many that nobody waits
    /// longer than [`MAX_PASSES`] steps.
    pub(crate) fn bounded(&self, turns: u32) -> u32 {
        let least = self.patient.seqs.div_ceil(u32::from(MAX_PASSES) + 1);
        turns.clamp(least, self.patient.seqs)
    }
}

/// Slots and KV blocks that other classes leave free for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Sequences that could start at once.
    pub slots: u32,
    /// Blocks of the pool.
    pub blocks: u32,
}

/// A decoding sequence is passed over in at most so many steps in a row.
pub const MAX_PASSES: u8 = 15;

/// Decides who is next, whom to preempt, and what goes into a step.
pub trait SchedulerPolicy: Debug + Send {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// Where a sequence stands among those that wait for prefill. `None`: it is not worth starting
    /// any more. Such a sequence expires with its request, unless that has produced a token
    /// already; then it goes when it has aged ([`Rank::late`]).
    fn rank(&self, view: &View<'_>, seq: &Sequence) -> Option<Rank>;

    /// Corrects the ranks of all that wait together ([`Sequence::rank`]), where the place of one
    /// depends on the others.
    fn spread(&self, _waiting: &mut [Sequence]) {}

    /// A place before which no new sequence of the class, tenant, arrival and deadlines of `seq`
    /// stands, however long prompt and answer are. Before everybody new, if the policy does not
    /// know.
    fn best_rank(&self, _view: &View<'_>, _seq: &Sequence) -> Rank {
        Rank::FIRST_NEW
    }

    /// Which of `candidates` (running, not protected, in order of id) loses its blocks when there
    /// are none left. An index; `None` if there is no candidate.
    fn victim(&self, view: &View<'_>, candidates: &[&Sequence]) -> Option<usize> {
        cheapest(view, candidates, |_| 0)
    }

    /// How many of the patient sequences get a token in the next step; the others wait for their
    /// turn, those that wait longest being next. All of them, unless the policy rations.
    fn turns(&self, _view: &View<'_>, state: &StepState) -> u32 {
        state.patient.seqs
    }

    /// How many tokens the next step may have, those of `decoding` (which always go) included.
    fn token_budget(&self, view: &View<'_>, _state: &StepState, _decoding: &Decoding) -> u32 {
        view.config.max_num_batched_tokens
    }

    /// The most that a step takes while latency work is inside that was promised `tpot`, if those
    /// that decode in every step fit: others make room for it. `None`: the policy bounds no step.
    fn step_limit(&self, _tpot: Micros) -> Option<Micros> {
        None
    }

    /// What the other class leaves free for `class` while it has work, where the configuration does
    /// not say. Nothing, unless the policy keeps something.
    fn keeps(&self, _config: &SchedulerConfig, _class: Class) -> Kept {
        Kept::default()
    }

    /// Something happened to `seq`. For policies that keep count; bounded work and memory.
    fn observe(&mut self, _seq: &Sequence, _change: Change) {}

    /// All that [`SchedulerPolicy::observe`] has counted. Nothing, if it counts nothing.
    fn state(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Takes the counts of another policy of this name. Returns whether they make sense.
    fn restore(&mut self, state: &[u64]) -> bool {
        state.is_empty()
    }
}

/// Names of the shipped policies, default first.
pub const NAMES: [&str; 7] = ["deadline", "fcfs", "edf", "sjf", "srpt", "mlfq", "vtc"];

/// The policy called `name`.
#[must_use]
pub fn by_name(name: &str) -> Option<Box<dyn SchedulerPolicy>> {
    match name {
        "deadline" => Some(Box::new(DeadlinePolicy)),
        "fcfs" => Some(Box::new(FcfsPolicy)),
        "edf" => Some(Box::new(EdfPolicy)),
        "sjf" => Some(Box::new(SjfPolicy)),
        "srpt" => Some(Box::new(SrptPolicy)),
        "mlfq" => Some(Box::new(MlfqPolicy)),
        "vtc" => Some(Box::<VtcPolicy>::default()),
        _ => None,
    }
}
