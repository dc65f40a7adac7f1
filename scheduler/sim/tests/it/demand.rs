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

#[test]
fn offered_work_is_linear_in_the_traffic() {
    let cases = [
        ("8b-conv", "5s", true),
        ("8b-conv", "1s+30ms", false),
        ("70b-lognormal", "6s", true),
        ("70b-lognormal", "2s+50ms", false),
        ("cpu-chat", "8s", true),
        ("cpu-chat", "3s+80ms", false),
    ];
    for (workload, target, known) in cases {
        let loads = [0.5, 1.0, 2.0, 4.0];
        let measured = loads.map(|load| offered(workload, target, load, known));
        let lengths = if known { "known" } else { "learned" };
        let cells = measured.map(|devices| format!("{devices:.2}")).join(" | ");
        println!("| {workload} | {target} | {lengths} | {cells} |");
        // Of the traffic at half load, which nobody is refused of.
        let unit = measured[0] / loads[0];
        for (load, devices) in loads.into_iter().zip(measured) {
            let ratio = devices / load / unit;
            assert!((0.8..1.3).contains(&ratio), "{workload} {target} at {load}: {ratio:.2}");
            assert!((0.75..1.5).contains(&(devices / load)), "{workload} {target}: {devices:.2}");
        }
    }
}
