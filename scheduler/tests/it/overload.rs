//! Overload in virtual time: admission by deadline keeps its promises where a plain queue
//! collapses.

use sluice_scheduler::{AdmissionMode, Deadline, Micros};

use super::driver::{Arrival, Driver, Report, Setup, arrivals, config};

/// Requests per 100 seconds that the driver's device serves when it is never idle.
const CAPACITY: u64 = 430;

const GATED: Setup =
    Setup { mode: AdmissionMode::Deadline, policy: "deadline", config: config(), noise: 50 };

fn run(setup: Setup, load: u64, exact: bool) -> Report {
    Driver::new(setup).run(arrivals(1, 60, load, exact))
}

fn assert_share_in_time(report: &Report, percent: u64) {
    let (met, admitted) = (report.met(), report.admitted());
    assert!(admitted > 100, "only {admitted} admitted");
    assert!(met * 100 >= admitted * percent, "{met} of {admitted} admitted were in time");
}

#[test]
fn goodput_holds_under_overload_and_promises_are_kept() {
    let loads = [CAPACITY / 2, CAPACITY, CAPACITY * 2, CAPACITY * 4];
    let reports = loads.map(|load| run(GATED, load, true));
    let best = reports.iter().map(Report::goodput).max().unwrap();
    for (load, report) in loads.iter().zip(&reports) {
        assert_share_in_time(report, 98);
        if *load >= CAPACITY * 2 {
            let goodput = report.goodput();
            assert!(goodput * 100 >= best * 90, "{load}: {goodput} tokens/s of {best}");
        }
    }
}

/// Where outputs take a sixteenth to a half of `max_tokens`, the last token of a single request
/// cannot be promised as firmly as the first.
#[test]
fn learned_lengths_mostly_keep_their_promises() {
    assert_share_in_time(&run(GATED, CAPACITY * 2, false), 90);
}

#[test]
fn targets_of_first_token_and_gap_are_kept_with_learned_lengths() {
    let with_targets = |mut arrival: Arrival| {
        let first_token = Some(arrival.request.arrival.plus(Micros::from_millis(1_500)));
        let tpot = Some(Micros::from_millis(40));
        arrival.request.deadline = Deadline { first_token, last_token: None, tpot };
        arrival
    };
    let arrivals = arrivals(1, 60, CAPACITY * 2, false).into_iter().map(with_targets);
    assert_share_in_time(&Driver::new(GATED).run(arrivals.collect()), 95);
}

#[test]
fn without_noise_and_with_known_lengths_no_promise_is_broken() {
    for load in [CAPACITY / 2, CAPACITY, CAPACITY * 2] {
        let report = run(Setup { noise: 0, ..GATED }, load, true);
        assert!(report.admitted() > 100);
        assert_eq!(report.met(), report.admitted(), "at {load} requests in 100 s");
    }
}

/// Half of the forecasts agree within 0.5 %, 90 % within 2 %, 99 % within 10 % of the time to come.
#[test]
fn inserted_candidates_are_forecast_as_a_rebuild_does() {
    let mut errors = run(GATED, CAPACITY * 2, true).insertion_errors;
    errors.sort_unstable();
    let [half, most, nearly_all] = [50, 90, 99].map(|percent| errors[errors.len() * percent / 100]);
    assert!(half <= 5 && most <= 20 && nearly_all <= 100, "{half} {most} {nearly_all} per mille");
}

#[test]
fn a_plain_queue_collapses() {
    let plain = Setup { mode: AdmissionMode::None, policy: "fcfs", ..GATED };
    let report = run(plain, CAPACITY * 2, true);
    assert_eq!(report.admitted(), report.outcomes.len() as u64, "it refuses nobody");
    assert!(report.met() * 20 < report.admitted(), "{} were in time", report.met());
}
