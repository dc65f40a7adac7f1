//! Our own series: admission, forecasts, targets, steps.

use std::time::Duration;

use engine::{Refusal, RequestReport, Snapshot, StepReport};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use scheduler::{Class, Micros, ShedReason, Terminal};

use super::register::{Histograms, Labels, Real, Registrar};
use super::{mean_gap, seconds, span};

const ATTEMPTS: [&str; 2] = ["first", "retry"];
const OUTCOMES: [&str; 5] = ["completed", "shed", "expired", "cancelled", "failed"];
const KINDS: [&str; 3] = ["prefill", "decode", "mixed"];
const QUANTITIES: [&str; 2] = ["ttft", "e2e"];
/// Reasons of refusals that are no sheds: sending them again does not help.
const FINAL_REASONS: [&str; 4] = ["deadline_unsatisfiable", "never_fits", "invalid", "engine_dead"];

#[derive(Debug)]
pub(crate) struct Inference {
    requests: Family<Labels, Counter>,
    accepted: Family<Labels, Counter>,
    rejected: Family<Labels, Counter>,
    decision: Histogram,
    retry_after: Histogram,
    ratio: Histograms,
    met: Family<Labels, Counter>,
    missed: Family<Labels, Counter>,
    outstanding: Family<Labels, Real>,
    step: Histograms,
    step_age: Real,
}

impl Inference {
    pub(crate) fn new(r: &mut Registrar) -> Inference {
        let this = Inference {
            requests: r.family("inference_requests_total"),
            accepted: r.family("inference_admission_accepted_total"),
            rejected: r.family("inference_admission_rejected_total"),
            decision: r.histogram("inference_admission_decision_seconds"),
            retry_after: r.histogram("inference_retry_after_seconds"),
            ratio: r.histograms("inference_forecast_ratio"),
            met: r.family("inference_slo_met_total"),
            missed: r.family("inference_slo_missed_total"),
            outstanding: r.family("inference_outstanding_work_seconds"),
            step: r.histograms("inference_step_seconds"),
            step_age: r.gauge("inference_engine_step_age_seconds"),
        };
        this.create_all();
        this
    }

    /// Every series exists at 0 from the start: a rate over a series that is not there yet misses
    /// its first event.
    fn create_all(&self) {
        for kind in KINDS {
            drop(self.step.get_or_create(&vec![("kind", kind)]));
        }
        for class in Class::ALL.map(Class::label) {
            self.met.get_or_create(&vec![("class", class)]).inc_by(0);
            self.missed.get_or_create(&vec![("class", class)]).inc_by(0);
            self.outstanding.get_or_create(&vec![("class", class)]).set(0.0);
            for outcome in OUTCOMES {
                self.requests.get_or_create(&outcome_labels(outcome, class)).inc_by(0);
            }
            for quantity in QUANTITIES {
                drop(self.ratio.get_or_create(&ratio_labels(class, quantity)));
            }
            let reasons = ShedReason::ALL.map(ShedReason::label);
            for attempt in ATTEMPTS {
                self.accepted
                    .get_or_create(&vec![("class", class), ("attempt", attempt)])
                    .inc_by(0);
                for reason in reasons.into_iter().chain(FINAL_REASONS) {
                    self.rejected.get_or_create(&rejected_labels(reason, class, attempt)).inc_by(0);
                }
            }
        }
    }

    pub(crate) fn admission(
        &self,
        class: Class,
        retry: u32,
        took: Duration,
        refusal: Option<&Refusal>,
    ) {
        self.decision.observe(took.as_secs_f64());
        let (class, attempt) = (class.label(), ATTEMPTS[usize::from(retry > 0)]);
        let Some(refusal) = refusal else {
            self.accepted.get_or_create(&vec![("class", class), ("attempt", attempt)]).inc();
            return;
        };
        self.rejected.get_or_create(&rejected_labels(reason(refusal), class, attempt)).inc();
        self.requests.get_or_create(&outcome_labels("shed", class)).inc();
        if let Refusal::Shed(shed) = refusal {
            self.retry_after.observe(seconds(shed.retry_after));
        }
    }

    pub(crate) fn step(&self, report: &StepReport) {
        let kind = match (report.load.prefill_tokens > 0, report.load.decode_seqs > 0) {
            (true, false) => "prefill",
            (true, true) => "mixed",
            (false, _) => "decode",
        };
        self.step.get_or_create(&vec![("kind", kind)]).observe(seconds(report.duration));
    }

    pub(crate) fn request(&self, report: &RequestReport) {
        let class = report.class.label();
        self.requests.get_or_create(&outcome_labels(report.terminal.label(), class)).inc();
        let met = match report.terminal {
            Terminal::Cancelled => return,
            Terminal::Expired | Terminal::Failed => false,
            Terminal::Completed => {
                self.forecasts(report, class);
                kept_its_deadline(report)
            }
        };
        let counter = if met { &self.met } else { &self.missed };
        counter.get_or_create(&vec![("class", class)]).inc();
    }

    fn forecasts(&self, report: &RequestReport, class: &'static str) {
        let Some(first) = report.first_token else { return };
        let pairs = [
            ("ttft", first, report.forecast.first_token),
            ("e2e", report.ended, report.forecast.last_token),
        ];
        for (quantity, actual, predicted) in pairs {
            let predicted = span(report.arrival, predicted);
            if predicted > 0.0 {
                let ratio = span(report.arrival, actual) / predicted;
                self.ratio.get_or_create(&ratio_labels(class, quantity)).observe(ratio);
            }
        }
    }

    pub(crate) fn snapshot(&self, snapshot: &Snapshot) {
        self.step_age.set(seconds(snapshot.step_age));
        for class in Class::ALL {
            let work = seconds(snapshot.outstanding[class.index()]);
            self.outstanding.get_or_create(&vec![("class", class.label())]).set(work);
        }
    }
}

fn outcome_labels(outcome: &'static str, class: &'static str) -> Labels {
    vec![("outcome", outcome), ("class", class)]
}

fn rejected_labels(reason: &'static str, class: &'static str, attempt: &'static str) -> Labels {
    vec![("reason", reason), ("class", class), ("attempt", attempt)]
}

fn ratio_labels(class: &'static str, quantity: &'static str) -> Labels {
    vec![("class", class), ("quantity", quantity), ("basis", "admission")]
}

fn reason(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Shed(shed) => shed.reason.label(),
        Refusal::Unsatisfiable { .. } => FINAL_REASONS[0],
        Refusal::NeverFits { .. } => FINAL_REASONS[1],
        Refusal::Invalid(_) => FINAL_REASONS[2],
        Refusal::EngineDead => FINAL_REASONS[3],
    }
}

/// Whether every target that was promised was kept.
fn kept_its_deadline(report: &RequestReport) -> bool {
    let deadline = &report.deadline;
    let within = |actual: Option<Micros>, target: Option<Micros>| match (actual, target) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(actual), Some(target)) => actual <= target,
    };
    within(report.first_token, deadline.first_token)
        && within(Some(report.ended), deadline.last_token)
        && within(mean_gap(report).or(Some(Micros(0))), deadline.tpot)
}
