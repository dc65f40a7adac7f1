//! A refusal of the gate in words, numbers and headers: what a client needs to see why.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use engine::Refusal;
use scheduler::{Micros, Quantity, Rule, Shed, ShedReason};

use super::whole_seconds;

const REASON: HeaderName = HeaderName::from_static("x-sluice-reason");
const RULE: HeaderName = HeaderName::from_static("x-sluice-rule");
const QUANTITY: HeaderName = HeaderName::from_static("x-sluice-quantity");
const PREDICTED: HeaderName = HeaderName::from_static("x-sluice-predicted-ms");
const BUDGET: HeaderName = HeaderName::from_static("x-sluice-budget-ms");
const POSITION: HeaderName = HeaderName::from_static("x-sluice-queue-position");

/// What the gate knew when it said no, as far as it mattered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// Which of the rules for forecasts said so: `own`, `harm`, `kind` or `expected`.
    pub rule: Option<&'static str>,
    /// What the two are times of: `ttft`, `tpot` or `e2e`.
    pub quantity: Option<&'static str>,
    /// The forecast, in milliseconds.
    pub predicted_ms: Option<u64>,
    /// What is allowed, in milliseconds.
    pub budget_ms: Option<u64>,
    /// Sequences that would be ahead.
    pub position: Option<u32>,
}

impl Explanation {
    /// Of a refusal. Where no forecast was the reason there is none.
    #[must_use]
    pub fn of(refusal: &Refusal) -> Explanation {
        match refusal {
            Refusal::Shed(shed) => {
                let position = Some(shed.position);
                if shed.rule == Rule::Bound {
                    return Explanation { position, ..Explanation::default() };
                }
                let Shed { rule, quantity, predicted, budget, .. } = *shed;
                Explanation {
                    rule: Some(rule.label()),
                    position,
                    ..Explanation::times(quantity, predicted, budget)
                }
            }
            Refusal::Unsatisfiable { quantity, predicted, budget } => {
                Explanation::times(*quantity, *predicted, *budget)
            }
            _ => Explanation::default(),
        }
    }

    fn times(quantity: Quantity, predicted: Micros, budget: Micros) -> Explanation {
        Explanation {
            quantity: Some(quantity.label()),
            predicted_ms: Some(predicted.as_millis()),
            budget_ms: (budget < Micros::MAX).then(|| budget.as_millis()),
            ..Explanation::default()
        }
    }

    /// The same as headers, so that gateways see it without reading the body.
    pub(super) fn write(&self, code: Option<&'static str>, headers: &mut HeaderMap) {
        for (name, text) in [(REASON, code), (RULE, self.rule), (QUANTITY, self.quantity)] {
            if let Some(text) = text {
                headers.insert(name, HeaderValue::from_static(text));
            }
        }
        let position = self.position.map(u64::from);
        let numbers =
            [(PREDICTED, self.predicted_ms), (BUDGET, self.budget_ms), (POSITION, position)];
        for (name, number) in numbers {
            if let Some(number) = number {
                headers.insert(name, HeaderValue::from(number));
            }
        }
    }
}

/// The stable code of a refusal.
pub(crate) fn code(refusal: &Refusal) -> Option<&'static str> {
    match refusal {
        Refusal::Shed(shed) => Some(shed.reason.label()),
        Refusal::Unsatisfiable { .. } => Some("deadline_unsatisfiable"),
        Refusal::NeverFits { .. } => Some("never_fits"),
        Refusal::Invalid(_) => None,
        Refusal::EngineDead => Some("engine_dead"),
    }
}

/// For people.
pub(super) fn message(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Shed(shed) => shed_message(shed),
        Refusal::Unsatisfiable { quantity, predicted, budget } => {
            let late = late(*quantity, *predicted, *budget);
            format!("This request cannot be in time, not even on an idle server: {late}.")
        }
        Refusal::NeverFits { needed, available } => format!(
            "This request needs {needed} KV blocks, the server has {available}: shorten the \
             prompt, lower max_tokens or n, or serve with a larger --kv-cache-memory."
        ),
        Refusal::Invalid(problem) => problem.clone(),
        Refusal::EngineDead => "The engine has stopped; the server must be restarted.".to_owned(),
    }
}

fn shed_message(shed: &Shed) -> String {
    let why = match shed.reason {
        ShedReason::SloMiss => by_forecast(shed),
        ShedReason::KvPressure => {
            format!("room in the KV cache would be free too late; {}", by_forecast(shed))
        }
        ShedReason::QueueFull => "the queue of its class is full".to_owned(),
        ShedReason::ReplicaBusy => {
            format!("another replica has room and this one has not; {}", by_forecast(shed))
        }
        ShedReason::RateLimit => "more tokens come than this server takes a second".to_owned(),
        ShedReason::TenantBudget => "its tenant has used up its share".to_owned(),
        ShedReason::Expired => "its deadline had passed on arrival".to_owned(),
        ShedReason::Draining => "the server is shutting down".to_owned(),
    };
    let ahead = match shed.position {
        0 => "nothing is ahead in the queue".to_owned(),
        1 => "1 sequence is ahead in the queue".to_owned(),
        n => format!("{n} sequences are ahead in the queue"),
    };
    let advice = if shed.should_retry {
        format!("Retry after {} s", whole_seconds(shed.retry_after))
    } else {
        "Do not retry: too much of what comes are retries".to_owned()
    };
    format!("Not admitted: {why}; {ahead}. {advice}.")
}

fn by_forecast(shed: &Shed) -> String {
    let times = late(shed.quantity, shed.predicted, shed.budget);
    match shed.rule {
        Rule::Own if shed.predicted <= shed.budget => {
            format!("{times}, which is within the margin of error of forecasts")
        }
        Rule::Own | Rule::Bound => times,
        Rule::Harm => {
            format!("a request that was admitted before would be late because of it ({times})")
        }
        Rule::Kind => format!(
            "some requests have to be refused, and those that leave the least room in their \
             deadlines go first ({times})"
        ),
        Rule::Expected => format!("latency work that is expected goes first (with it {times})"),
    }
}

/// A forecast beside its limit.
fn late(quantity: Quantity, predicted: Micros, budget: Micros) -> String {
    let predicted = predicted.as_millis();
    let comes = match quantity {
        Quantity::FirstToken => format!("the first token would come after about {predicted} ms"),
        Quantity::LastToken => format!("the last token would come after about {predicted} ms"),
        Quantity::Gaps => format!("the tokens after the first would take about {predicted} ms"),
    };
    if budget == Micros::MAX {
        return comes;
    }
    format!("{comes}, {} ms are allowed", budget.as_millis())
}
