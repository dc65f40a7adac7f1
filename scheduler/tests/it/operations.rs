//! Random operations on the scheduler: every request ends exactly once, blocks and limits hold in
//! every plan, and the same input log gives the same bytes.
use std::collections::BTreeMap;
use std::fmt::Write;

use proptest::prelude::*;
use sluice_scheduler::{
    Class, ClassConfig, ClassTable, CostModel, Deadline, Event, FinishReason, Micros, OutputLength,
    Request, RequestId, Scheduler, SchedulerConfig, SeqOutcome, SequenceSpec, StepPlan, TenantId,
    policy,
};

const COST: CostModel = CostModel {
    fixed_ns: 3_000_000,
    per_seq_ns: 1_000_000,
    per_context_token_ps: 1_000_000,
    per_prefill_token_ns: 1_000_000,
    per_prefill_span_ps: 1_000,
};

/// One input of the log.
#[derive(Clone, Debug)]
enum Input {
    Enqueue { prompt: u32, max: u32, actual: u32, n: u32, slack_ms: Option<u64>, bulk: bool },
    Cancel(u64),
    Stop(u64),
    Step { fails: bool, bad_seq: bool },
}

fn input() -> impl Strategy<Value = Input> {
    let enqueue = (1..60u32, 1..30u32, 1..30u32, 1..4u32, any::<Option<u16>>(), any::<bool>())
        .prop_map(|(prompt, max, actual, n, slack, bulk)| Input::Enqueue {
            prompt,
            max,
            actual: actual.min(max),
            n,
            slack_ms: slack.map(|ms| u64::from(ms % 2_000)),
            bulk,
        });
    prop_oneof![
        4 => enqueue,
        1 => any::<u64>().prop_map(Input::Cancel),
        1 => any::<u64>().prop_map(Input::Stop),
        8 => (0..40u8).prop_map(|x| Input::Step { fails: x == 0, bad_seq: x == 1 }),
    ]
}

fn config() -> SchedulerConfig {
    let class = ClassConfig { max_waiting: 1_000, ..ClassConfig::default() };
    SchedulerConfig {
        num_blocks: 24,
        block_size: 4,
        max_num_seqs: 5,
        max_num_batched_tokens: 16,
        max_model_len: 96,
        classes: ClassTable([class; 2]),
    }
}

/// The scheduler under test, and what the test knows about its requests.
struct Harness {
    scheduler: Scheduler,
    now: Micros,
    next_id: u64,
    /// Actual length, and tokens still to come by sequence, of live requests.
    live: BTreeMap<RequestId, BTreeMap<u32, u32>>,
    computed: BTreeMap<(RequestId, u32), u32>,
    known: BTreeMap<(RequestId, u32), u32>,
    log: String,
}

impl Harness {
    fn new(policy: &str) -> Harness {
        let policy = policy::by_name(policy).unwrap();
        Harness {
            scheduler: Scheduler::new(config(), policy, COST),
            now: Micros(0),
            next_id: 0,
            live: BTreeMap::new(),
            computed: BTreeMap::new(),
            known: BTreeMap::new(),
            log: String::new(),
        }
    }

    fn apply(&mut self, input: &Input) {
        match *input {
            Input::Enqueue { prompt, max, actual, n, slack_ms, bulk } => {
                self.enqueue(prompt, max, actual, n, slack_ms, bulk);
            }
            Input::Cancel(pick) => {
                if let Some(id) = self.pick(pick) {
                    assert!(self.scheduler.cancel(id));
                    assert!(!self.scheduler.cancel(id), "a request is cancelled once");
                    self.live.remove(&id);
                }
            }
            Input::Stop(pick) => {
                if let Some(id) = self.pick(pick) {
                    let index = *self.live[&id].keys().next().unwrap();
                    let seq = sluice_scheduler::SeqId { request: id, index };
                    self.live.get_mut(&id).unwrap().remove(&index);
                    let events = self.scheduler.stop(seq);
                    assert!(!events.is_empty());
                    self.book(&events);
                }
            }
            Input::Step { fails, bad_seq } => self.step(fails, bad_seq),
        }
        self.check();
    }

    fn pick(&self, pick: u64) -> Option<RequestId> {
        let n = self.live.len().max(1) as u64;
        self.live.keys().nth((pick % n) as usize).copied()
    }

    fn enqueue(
        &mut self,
        prompt: u32,
        max: u32,
        actual: u32,
        n: u32,
        slack_ms: Option<u64>,
        bulk: bool,
    ) {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let predicted = (max / 2).max(1);
        let output = OutputLength { min: 0, max, predicted, hint: None, exact: false };
        let spec = SequenceSpec { prompt: 0, prompt_tokens: prompt, output };
        let due = slack_ms.map(|ms| self.now.plus(Micros::from_millis(ms)));
        let request = Request {
            id,
            class: if bulk { Class::Throughput } else { Class::Latency },
            tenant: TenantId::DEFAULT,
            borrows: false,
            arrival: self.now,
            deadline: Deadline { first_token: due, ..Deadline::default() },
            retry: 0,
            origin: 0,
            prefixes: Vec::new(),
            sequences: vec![spec; n as usize],
        };
        self.scheduler.enqueue(&request);
        self.live.insert(id, (0..n).map(|i| (i, actual)).collect());
        for i in 0..n {
            self.known.insert((id, i), prompt);
        }
    }

    fn step(&mut self, fails: bool, bad_seq: bool) {
        let plan = self.scheduler.plan(self.now);
        writeln!(self.log, "{:?} {plan:?}", self.now).unwrap();
        for id in &plan.expired {
            assert!(self.live.remove(id).is_some(), "{id:?} expired but was not live");
        }
        self.check_plan(&plan);
        if plan.chunks.is_empty() {
            assert!(self.live.is_empty(), "there is work and nothing is planned");
            return;
        }
        self.now = self.now.plus(COST.step(&plan.load));
        let events = if fails {
            for chunk in &plan.chunks {
                self.live.remove(&chunk.seq.request);
            }
            self.scheduler.fail(&plan)
        } else {
            let outcomes = self.outcomes(&plan, bad_seq);
            self.scheduler.complete(self.now, &plan, &outcomes)
        };
        self.book(&events);
    }

    fn outcomes(&mut self, plan: &StepPlan, bad_seq: bool) -> Vec<SeqOutcome> {
        let mut outcomes = Vec::new();
        for chunk in plan.chunks.iter().filter(|chunk| chunk.sample) {
            let Some(request) = self.live.get_mut(&chunk.seq.request) else { continue };
            if bad_seq {
                self.live.remove(&chunk.seq.request);
                outcomes.push(SeqOutcome::Fail(chunk.seq));
                continue;
            }
            let left = request.get_mut(&chunk.seq.index).unwrap();
            *left -= 1;
            if *left == 0 {
                request.remove(&chunk.seq.index);
                outcomes.push(SeqOutcome::Finish(chunk.seq, FinishReason::Stop));
            } else {
                *self.known.get_mut(&(chunk.seq.request, chunk.seq.index)).unwrap() += 1;
                outcomes.push(SeqOutcome::Continue(chunk.seq));
            }
        }
        outcomes
    }

    /// A request ends when nothing of it is left, and only once: the map forgets it then.
    fn book(&mut self, events: &[Event]) {
        writeln!(self.log, "{events:?}").unwrap();
        for event in events {
            let Event::RequestEnded(id, _) = event else { continue };
            let rest = self.live.remove(id).unwrap_or_default();
            assert!(rest.is_empty(), "{id:?} ended with sequences left");
        }
        for (id, rest) in &self.live {
            assert!(!rest.is_empty(), "{id:?} has no sequence left and did not end");
        }
    }

    fn check_plan(&mut self, plan: &StepPlan) {
        let limits = config();
        let tokens: u32 = plan.chunks.iter().map(|chunk| chunk.len).sum();
        assert!(tokens <= limits.max_num_batched_tokens);
        assert!(plan.chunks.len() <= limits.max_num_seqs as usize);
        for seq in &plan.preempted {
            self.computed.remove(&(seq.request, seq.index));
        }
        for chunk in &plan.chunks {
            let key = (chunk.seq.request, chunk.seq.index);
            let before = self.computed.insert(key, chunk.start + chunk.len);
            let shared = chunk.start % limits.block_size == 0;
            assert!(before.map_or(shared, |computed| computed == chunk.start));
            let end = chunk.start + chunk.len;
            assert!(chunk.len > 0 && end <= self.known[&key]);
            assert_eq!(chunk.sample, end == self.known[&key]);
            let table = self.scheduler.blocks(chunk.seq);
            assert!(table.len() as u32 * limits.block_size >= end, "the table covers the chunk");
        }
    }

    fn check(&self) {
        let counts = self.scheduler.counts();
        let sequences: usize = self.live.values().map(BTreeMap::len).sum();
        assert_eq!((counts.waiting + counts.running) as usize, sequences);
        assert_eq!(self.scheduler.is_idle(), sequences == 0);
        if sequences == 0 {
            assert_eq!(counts.free_blocks, counts.num_blocks);
        }
    }

    /// Steps until idle, within a bound.
    fn drain(&mut self) {
        for _ in 0..20_000 {
            if self.scheduler.is_idle() {
                return;
            }
            self.step(false, false);
            self.check();
        }
        panic!("requests never end: {:?}", self.live);
    }
}

fn run(policy: &str, inputs: &[Input]) -> String {
    let mut harness = Harness::new(policy);
    for input in inputs {
        harness.apply(input);
    }
    harness.drain();
    harness.log
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_request_ends_once_and_the_log_repeats(
        inputs in prop::collection::vec(input(), 1..120),
        policy in prop::sample::select(policy::NAMES.to_vec()),
    ) {
        prop_assert_eq!(run(policy, &inputs), run(policy, &inputs));
    }
}
