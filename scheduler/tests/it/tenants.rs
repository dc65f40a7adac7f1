//! Tenants: deficit round robin among those who borrow, caps, and accounts that come out even.

use proptest::prelude::*;
use sluice_scheduler::{
    Admission, AdmissionMode, Class, ClassConfig, ClassTable, CostModel, Deadline, FinishReason,
    Gate, GateConfig, Micros, OutputLength, Request, RequestId, Scheduler, SchedulerConfig,
    SeqOutcome, SequenceSpec, ShedReason, TenantConfig, TenantId, TenantTable, Terminal, policy,
};

/// A millisecond for each prompt token and for each decode step, and nothing besides.
const COST: CostModel = CostModel {
    fixed_ns: 0,
    per_seq_ns: 1_000_000,
    per_context_token_ps: 0,
    per_prefill_token_ns: 1_000_000,
    per_prefill_span_ps: 0,
};

const LONGEST: u32 = 100;

/// Device time of one round of the round robin, as the scheduler has it.
const QUANTUM: u64 = 1_000_000;

fn config(slots: u32) -> SchedulerConfig {
    let class = ClassConfig { max_waiting: 10_000, ..ClassConfig::default() };
    SchedulerConfig {
        num_blocks: 10_000,
        block_size: 16,
        max_num_seqs: slots,
        max_num_batched_tokens: 128,
        max_model_len: 1_000,
        classes: ClassTable([class; 2]),
    }
}

fn request(id: u64, tenant: u8, prompt_tokens: u32, tokens: u32) -> Request {
    let output = OutputLength { min: 0, max: tokens, predicted: tokens, hint: None, exact: true };
    Request {
        id: RequestId(id),
        class: Class::Latency,
        tenant: TenantId(tenant),
        borrows: false,
        arrival: Micros(id),
        deadline: Deadline::default(),
        retry: 0,
        origin: 0,
        sequences: vec![SequenceSpec { prompt: 0, prompt_tokens, output }],
        prefixes: Vec::new(),
    }
}

/// Tenants with these reservations, per mille, the default one first.
fn reserved(permille: &[u32]) -> TenantTable {
    let config = |reserved_permille| TenantConfig { reserved_permille, ..TenantConfig::default() };
    TenantTable::new(permille.iter().map(|share| config(*share)).collect()).unwrap()
}

fn gate(slots: u32, tenants: &TenantTable) -> Gate {
    let gate_config = GateConfig::new(AdmissionMode::Deadline, config(slots));
    Gate::new(gate_config, policy::by_name("deadline").unwrap(), COST).with_tenants(tenants)
}

#[test]
fn a_table_is_bounded_and_reserves_no_more_than_there_is() {
    let tenant = |reserved_permille| TenantConfig { reserved_permille, ..TenantConfig::default() };
    assert!(TenantTable::new(vec![]).is_none());
    assert!(TenantTable::new(vec![tenant(0); 257]).is_none());
    assert!(TenantTable::new(vec![tenant(0), tenant(600), tenant(401)]).is_none());
    assert!(TenantTable::new(vec![tenant(0), tenant(u32::MAX), tenant(2)]).is_none());
    assert_eq!(TenantTable::new(vec![tenant(3); 256]).unwrap().len(), 256);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// While all wait, what each tenant was served over its weight differs by a quantum and a
    /// sequence at most, whatever the policy, the sizes, and how much faster one of them asks.
    #[test]
    fn those_who_borrow_are_served_within_a_quantum_of_their_shares(
        sizes in prop::collection::vec((1..=LONGEST, 0u8..4), 500..900),
        by_deadline in any::<bool>(),
        slots in 1u32..8,
    ) {
        // Tenant 3 has no reservation: what the others leave is its weight.
        let weights = [100, 500, 150, 250];
        let tenants = reserved(&[100, 500, 150, 0]);
        let policy = if by_deadline { "deadline" } else { "fcfs" };
        let mut scheduler =
            Scheduler::new(config(slots), policy::by_name(policy).unwrap(), COST)
                .with_tenants(&tenants);
        let mut left = [0u32; 4];
        for (id, (prompt, tenant)) in sizes.iter().enumerate() {
            let request = Request {
                borrows: true,
                ..request(id as u64, *tenant, *prompt, 1)
            };
            scheduler.enqueue(&request);
            left[usize::from(*tenant)] += 1;
        }
        let mut served = [0u64; 4];
        let mut now = Micros(0);
        while left.iter().all(|left| *left > 0) {
            let plan = scheduler.plan(now);
            for chunk in plan.chunks.iter().filter(|chunk| chunk.start == 0) {
                let (prompt, tenant) = sizes[chunk.seq.request.0 as usize];
                let tenant = usize::from(tenant);
                served[tenant] += u64::from(prompt) * 1_000 * 1_000 / weights[tenant];
                left[tenant] -= 1;
            }
            if left.contains(&0) {
                break;
            }
            let most = served.iter().max().unwrap() - served.iter().min().unwrap();
            let sequence = u64::from(LONGEST) * 1_000 * 1_000 / 100;
            prop_assert!(most <= QUANTUM + sequence, "{served:?}");
            now = now.plus(Micros(100_000));
            let ended = plan.chunks.iter().filter(|chunk| chunk.sample);
            let outcomes: Vec<_> =
                ended.map(|chunk| SeqOutcome::Finish(chunk.seq, FinishReason::Length)).collect();
            scheduler.complete(now, &plan, &outcomes);
        }
    }

    /// However requests come and end, accounts are those of what is inside, and nothing is left of
    /// them at the end. A number beyond the table is the default tenant's.
    #[test]
    fn accounts_come_out_even(
        operations in prop::collection::vec((0u8..6, 1u32..200, 1u32..30, any::<bool>()), 1..200),
    ) {
        let tenants = reserved(&[0, 300, 200, 100]);
        let mut gate = gate(8, &tenants);
        let mut inside: Vec<Request> = Vec::new();
        for (id, (tenant, prompt, tokens, ends)) in (0u64..).zip(operations) {
            let now = Micros(id * 20_000);
            let mut request = request(id, tenant, prompt, tokens);
            request.arrival = now;
            request.deadline.first_token = Some(now.plus(Micros::from_millis(500)));
            if matches!(gate.admit(now, &mut request), Admission::Admit(_)) {
                inside.push(request);
            }
            if ends && let Some(request) = inside.pop() {
                let terminal = [Terminal::Completed, Terminal::Cancelled][id as usize % 2];
                let first = (id % 3 > 0).then_some(now);
                gate.finish(now, request.id, terminal, &[tokens], first, first);
            }
            for tenant in 0..4 {
                let own = |request: &&Request| {
                    request.tenant.0 == tenant || (tenant == 0 && request.tenant.0 > 3)
                };
                let expected = inside.iter().filter(own).count() as u32;
                prop_assert_eq!(gate.tenant_requests(TenantId(tenant)), expected);
                let work = gate.tenant_outstanding(TenantId(tenant));
                prop_assert_eq!(work == Micros(0), expected == 0, "{:?}", work);
            }
        }
        for request in inside {
            gate.finish(Micros::MAX, request.id, Terminal::Failed, &[0], None, None);
        }
        for tenant in (0..4).map(TenantId) {
            prop_assert_eq!(gate.tenant_outstanding(tenant), Micros(0));
            prop_assert_eq!(gate.tenant_requests(tenant), 0);
        }
    }
}

/// A scheduler with these reservations.
fn scheduler(slots: u32, tenants: &TenantTable) -> Scheduler {
    Scheduler::new(config(slots), policy::by_name("deadline").unwrap(), COST).with_tenants(tenants)
}

/// Plans a step in which everybody goes on. Returns the lengths of chunks, by request.
fn step(scheduler: &mut Scheduler, now: Micros) -> Vec<(u64, u32)> {
    let plan = scheduler.plan(now);
    let sampled = plan.chunks.iter().filter(|chunk| chunk.sample);
    let outcomes: Vec<_> = sampled.map(|chunk| SeqOutcome::Continue(chunk.seq)).collect();
    scheduler.complete(now, &plan, &outcomes);
    plan.chunks.iter().map(|chunk| (chunk.seq.request.0, chunk.len)).collect()
}

#[test]
fn who_borrows_leaves_slots_and_blocks_for_what_is_reserved() {
    let mut scheduler = scheduler(32, &reserved(&[0, 500]));
    scheduler.enqueue(&request(0, 1, 1, 50));
    for id in 1..60 {
        scheduler.enqueue(&Request { borrows: true, ..request(id, 0, 1, 50) });
    }
    step(&mut scheduler, Micros(0));
    assert_eq!(scheduler.counts().running, 31, "all but what is kept");
    scheduler.enqueue(&request(60, 1, 1, 50));
    assert!(step(&mut scheduler, Micros(1)).contains(&(60, 1)), "it need not wait for anybody");
    // A pool of 63 blocks, of which a sixteenth is kept: each takes four.
    let small = SchedulerConfig { num_blocks: 63, ..config(32) };
    let mut scheduler = Scheduler::new(small, policy::by_name("deadline").unwrap(), COST)
        .with_tenants(&reserved(&[0, 500]));
    for id in 0..32 {
        scheduler.enqueue(&Request { borrows: true, ..request(id, 0, 2, 63) });
    }
    step(&mut scheduler, Micros(0));
    assert_eq!(scheduler.counts().running, 14);
    scheduler.enqueue(&request(32, 1, 2, 30));
    assert!(step(&mut scheduler, Micros(1)).contains(&(32, 2)));
}

#[test]
fn what_is_reserved_overtakes_the_prompt_of_who_borrows() {
    let mut scheduler = scheduler(8, &reserved(&[0, 500]));
    scheduler.enqueue(&Request { borrows: true, ..request(0, 0, 900, 10) });
    assert_eq!(step(&mut scheduler, Micros(0)), [(0, 128)]);
    scheduler.enqueue(&request(1, 1, 100, 10));
    assert_eq!(step(&mut scheduler, Micros(1)), [(1, 100), (0, 28)]);
}

#[test]
fn who_borrows_is_held_to_the_pace_of_what_is_reserved() {
    let mut scheduler = scheduler(8, &reserved(&[0, 500]));
    let deadline = Deadline { last_token: Some(Micros(1_000_000)), ..Deadline::default() };
    scheduler.enqueue(&Request { deadline, ..request(0, 1, 10, 10) });
    step(&mut scheduler, Micros(0));
    scheduler.enqueue(&Request { borrows: true, ..request(1, 0, 900, 10) });
    // Four tenths of the second for ten tokens are 40 ms, of which 98 % are filled.
    assert_eq!(step(&mut scheduler, Micros(10_000)), [(0, 1), (1, 38)]);
    // Without anybody to wait for it has whole steps.
    scheduler.cancel(RequestId(0));
    assert_eq!(step(&mut scheduler, Micros(50_000)), [(1, 128)]);
}

/// Offers requests of tenant 1 at `now` until one is refused, at most 1,000.
fn until_refused(gate: &mut Gate, now: Micros, next: &mut u64) -> Option<sluice_scheduler::Shed> {
    for _ in 0..1_000 {
        let mut request = request(*next, 1, 100, 1);
        request.arrival = now;
        *next += 1;
        match gate.admit(now, &mut request) {
            Admission::Admit(_) => {}
            Admission::Shed(shed) => return Some(shed),
            other => panic!("{other:?}"),
        }
    }
    None
}

#[test]
fn a_tenant_over_its_cap_is_told_when_it_will_be_below() {
    let capped = TenantConfig { cap_permille: Some(500), ..TenantConfig::default() };
    let tenants = TenantTable::new(vec![TenantConfig::default(), capped]).unwrap();
    let mut gate = gate(8, &tenants);
    let (mut next, now) = (0, Micros(0));
    let shed = until_refused(&mut gate, now, &mut next).expect("it has a cap");
    assert_eq!(shed.reason, ShedReason::TenantBudget);
    let admitted = gate.tenant_requests(TenantId(1));
    // Ten seconds of half the device, a tenth of a second each.
    assert!((50..=55).contains(&admitted), "{admitted}");
    let mut other = request(next, 0, 100, 1);
    next += 1;
    assert!(matches!(gate.admit(now, &mut other), Admission::Admit(_)), "the cap is its own");
    let later = until_refused(&mut gate, now, &mut next).expect("still");
    assert!(later.retry_after > shed.retry_after, "the next one has to wait for longer");
    let back = now.plus(shed.retry_after);
    until_refused(&mut gate, back, &mut next).expect("still");
    assert!(gate.tenant_requests(TenantId(1)) > admitted, "it came when it was told to");
    assert_eq!(gate.tenant_refused(TenantId(1)), 3);
}

#[test]
fn a_tenant_with_enough_requests_inside_waits_for_one_of_them() {
    let limited = TenantConfig { max_requests: Some(3), ..TenantConfig::default() };
    let tenants = TenantTable::new(vec![TenantConfig::default(), limited]).unwrap();
    let mut gate = gate(8, &tenants);
    let (mut next, now) = (0, Micros(0));
    let shed = until_refused(&mut gate, now, &mut next).expect("it has a limit");
    assert_eq!((shed.reason, next), (ShedReason::TenantBudget, 4));
    assert!(shed.retry_after > Micros(0));
    gate.finish(now, RequestId(0), Terminal::Completed, &[1], Some(now), Some(now));
    assert_eq!(until_refused(&mut gate, now, &mut next).map(|shed| shed.reason), Some(shed.reason));
    assert_eq!(gate.tenant_requests(TenantId(1)), 3);
    gate.set_tenant_limit(TenantId(1), None);
    assert!(until_refused(&mut gate, now, &mut next).is_none());
}
