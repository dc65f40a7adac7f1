//! How well what is carried agrees with what came of it. `cargo test -p sluice-sim --test it
//! carried -- --nocapture` prints the table of the documentation.

use scheduler::{AdmissionMode, KindConfig, Micros};
use sim::experiment::{Scenario, capacity};
use sim::workload::by_name;
use sim::{Admitting, Run, Setup};

const LOADS: [f64; 2] = [0.5, 2.0];

fn run(workload: &str, load: f64) -> (Vec<Micros>, Run) {
    let workload = *by_name(workload).unwrap();
    let target = "4x".parse().unwrap();
    let capacity = capacity(&workload);
    let jobs = Scenario { workload, target, load, known: true, capacity }.jobs(1_000, 1);
    let admitting = Admitting::Gate(AdmissionMode::Deadline, KindConfig::default());
    let run = Setup::new(&workload.profile, "deadline", admitting, 1).run(&jobs);
    (jobs.iter().map(|job| job.request.arrival).collect(), run)
}

/// Of the deviations of some time from its forecast, per cent: half and 90 % are within these.
fn half_and_most(mut off: Vec<f64>) -> (f64, f64) {
    off.sort_by(f64::total_cmp);
    let at = |percent: usize| off[off.len() * percent / 100] * 100.0;
    (at(50), at(90))
}

fn off(came: Micros, forecast: Micros, arrival: Micros) -> f64 {
    (came.minus(arrival).0 as f64 / forecast.minus(arrival).0.max(1) as f64 - 1.0).abs()
}

/// With known lengths and steps that vary by 5 %.
#[test]
fn carried_forecasts_agree_with_what_comes_of_them() {
    println!("| workload | load | E2E carried, median / p90 | TTFT carried | E2E at admission |");
    println!("|---|---|---|---|---|");
    for workload in ["8b-code", "8b-code-bursty", "8b-conv", "70b-conv", "cpu-chat-bursty"] {
        for load in LOADS {
            let (arrivals, run) = run(workload, load);
            let (mut last, mut first, mut told) = (Vec::new(), Vec::new(), Vec::new());
            for (record, arrival) in run.records().zip(arrivals) {
                let (Some(settled), Some(ended)) = (record.settled, record.last) else { continue };
                last.push(off(ended, settled.carried_last, arrival));
                told.push(off(ended, settled.forecast.last_token, arrival));
                let began = record.first.unwrap_or(ended);
                first.push(off(began, settled.carried_first, arrival));
            }
            let [last, first, told] = [last, first, told].map(half_and_most);
            let show = |(half, most): (f64, f64)| format!("{half:.1} / {most:.1} %");
            println!("| {workload} | {load} | {} | {} | {} |", show(last), show(first), show(told));
            assert!(last.0 <= 3.0 && last.1 <= 15.0, "{workload} at {load}: {}", show(last));
        }
    }
}
