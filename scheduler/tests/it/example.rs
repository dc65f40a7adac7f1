//! The policy that `server/docs/policies.md` shows is the one beside this file, and it works.

use scheduler::{
    Class, ClassConfig, ClassTable, CostModel, Deadline, Micros, OutputLength, Request, RequestId,
    Scheduler, SchedulerConfig, SeqOutcome, SequenceSpec, TenantId,
};

use crate::longest_first::LongestFirst;

const COST: CostModel = CostModel {
    fixed_ns: 1_000_000,
    per_seq_ns: 0,
    per_context_token_ps: 0,
    per_prefill_token_ns: 1_000,
    per_prefill_span_ps: 0,
};

fn request(id: u64, arrival: Micros, prompt_tokens: u32) -> Request {
    let output = OutputLength { min: 0, max: 9, predicted: 9, hint: None, exact: false };
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
        sequences: vec![SequenceSpec { prompt: 0, prompt_tokens, output }],
    }
}

#[test]
fn the_page_shows_what_is_compiled() {
    let page = include_str!("../../../server/docs/policies.md");
    let shown = format!("```rust\n{}```\n", include_str!("longest_first.rs"));
    assert!(page.contains(&shown), "server/docs/policies.md differs from longest_first.rs");
    assert!(shown.lines().count() <= 30);
}

#[test]
fn the_longest_prompt_goes_first_and_ages() {
    let class = ClassConfig { max_waiting: 9, ..ClassConfig::default() };
    let config = SchedulerConfig {
        num_blocks: 100,
        block_size: 16,
        max_num_seqs: 1,
        max_num_batched_tokens: 512,
        max_model_len: 512,
        classes: ClassTable([class; 2]),
    };
    let mut scheduler = Scheduler::new(config, Box::new(LongestFirst), COST);
    let minute = Micros(60_000_000);
    for (id, arrival, prompt) in [(0, Micros(0), 10), (1, Micros(1), 300), (2, minute, 400)] {
        scheduler.enqueue(&request(id, arrival, prompt));
    }
    let mut order = Vec::new();
    while !scheduler.is_idle() {
        let plan = scheduler.plan(minute);
        order.push(plan.chunks[0].seq.request.0);
        let ends = SeqOutcome::Finish(plan.chunks[0].seq, scheduler::FinishReason::Stop);
        scheduler.complete(minute, &plan, &[ends]);
    }
    assert_eq!(order, [1, 0, 2], "a minute earlier is before any length");
}
