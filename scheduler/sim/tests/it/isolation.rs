//! Latency work may break promises given to bulk work within a budget, and no more.

use proptest::prelude::*;
use scheduler::{AdmissionMode, Class, IsolationConfig, KindConfig, TenantId};
use sim::profile::CPU;
use sim::workload::{Arrivals, Lengths};
use sim::{Admitting, Job, Record, Setup, Stream, Target, merge};

fn stream(class: Class, rate: f64, target: Target) -> Stream {
    let (lengths, arrivals) = (Lengths::Chat, Arrivals::Poisson);
    Stream { class, tenant: TenantId::DEFAULT, lengths, arrivals, rate, target, known: true }
}

/// What became of the promises to bulk work.
struct Bulk {
    given: usize,
    displaced: usize,
    /// Late without having been displaced.
    broken: usize,
}

/// A minute of both classes on a small device.
fn run(seed: u64, bulk: f64, latency: f64, tight: f64, isolation: IsolationConfig) -> Bulk {
    let bulk = stream(Class::Throughput, bulk, Target::Seconds(20.0));
    let latency = stream(Class::Latency, latency, Target::Seconds(tight));
    let jobs = merge(&[bulk, latency], 60.0, &CPU, seed);
    let admitting = Admitting::Gate(AdmissionMode::Deadline, KindConfig::default());
    let setup = Setup::new(&CPU, "deadline", admitting, seed);
    let run = Setup { noise: 0.0, isolation, ..setup }.run(&jobs);
    let bulk = |(job, _): &(&Job, &Record)| job.request.class == Class::Throughput;
    let admitted: Vec<_> =
        run.of(&jobs).filter(bulk).filter(|(_, record)| record.is_admitted()).collect();
    let late = |(job, record): &(&Job, &Record)| !record.meets(&record.promised, job.actual);
    let displaced = |record: &Record| record.settled.is_some_and(|settled| settled.displaced);
    Bulk {
        given: admitted.len(),
        displaced: admitted.iter().filter(|(_, record)| displaced(record)).count(),
        broken: admitted.iter().filter(|entry| late(entry) && !displaced(entry.1)).count(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Without noise only what was displaced is late, but for what an insertion is off by until the
    /// next step: at most one promise in fifty, and three more in a short run.
    #[test]
    fn no_more_promises_are_broken_than_the_budget_allows(
        seed in 0..1_000u64,
        bulk in 1.0..8.0,
        latency in 1.0..6.0,
        tight in 1.0..4.0,
        latency_share_permille in prop::sample::select(vec![0, 500, 900]),
        displacement_permille in prop::sample::select(vec![0, 50, 200, 1_000]),
    ) {
        let isolation = IsolationConfig { latency_share_permille, displacement_permille };
        let Bulk { given, displaced, broken } = run(seed, bulk, latency, tight, isolation);
        prop_assert!(displaced * 1_000 <= given * displacement_permille as usize);
        prop_assert!(broken <= 3 + given / 50, "{} of {}", broken, given);
    }
}

/// In the mean that is less than one promise in five hundred.
#[test]
fn next_to_no_promise_is_broken_beside_the_budget() {
    let (mut given, mut broken) = (0, 0);
    for seed in 0..100 {
        let part = |most: u64| (seed * 37 % 100) as f64 / 100.0 * most as f64;
        let isolation = IsolationConfig {
            latency_share_permille: [0, 500, 900][seed as usize % 3],
            displacement_permille: [0, 50, 200, 1_000][seed as usize % 4],
        };
        let bulk = run(seed, 1.0 + part(7), 6.0 - part(5), 1.0 + part(3), isolation);
        given += bulk.given;
        broken += bulk.broken;
    }
    assert!(given > 5_000 && broken * 500 <= given, "{broken} of {given}");
}
