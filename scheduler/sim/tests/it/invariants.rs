//! The driver asserts at each event that waiting stays within its bound, that the ledger holds
//! exactly what is inside and is empty when nobody is, and that everybody ends once.

use proptest::prelude::*;
use scheduler::{
    AdmissionMode, Class, ClassConfig, ClassTable, CostModel, Deadline, KindConfig, Micros,
    OutputLength, Request, RequestId, SchedulerConfig, SequenceSpec, Slo, TenantId, policy,
};
use sim::profile::CPU;
use sim::{Admitting, Job, Setup};

const MODES: [AdmissionMode; 2] = [AdmissionMode::Deadline, AdmissionMode::None];

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

prop_compose! {
    fn job()(
        gap_ms in 0..150u64,
        prompt_tokens in 1..400u32,
        actual in 1..40u32,
        n in 1..4usize,
        bulk in any::<bool>(),
        e2e_ms in any::<Option<u16>>(),
        retry in 0..2u32,
    ) -> (u64, Job) {
        let output = OutputLength { min: 0, max: actual, predicted: 0, hint: None, exact: true };
        let last_token = e2e_ms.map(|ms| Micros::from_millis(u64::from(ms) / 16));
        let request = Request {
            id: RequestId(0),
            class: if bulk { Class::Throughput } else { Class::Latency },
            tenant: TenantId::DEFAULT,
            borrows: false,
            arrival: Micros(0),
            deadline: Deadline { last_token, ..Deadline::default() },
            retry,
            origin: 0,
            prefixes: Vec::new(),
            sequences: vec![SequenceSpec { prompt: 0, prompt_tokens, output }; n],
        };
        (gap_ms, Job { request, actual })
    }
}

/// Gives jobs ids and absolute times; an absent first-token target is that of the class.
fn in_order(jobs: Vec<(u64, Job)>) -> Vec<Job> {
    let mut now = Micros(0);
    let place = |(id, (gap_ms, mut job)): (usize, (u64, Job))| {
        now = now.plus(Micros::from_millis(gap_ms));
        let request = &mut job.request;
        request.id = RequestId(id as u64);
        request.arrival = now;
        let first_token = Some(now.plus(Micros::from_millis(800)));
        let last_token = request.deadline.last_token.map(|span| now.plus(span));
        request.deadline = Deadline { first_token, last_token, tpot: None };
        job
    };
    jobs.into_iter().enumerate().map(place).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// With known lengths the reserved peaks also mean that nobody is ever preempted. A run is a
    /// function of its workload and its seed.
    #[test]
    fn nothing_is_reserved_twice_or_beyond_its_bound(
        jobs in prop::collection::vec(job(), 1..60),
        mode in prop::sample::select(MODES.to_vec()),
        policy in prop::sample::select(policy::NAMES.to_vec()),
    ) {
        let jobs = in_order(jobs);
        let cost = CostModel { fixed_ns: 3_000_000, per_seq_ns: 1_000_000, ..CPU.cost };
        let admitting = Admitting::Gate(mode, KindConfig::default());
        let setup = Setup { cost, config: tight(), ..Setup::new(&CPU, policy, admitting, 7) };
        let run = setup.run(&jobs);
        prop_assert_eq!(run.records().count(), jobs.len());
        prop_assert_eq!(run.preemptions, 0);
        prop_assert_eq!(format!("{:?}", setup.run(&jobs)), format!("{run:?}"));
    }
}
