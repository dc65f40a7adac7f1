//! What a refused client is told.

use scheduler::{Quantity, Rule, Shed};
use serde_json::Value;

use super::*;

const SHED: Shed = Shed {
    reason: ShedReason::SloMiss,
    rule: Rule::Own,
    quantity: Quantity::FirstToken,
    retry_after: Micros(2_400_000),
    should_retry: true,
    predicted: Micros(2_300_000),
    budget: Micros(1_500_000),
    position: 7,
};

fn refused(refusal: Refusal) -> ApiError {
    ApiError::Refused(refusal, OverloadStatus::new(429))
}

fn error_of(error: &ApiError) -> Value {
    serde_json::to_value(error.body()).expect("JSON")["error"].take()
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().expect("ASCII"))
}

#[test]
fn retry_after_is_whole_seconds_from_1_to_60_and_never_below_the_precise_value() {
    for micros in [0, 1, 999_999, 1_000_000, 1_000_001, 59_999_999, 61_000_000, u64::MAX] {
        let shed = Shed { retry_after: Micros(micros), ..SHED };
        let response = refused(Refusal::Shed(shed)).into_response();
        let seconds: u64 = header(&response, "retry-after").parse().expect("whole seconds");
        let millis: u64 = header(&response, "retry-after-ms").parse().expect("whole ms");
        assert!((1..=60).contains(&seconds));
        assert!(0 < millis && millis <= seconds * 1_000);
    }
}

#[test]
fn body_and_headers_say_the_same() {
    let error = refused(Refusal::Shed(Shed { should_retry: false, ..SHED }));
    let body = error_of(&error);
    let response = error.into_response();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&response, "x-should-retry"), "false");
    assert_eq!(body["param"], Value::Null);
    for (member, name, value) in [
        ("code", "x-sluice-reason", "slo_miss"),
        ("rule", "x-sluice-rule", "own"),
        ("quantity", "x-sluice-quantity", "ttft"),
        ("predicted_ms", "x-sluice-predicted-ms", "2300"),
        ("budget_ms", "x-sluice-budget-ms", "1500"),
        ("position", "x-sluice-queue-position", "7"),
    ] {
        assert_eq!(header(&response, name), value, "{name}");
        assert_eq!(body[member].to_string().trim_matches('"'), value, "{member}");
    }
}

#[test]
fn a_shed_request_is_told_why_in_words() {
    let message = |shed| error_of(&refused(Refusal::Shed(shed)))["message"].clone();
    assert_eq!(
        message(SHED),
        "Not admitted: the first token would come after about 2300 ms, 1500 ms are allowed; 7 \
         sequences are ahead in the queue. Retry after 3 s."
    );
    assert_eq!(
        message(Shed { budget: Micros::from_millis(2_500), ..SHED }),
        "Not admitted: the first token would come after about 2300 ms, 2500 ms are allowed, which \
         is within the margin of error of forecasts; 7 sequences are ahead in the queue. Retry \
         after 3 s."
    );
    let quantity = Quantity::LastToken;
    let harm = Shed { rule: Rule::Harm, quantity, budget: Micros::MAX, position: 1, ..SHED };
    assert_eq!(
        message(harm),
        "Not admitted: a request that was admitted before would be late because of it (the last \
         token would come after about 2300 ms); 1 sequence is ahead in the queue. Retry after 3 s."
    );
    let bulk = message(Shed { should_retry: false, ..SHED });
    assert!(bulk.as_str().is_some_and(|text| text.contains(". Do not retry: ")), "{bulk}");
    let full = Shed { reason: ShedReason::QueueFull, rule: Rule::Bound, ..SHED };
    assert_eq!(
        message(full),
        "Not admitted: the queue of its class is full; 7 sequences are ahead in the queue. Retry \
         after 3 s."
    );
}

#[test]
fn numbers_are_shown_where_they_mattered() {
    let bound = Shed { reason: ShedReason::QueueFull, rule: Rule::Bound, ..SHED };
    let body = error_of(&refused(Refusal::Shed(bound)));
    assert_eq!((body.get("predicted_ms"), body["position"].as_u64()), (None, Some(7)));
    let unlimited = Shed { budget: Micros::MAX, ..SHED };
    assert!(error_of(&refused(Refusal::Shed(unlimited))).get("budget_ms").is_none());
    let (quantity, predicted, budget) = (Quantity::Gaps, Micros(90_000), Micros(50_000));
    let never = refused(Refusal::Unsatisfiable { quantity, predicted, budget });
    let body = error_of(&never);
    assert_eq!((&body["quantity"], body["predicted_ms"].as_u64()), (&"tpot".into(), Some(90)));
    let response = never.into_response();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert_eq!(header(&response, "x-sluice-reason"), "deadline_unsatisfiable");
    assert_eq!(header(&response, "x-sluice-budget-ms"), "50");
    assert_eq!(header(&response, "x-should-retry"), "false");
}

#[test]
fn the_overload_status_covers_sheds_but_not_draining() {
    let status = |reason| {
        let shed = Shed { reason, rule: Rule::Bound, ..SHED };
        ApiError::Refused(Refusal::Shed(shed), OverloadStatus::new(529)).status()
    };
    assert_eq!(status(ShedReason::QueueFull).as_u16(), 529);
    assert_eq!(status(ShedReason::Draining).as_u16(), 503);
}
