//! What the gate decides: taken or not, by whose rule, how fast, and when to come back.

use std::time::{Duration, Instant};

use engine::Refusal;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use scheduler::{Class, Rule, ShedReason};

use super::register::{Labels, Real, Registrar};
use super::seconds;
use super::share::LastMinute;

const ATTEMPTS: [&str; 2] = ["first", "retry"];
/// Reasons of refusals that are no sheds: sending them again does not help.
const FINAL_REASONS: [&str; 4] = ["deadline_unsatisfiable", "never_fits", "invalid", "engine_dead"];

#[derive(Debug)]
pub(crate) struct Admission {
    accepted: Family<Labels, Counter>,
    rejected: Family<Labels, Counter>,
    shed: Family<Labels, Counter>,
    rejected_ratio: Real,
    recent: LastMinute,
    decision: Histogram,
    retry_after: Histogram,
}

impl Admission {
    pub(crate) fn new(r: &mut Registrar) -> Admission {
        let this = Admission {
            accepted: r.family("inference_admission_accepted_total"),
            rejected: r.family("inference_admission_rejected_total"),
            shed: r.family("inference_admission_shed_total"),
            rejected_ratio: r.gauge("inference_admission_rejected_ratio"),
            recent: LastMinute::new(Instant::now()),
            decision: r.histogram("inference_admission_decision_seconds"),
            retry_after: r.histogram("inference_retry_after_seconds"),
        };
        this.create_all();
        this
    }

    fn create_all(&self) {
        for class in Class::ALL.map(Class::label) {
            for rule in Rule::ALL.map(Rule::label) {
                self.shed.get_or_create(&shed_labels(rule, class)).inc_by(0);
            }
            let reasons = ShedReason::ALL.map(ShedReason::label);
            for attempt in ATTEMPTS {
                self.accepted.get_or_create(&accepted_labels(class, attempt)).inc_by(0);
                for reason in reasons.into_iter().chain(FINAL_REASONS) {
                    self.rejected.get_or_create(&rejected_labels(reason, class, attempt)).inc_by(0);
                }
            }
        }
    }

    /// The gate has decided.
    pub(crate) fn decided(
        &self,
        class: Class,
        retry: u32,
        took: Duration,
        refusal: Option<&Refusal>,
    ) {
        self.decision.observe(took.as_secs_f64());
        if retry == 0 && refusal.is_none_or(is_want_of_capacity) {
            self.recent.observe(Instant::now(), refusal.is_some());
        }
        let (class, attempt) = (class.label(), ATTEMPTS[usize::from(retry > 0)]);
        let Some(refusal) = refusal else {
            self.accepted.get_or_create(&accepted_labels(class, attempt)).inc();
            return;
        };
        self.rejected.get_or_create(&rejected_labels(reason(refusal), class, attempt)).inc();
        if let Refusal::Shed(shed) = refusal {
            self.shed.get_or_create(&shed_labels(shed.rule.label(), class)).inc();
            self.retry_after.observe(seconds(shed.retry_after));
        }
    }

    pub(crate) fn snapshot(&self) {
        self.rejected_ratio.set(self.recent.share(Instant::now()));
    }
}

/// More replicas would have taken it.
fn is_want_of_capacity(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::Shed(shed) => match shed.reason {
            ShedReason::SloMiss
            | ShedReason::QueueFull
            | ShedReason::KvPressure
            | ShedReason::RateLimit => true,
            ShedReason::ReplicaBusy
            | ShedReason::TenantBudget
            | ShedReason::Expired
            | ShedReason::Draining => false,
        },
        _ => false,
    }
}

fn accepted_labels(class: &'static str, attempt: &'static str) -> Labels {
    vec![("class", class), ("attempt", attempt)]
}

fn rejected_labels(reason: &'static str, class: &'static str, attempt: &'static str) -> Labels {
    vec![("reason", reason), ("class", class), ("attempt", attempt)]
}

fn shed_labels(rule: &'static str, class: &'static str) -> Labels {
    vec![("rule", rule), ("class", class)]
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
