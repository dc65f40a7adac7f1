//! The virtual token counter: of two tenants that always have something waiting, neither gets ahead
//! of the other by more than a bound, over any time, however they use it.

use std::collections::BTreeSet;

use proptest::prelude::*;
use scheduler::{
    Class, ClassConfig, ClassTable, CostModel, Deadline, FinishReason, Micros, OutputLength,
    Request, RequestId, Scheduler, SchedulerConfig, SeqOutcome, SequenceSpec, TenantId, policy,
};

const COST: CostModel = CostModel {
    fixed_ns: 1_000_000,
    per_seq_ns: 0,
    per_context_token_ps: 0,
    per_prefill_token_ns: 100_000,
    per_prefill_span_ps: 0,
};

/// Longest prompt and answer of all.
const LONGEST: (u32, u32) = (40, 20);

const SLOTS: u32 = 4;

/// Prompt and answer of a tenant's requests in turn, and how many of them wait before each step:
/// more than there are slots, so that one is left whatever the step takes in. Who has nothing left
/// for a moment is lifted when the next one comes, and the bound is not about it.
#[derive(Clone, Debug)]
struct Habit {
    lengths: Vec<(u32, u32)>,
    waiting: usize,
}

fn habit() -> impl Strategy<Value = Habit> {
    let lengths = prop::collection::vec((1..=LONGEST.0, 1..=LONGEST.1), 1..6);
    (lengths, SLOTS as usize + 1..20).prop_map(|(lengths, waiting)| Habit { lengths, waiting })
}

/// Twice what a tenant can be served after it was last the one served least: the prompt that was
/// taken in then, and all that a whole batch may write, output counting twice. Sheng et al. 2024,
/// theorem 4.4, count prompts of the whole batch too.
fn bound(habits: &[Habit; 2]) -> i64 {
    let lengths = || habits.iter().flat_map(|habit| &habit.lengths);
    let input = lengths().map(|(input, _)| *input).max().unwrap();
    let output = lengths().map(|(_, output)| *output).max().unwrap();
    2 * i64::from(input + 2 * output * SLOTS)
}

struct Device {
    scheduler: Scheduler,
    habits: [Habit; 2],
    /// Tenant and answer of each request that came.
    came: Vec<(usize, u32)>,
    /// Requests that were not started.
    waiting: [BTreeSet<RequestId>; 2],
    left: Vec<u32>,
    served: [i64; 2],
}

impl Device {
    fn new(policy: &str, habits: [Habit; 2]) -> Device {
        let class = ClassConfig { max_waiting: 99, ..ClassConfig::default() };
        let config = SchedulerConfig {
            num_blocks: 1_000,
            block_size: 4,
            max_num_seqs: SLOTS,
            max_num_batched_tokens: 32,
            max_model_len: 128,
            classes: ClassTable([class; 2]),
        };
        let scheduler = Scheduler::new(config, policy::by_name(policy).unwrap(), COST);
        let waiting = [BTreeSet::new(), BTreeSet::new()];
        Device { scheduler, habits, came: Vec::new(), waiting, left: Vec::new(), served: [0; 2] }
    }

    fn fill(&mut self, tenant: usize, now: Micros) {
        while self.waiting[tenant].len() < self.habits[tenant].waiting {
            let id = RequestId(self.came.len() as u64);
            let lengths = &self.habits[tenant].lengths;
            let mine = self.came.iter().filter(|(of, _)| *of == tenant).count();
            let (prompt_tokens, answer) = lengths[mine % lengths.len()];
            let output =
                OutputLength { min: 0, max: LONGEST.1, predicted: 9, hint: None, exact: false };
            self.scheduler.enqueue(&Request {
                id,
                class: Class::Latency,
                tenant: TenantId(tenant as u8),
                borrows: false,
                arrival: now,
                deadline: Deadline::default(),
                retry: 0,
                origin: 0,
                prefixes: Vec::new(),
                sequences: vec![SequenceSpec { prompt: 0, prompt_tokens, output }],
            });
            self.came.push((tenant, answer));
            self.left.push(answer);
            self.waiting[tenant].insert(id);
        }
    }

    fn step(&mut self, now: Micros) {
        let plan = self.scheduler.plan(now);
        let mut outcomes = Vec::new();
        for chunk in &plan.chunks {
            let id = chunk.seq.request;
            let (tenant, _) = self.came[id.0 as usize];
            if self.waiting[tenant].remove(&id) {
                let lengths = &self.habits[tenant].lengths;
                let before = self.came[..id.0 as usize].iter().filter(|(of, _)| *of == tenant);
                self.served[tenant] += i64::from(lengths[before.count() % lengths.len()].0);
            }
            if chunk.sample {
                self.served[tenant] += 2;
                let left = &mut self.left[id.0 as usize];
                *left -= 1;
                outcomes.push(match *left {
                    0 => SeqOutcome::Finish(chunk.seq, FinishReason::Stop),
                    _ => SeqOutcome::Continue(chunk.seq),
                });
            }
        }
        self.scheduler.complete(now, &plan, &outcomes);
    }
}

/// The most by which one tenant gets ahead of the other over any time while both have something
/// waiting. The second comes after `alone` steps.
fn most_ahead(policy: &str, habits: [Habit; 2], alone: u64) -> i64 {
    let mut device = Device::new(policy, habits);
    let (mut least, mut most) = (i64::MAX, i64::MIN);
    for step in 0..alone + 400 {
        let now = Micros(step * 10_000);
        device.fill(0, now);
        if step >= alone {
            device.fill(1, now);
            let ahead = device.served[0] - device.served[1];
            (least, most) = (least.min(ahead), most.max(ahead));
        }
        device.step(now);
    }
    most - least
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nobody_gets_ahead_by_more_than_the_bound(
        one in habit(),
        other in habit(),
        alone in 0..200u64,
    ) {
        let habits = [one, other];
        let ahead = most_ahead("vtc", habits.clone(), alone);
        prop_assert!(ahead <= bound(&habits), "{ahead} of at most {}", bound(&habits));
    }
}

#[test]
fn first_come_first_served_goes_beyond_the_bound() {
    let greedy = Habit { lengths: vec![LONGEST], waiting: 19 };
    let modest = Habit { lengths: vec![(1, 1)], waiting: 5 };
    let habits = [greedy, modest];
    let bound = bound(&habits);
    let of = |policy| most_ahead(policy, habits.clone(), 50);
    assert!(of("fcfs") > 4 * bound, "{}", of("fcfs"));
    assert!(of("vtc") <= bound, "{}", of("vtc"));
}
