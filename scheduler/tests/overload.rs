//! Overload in virtual time: admission by deadline keeps its promises where a plain queue
//! collapses.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod driver;

use driver::{Driver, Report, arrivals};
use sluice_scheduler::AdmissionMode;

/// Requests per 100 seconds that the driver's device serves when it is never idle.
const CAPACITY: u64 = 430;

fn run(mode: AdmissionMode, policy: &str, noise: u64, load: u64, exact: bool) -> Report {
    Driver::new(mode, policy, noise).run(arrivals(1, 60, load, exact))
}

#[test]
fn goodput_holds_under_overload_and_promises_are_kept() {
    let loads = [CAPACITY / 2, CAPACITY, CAPACITY * 2, CAPACITY * 4];
    let reports = loads.map(|load| run(AdmissionMode::Deadline, "deadline", 50, load, true));
    let best = reports.iter().map(Report::goodput).max().unwrap();
    for (load, report) in loads.iter().zip(&reports) {
        let (met, admitted) = (report.met(), report.admitted());
        assert!(met * 100 >= admitted * 95, "{load}: {met} of {admitted} admitted were in time");
        if *load >= CAPACITY * 2 {
            let goodput = report.goodput();
            assert!(goodput * 100 >= best * 90, "{load}: {goodput} tokens/s of {best}");
        }
    }
}

#[test]
fn learned_lengths_keep_their_promises_too() {
    let report = run(AdmissionMode::Deadline, "deadline", 50, CAPACITY * 2, false);
    let (met, admitted) = (report.met(), report.admitted());
    assert!(admitted > 100 && met * 100 >= admitted * 95, "{met} of {admitted} were in time");
}

#[test]
fn without_noise_and_with_known_lengths_no_promise_is_broken() {
    for load in [CAPACITY / 2, CAPACITY, CAPACITY * 3] {
        let report = run(AdmissionMode::Deadline, "deadline", 0, load, true);
        assert!(report.admitted() > 50);
        assert_eq!(report.met(), report.admitted(), "at {load} requests in 100 s");
    }
}

#[test]
fn a_plain_queue_collapses() {
    let report = run(AdmissionMode::None, "fcfs", 50, CAPACITY * 2, true);
    assert_eq!(report.admitted(), report.outcomes.len() as u64, "it refuses nobody");
    assert!(report.met() * 20 < report.admitted(), "{} were in time", report.met());
}
