//! A scheduler and a gate with a given number of requests inside.

#![allow(dead_code, reason = "not every benchmark needs all of it")]

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use scheduler::{
    Admission, AdmissionMode, Class, ClassConfig, ClassTable, CostModel, Deadline, Event,
    FinishReason, Gate, GateConfig, Micros, OutputLength, Request, RequestId, Scheduler,
    SchedulerConfig, SeqOutcome, SequenceSpec, TenantConfig, TenantId, TenantTable, Terminal,
    Timeline, policy,
};

/// An 8B model on one H100.
pub(crate) const COST: CostModel = CostModel {
    fixed_ns: 6_440_000,
    per_seq_ns: 9_700,
    per_context_token_ps: 42_670,
    per_prefill_token_ns: 17_000,
    per_prefill_span_ps: 660,
};

/// Slots of [`Inside::new`]; the queue holds everybody else.
pub(crate) const SLOTS: u32 = 256;

/// `slots` sequences may run, and the pool has room for them.
fn config(slots: u32) -> SchedulerConfig {
    // Promises are not stretched, so that one can be made with nothing to spare.
    let safety_permille = Some(1_000);
    let class = ClassConfig { max_waiting: 100_000, safety_permille, ..ClassConfig::default() };
    SchedulerConfig {
        num_blocks: 220 * slots,
        block_size: 16,
        max_num_seqs: slots,
        max_num_batched_tokens: 2_048,
        max_model_len: 8_192,
        classes: ClassTable([class; 2]),
    }
}

/// Request `id` of a mix of lengths, with a deadline that everybody here makes.
pub(crate) fn request(id: u64, arrival: Micros) -> Request {
    let spread = |most: u64| (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % most;
    let max = 2_000 + spread(400) as u32;
    let output = OutputLength { min: 0, max, predicted: 0, hint: None, exact: true };
    let prompt_tokens = 64 + spread(1_000) as u32;
    let due = |seconds: u64| Some(arrival.plus(Micros(seconds * 1_000_000 + spread(5_000_000))));
    Request {
        id: RequestId(id),
        class: if id.is_multiple_of(4) { Class::Throughput } else { Class::Latency },
        tenant: TenantId::DEFAULT,
        borrows: false,
        arrival,
        deadline: Deadline { first_token: due(36_000), last_token: due(72_000), tpot: None },
        retry: 0,
        origin: 0,
        prefixes: Vec::new(),
        sequences: vec![SequenceSpec { prompt: 0, prompt_tokens, output }],
    }
}

/// A scheduler and its gate, in the middle of their work.
#[derive(Debug)]
pub(crate) struct Inside {
    /// The scheduler.
    pub(crate) scheduler: Scheduler,
    gate: Mutex<Gate>,
    /// Most sequences that run.
    slots: u32,
    /// The time.
    pub(crate) now: Micros,
    /// The next request's id.
    pub(crate) next_id: u64,
    /// Requests come from so many tenants in turn.
    tenants: u8,
}

impl Inside {
    /// `outstanding` requests are inside, and as many of them as can be decode.
    pub(crate) fn new(outstanding: u64) -> Inside {
        Inside::with(outstanding, SLOTS, 1)
    }

    /// The same with room for `slots` sequences in a step.
    pub(crate) fn with_slots(outstanding: u64, slots: u32) -> Inside {
        Inside::with(outstanding, slots, 1)
    }

    /// The same of so many tenants, for each of whom a tenth of the device is reserved.
    pub(crate) fn with_tenants(outstanding: u64, tenants: u8) -> Inside {
        Inside::with(outstanding, SLOTS, tenants)
    }

    fn with(outstanding: u64, slots: u32, tenants: u8) -> Inside {
        let reserved_permille = if tenants > 1 { 100 } else { 0 };
        let tenant = TenantConfig { reserved_permille, ..TenantConfig::default() };
        let table = TenantTable::new(vec![tenant; tenants.into()]).expect("within the device");
        let policy = || policy::by_name("deadline").expect("it is the default");
        let gate_config = GateConfig::new(AdmissionMode::Deadline, config(slots));
        let mut inside = Inside {
            scheduler: Scheduler::new(config(slots), policy(), COST).with_tenants(&table),
            gate: Mutex::new(Gate::new(gate_config, policy(), COST).with_tenants(&table)),
            slots,
            now: Micros(0),
            next_id: 0,
            tenants,
        };
        for entered in 0..outstanding {
            if entered % 100 == 0 {
                inside.install();
            }
            inside.enter();
        }
        let mut steps = 0;
        while inside.has_prefill() && steps < 1_000 {
            inside.step();
            steps += 1;
        }
        inside.install();
        inside
    }

    /// The gate, through the lock that the server takes for each admission too.
    pub(crate) fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().expect("nobody panics with the gate")
    }

    /// Builds a timeline and swaps it in; returns how long the gate was locked for it.
    pub(crate) fn install(&self) -> Duration {
        let timeline = Timeline::build(self.now, &self.scheduler);
        let start = Instant::now();
        let spent = self.gate().install(self.now, timeline, COST);
        let took = start.elapsed();
        drop(spent);
        took
    }

    /// The request that comes `ahead` requests after the next one.
    pub(crate) fn candidate(&self, ahead: u64) -> Request {
        let id = self.next_id + ahead;
        let tenant = TenantId((id % u64::from(self.tenants)) as u8);
        Request { tenant, ..request(id, self.now) }
    }

    /// One more request is admitted.
    fn enter(&mut self) {
        let mut request = self.candidate(0);
        self.next_id += 1;
        let admission = self.gate().admit(self.now, &mut request);
        assert!(matches!(admission, Admission::Admit(_)), "{admission:?}");
        self.scheduler.enqueue(&request);
    }

    /// Slots are free for sequences that wait.
    fn has_prefill(&self) -> bool {
        let counts = self.scheduler.counts();
        counts.waiting > 0 && counts.running < self.slots
    }

    /// Plans and completes a step; who finishes is replaced. Returns how long planning took.
    pub(crate) fn step(&mut self) -> Duration {
        let start = Instant::now();
        let plan = self.scheduler.plan(self.now);
        let took = start.elapsed();
        self.now = self.now.plus(COST.step(&plan.load));
        let sampled = plan.chunks.iter().filter(|chunk| chunk.sample);
        let outcomes: Vec<SeqOutcome> = sampled
            .map(|chunk| {
                let (prompt, max) = lengths(chunk.seq.request);
                if chunk.start + chunk.len == prompt + max - 1 {
                    SeqOutcome::Finish(chunk.seq, FinishReason::Length)
                } else {
                    SeqOutcome::Continue(chunk.seq)
                }
            })
            .collect();
        for event in self.scheduler.complete(self.now, &plan, &outcomes) {
            if let Event::RequestEnded(id, _) = event {
                self.gate().finish(self.now, id, Terminal::Completed, &[], None, None);
                self.enter();
            }
        }
        took
    }
}

fn lengths(id: RequestId) -> (u32, u32) {
    let spec = request(id.0, Micros(0)).sequences[0];
    (spec.prompt_tokens, spec.output.max)
}
