//! More work than KV blocks, every way that it can go: all interleavings of a few sequences with
//! all lengths that they may turn out to have, for every policy. From each state the next step
//! computes something (no deadlock), nobody loses its blocks more often than is promised, and every
//! way ends within a stated number of steps (no livelock).

use std::collections::BTreeSet;

use sluice_scheduler::sequence::MAX_PREEMPTIONS;
use sluice_scheduler::{
    Class, ClassConfig, ClassTable, CostModel, Deadline, FinishReason, Micros, OutputLength,
    Request, RequestId, Scheduler, SchedulerConfig, SeqOutcome, SequenceSpec, TenantId, policy,
};

const COST: CostModel = CostModel {
    fixed_ns: 1_000_000,
    per_seq_ns: 0,
    per_context_token_ps: 0,
    per_prefill_token_ns: 100_000,
    per_prefill_span_ps: 10_000,
};

const STEP: Micros = Micros(1_000);

/// Prompt tokens, most output tokens, sequences, milliseconds to the first token if it is due.
type Shape = (u32, u32, u32, Option<u64>);

/// What happens before and in one step: whether the next request comes, and of the sampled
/// sequences those that end, as bits.
type Choice = (bool, u32);

struct Pool {
    blocks: u32,
    block_size: u32,
    shapes: &'static [Shape],
}

impl Pool {
    fn config(&self) -> SchedulerConfig {
        let class = ClassConfig { max_waiting: 9, ..ClassConfig::default() };
        SchedulerConfig {
            num_blocks: self.blocks,
            block_size: self.block_size,
            max_num_seqs: 3,
            max_num_batched_tokens: 4,
            max_model_len: 64,
            classes: ClassTable([class; 2]),
        }
    }

    /// The request number `place`. Its answer is always longer than predicted, if it goes on.
    fn request(&self, place: usize, now: Micros) -> Request {
        let (prompt_tokens, max, n, due_ms) = self.shapes[place];
        let output = OutputLength { min: 0, max, predicted: 1, hint: None, exact: false };
        let first_token = due_ms.map(|ms| now.plus(Micros::from_millis(ms)));
        Request {
            id: RequestId(place as u64),
            class: Class::ALL[place % 2],
            tenant: TenantId::DEFAULT,
            borrows: false,
            arrival: now,
            deadline: Deadline { first_token, ..Deadline::default() },
            retry: 0,
            origin: 0,
            prefixes: Vec::new(),
            sequences: vec![SequenceSpec { prompt: 0, prompt_tokens, output }; n as usize],
        }
    }

    /// Each token may be computed once and again after each preemption, in steps of its own.
    fn most_steps(&self) -> usize {
        let tokens = |(prompt, max, n, _): &Shape| (prompt + max) * n;
        let all: u32 = self.shapes.iter().map(tokens).sum();
        (all * (1 + u32::from(MAX_PREEMPTIONS))) as usize + self.shapes.len()
    }

    /// Follows `way` and then takes `choice`. Returns how many sampled, with the state that follows
    /// if `choice` makes sense; a state in which all have come and nobody is left is over.
    fn follow(&self, policy: &str, way: &[Choice], choice: Choice) -> (u32, Option<Reached>) {
        let policy = policy::by_name(policy).unwrap();
        let mut scheduler = Scheduler::new(self.config(), policy, COST);
        let (mut now, mut come, mut sampled) = (Micros(0), 0, 0);
        let mut generated = vec![[0; 3]; self.shapes.len()];
        let mut preempted = vec![[0; 3]; self.shapes.len()];
        for (arrives, ends) in way.iter().copied().chain([choice]) {
            if arrives {
                if come == self.shapes.len() {
                    return (0, None);
                }
                scheduler.enqueue(&self.request(come, now));
                come += 1;
            }
            if scheduler.is_idle() {
                return (0, None);
            }
            let plan = scheduler.plan(now);
            assert!(!plan.chunks.is_empty() || scheduler.is_idle(), "deadlock: {scheduler:?}");
            for seq in &plan.preempted {
                let times = &mut preempted[seq.request.0 as usize][seq.index as usize];
                *times += 1;
                assert!(*times <= MAX_PREEMPTIONS, "{seq:?} is preempted again and again");
            }
            now = now.plus(STEP);
            let mut outcomes = Vec::new();
            for chunk in plan.chunks.iter().filter(|chunk| chunk.sample) {
                let tokens = &mut generated[chunk.seq.request.0 as usize][chunk.seq.index as usize];
                *tokens += 1;
                let last = *tokens == self.shapes[chunk.seq.request.0 as usize].1;
                let ends = last || ends & 1 << outcomes.len() != 0;
                outcomes.push(match ends {
                    true => SeqOutcome::Finish(chunk.seq, FinishReason::Stop),
                    false => SeqOutcome::Continue(chunk.seq),
                });
            }
            sampled = outcomes.len() as u32;
            scheduler.complete(now, &plan, &outcomes);
        }
        let over = scheduler.is_idle() && come == self.shapes.len();
        (sampled, Some(Reached { key: format!("{come} {scheduler:?}"), over }))
    }
}

/// A state, and whether everything is over in it.
struct Reached {
    key: String,
    over: bool,
}

/// Every state that can be reached, step by step; returns how many there were and how many steps
/// the longest way took.
fn explore(pool: &Pool, policy: &str) -> (usize, usize) {
    let mut layer: Vec<Vec<Choice>> = vec![Vec::new()];
    let (mut states, mut steps) = (0, 0);
    while !layer.is_empty() {
        assert!(steps <= pool.most_steps(), "{policy} does not come to an end: {:?}", layer[0]);
        let (mut seen, mut next) = (BTreeSet::new(), Vec::new());
        for way in &layer {
            for arrives in [false, true] {
                let (sampled, _) = pool.follow(policy, way, (arrives, 0));
                for ends in 0..1 << sampled {
                    let choice = (arrives, ends);
                    let (_, Some(reached)) = pool.follow(policy, way, choice) else { continue };
                    if !reached.over && seen.insert(reached.key) {
                        next.push([&way[..], &[choice]].concat());
                    }
                }
            }
        }
        states += seen.len();
        steps += 1;
        layer = next;
    }
    (states, steps)
}

fn nothing_gets_stuck(pool: &Pool) {
    for name in policy::NAMES {
        let (states, steps) = explore(pool, name);
        println!("{name}: {states} states, {steps} of at most {} steps", pool.most_steps());
        assert!(states > 100, "{name}: only {states} states");
    }
}

#[test]
fn three_that_outgrow_the_pool_come_to_an_end() {
    let shapes = &[(2, 4, 1, None), (3, 3, 1, None), (1, 4, 1, None)];
    nothing_gets_stuck(&Pool { blocks: 6, block_size: 1, shapes });
}

#[test]
fn siblings_and_deadlines_in_a_small_pool_come_to_an_end() {
    let shapes = &[(3, 3, 2, None), (4, 3, 1, Some(3)), (2, 2, 1, None)];
    nothing_gets_stuck(&Pool { blocks: 4, block_size: 2, shapes });
}
