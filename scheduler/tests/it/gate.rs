//! The gate in front of a scheduler: it never promises more than there is, and says why it refuses.

use sluice_scheduler::{
    Admission, AdmissionMode, Class, ClassConfig, ClassTable, CostModel, Deadline, Gate,
    GateConfig, Micros, OutputLength, Request, RequestId, SchedulerConfig, SequenceSpec,
    ShedReason, Slo, TenantId, policy,
};

/// A two-core CPU with a small model.
const CPU: CostModel = CostModel {
    fixed_ns: 3_000_000,
    per_seq_ns: 1_000_000,
    per_context_token_ps: 2_000_000,
    per_prefill_token_ns: 1_000_000,
    per_prefill_span_ps: 100_000,
};

/// Time of a request alone on the device, to its last token.
fn unloaded(prompt: u32, output: u32) -> Micros {
    let decode = CPU.decode(1, u64::from(prompt) + 1, output - 1);
    CPU.prefill(0, prompt, tight().max_num_batched_tokens).plus(decode)
}

fn request(id: u64, arrival: Micros, prompt: u32, tokens: u32) -> Request {
    let output = OutputLength { min: 0, max: tokens, predicted: 0, hint: None, exact: true };
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
        sequences: vec![SequenceSpec { prompt: 0, prompt_tokens: prompt, output }],
    }
}

/// A small pool and short queues, so that every bound is met often.
fn tight() -> SchedulerConfig {
    let class = ClassConfig {
        slo: Slo { ttft: Some(Micros::from_millis(800)), tpot: None, e2e: None },
        max_waiting: 4,
        ..ClassConfig::default()
    };
    SchedulerConfig {
        num_blocks: 12,
        block_size: 32,
        max_num_seqs: 4,
        max_num_batched_tokens: 64,
        max_model_len: 2_048,
        classes: ClassTable([class; 2]),
    }
}

fn gate(scheduler: SchedulerConfig) -> Gate {
    let policy = policy::by_name("deadline").unwrap();
    Gate::new(GateConfig::new(AdmissionMode::Deadline, scheduler), policy, CPU)
}

fn shed_reason(admission: Admission) -> ShedReason {
    match admission {
        Admission::Shed(shed) => shed.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_can_never_fit_is_told_from_what_must_wait() {
    let mut gate = gate(tight());
    let huge = gate.admit(Micros(0), &mut request(0, Micros(0), 12 * 32, 2));
    assert_eq!(huge, Admission::NeverFits { needed: 13, available: 12 });
    let mut largest = request(1, Micros(0), 12 * 32, 1);
    assert!(matches!(gate.admit(Micros(0), &mut largest), Admission::Admit(_)));
}

#[test]
fn an_idle_device_admits_what_its_class_cannot_promise_but_not_what_the_client_asked_for() {
    let (prompt, now) = (300, Micros::from_millis(5));
    let needs = unloaded(prompt, 1);
    let ttft = Micros(needs.0 / 2);
    let slo = Slo { ttft: Some(ttft), ..Slo::default() };
    let mut scheduler = tight();
    scheduler.classes.0[Class::Latency.index()].slo = slo;

    let mut of_class = request(0, now, prompt, 4);
    of_class.deadline.first_token = Some(now.plus(ttft));
    let admission = gate(scheduler).admit(now, &mut of_class);
    assert!(matches!(admission, Admission::Admit(_)), "{admission:?}");
    assert_eq!(of_class.deadline.first_token, None, "nothing is promised that cannot be kept");

    let mut own = request(0, now, prompt, 4);
    own.deadline.first_token = Some(now.plus(ttft).plus(Micros(1)));
    match gate(scheduler).admit(now, &mut own) {
        Admission::Unsatisfiable { predicted, budget, .. } => assert!(predicted > budget),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_deadline_that_has_passed_and_a_draining_server_are_told_apart() {
    let mut gate = gate(tight());
    let now = Micros::from_millis(100);
    let mut late = request(0, Micros(0), 10, 4);
    late.deadline.last_token = Some(now);
    assert_eq!(shed_reason(gate.admit(now, &mut late)), ShedReason::Expired);
    gate.drain();
    assert_eq!(shed_reason(gate.admit(now, &mut late)), ShedReason::Draining);
}

#[test]
fn a_promise_made_before_vetoes_a_newcomer_that_would_make_its_own_deadline() {
    let mut gate = gate(tight());
    let mut first = request(0, Micros(0), 60, 20);
    first.deadline.last_token = Some(Micros(unloaded(60, 20).0 * 3 / 2));
    assert!(matches!(gate.admit(Micros(0), &mut first), Admission::Admit(_)));
    let mut newcomer = request(1, Micros(0), 200, 1);
    newcomer.deadline.last_token = Some(Micros::from_millis(60_000));
    // It goes behind in the queue, and its prefill rides along with the decoding of the first.
    assert_eq!(shed_reason(gate.admit(Micros(0), &mut newcomer)), ShedReason::SloMiss);
    first.deadline.last_token = Some(Micros::from_millis(50_000));
    let mut relaxed = self::gate(tight());
    assert!(matches!(relaxed.admit(Micros(0), &mut first), Admission::Admit(_)));
    assert!(matches!(relaxed.admit(Micros(0), &mut newcomer), Admission::Admit(_)));
}

#[test]
fn a_list_of_prompts_is_reserved_as_one_or_not_at_all() {
    let mut gate = gate(tight());
    let occupied = gate.admit(Micros(0), &mut request(0, Micros(0), 10, 4));
    assert!(matches!(occupied, Admission::Admit(_)));
    let list = |id, prompts: u32, n: usize| {
        let mut list = request(id, Micros(0), 10, 4);
        let spec = |prompt| SequenceSpec { prompt, ..list.sequences[0] };
        list.sequences = (0..prompts).flat_map(|prompt| vec![spec(prompt); n]).collect();
        list
    };
    // Four may wait, and one does.
    for (prompts, n) in [(4, 1), (2, 2), (1, 4)] {
        let admission = gate.admit(Micros(0), &mut list(1, prompts, n));
        assert_eq!(shed_reason(admission), ShedReason::QueueFull, "{prompts} x {n}");
        assert_eq!((gate.num_reserved(), gate.waiting(Class::Latency)), (1, 1));
    }
    assert!(matches!(gate.admit(Micros(0), &mut list(2, 3, 1)), Admission::Admit(_)));
    assert_eq!((gate.num_reserved(), gate.waiting(Class::Latency)), (2, 4));
}

#[test]
fn what_no_token_can_save_is_refused_before_it_is_tokenised() {
    let mut gate = gate(tight());
    let now = Micros(0);
    let mut least = request(9, now, 1, 1);
    least.deadline.first_token = Some(Micros::from_millis(800));
    assert!(gate.early(now, &least, 1).is_none(), "an idle device admits");
    let mut id = 0;
    while matches!(gate.admit(now, &mut request(id, now, 60, 20)), Admission::Admit(_)) {
        id += 1;
    }
    let early = gate.early(now, &least, 1).expect("the queue is full");
    let (before, slot) = (gate.num_reserved(), gate.refuse(now, &least, early));
    assert_eq!((slot.reason, gate.num_reserved()), (ShedReason::QueueFull, before));
    least.id = RequestId(10);
    let early = gate.early(now, &least, 1).expect("still full");
    assert!(gate.refuse(now, &least, early).retry_after > slot.retry_after, "a slot for each");
}

#[test]
fn one_in_a_hundred_near_misses_of_bulk_work_is_let_in() {
    let mut gate = gate(tight());
    let mut first = request(0, Micros(0), 60, 20);
    assert!(matches!(gate.admit(Micros(0), &mut first), Admission::Admit(_)));
    let bulk = |id: u64, due: Micros| {
        let mut request = request(id, Micros(0), 60, 20);
        request.class = Class::Throughput;
        request.deadline.last_token = Some(due);
        request
    };
    // It could make this alone, but not beside the first.
    let alone = Micros(unloaded(60, 20).0 + 1_000);
    let forecast = match gate.admit(Micros(0), &mut bulk(1, alone)) {
        Admission::Shed(shed) => shed.predicted,
        other => panic!("{other:?}"),
    };
    // Somewhat later than the forecast, and within the margin that a gate begins with.
    let near = Micros(forecast.0 * 11 / 10);
    let admitted =
        |id: &u64| matches!(gate.admit(Micros(0), &mut bulk(*id, near)), Admission::Admit(_));
    assert_eq!((2..400).find(admitted), Some(101));
}
