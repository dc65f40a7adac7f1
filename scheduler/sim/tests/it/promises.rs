//! What the gate achieves: small runs, with some slack below what the tables of
//! `sluice-sim admission` show.

use scheduler::{AdmissionMode, IsolationConfig, KindConfig};
use sim::experiment::{Effort, Rules, Scenario, TRUE_MODEL, attainment, capacity, gain};
use sim::stats::Mean;
use sim::workload::by_name;
use sim::{Admitting, Run, Score, Setup};

const EFFORT: Effort = Effort { first_seed: 1, seeds: 2, requests: 1_000, threads: 1 };

const NO_DISPLACEMENT: IsolationConfig =
    IsolationConfig { displacement_permille: 0, latency_share_permille: 900 };

fn scenario(workload: &str, target: &str, load: f64) -> Scenario {
    let workload = *by_name(workload).unwrap();
    let target = target.parse().unwrap();
    Scenario { workload, target, load, known: true, capacity: capacity(&workload) }
}

fn gate(scenario: &Scenario) -> Vec<Score> {
    scenario.gate(&EFFORT, TRUE_MODEL, Rules::default())
}

fn kept(scores: &[Score]) -> f64 {
    Mean::of(scores.iter().map(|score| score.kept)).mean
}

#[test]
fn goodput_holds_under_overload_and_promises_are_kept() {
    for workload in ["8b-code", "70b-conv", "cpu-chat"] {
        let scores = [0.5, 1.0, 2.0, 4.0].map(|load| gate(&scenario(workload, "4x", load)));
        let goodput = |scores: &[Score]| Mean::of(scores.iter().map(|score| score.goodput)).mean;
        let at_capacity = goodput(&scores[1]);
        for (i, scores) in scores.iter().enumerate() {
            assert!(kept(scores) >= 0.98, "{workload}: {:.3} of admitted", kept(scores));
            if i > 1 {
                let goodput = goodput(scores);
                assert!(goodput >= at_capacity, "{workload}: {goodput:.0} of {at_capacity:.0}");
            }
        }
    }
}

#[test]
fn the_gate_beats_the_best_static_cap_under_overload_and_loses_nothing_below() {
    for workload in ["8b-code", "8b-conv", "cpu-chat"] {
        for (load, at_least) in [(0.5, -0.02), (1.0, 0.05), (2.0, 0.10)] {
            let scenario = scenario(workload, "4x", load);
            let (cap, capped) = scenario.best_cap(&EFFORT, TRUE_MODEL);
            let gain = gain(&gate(&scenario), &capped).mean;
            assert!(gain >= at_least, "{workload} at {load}: {gain:+.3} to a cap of {cap}");
        }
    }
}

#[test]
fn targets_of_first_token_and_gap_are_kept_with_learned_lengths() {
    for (workload, target) in [("8b-conv", "1s+30ms"), ("cpu-chat", "3s+80ms")] {
        let scenario = Scenario { known: false, ..scenario(workload, target, 2.0) };
        let scores = gate(&scenario);
        assert!(kept(&scores) >= 0.95, "{workload}: {:.3} of admitted", kept(&scores));
    }
}

fn run(
    scenario: &Scenario,
    noise: f64,
    strength_permille: u32,
    isolation: IsolationConfig,
    compared: bool,
) -> (f64, Run) {
    let jobs = scenario.jobs(1_000, 1);
    let kinds = KindConfig { strength_permille, ..KindConfig::default() };
    let admitting = Admitting::Gate(AdmissionMode::Deadline, kinds);
    let setup = Setup::new(&scenario.workload.profile, "deadline", admitting, 1);
    let run = Setup { noise, isolation, compared, ..setup }.run(&jobs);
    (run.met(&jobs) as f64 / run.admitted() as f64, run)
}

/// Insertion is approximate until the next build, so where many are inserted a few may be broken.
#[test]
fn without_noise_and_with_known_lengths_no_promise_is_broken() {
    for workload in ["8b-code", "70b-conv", "cpu-chat"] {
        for (load, at_least) in [(0.5, 1.0), (1.0, 0.997), (2.0, 0.99)] {
            let (kept, run) = run(&scenario(workload, "4x", load), 0.0, 0, NO_DISPLACEMENT, false);
            assert!(run.admitted() > 100);
            assert!(kept >= at_least, "{workload} at {load}: {kept:.4} of admitted");
        }
    }
}

/// A small part of the promises gives way to many small requests, and no more than that part.
#[test]
fn large_requests_give_way_to_small_ones_within_a_budget() {
    let scenario = scenario("8b-conv-bursty", "5s", 0.5);
    let of = |isolation| run(&scenario, 0.0, 800, isolation, false);
    let (strict_kept, strict) = of(NO_DISPLACEMENT);
    let (kept, run) = of(IsolationConfig::default());
    assert!(strict_kept >= 0.997 && kept >= 0.98, "{strict_kept:.4}, {kept:.4} of admitted");
    let in_time = |kept: f64, run: &Run| (kept * run.admitted() as f64).round();
    let (before, now) = (in_time(strict_kept, &strict), in_time(kept, &run));
    assert!(now > before * 1.02, "{now} instead of {before} in time");
}

/// Half of the forecasts agree within 0.5 %, 90 % within 2 %, 99 % within 10 % of the time to come.
#[test]
fn inserted_candidates_are_forecast_as_a_rebuild_does() {
    let (_, run) =
        run(&scenario("cpu-chat", "4x", 2.0), 0.05, 800, IsolationConfig::default(), true);
    let mut errors = run.insertion_errors;
    errors.sort_unstable();
    let [half, most, nearly_all] = [50, 90, 99].map(|percent| errors[errors.len() * percent / 100]);
    assert!(half <= 5 && most <= 20 && nearly_all <= 100, "{half} {most} {nearly_all} per mille");
}

#[test]
fn a_plain_queue_collapses() {
    let scores = scenario("cpu-chat", "4x", 2.0).plain(&EFFORT, TRUE_MODEL);
    assert_eq!(scores[0].refused, [0.0; 4], "it refuses nobody");
    assert!(attainment(&scores).mean < 0.05);
}
