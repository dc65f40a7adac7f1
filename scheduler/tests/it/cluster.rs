//! What the gate makes of the other replicas: kinder refusals, never a bolder admission.

use proptest::prelude::*;
use sluice_scheduler::cluster::{ClusterView, Room, Standing};
use sluice_scheduler::{
    Admission, AdmissionMode, Class, ClassConfig, ClassTable, CostModel, Deadline, Gate,
    GateConfig, Micros, OutputLength, Request, RequestId, SchedulerConfig, SequenceSpec, Shed,
    ShedReason, Slo, TenantId, policy,
};

/// A prompt of a hundred tokens takes a tenth of a second.
const COST: CostModel = CostModel {
    fixed_ns: 1_000_000,
    per_seq_ns: 1_000_000,
    per_context_token_ps: 0,
    per_prefill_token_ns: 1_000_000,
    per_prefill_span_ps: 0,
};

fn gate() -> Gate {
    let class = ClassConfig {
        slo: Slo { ttft: Some(Micros::from_millis(800)), tpot: None, e2e: None },
        max_waiting: 64,
        ..ClassConfig::default()
    };
    let config = SchedulerConfig {
        num_blocks: 10_000,
        block_size: 16,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_model_len: 2_048,
        classes: ClassTable([class; 2]),
    };
    let policy = policy::by_name("deadline").unwrap();
    Gate::new(GateConfig::new(AdmissionMode::Deadline, config), policy, COST)
}

fn request(id: u64, now: Micros, prompt_tokens: u32) -> Request {
    let output = OutputLength { min: 0, max: 20, predicted: 0, hint: None, exact: true };
    Request {
        id: RequestId(id),
        class: Class::Latency,
        tenant: TenantId::DEFAULT,
        borrows: false,
        arrival: now,
        deadline: Deadline {
            first_token: Some(now.plus(Micros::from_millis(800))),
            ..Deadline::default()
        },
        retry: 0,
        origin: id,
        prefixes: Vec::new(),
        sequences: vec![SequenceSpec { prompt: 0, prompt_tokens, output }],
    }
}

fn ask(gate: &mut Gate, id: u64, now: Micros) -> Admission {
    gate.admit(now, &mut request(id, now, 100))
}

/// Fills a gate until it refuses, and gives the first refusal.
fn fill(gate: &mut Gate, now: Micros) -> Shed {
    (0..100)
        .find_map(|id| match ask(gate, id, now) {
            Admission::Shed(shed) => Some(shed),
            _ => None,
        })
        .expect("it is not endless")
}

fn room(spare_permille: u32) -> ClusterView {
    let room = [Room { peers: 1, spare_permille }; 2];
    ClusterView { standing: Standing::Fresh, room, ..ClusterView::default() }
}

#[test]
fn where_others_have_room_a_refusal_says_so_and_sends_clients_there_spread() {
    let now = Micros(1_000_000);
    let mut alone = gate();
    let shed = fill(&mut alone, now);
    assert_eq!(shed.reason, ShedReason::SloMiss);
    let mut beside = gate();
    beside.set_cluster(now, room(500));
    let mut waits = vec![];
    let first = fill(&mut beside, now);
    assert_eq!(first.reason, ShedReason::ReplicaBusy);
    assert!(first.retry_after < shed.retry_after.max(Micros(1_000_000)), "{first:?} {shed:?}");
    for id in 200..300 {
        if let Admission::Shed(shed) = ask(&mut beside, id, now) {
            waits.push((shed.reason, shed.retry_after));
        }
    }
    let away: Vec<Micros> = waits
        .iter()
        .filter(|(reason, _)| *reason == ShedReason::ReplicaBusy)
        .map(|(_, wait)| *wait)
        .collect();
    assert!((10..90).contains(&away.len()), "as many as they have room for soon: {}", away.len());
    assert!(away.is_sorted() && away.last() > Some(&Micros(3_000_000)), "{away:?}");
}

#[test]
fn a_view_that_is_not_renewed_sends_nobody_away() {
    let mut gate = gate();
    gate.set_cluster(Micros(0), room(1_000));
    let shed = fill(&mut gate, Micros(2_000_000));
    assert_eq!(shed.reason, ShedReason::SloMiss);
}

#[test]
fn clients_of_a_replica_that_died_are_let_in_before_those_refused_now() {
    let now = Micros(1_000_000);
    let surge = Micros(400_000);
    let (mut quiet, mut after) = (gate(), gate());
    after.set_cluster(now, ClusterView { surge, ..ClusterView::default() });
    let (first, second) = (fill(&mut quiet, now), fill(&mut after, now));
    assert!(second.retry_after >= first.retry_after.plus(Micros(300_000)), "{first:?} {second:?}");
    // It is told once, and for no longer than one target.
    assert!(second.retry_after <= first.retry_after.plus(Micros(1_000_000)));
}

fn any_view() -> impl Strategy<Value = ClusterView> {
    let micros = || (0u64..100_000_000).prop_map(Micros);
    let rooms = [(0u32..5, 0u32..9_000), (0u32..5, 0u32..9_000)];
    (rooms, [0u32..1_001, 0..1_001], micros(), micros(), prop::option::of(micros()), 0u32..9_000)
        .prop_map(|(rooms, refused, surge, work, next_slot, others_permille)| ClusterView {
            standing: Standing::Fresh,
            capacity_permille: others_permille + 1_000,
            refused_permille: refused,
            room: rooms.map(|(peers, spare_permille)| Room { peers, spare_permille }),
            outstanding: [work; 2],
            next_slot,
            others_permille,
            surge,
            ..ClusterView::default()
        })
}

proptest! {
    /// Whatever the others report: whom the gate would refuse by itself it refuses.
    #[test]
    fn a_local_forecast_is_never_overruled_into_admitting(
        view in any_view(),
        history in prop::collection::vec((1u32..300, 0u64..200_000), 0..40),
        last in 1u32..300,
    ) {
        let (mut alone, mut beside) = (gate(), gate());
        let mut now = Micros(1_000_000);
        for (id, (prompt, step)) in (0..).zip(&history) {
            now = now.plus(Micros(*step));
            let by_itself = alone.admit(now, &mut request(id, now, *prompt));
            prop_assert_eq!(by_itself, beside.admit(now, &mut request(id, now, *prompt)));
        }
        beside.set_cluster(now, view);
        let by_itself = alone.admit(now, &mut request(1_000, now, last));
        let with_view = beside.admit(now, &mut request(1_000, now, last));
        let admits = |admission: &Admission| matches!(admission, Admission::Admit(_));
        prop_assert!(admits(&by_itself) || !admits(&with_view), "{with_view:?}");
        if let (Admission::Shed(a), Admission::Shed(b)) = (by_itself, with_view) {
            prop_assert_eq!((a.rule, a.predicted, a.budget), (b.rule, b.predicted, b.budget));
        }
    }
}
