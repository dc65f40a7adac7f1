//! Offered work is linear in the traffic, whatever is let in.
//! `cargo nextest run -p sluice-sim offered --no-capture` prints the table of the user guide.

use scheduler::{AdmissionMode, KindConfig};
use sim::experiment::{Scenario, capacity};
use sim::workload::by_name;
use sim::{Admitting, Setup};

/// The mean over the second half of the steps, in devices.
fn offered(workload: &str, target: &str, load: f64, known: bool) -> f64 {
    let workload = *by_name(workload).unwrap();
    let target = target.parse().unwrap();
    let scenario = Scenario { workload, target, load, known, capacity: capacity(&workload) };
    let rule = Admitting::Gate(AdmissionMode::Deadline, KindConfig::default());
    let setup = Setup::new(&workload.profile, "deadline", rule, 1);
    let run = setup.run(&scenario.jobs((3_000.0 * load.max(1.0)) as usize, 1));
    let later = &run.offered_permille[run.offered_permille.len() / 2..];
    later.iter().map(|permille| f64::from(*permille)).sum::<f64>() / later.len() as f64 / 1e3
}

const LOADS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];

/// Offered work at each of [`LOADS`].
fn series(workload: &str, target: &str, known: bool) -> [f64; 4] {
    let measured = LOADS.map(|load| offered(workload, target, load, known));
    let lengths = if known { "known" } else { "learned" };
    let cells = measured.map(|devices| format!("{devices:.2}")).join(" | ");
    println!("| {workload} | {target} | {lengths} | {cells} |");
    measured
}

#[test]
fn offered_work_is_linear_in_the_traffic() {
    for (workload, target, known) in [
        ("8b-conv", "1s+30ms", false),
        ("70b-lognormal", "2s+50ms", false),
        ("cpu-chat", "8s", true),
        ("cpu-chat", "3s+80ms", false),
    ] {
        let measured = series(workload, target, known);
        // Of the traffic at half load, which nobody is refused of.
        let unit = measured[0] / LOADS[0];
        for (load, devices) in LOADS.into_iter().zip(measured) {
            let ratio = devices / load / unit;
            assert!((0.9..1.15).contains(&ratio), "{workload} {target} at {load}: {ratio:.2}");
            assert!((0.75..1.15).contains(&(devices / load)), "{workload} {target}: {devices:.2}");
        }
    }
}

/// Where one absolute deadline holds for short and long answers, some are refused at half load, and
/// the batch at which that happens is taken for a full one: too much is asked for, not too little.
#[test]
fn tight_absolute_deadlines_ask_for_more() {
    for (workload, target) in [("8b-conv", "5s"), ("70b-lognormal", "6s")] {
        let measured = series(workload, target, true);
        assert!(measured.is_sorted(), "{workload} {target}: {measured:?}");
        for (load, devices) in LOADS.into_iter().zip(measured) {
            assert!((0.9..2.6).contains(&(devices / load)), "{workload} {target}: {devices:.2}");
        }
    }
}
