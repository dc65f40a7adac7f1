//! An event driver: scheduler and gate over virtual time, as the engine drives them.

use std::collections::BTreeMap;

use sluice_scheduler::{
    Admission, AdmissionMode, Class, ClassConfig, ClassTable, CostModel, Deadline, Event,
    FinishReason, Gate, GateConfig, Micros, OutputLength, Request, RequestId, Scheduler,
    SchedulerConfig, SeqId, SeqOutcome, SequenceSpec, Slo, StepPlan, Terminal, Timeline, policy,
};

/// A two-core CPU with a small model.
pub(crate) const CPU: CostModel = CostModel {
    fixed_ns: 3_000_000,
    per_seq_ns: 1_000_000,
    per_context_token_ps: 2_000_000,
    per_prefill_token_ns: 1_000_000,
    per_prefill_span_ps: 100_000,
};

pub(crate) const fn config() -> SchedulerConfig {
    let slo = Slo { ttft: None, tpot: None, e2e: None };
    let class = ClassConfig { slo, max_waiting: 4_000, safety_permille: None };
    SchedulerConfig {
        num_blocks: 400,
        block_size: 32,
        max_num_seqs: 32,
        max_num_batched_tokens: 128,
        max_model_len: 2_048,
        classes: ClassTable([class; 2]),
    }
}

/// Pseudo-random numbers (xorshift), the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// One request to come, with the length that it will really have.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) request: Request,
    pub(crate) actual: u32,
}

/// Time of a request alone on the device, to its last token.
pub(crate) fn unloaded(prompt: u32, output: u32) -> Micros {
    let decode = CPU.decode(1, u64::from(prompt) + 1, output - 1);
    CPU.prefill(0, prompt, config().max_num_batched_tokens).plus(decode)
}

/// `seconds` of arrivals at `per_mille` of a rate of 1,000 a second (a coin is thrown each
/// millisecond); prompts of 32 to 224 and outputs of 16 to 112 tokens, due within four times their
/// unloaded time.
pub(crate) fn arrivals(seed: u64, seconds: u64, per_mille: u64, exact: bool) -> Vec<Arrival> {
    let mut rng = Rng(seed);
    let mut arrivals = Vec::new();
    for ms in 0..seconds * 1_000 {
        if rng.below(100_000) >= per_mille {
            continue;
        }
        let (prompt, actual) = (32 + rng.below(193) as u32, 16 + rng.below(97) as u32);
        let max = if exact { actual } else { 256 };
        let output = OutputLength { min: 0, max, predicted: 0, hint: None, exact };
        let arrival = Micros::from_millis(ms);
        let slo = Micros(unloaded(prompt, actual).0 * 4);
        arrivals.push(Arrival {
            request: Request {
                id: RequestId(arrivals.len() as u64),
                class: Class::Latency,
                arrival,
                deadline: Deadline { last_token: Some(arrival.plus(slo)), ..Deadline::default() },
                retry: 0,
                sequences: vec![SequenceSpec { prompt: 0, prompt_tokens: prompt, output }],
            },
            actual,
        });
    }
    arrivals
}

/// A pool and a gate as the driver sets them up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) mode: AdmissionMode,
    pub(crate) policy: &'static str,
    pub(crate) config: SchedulerConfig,
    /// Step times vary by up to this much, per mille.
    pub(crate) noise: u64,
}

/// What became of one offered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Shed,
    Impossible,
    Expired,
    Done { last: Micros, in_time: bool },
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) outcomes: BTreeMap<RequestId, Outcome>,
    /// Output tokens of requests that were in time.
    pub(crate) good_tokens: u64,
    pub(crate) ended: Micros,
    pub(crate) preemptions: u64,
    /// By how much the last tokens that the gate forecasts after an admission differ from those of
    /// a timeline built anew with it, per mille of the time to come.
    pub(crate) insertion_errors: Vec<u64>,
}

impl Report {
    pub(crate) fn count(&self, which: impl Fn(&Outcome) -> bool) -> u64 {
        self.outcomes.values().filter(|outcome| which(outcome)).count() as u64
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.count(|outcome| !matches!(outcome, Outcome::Shed | Outcome::Impossible))
    }

    pub(crate) fn met(&self) -> u64 {
        self.count(|outcome| matches!(outcome, Outcome::Done { in_time: true, .. }))
    }

    /// Output tokens per second of requests that were in time, by the second.
    pub(crate) fn goodput(&self) -> u64 {
        self.good_tokens * 1_000_000 / self.ended.0.max(1)
    }
}

struct Live {
    arrival: Arrival,
    tokens: Vec<u32>,
    first: Option<Micros>,
}

impl Live {
    /// Every target that its request came with was met.
    fn in_time(&self, last: Micros) -> bool {
        let first = self.first.unwrap_or(last);
        let Deadline { first_token, last_token, tpot } = self.arrival.request.deadline;
        let gaps = u64::from(self.arrival.actual - 1);
        first_token.is_none_or(|due| first <= due)
            && last_token.is_none_or(|due| last <= due)
            && tpot.is_none_or(|tpot| last.minus(first).0 <= tpot.0 * gaps)
    }
}

/// The driver.
pub(crate) struct Driver {
    setup: Setup,
    scheduler: Scheduler,
    gate: Gate,
    rng: Rng,
    now: Micros,
    live: BTreeMap<RequestId, Live>,
    report: Report,
}

impl Driver {
    pub(crate) fn new(setup: Setup) -> Driver {
        let Setup { mode, config, .. } = setup;
        let policy = || policy::by_name(setup.policy).unwrap();
        Driver {
            setup,
            scheduler: Scheduler::new(config, policy(), CPU),
            gate: Gate::new(GateConfig::new(mode, config), policy(), CPU),
            rng: Rng(7),
            now: Micros(0),
            live: BTreeMap::new(),
            report: Report::default(),
        }
    }

    /// Runs until every request has ended.
    pub(crate) fn run(mut self, arrivals: Vec<Arrival>) -> Report {
        let mut arrivals = arrivals.into_iter().peekable();
        loop {
            if self.scheduler.is_idle() {
                let Some(next) = arrivals.next() else { break };
                self.now = self.now.max(next.request.arrival);
                let admitted = self.offer(next);
                admitted.into_iter().for_each(|request| self.scheduler.enqueue(&request));
                continue;
            }
            let plan = self.scheduler.plan(self.now);
            for id in &plan.expired {
                self.end(*id, Terminal::Expired);
            }
            if plan.chunks.is_empty() {
                continue;
            }
            let predicted = CPU.step(&plan.load);
            let timeline = Timeline::build(self.now.plus(predicted), &self.scheduler);
            self.gate.install(self.now, timeline, CPU);
            let noise = self.setup.noise;
            let vary = 1_000 - noise + self.rng.below(2 * noise + 1);
            let end = self.now.plus(Micros(predicted.0 * vary / 1_000));
            let mut started = Vec::new();
            while let Some(next) = arrivals.next_if(|next| next.request.arrival < end) {
                let Some(request) = self.offer(next) else { continue };
                started.push(request);
                self.compare_with_rebuild(self.now.plus(predicted), &started);
            }
            self.now = end;
            self.complete(&plan);
            started.iter().for_each(|request| self.scheduler.enqueue(request));
        }
        assert_eq!(self.gate.num_reserved(), 0);
        self.report.ended = self.now;
        self.report.preemptions = self.scheduler.counts().preemptions;
        self.report
    }

    fn offer(&mut self, arrival: Arrival) -> Option<Request> {
        let mut request = arrival.request.clone();
        let outcome = match self.gate.admit(request.arrival, &mut request) {
            Admission::Admit(forecast) => {
                assert!(request.arrival <= forecast.first_token);
                assert!(forecast.first_token <= forecast.last_token);
                let tokens = vec![0; request.sequences.len()];
                self.live.insert(request.id, Live { arrival, tokens, first: None });
                None
            }
            Admission::Shed(shed) => {
                assert!(shed.retry_after >= Micros(1_000) && shed.retry_after.0 <= 60_000_000);
                Some(Outcome::Shed)
            }
            Admission::Unsatisfiable { predicted, budget } => {
                assert!(predicted > budget);
                Some(Outcome::Impossible)
            }
            Admission::NeverFits { needed, available } => {
                assert!(needed > available);
                Some(Outcome::Impossible)
            }
        };
        for class in Class::ALL {
            let most = self.setup.config.classes.get(class).max_waiting;
            assert!(self.gate.waiting(class) <= most, "no more than {most} wait");
        }
        match outcome {
            Some(outcome) => {
                self.report.outcomes.insert(request.id, outcome);
                None
            }
            None => Some(request),
        }
    }

    /// Compares the gate's forecasts with those of a timeline that knows `started` from the build.
    fn compare_with_rebuild(&mut self, base: Micros, started: &[Request]) {
        started.iter().for_each(|request| self.scheduler.enqueue(request));
        let rebuilt: BTreeMap<RequestId, Micros> = Timeline::build(base, &self.scheduler)
            .forecasts()
            .map(|(id, _, last)| (id, last))
            .collect();
        started.iter().for_each(|request| assert!(self.scheduler.cancel(request.id)));
        for (id, _, last) in self.gate.timeline().forecasts() {
            let to_come = rebuilt[&id].minus(base).0.max(1);
            self.report.insertion_errors.push(last.0.abs_diff(rebuilt[&id].0) * 1_000 / to_come);
        }
    }

    fn complete(&mut self, plan: &StepPlan) {
        let mut outcomes = Vec::new();
        for chunk in plan.chunks.iter().filter(|chunk| chunk.sample) {
            outcomes.push(self.token(chunk.seq));
        }
        for event in self.scheduler.complete(self.now, plan, &outcomes) {
            if let Event::RequestEnded(id, terminal) = event {
                self.end(id, terminal);
            }
        }
    }

    fn token(&mut self, seq: SeqId) -> SeqOutcome {
        let live = self.live.get_mut(&seq.request).unwrap();
        live.first.get_or_insert(self.now);
        let tokens = &mut live.tokens[seq.index as usize];
        *tokens += 1;
        if *tokens == live.arrival.actual {
            SeqOutcome::Finish(seq, FinishReason::Stop)
        } else {
            SeqOutcome::Continue(seq)
        }
    }

    fn end(&mut self, id: RequestId, terminal: Terminal) {
        let live = self.live.remove(&id).unwrap();
        let last = (terminal == Terminal::Completed).then_some(self.now);
        self.gate.finish(self.now, id, terminal, &live.tokens, live.first, last);
        let outcome = match last {
            None => Outcome::Expired,
            Some(last) => {
                let in_time = live.in_time(last);
                if in_time {
                    self.report.good_tokens += u64::from(live.tokens.iter().sum::<u32>());
                }
                Outcome::Done { last, in_time }
            }
        };
        let before = self.report.outcomes.insert(id, outcome);
        assert!(before.is_none(), "{id:?} ended twice");
        assert_eq!(self.gate.num_reserved(), self.live.len());
        if self.live.is_empty() {
            let outstanding = Class::ALL.map(|class| self.gate.outstanding(class));
            assert_eq!(outstanding, [Micros(0); 2], "the ledger is empty when nobody is inside");
        }
    }
}
