//! Whoever has entered comes to its end within a bound that can be stated, however much comes after
//! it and however long answers turn out, under every policy: without a deadline with its whole
//! answer, and with one at the latest when it has expired.
//!
//! The bound: after `HORIZON` the policy places it before all that come then. What came until then,
//! and at most 64 smaller requests that pass it while its blocks are not there, can be before it;
//! each token of theirs is computed once, and again after each of at most three preemptions; each
//! step computes one of them at least, but for those in which they wait for a turn to decode.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sluice_scheduler::policy::{LONGEST_AGING, MAX_PASSES};
use sluice_scheduler::sequence::MAX_PREEMPTIONS;
use sluice_scheduler::{
    Class, ClassConfig, ClassTable, CostModel, Deadline, Event, FinishReason, Micros, OutputLength,
    Request, RequestId, Scheduler, SchedulerConfig, SeqOutcome, SequenceSpec, TenantId, policy,
};

/// Every step takes half a second, so that a minute is short. Three sequences may decode within the
/// gap of latency work.
const COST: CostModel = CostModel {
    fixed_ns: 500_000_000,
    per_seq_ns: 50_000_000,
    per_context_token_ps: 0,
    per_prefill_token_ns: 0,
    per_prefill_span_ps: 0,
};

const STEP: Micros = Micros(500_000);

const GAP: Micros = Micros(700_000);

/// Longest prompt and answer: sixteen times the size of such a job is no more than that.
const LONGEST: (u32, u32) = (5, 3);

const HORIZON: u64 = LONGEST_AGING.0 / STEP.0 + 1;

/// Sequences that may pass one whose blocks are not there.
const BYPASSES: u64 = 64;

/// Steps without a token for anybody: all that run may have to compute what they know, one token a
/// step, once more after each preemption.
const LONGEST_DRY: u64 =
    SLOTS as u64 * (LONGEST.0 + LONGEST.1) as u64 * (1 + MAX_PREEMPTIONS as u64);

const SLOTS: u32 = 4;

#[derive(Clone, Debug)]
struct Arrival {
    prompt: u32,
    max: u32,
    /// Output tokens that it will really have, of at most `max`.
    actual: u32,
    n: u32,
    /// Its first token is due after so many steps.
    due: Option<u64>,
    bulk: bool,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let lengths = (1..=LONGEST.0, 1..=LONGEST.1, 1..=LONGEST.1);
    (lengths, 1..3u32, any::<bool>(), 0..20u64, any::<bool>()).prop_map(
        |((prompt, max, actual), n, is_due, due, bulk)| Arrival {
            prompt,
            max,
            actual: actual.min(max),
            n,
            due: is_due.then_some(due),
            bulk,
        },
    )
}

fn config() -> SchedulerConfig {
    let class = ClassConfig { max_waiting: 9_999, ..ClassConfig::default() };
    SchedulerConfig {
        num_blocks: 12,
        block_size: 2,
        max_num_seqs: SLOTS,
        max_num_batched_tokens: 8,
        max_model_len: 32,
        classes: ClassTable([class; 2]),
    }
}

/// Steps in which all tokens of a sequence can be computed, again after each preemption, and in
/// which it waits for its turns.
fn most_steps(prompt: u32, max: u32) -> u64 {
    let turns = max * (1 + u32::from(MAX_PASSES));
    u64::from(prompt + turns) * (1 + u64::from(MAX_PREEMPTIONS))
}

struct Traffic {
    scheduler: Scheduler,
    now: Micros,
    step: u64,
    /// Everything that came: when, whether it has a deadline, and in how many steps it and all
    /// before it can be computed.
    came: Vec<(u64, bool, u64)>,
    /// Tokens still to come of each sequence of those that are inside.
    live: BTreeMap<RequestId, Vec<u32>>,
    completed: u64,
    /// Steps since the last one in which somebody had a token.
    dry: u64,
}

impl Traffic {
    fn enqueue(&mut self, arrival: &Arrival) {
        let id = RequestId(self.came.len() as u64);
        // It is longer than predicted as often as not.
        let output =
            OutputLength { min: 0, max: arrival.max, predicted: 1, hint: None, exact: false };
        let spec = SequenceSpec { prompt: 0, prompt_tokens: arrival.prompt, output };
        let first_token = arrival.due.map(|steps| self.now.plus(Micros(steps * STEP.0)));
        let request = Request {
            id,
            class: Class::ALL[usize::from(arrival.bulk)],
            tenant: TenantId::DEFAULT,
            borrows: false,
            arrival: self.now,
            deadline: Deadline {
                first_token,
                last_token: None,
                tpot: (!arrival.bulk).then_some(GAP),
            },
            retry: 0,
            origin: 0,
            prefixes: Vec::new(),
            sequences: vec![spec; arrival.n as usize],
        };
        self.scheduler.enqueue(&request);
        self.live.insert(id, vec![arrival.actual; arrival.n as usize]);
        let before = self.came.last().map_or(0, |(.., work)| *work);
        let steps = u64::from(arrival.n) * most_steps(arrival.prompt, arrival.max);
        self.came.push((self.step, arrival.due.is_some(), before + steps));
    }

    fn step(&mut self) {
        let plan = self.scheduler.plan(self.now);
        for id in &plan.expired {
            assert!(self.came[id.0 as usize].1, "it had no deadline");
            self.live.remove(id);
        }
        assert!(!plan.chunks.is_empty() || self.scheduler.is_idle());
        self.now = self.now.plus(STEP);
        self.step += 1;
        let mut outcomes = Vec::new();
        for chunk in plan.chunks.iter().filter(|chunk| chunk.sample) {
            let left =
                &mut self.live.get_mut(&chunk.seq.request).unwrap()[chunk.seq.index as usize];
            *left -= 1;
            outcomes.push(match *left {
                0 => SeqOutcome::Finish(chunk.seq, FinishReason::Stop),
                _ => SeqOutcome::Continue(chunk.seq),
            });
        }
        self.dry = if outcomes.is_empty() { self.dry + 1 } else { 0 };
        assert!(self.dry <= LONGEST_DRY, "everybody computes and nobody has a token");
        for event in self.scheduler.complete(self.now, &plan, &outcomes) {
            if let Event::RequestEnded(id, _) = event {
                self.live.remove(&id);
                self.completed += 1;
            }
        }
    }

    /// Whoever is inside beyond its bound starves.
    fn check(&self, policy: &str) {
        for id in self.live.keys() {
            let came = self.came[id.0 as usize].0;
            assert!(self.step <= came + self.bound(came), "{policy} starves {id:?}");
        }
    }

    /// Steps within which whoever came at step `came` is at its end.
    fn bound(&self, came: u64) -> u64 {
        let before = self.came.partition_point(|(other, ..)| *other <= came + HORIZON);
        let passing = BYPASSES * most_steps(LONGEST.0, LONGEST.1);
        HORIZON + self.came[before - 1].2 + passing
    }
}

/// Somebody always waits, more than there is room for, until beyond the bound of `first`. Returns
/// how many had their answers before it had its own.
fn run(policy: &str, first: &Arrival, mix: &[Arrival]) -> u64 {
    let mut traffic = Traffic {
        scheduler: Scheduler::new(config(), policy::by_name(policy).unwrap(), COST),
        now: Micros(0),
        step: 0,
        came: Vec::new(),
        live: BTreeMap::new(),
        completed: 0,
        dry: 0,
    };
    traffic.enqueue(first);
    let mut mix = mix.iter().cycle();
    let mut before = None;
    while traffic.step <= HORIZON || traffic.step <= traffic.bound(0) {
        while traffic.scheduler.counts().waiting < 8 {
            traffic.enqueue(mix.next().unwrap());
        }
        traffic.step();
        traffic.check(policy);
        if !traffic.live.contains_key(&RequestId(0)) {
            before.get_or_insert(traffic.completed - 1);
        }
    }
    before.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 8,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nobody_starves(
        first in arrival(),
        mix in prop::collection::vec(arrival(), 1..12),
        policy in prop::sample::select(policy::NAMES.to_vec()),
    ) {
        run(policy, &Arrival { due: None, ..first }, &mix);
    }
}

/// The largest job, of bulk work and without a deadline, under an endless stream of the smallest
/// and most urgent.
#[test]
fn the_largest_is_served_among_the_smallest() {
    let large = Arrival { prompt: 5, max: 3, actual: 3, n: 2, due: None, bulk: true };
    let small = Arrival { prompt: 1, max: 1, actual: 1, n: 1, due: Some(9), bulk: false };
    for policy in policy::NAMES {
        let before = run(policy, &large, std::slice::from_ref(&small));
        println!("{policy}: {before} before it");
        assert!(before > 1, "{policy}: the others are served as well");
    }
}
