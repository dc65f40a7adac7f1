//! Nine in ten requests come within the upper bound that they were shown when they were admitted.
//! `cargo nextest run -p sluice-sim coverage --no-capture` prints the table of the user guide.

use scheduler::{AdmissionMode, KindConfig, Terminal};
use sim::experiment::{Scenario, capacity};
use sim::workload::by_name;
use sim::{Admitting, Fate, Record, Setup};

/// Whether a request came within its bound: its last token where the length was known, else its
/// first. `None` if it was not admitted.
fn is_covered(record: &Record) -> Option<bool> {
    let settled = record.settled?;
    if record.fate == Fate::Ended(Terminal::Expired) {
        return Some(false);
    }
    let forecast = settled.forecast;
    if settled.exact {
        record.last.map(|last| last <= forecast.upper_last)
    } else {
        record.first.map(|first| first <= forecast.upper_first)
    }
}

/// Of a run, its first tenth apart, in which the bounds are learned.
fn coverage(workload: &str, target: &str, load: f64, known: bool) -> f64 {
    let workload = *by_name(workload).unwrap();
    let target = target.parse().unwrap();
    let scenario = Scenario { workload, target, load, known, capacity: capacity(&workload) };
    let jobs = scenario.jobs(4_000, 1);
    let rule = Admitting::Gate(AdmissionMode::Deadline, KindConfig::default());
    let setup = Setup::new(&workload.profile, "deadline", rule, 1);
    let run = Setup { noise: 0.05, ..setup }.run(&jobs);
    let covered: Vec<bool> = run.records().skip(400).filter_map(is_covered).collect();
    assert!(covered.len() > 300, "{} are too few", covered.len());
    covered.iter().filter(|covered| **covered).count() as f64 / covered.len() as f64
}

#[test]
fn nine_in_ten_come_within_the_bound() {
    let cases = [
        ("8b-code", "4x", true),
        ("8b-conv", "5s", true),
        ("70b-conv", "4x", true),
        ("cpu-chat", "4x", true),
        ("8b-conv", "1s+30ms", false),
        ("cpu-chat", "3s+80ms", false),
    ];
    let mut all = Vec::new();
    for (workload, target, known) in cases {
        let shares = [0.5, 1.0, 2.0].map(|load| coverage(workload, target, load, known));
        let lengths = if known { "known" } else { "learned" };
        let [half, one, two] = shares;
        println!("| {workload} | {target} | {lengths} | {half:.3} | {one:.3} | {two:.3} |");
        all.extend(shares);
    }
    assert!(all.iter().all(|share| (0.85..=0.95).contains(share)), "{all:.3?}");
}
