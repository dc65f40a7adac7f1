//! What a request that waits takes of memory, measured: scheduler, gate and timeline together.

use sluice_scheduler::{
    Admission, AdmissionMode, Class, ClassConfig, ClassTable, CostModel, Deadline, Gate,
    GateConfig, Micros, OutputLength, Request, RequestId, Scheduler, SchedulerConfig, SequenceSpec,
    TenantId, Timeline, policy,
};

/// Promised for each waiting request, with the room that lists keep for the next ones.
const MOST_BYTES: u64 = 256;

const COST: CostModel = CostModel {
    fixed_ns: 1_000_000,
    per_seq_ns: 1_000,
    per_context_token_ps: 1_000,
    per_prefill_token_ns: 1_000,
    per_prefill_span_ps: 0,
};

fn request(id: u64) -> Request {
    let output = OutputLength { min: 0, max: 50, predicted: 0, hint: None, exact: false };
    let due = |seconds: u64| Some(Micros(seconds * 1_000_000 + id));
    Request {
        id: RequestId(id),
        class: Class::ALL[id as usize % 2],
        tenant: TenantId::DEFAULT,
        borrows: false,
        arrival: Micros(id),
        deadline: Deadline { first_token: due(72_000), last_token: due(144_000), tpot: due(1) },
        retry: 0,
        origin: 0,
        prefixes: Vec::new(),
        sequences: vec![SequenceSpec { prompt: 0, prompt_tokens: 100, output }],
    }
}

/// `waiting` requests wait, admitted a few at a time; the last twenty since the
/// timeline was built.
fn queue(waiting: u64) -> (Scheduler, Gate) {
    let policy = || policy::by_name("deadline").unwrap();
    let class = ClassConfig { max_waiting: 100_000, ..ClassConfig::default() };
    let config = SchedulerConfig {
        num_blocks: 1_000,
        block_size: 16,
        max_num_seqs: 16,
        max_num_batched_tokens: 512,
        max_model_len: 1_000,
        classes: ClassTable([class; 2]),
    };
    let mut scheduler = Scheduler::new(config, policy(), COST);
    let mut gate = Gate::new(GateConfig::new(AdmissionMode::Deadline, config), policy(), COST);
    let now = Micros(waiting);
    for id in 0..waiting {
        if id % 20 == 0 {
            drop(gate.install(now, Timeline::build(now, &scheduler), COST));
        }
        let mut request = request(id);
        assert!(matches!(gate.admit(now, &mut request), Admission::Admit(_)));
        scheduler.enqueue(&request);
    }
    (scheduler, gate)
}

fn bytes(waiting: u64) -> u64 {
    let mut kept = None;
    let measured = allocation_counter::measure(|| kept = Some(queue(waiting)));
    assert_eq!(u64::from(kept.unwrap().0.counts().waiting), waiting);
    measured.bytes_current.try_into().unwrap()
}

#[test]
fn a_waiting_request_takes_at_most_256_bytes() {
    let without = bytes(1_000);
    for waiting in [1_000, 2_000, 4_000] {
        let each = (bytes(1_000 + waiting) - without) / waiting;
        println!("{each} bytes for each of {waiting}");
        assert!((100..=MOST_BYTES).contains(&each), "{each} bytes for each of {waiting}");
    }
}
