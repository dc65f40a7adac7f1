//! Gate and scheduler together from a cold start, under the default targets of a server.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::Lengths;
use crate::class::{Class, ClassConfig, ClassTable, Slo};
use crate::plan::{Event, SeqOutcome};
use crate::policy::by_name;
use crate::request::{
    Deadline, FinishReason, OutputLength, Request, RequestId, SequenceSpec, Terminal,
};
use crate::{
    Admission, AdmissionMode, CostModel, Gate, GateConfig, Micros, Scheduler, SchedulerConfig,
    StepLoad, TenantId, Timeline,
};

/// A device, and how its users come.
struct Device {
    cost: CostModel,
    num_blocks: u32,
    max_num_seqs: u32,
    max_num_batched_tokens: u32,
    prompt: u32,
    every: Micros,
}

const H100: Device = Device {
    cost: CostModel {
        fixed_ns: 6_440_000,
        per_seq_ns: 9_700,
        per_context_token_ps: 42_670,
        per_prefill_token_ns: 17_000,
        per_prefill_span_ps: 660,
    },
    num_blocks: 28_125,
    max_num_seqs: 256,
    max_num_batched_tokens: 2_048,
    prompt: 1_000,
    every: Micros(10_000),
};

const CPU: Device = Device {
    cost: CostModel {
        fixed_ns: 6_000_000,
        per_seq_ns: 1_600_000,
        per_context_token_ps: 1_000_000,
        per_prefill_token_ns: 1_300_000,
        per_prefill_span_ps: 107_000,
    },
    num_blocks: 4_096,
    max_num_seqs: 32,
    max_num_batched_tokens: 128,
    prompt: 60,
    every: Micros(60_000),
};

struct World {
    gate: Gate,
    scheduler: Scheduler,
    now: Micros,
    tpot: Micros,
    /// Tokens so far, and when the first came.
    inside: BTreeMap<RequestId, (u32, Option<Micros>)>,
    /// Whether each request was admitted, in order.
    admitted: Vec<bool>,
    finished: u32,
}

impl World {
    fn new(device: &Device) -> World {
        let alone = StepLoad { decode_seqs: 1, context_tokens: 512, ..StepLoad::default() };
        let tpot = Micros(device.cost.step(&alone).0 * 4);
        let slo = Slo { ttft: Some(Micros(1_500_000)), tpot: Some(tpot), e2e: None };
        let class = ClassConfig { slo, max_waiting: 256, ..ClassConfig::default() };
        let config = SchedulerConfig {
            num_blocks: device.num_blocks,
            block_size: 16,
            max_num_seqs: device.max_num_seqs,
            max_num_batched_tokens: device.max_num_batched_tokens,
            max_model_len: 8_192,
            classes: ClassTable([class; 2]),
        };
        let policy = || by_name("deadline").unwrap();
        World {
            gate: Gate::new(
                GateConfig::new(AdmissionMode::Deadline, config),
                policy(),
                device.cost,
            ),
            scheduler: Scheduler::new(config, policy(), device.cost),
            now: Micros(0),
            tpot,
            inside: BTreeMap::new(),
            admitted: Vec::new(),
            finished: 0,
        }
    }

    fn offer(&mut self, at: Micros, prompt_tokens: u32) -> Option<Request> {
        let output = OutputLength { min: 0, max: 4_096, predicted: 0, hint: None, exact: false };
        let mut request = Request {
            id: RequestId(self.admitted.len() as u64),
            class: Class::Latency,
            tenant: TenantId::DEFAULT,
            borrows: false,
            arrival: at,
            deadline: Deadline {
                first_token: Some(at.plus(Micros(1_500_000))),
                last_token: None,
                tpot: Some(self.tpot),
            },
            retry: 0,
            origin: 0,
            prefixes: Vec::new(),
            sequences: vec![SequenceSpec { prompt: 0, prompt_tokens, output }],
        };
        let entered = matches!(self.gate.admit(at, &mut request), Admission::Admit(_));
        self.admitted.push(entered);
        if entered {
            self.inside.insert(request.id, (0, None));
        }
        entered.then_some(request)
    }

    /// Offers a request of `device` at each of its intervals until `enough`; answers have the
    /// lengths that `actual` gives by number.
    fn run(
        &mut self,
        device: &Device,
        actual: impl Fn(u64) -> u32,
        enough: impl Fn(&World) -> bool,
    ) {
        let mut next = Micros(0);
        while !enough(self) {
            if self.scheduler.is_idle() {
                self.now = self.now.max(next);
                next = next.plus(device.every);
                let request = self.offer(self.now, device.prompt);
                request.iter().for_each(|request| self.scheduler.enqueue(request));
                continue;
            }
            let plan = self.scheduler.plan(self.now);
            for id in &plan.expired {
                self.inside.remove(id);
                self.gate.finish(self.now, *id, Terminal::Expired, &[0], None, None);
            }
            let end = self.now.plus(device.cost.step(&plan.load));
            let timeline = Timeline::build(end, &self.scheduler);
            self.gate.install(self.now, timeline, device.cost);
            let mut started = Vec::new();
            while next < end {
                started.extend(self.offer(next, device.prompt));
                next = next.plus(device.every);
            }
            self.now = end;
            let mut outcomes = Vec::new();
            for chunk in plan.chunks.iter().filter(|chunk| chunk.sample) {
                let id = chunk.seq.request;
                let (tokens, first) = self.inside.get_mut(&id).unwrap();
                *tokens += 1;
                first.get_or_insert(end);
                outcomes.push(if *tokens == actual(id.0) {
                    SeqOutcome::Finish(chunk.seq, FinishReason::Stop)
                } else {
                    SeqOutcome::Continue(chunk.seq)
                });
            }
            for event in self.scheduler.complete(end, &plan, &outcomes) {
                let Event::RequestEnded(id, terminal) = event else { continue };
                let (tokens, first) = self.inside.remove(&id).unwrap();
                self.gate.finish(end, id, terminal, &[tokens], first, Some(end));
                self.finished += 1;
            }
            started.iter().for_each(|request| self.scheduler.enqueue(request));
        }
    }

    fn lengths(&self) -> &Lengths {
        assert_eq!(self.gate.lengths(), &self.scheduler.lengths, "both have seen the same");
        &self.scheduler.lengths
    }
}

/// Answers of a hundred tokens, more or less, where 4,096 are allowed.
fn short(number: u64) -> u32 {
    60 + (number * 37 % 81) as u32
}

#[test]
fn a_cold_gate_admits_some_of_an_overload_and_not_all() {
    for device in [H100, CPU] {
        let mut world = World::new(&device);
        // Nothing finishes meanwhile: everything is decided by the prior.
        world.run(&device, |_| 5_000, |world| world.now > Micros(4_000_000));
        let (offered, entered) =
            (world.admitted.len(), world.admitted.iter().filter(|entered| **entered).count());
        assert!(entered * 10 >= offered, "{entered} of {offered}");
        assert!(entered * 20 <= offered * 19, "{entered} of {offered}");
    }
}

#[test]
fn gate_and_scheduler_learn_the_same_within_fifty_answers() {
    for device in [H100, CPU] {
        let mut world = World::new(&device);
        world.run(&device, short, |world| world.finished >= 50);
        let output = OutputLength { min: 0, max: 4_096, predicted: 0, hint: None, exact: false };
        let predicted = world.lengths().predict(Class::Latency, device.prompt, &output, 0);
        assert!((85..=115).contains(&predicted), "{predicted}");
    }
}
