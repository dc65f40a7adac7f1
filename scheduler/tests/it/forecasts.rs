//! The forecast against what comes of it: exact while nobody comes later, and never better by an
//! insertion.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sluice_scheduler::{
    Admission, AdmissionMode, Class, ClassConfig, ClassTable, CostModel, Deadline, Event,
    FinishReason, Gate, GateConfig, Micros, OutputLength, Request, RequestId, Scheduler,
    SchedulerConfig, SeqId, SeqOutcome, SequenceSpec, StepLoad, StepPlan, TenantId, Terminal,
    Timeline, policy,
};

pub(crate) const COST: CostModel = CostModel {
    fixed_ns: 3_000_000,
    per_seq_ns: 1_000_000,
    per_context_token_ps: 2_000_000,
    per_prefill_token_ns: 1_000_000,
    per_prefill_span_ps: 100_000,
};

fn config(num_blocks: u32, slots: u32) -> SchedulerConfig {
    let class = ClassConfig { max_waiting: 1_000, ..ClassConfig::default() };
    SchedulerConfig {
        num_blocks,
        block_size: 8,
        max_num_seqs: slots,
        max_num_batched_tokens: 32 + slots,
        max_model_len: 400,
        classes: ClassTable([class; 2]),
    }
}

pub(crate) fn request(id: u64, arrival: Micros, prompt: u32, tokens: u32, n: usize) -> Request {
    let output = OutputLength { min: 0, max: tokens, predicted: tokens, hint: None, exact: true };
    Request {
        id: RequestId(id),
        class: Class::Latency,
        tenant: TenantId::DEFAULT,
        borrows: false,
        arrival,
        deadline: Deadline::default(),
        retry: 0,
        origin: 0,
        prefixes: Vec::new(),
        sequences: vec![SequenceSpec { prompt: 0, prompt_tokens: prompt, output }; n],
    }
}

pub(crate) type Times = BTreeMap<RequestId, (Micros, Micros)>;

/// First and last token of each request: those of its slowest sequence.
pub(crate) fn forecasts(timeline: &Timeline) -> Times {
    let mut times = Times::new();
    for (id, first, last) in timeline.forecasts() {
        let slowest = times.entry(id).or_insert((first, last));
        *slowest = (slowest.0.max(first), slowest.1.max(last));
    }
    times
}

/// A scheduler whose steps take exactly what they are predicted to take.
pub(crate) struct World {
    pub(crate) scheduler: Scheduler,
    now: Micros,
    steps: u64,
    /// Of each sequence that has one: its output so far, its first and its latest token.
    tokens: BTreeMap<SeqId, (u32, Micros, Micros)>,
    lengths: BTreeMap<RequestId, u32>,
}

impl World {
    pub(crate) fn new(num_blocks: u32, slots: u32) -> World {
        let policy = policy::by_name("deadline").unwrap();
        World {
            scheduler: Scheduler::new(config(num_blocks, slots), policy, COST),
            now: Micros(0),
            steps: 0,
            tokens: BTreeMap::new(),
            lengths: BTreeMap::new(),
        }
    }

    pub(crate) fn enqueue(&mut self, request: &Request) {
        self.lengths.insert(request.id, request.sequences[0].output.max);
        self.scheduler.enqueue(request);
    }

    /// Plans a step; returns it, when it will end, and the timeline from there.
    pub(crate) fn plan(&mut self) -> (StepPlan, Micros, Timeline) {
        let plan = self.scheduler.plan(self.now);
        assert!(!plan.chunks.is_empty() && plan.preempted.is_empty());
        let end = self.now.plus(COST.step(&plan.load));
        (plan, end, Timeline::build(end, &self.scheduler))
    }

    /// Runs the step; returns who ended.
    pub(crate) fn complete(&mut self, plan: &StepPlan, end: Micros) -> Vec<RequestId> {
        (self.now, self.steps) = (end, self.steps + 1);
        let mut outcomes = Vec::new();
        for chunk in plan.chunks.iter().filter(|chunk| chunk.sample) {
            let (count, _, latest) = self.tokens.entry(chunk.seq).or_insert((0, end, end));
            (*count, *latest) = (*count + 1, end);
            let last = *count == self.lengths[&chunk.seq.request];
            outcomes.push(match last {
                true => SeqOutcome::Finish(chunk.seq, FinishReason::Length),
                false => SeqOutcome::Continue(chunk.seq),
            });
        }
        let events = self.scheduler.complete(end, plan, &outcomes);
        let ended = |event: &Event| match event {
            Event::RequestEnded(id, _) => Some(*id),
            Event::SequenceFinished(..) => None,
        };
        events.iter().filter_map(ended).collect()
    }

    /// Sequences that have a token and have not ended.
    pub(crate) fn decoding(&self) -> impl Iterator<Item = SeqId> {
        let lives = |(seq, (count, ..)): &(&SeqId, &(u32, Micros, Micros))| {
            *count < self.lengths[&seq.request]
        };
        self.tokens.iter().filter(lives).map(|(seq, _)| *seq)
    }

    /// First and last token of a request's slowest sequences.
    pub(crate) fn came(&self, id: RequestId) -> (Micros, Micros) {
        let of_request = self.tokens.iter().filter(|(seq, _)| seq.request == id);
        of_request.fold((Micros(0), Micros(0)), |slowest, (_, (_, first, last))| {
            (slowest.0.max(*first), slowest.1.max(*last))
        })
    }
}

/// Prompt, output length, and choices of a request.
fn shape(most_choices: usize) -> impl Strategy<Value = (u32, u32, usize)> {
    (1..120u32, 1..60u32, 1..=most_choices)
}

/// Replays whole runs to which nobody comes later, and returns by how much the forecast of any
/// step was off for any token, with the number of steps.
fn worst_error(num_blocks: u32, slots: u32, shapes: &[(u32, u32, usize)]) -> (Micros, u64) {
    let mut world = World::new(num_blocks, slots);
    for (id, (prompt, tokens, n)) in shapes.iter().enumerate() {
        world.enqueue(&request(id as u64, Micros(id as u64), *prompt, *tokens, *n));
    }
    let mut made = Vec::new();
    while !world.scheduler.is_idle() {
        let (plan, end, timeline) = world.plan();
        made.push((end, forecasts(&timeline)));
        world.complete(&plan, end);
    }
    let off = |a: Micros, b: Micros| a.minus(b).max(b.minus(a));
    let mut worst = Micros(0);
    for (base, forecasts) in made {
        for (id, (first, last)) in forecasts {
            let (came, ended) = world.came(id);
            worst = worst.max(off(last, ended));
            // What has come already is not forecast.
            if came > base {
                worst = worst.max(off(first, came));
            }
        }
    }
    (worst, world.steps)
}

pub(crate) fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(64))]

    /// With room for everybody's blocks the replay plans what the planner will plan: all forecasts
    /// are met, but for what the closed forms round (less than a microsecond a step).
    #[test]
    fn forecasts_are_met_when_nobody_comes_later(
        shapes in prop::collection::vec(shape(1), 1..24),
    ) {
        let (worst, steps) = worst_error(1_000, 4, &shapes);
        prop_assert!(worst.0 <= steps, "{worst:?} in {steps} steps");
    }

    /// The same where choices wait for the prompt that they share, and others go before them
    /// meanwhile; none ends before its siblings have begun, because there are slots for all.
    #[test]
    fn forecasts_of_choices_are_met_too(
        shapes in prop::collection::vec((1..120u32, Just(50), 1..=3usize), 1..16),
    ) {
        let (worst, steps) = worst_error(1_000, 48, &shapes);
        prop_assert!(worst.0 <= steps, "{worst:?} in {steps} steps");
    }

    /// And where blocks are short: small requests go past a large one.
    #[test]
    fn forecasts_are_met_when_blocks_are_short(
        shapes in prop::collection::vec(shape(1), 1..24),
    ) {
        let (worst, steps) = worst_error(24, 4, &shapes);
        prop_assert!(worst.0 <= steps, "{worst:?} in {steps} steps");
    }

    /// Admissions make nobody's forecast better, neither in the timeline nor in what is carried,
    /// and while there is none, what is carried is the forecast.
    #[test]
    fn admissions_only_delay(
        shapes in prop::collection::vec((shape(2), 0..3u32), 2..24),
    ) {
        let mut world = World::new(1_000, 4);
        let policy = policy::by_name("deadline").unwrap();
        let limits = GateConfig::new(AdmissionMode::Deadline, config(1_000, 4));
        let mut gate = Gate::new(limits, policy, COST);
        let mut arrivals = shapes.iter().zip(0..).peekable();
        let mut started: Vec<Request> = Vec::new();
        let mut newest = None;
        while arrivals.peek().is_some() || !world.scheduler.is_idle() || !started.is_empty() {
            started.drain(..).for_each(|request| world.enqueue(&request));
            let step = (!world.scheduler.is_idle()).then(|| world.plan());
            if let Some((_, _, timeline)) = &step {
                gate.install(world.now, timeline.clone(), COST);
            }
            // Some arrive together, others a step or two apart.
            for ((shape, gap), id) in arrivals.by_ref() {
                let (prompt, tokens, n) = *shape;
                let before = forecasts(gate.timeline());
                let mut request = request(id, world.now, prompt, tokens, n);
                let admission = gate.admit(world.now, &mut request);
                prop_assert!(matches!(admission, Admission::Admit(_)));
                let after = forecasts(gate.timeline());
                for (id, (first, last)) in before {
                    prop_assert!(first <= after[&id].0 && last <= after[&id].1, "{:?}", id);
                }
                newest = Some(request.id);
                started.push(request);
                if *gap > 0 {
                    break;
                }
            }
            let Some((plan, end, _)) = step else { continue };
            for id in world.complete(&plan, end) {
                let none = vec![0; 2];
                let settled = gate.finish(end, id, Terminal::Completed, &none, None, Some(end));
                let settled = settled.unwrap();
                prop_assert!(settled.carried_first >= settled.forecast.first_token);
                prop_assert!(settled.carried_last >= settled.forecast.last_token);
                if Some(id) == newest {
                    prop_assert_eq!(settled.carried_last, settled.forecast.last_token);
                }
            }
        }
        prop_assert_eq!(gate.num_reserved(), 0);
    }

    /// Insertion errs to the late side: no token is said to come earlier than a replay with the
    /// inserted requests says, by more than half the time to come and one full step.
    #[test]
    fn insertions_are_early_within_a_bound(
        inside in prop::collection::vec(shape(1), 1..16),
        steps in 0..40u32,
        new in prop::collection::vec(shape(1), 1..4),
    ) {
        let mut world = World::new(1_000, 4);
        let limits = GateConfig::new(AdmissionMode::Deadline, config(1_000, 4));
        let mut gate = Gate::new(limits, policy::by_name("deadline").unwrap(), COST);
        let mut shapes = inside.iter().chain(&new).zip(0..);
        let enter = |world: &mut World, gate: &mut Gate, (prompt, tokens, n), id| {
            let mut request = request(id, world.now, prompt, tokens, n);
            let admission = gate.admit(world.now, &mut request);
            assert!(matches!(admission, Admission::Admit(_)), "{admission:?}");
            world.enqueue(&request);
        };
        for (shape, id) in shapes.by_ref().take(inside.len()) {
            enter(&mut world, &mut gate, *shape, id);
        }
        for _ in 0..steps {
            let (plan, end, _) = world.plan();
            world.complete(&plan, end);
            if world.scheduler.is_idle() {
                return Ok(());
            }
        }
        let (_, base, timeline) = world.plan();
        gate.install(world.now, timeline, COST);
        for (shape, id) in shapes {
            enter(&mut world, &mut gate, *shape, id);
        }
        let inserted = forecasts(gate.timeline());
        let step = COST.step(&StepLoad {
            decode_seqs: 4,
            context_tokens: 4 * 180,
            prefill_tokens: 32,
            prefill_span: 120 * 120,
        });
        let rebuilt = forecasts(&Timeline::build(base, &world.scheduler));
        // What has come already is not forecast.
        for (id, (first, last)) in rebuilt.iter().filter(|(_, (first, _))| *first > base) {
            let early = |inserted: Micros, rebuilt: Micros| {
                rebuilt.minus(inserted) > Micros(rebuilt.minus(base).0 / 2).plus(step)
            };
            prop_assert!(!early(inserted[id].0, *first), "{:?}: first {:?}", id, first);
            prop_assert!(!early(inserted[id].1, *last), "{:?}: last {:?}", id, last);
        }
    }
}
