//! Our own series on requests and steps: how they end, whether in time, what is outstanding.

use engine::{RequestReport, Snapshot, StepReport};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use scheduler::{Class, Micros, Terminal};

use super::register::{Histograms, Labels, Real, Registrar};
use super::{mean_gap, seconds};

const OUTCOMES: [&str; 5] = ["completed", "shed", "expired", "cancelled", "failed"];
const KINDS: [&str; 3] = ["prefill", "decode", "mixed"];

#[derive(Debug)]
pub(crate) struct Inference {
    requests: Family<Labels, Counter>,
    met: Family<Labels, Counter>,
    missed: Family<Labels, Counter>,
    broken: Family<Labels, Counter>,
    displaced: Family<Labels, Counter>,
    outstanding: Family<Labels, Real>,
    step: Histograms,
    step_age: Real,
    /// Being admitted is a promise: the gate decides by forecast.
    promises: bool,
}

impl Inference {
    pub(crate) fn new(r: &mut Registrar, promises: bool) -> Inference {
        let this = Inference {
            requests: r.family("inference_requests_total"),
            met: r.family("inference_slo_met_total"),
            missed: r.family("inference_slo_missed_total"),
            broken: r.family("inference_promises_broken_total"),
            displaced: r.family("inference_promises_displaced_total"),
            outstanding: r.family("inference_outstanding_work_seconds"),
            step: r.histograms("inference_step_seconds"),
            step_age: r.gauge("inference_engine_step_age_seconds"),
            promises,
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
            for counter in [&self.met, &self.missed, &self.broken, &self.displaced] {
                counter.get_or_create(&of_class(class)).inc_by(0);
            }
            self.outstanding.get_or_create(&of_class(class)).set(0.0);
            for outcome in OUTCOMES {
                self.requests.get_or_create(&outcome_labels(outcome, class)).inc_by(0);
            }
        }
    }

    /// A request was not taken.
    pub(crate) fn refused(&self, class: Class) {
        self.requests.get_or_create(&outcome_labels("shed", class.label())).inc();
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
        if report.settled.is_some_and(|settled| settled.displaced) {
            self.displaced.get_or_create(&of_class(class)).inc();
        }
        let Some(met) = in_time(report) else { return };
        let counter = if met { &self.met } else { &self.missed };
        counter.get_or_create(&of_class(class)).inc();
        if !met && self.promises && report.terminal != Terminal::Failed {
            self.broken.get_or_create(&of_class(class)).inc();
        }
    }

    pub(crate) fn snapshot(&self, snapshot: &Snapshot) {
        for class in Class::ALL {
            let work = snapshot.outstanding[class.index()];
            self.outstanding.get_or_create(&of_class(class.label())).set(seconds(work));
        }
        self.step_age.set(seconds(snapshot.step_age));
    }
}

fn of_class(class: &'static str) -> Labels {
    vec![("class", class)]
}

fn outcome_labels(outcome: &'static str, class: &'static str) -> Labels {
    vec![("outcome", outcome), ("class", class)]
}

/// Whether every target was kept. `None` if the client left before it could be told.
fn in_time(report: &RequestReport) -> Option<bool> {
    let deadline = &report.deadline;
    let within = |came: Micros, due: Option<Micros>| due.is_none_or(|due| came <= due);
    // A token that has not come yet will come later than now.
    let kept = within(report.first_token.unwrap_or(report.ended), deadline.first_token)
        && within(report.ended, deadline.last_token);
    match report.terminal {
        Terminal::Completed => {
            Some(kept && mean_gap(report).is_none_or(|gap| within(gap, deadline.tpot)))
        }
        Terminal::Expired | Terminal::Failed => Some(false),
        Terminal::Cancelled => (!kept).then_some(false),
    }
}
