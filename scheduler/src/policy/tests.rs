//! What each policy promises of its order.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::class::{Class, ClassConfig, ClassTable};
use crate::request::{Deadline, OutputLength, Request, RequestId, SequenceSpec};
use crate::tenants::TenantId;
use crate::time::MaybeMicros;

const COST: CostModel = CostModel {
    fixed_ns: 5_000_000,
    per_seq_ns: 1_000_000,
    per_context_token_ps: 10_000,
    per_prefill_token_ns: 300_000,
    per_prefill_span_ps: 20_000,
};

fn config() -> SchedulerConfig {
    let class = ClassConfig { max_waiting: 10, ..ClassConfig::default() };
    SchedulerConfig {
        num_blocks: 1_000,
        block_size: 16,
        max_num_seqs: 8,
        max_num_batched_tokens: 512,
        max_model_len: 8_192,
        classes: ClassTable([class; 2]),
    }
}

fn seq(id: u64, arrival: Micros, prompt_tokens: u32, predicted: u32) -> Sequence {
    let output = OutputLength { min: 0, max: 4_000, predicted, hint: None, exact: false };
    let request = Request {
        id: RequestId(id),
        class: Class::Latency,
        tenant: TenantId::DEFAULT,
        borrows: false,
        arrival,
        deadline: Deadline::default(),
        retry: 0,
        origin: 0,
        prefixes: Vec::new(),
        sequences: vec![SequenceSpec { prompt: 0, prompt_tokens, output }],
    };
    Sequence::new(&request, 0)
}

/// Ranks at `now`, by a policy that never gives up on anybody.
fn rank(policy: &dyn SchedulerPolicy, now: Micros, seq: &Sequence) -> Rank {
    let config = config();
    policy.rank(&View { now, config: &config, cost: &COST }, seq).unwrap()
}

/// The mean wait of jobs of these sizes, one after another, times their number.
fn waits(sizes: &[u64]) -> u64 {
    sizes.iter().zip((0..sizes.len() as u64).rev()).map(|(size, behind)| size * behind).sum()
}

fn least_wait(sizes: &mut Vec<u64>, done: usize) -> u64 {
    if done == sizes.len() {
        return waits(sizes);
    }
    let mut least = u64::MAX;
    for next in done..sizes.len() {
        sizes.swap(done, next);
        least = least.min(least_wait(sizes, done + 1));
        sizes.swap(done, next);
    }
    least
}

/// Everybody that has to be somewhere in a queue, of all kinds.
fn any_seq() -> impl Strategy<Value = Sequence> {
    let times = (0..200_000_000u64, any::<Option<u32>>(), any::<Option<u32>>());
    (times, 1..4_000u32, 1..4_000u32, 0..3u8).prop_map(
        |((arrival, first, last), prompt, predicted, preemptions)| {
            let arrival = Micros(arrival);
            let due = |span: Option<u32>| {
                MaybeMicros::new(span.map(|span| arrival.plus(Micros(u64::from(span) / 100))))
            };
            Sequence {
                first_due: due(first),
                last_due: due(last),
                preemptions: preemptions.saturating_sub(1),
                ..seq(1, arrival, prompt, predicted)
            }
        },
    )
}

proptest! {
    /// Shortest job first has the least mean waiting time of all orders of a batch that is known
    /// at once; shortest remaining time first orders such a batch in the same way.
    #[test]
    fn no_order_of_a_batch_waits_less_than_shortest_first(
        jobs in prop::collection::vec((1..4_000u32, 1..2_000u32), 1..7),
        policy in prop::sample::select(vec!["sjf", "srpt"]),
    ) {
        let (policy, config) = (by_name(policy).unwrap(), config());
        let view = View { now: Micros(7), config: &config, cost: &COST };
        let mut batch: Vec<Sequence> = (0..)
            .zip(&jobs)
            .map(|(id, (prompt, output))| seq(id, Micros(7), *prompt, *output))
            .collect();
        batch.sort_by_key(|seq| (rank(&*policy, Micros(7), seq), seq.id));
        let mut sizes: Vec<u64> = batch.iter().map(|seq| sjf::size(&view, seq).0).collect();
        prop_assert_eq!(waits(&sizes), least_wait(&mut sizes, 0));
    }

    /// Behind a sequence stands all that comes late enough, whatever it is: nobody starves.
    #[test]
    fn who_comes_late_enough_stands_behind(
        early in any_seq(),
        late in any_seq(),
        name in prop::sample::select(NAMES.to_vec()),
    ) {
        let (policy, config) = (by_name(name).unwrap(), config());
        let mut view = View { now: Micros(0), config: &config, cost: &COST };
        let patience = sjf::size(&view, &early).0 * sjf::PATIENCE;
        let spans = [early.first_due.get(), early.last_due.get()];
        let due = spans.into_iter().flatten().map(|due| due.minus(early.arrival).0).max();
        // A last token that is due soon has to begin before that by what the answer takes.
        let begins = sjf::size(&view, &late).0;
        let span = patience.max(AGING.0).max(due.unwrap_or(0)) + AGING.0 + begins + 1;
        let arrival = early.arrival.plus(Micros(span));
        let later = |due: MaybeMicros| {
            MaybeMicros::new(due.get().map(|due| arrival.plus(due.minus(late.arrival))))
        };
        let late = Sequence {
            arrival,
            first_due: later(late.first_due),
            last_due: later(late.last_due),
            preemptions: 0,
            ..late
        };
        view.now = arrival;
        let early = policy.rank(&view, &early).unwrap_or(Rank::late(&early));
        let late = policy.rank(&view, &late).unwrap_or(Rank::LAST);
        prop_assert!(early <= late, "{name}: {early:?} {late:?}");
    }

    /// No new sequence of an arrival and deadlines stands before the best place of these.
    #[test]
    fn the_best_place_is_no_worse_than_any(
        seq in any_seq(),
        tokens in (1..4_000u32, 1..4_000u32),
        name in prop::sample::select(NAMES.to_vec()),
    ) {
        let (policy, config) = (by_name(name).unwrap(), config());
        let view = View { now: seq.arrival, config: &config, cost: &COST };
        let mut longer = Sequence { preemptions: 0, prompt_tokens: 1, ..seq };
        longer.output.predicted = 1;
        let best = policy.best_rank(&view, &longer);
        (longer.prompt_tokens, longer.output.predicted) = tokens;
        prop_assert!(best <= policy.rank(&view, &longer).unwrap_or(Rank::LAST), "{name}");
    }
}

#[test]
fn short_prompts_overtake_long_ones_by_levels() {
    let (long, short) = (seq(1, Micros(0), 3_000, 9), seq(2, Micros(5), 20, 9));
    let at = |seq, now| rank(&MlfqPolicy, now, seq);
    let now = Micros(10);
    assert!(at(&short, now) < at(&long, now), "it came later and needs less");
    let served = Sequence { generated: 2_000, ..short };
    assert!(at(&served, now) > at(&long, now), "what was served counts");
    let alike = seq(3, Micros(9), 21, 9);
    assert!(at(&short, now) < at(&alike, now), "first come, first served on a level");
}

#[test]
fn what_remains_counts_not_what_was_done() {
    let (long, short) = (seq(1, Micros(0), 3_000, 9), seq(2, Micros(0), 100, 9));
    let nearly = Sequence { computed: 2_950, ..long };
    let at = |seq| rank(&SrptPolicy, Micros(0), seq);
    assert!(at(&nearly) < at(&short) && at(&short) < at(&long));
    let config = config();
    let view = View { now: Micros(0), config: &config, cost: &COST };
    assert_eq!(SrptPolicy.victim(&view, &[&nearly, &short, &long]), Some(2));
}

#[test]
fn the_victim_is_cheapest_for_each_block_that_it_frees() {
    let config = config();
    let view = View { now: Micros(0), config: &config, cost: &COST };
    let with = |id, computed| Sequence { computed, ..seq(id, Micros(0), 4_000, 9) };
    // Long ones cost more a token; one token in the last block frees that block almost for nothing.
    let (long, short, edge) = (with(1, 3_200), with(2, 320), with(3, 305));
    assert_eq!(cheapest(&view, &[&long, &short], |_| 0), Some(1));
    assert_eq!(cheapest(&view, &[&long, &short, &edge], |_| 0), Some(2));
    let again = Sequence { preemptions: 1, ..edge };
    assert_eq!(cheapest(&view, &[&long, &short, &again], |_| 0), Some(1), "others first");
    let bulk = Sequence { class: Class::Throughput, ..long };
    assert_eq!(cheapest(&view, &[&bulk, &short, &edge], |_| 0), Some(0), "bulk work first");
    let sharing = Sequence { alone: false, prompt_tokens: 305, ..edge };
    assert_eq!(cheapest(&view, &[&sharing, &short], |_| 0), Some(1), "shared blocks stay");
    assert_eq!(cheapest(&view, &[], |_| 0), None);
}
