//! When an answer is due, and what else the headers say about a request.
//!
//! Sources, first one wins: our headers, the body's `slo`, the gateway's timeout. The client
//! library's own timeout only ever tightens what was found, and its default of ten minutes is a
//! deadline that nobody chose. What no source says is filled in by the engine from the class.

use axum::http::HeaderMap;
use scheduler::{Class, Deadline, Micros, Slo, TenantId};

use crate::class;
use crate::error::ApiError;
use crate::openai::common::SloFields;

/// The longest target that is taken, one day: a typing error should not look like a promise.
const LONGEST_MS: f64 = 86_400_000.0;
/// The official SDKs' default timeout in seconds.
const SDK_DEFAULT_TIMEOUT: f64 = 600.0;
/// More retries than this are not told apart.
const MAX_RETRY: u32 = 1_000;

/// What the headers of a request say about its targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    ttft: Option<Micros>,
    tpot: Option<Micros>,
    e2e: Option<Micros>,
    /// The gateway's timeout.
    gateway: Option<Micros>,
    /// The client library's timeout.
    client: Option<Micros>,
    /// The class, if a header names one.
    pub class: Option<Class>,
    /// Who sends it.
    pub tenant: TenantId,
    /// How often the client retried already.
    pub retry: u32,
    /// Which request it is an attempt of; see [`crate::origin`].
    pub origin: u64,
}

impl Terms {
    /// Reads the headers.
    ///
    /// # Errors
    /// A header of ours that is not a number of milliseconds or not a class, by name; a target of
    /// nothing is no target.
    pub fn from_headers(headers: &HeaderMap) -> Result<Terms, ApiError> {
        let gateway = millis(headers, "x-envoy-expected-rq-timeout-ms")?;
        Ok(Terms {
            ttft: target(headers, "x-slo-ttft-ms")?,
            tpot: target(headers, "x-slo-tpot-ms")?,
            // What is left of a deadline may be nothing: then the answer is that it has passed.
            e2e: millis(headers, "x-request-deadline-ms")?,
            // Envoy writes 0 for a route without a timeout.
            gateway: gateway.filter(|timeout| timeout.0 > 0),
            client: sdk_timeout(headers),
            class: class_of(headers)?,
            tenant: TenantId::DEFAULT,
            retry: retry_count(headers),
            origin: 0,
        })
    }

    /// The deadlines of a request that arrived at `arrival`, its class promising `class`.
    ///
    /// # Errors
    /// A target in the body that is not a sensible number of milliseconds.
    pub fn deadline(
        &self,
        body: &SloFields,
        streaming: bool,
        arrival: Micros,
        class: &Slo,
    ) -> Result<Deadline, ApiError> {
        let ttft = self.ttft.or(body_millis("slo.ttft_ms", body.ttft_ms)?);
        let tpot = self.tpot.or(body_millis("slo.tpot_ms", body.tpot_ms)?);
        let e2e = self.e2e.or(body_millis("slo.e2e_ms", body.e2e_ms)?).or(self.gateway);
        // A client that streams sees headers and keep-alive comments at once; its timeout is about
        // waiting for something to read. A client that does not must have everything by then.
        let (ttft, e2e) = match self.client {
            Some(timeout) if streaming => (tighter(ttft, class.ttft, timeout), e2e),
            Some(timeout) => (ttft, tighter(e2e, class.e2e, timeout)),
            None => (ttft, e2e),
        };
        Ok(Deadline {
            first_token: ttft.map(|span| arrival.plus(span)),
            last_token: e2e.map(|span| arrival.plus(span)),
            tpot,
        })
    }
}

/// `timeout` if it is earlier than what holds without it: `target`, or else the class's.
fn tighter(target: Option<Micros>, class: Option<Micros>, timeout: Micros) -> Option<Micros> {
    let earlier = target.or(class).is_none_or(|held| timeout < held);
    if earlier { Some(timeout) } else { target }
}

fn to_micros(millis: f64) -> Option<Micros> {
    (0.0..=LONGEST_MS).contains(&millis).then(|| Micros((millis * 1_000.0).round() as u64))
}

fn out_of_range(name: &str, least: &str) -> ApiError {
    let message = format!("`{name}` must be milliseconds, {least} and at most {LONGEST_MS}.");
    ApiError::invalid(name, message)
}

/// A span that something is to take at most; nothing takes no time.
fn positive(span: Option<Micros>, name: &str) -> Result<Micros, ApiError> {
    span.filter(|span| span.0 > 0).ok_or_else(|| out_of_range(name, "above 0"))
}

fn millis(headers: &HeaderMap, name: &'static str) -> Result<Option<Micros>, ApiError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.and_then(to_micros).map(Some).ok_or_else(|| out_of_range(name, "at least 0"))
}

fn target(headers: &HeaderMap, name: &'static str) -> Result<Option<Micros>, ApiError> {
    millis(headers, name)?.map(|span| positive(Some(span), name)).transpose()
}

fn body_millis(name: &str, value: Option<f64>) -> Result<Option<Micros>, ApiError> {
    value.map(|millis| positive(to_micros(millis), name)).transpose()
}

/// Seconds, as the official SDKs send them with every request. Not ours, so what cannot be read
/// is no error.
fn sdk_timeout(headers: &HeaderMap) -> Option<Micros> {
    let names = ["x-stainless-read-timeout", "x-stainless-timeout"];
    let value = names.iter().find_map(|name| headers.get(*name))?;
    let seconds: f64 = value.to_str().ok()?.trim().parse().ok()?;
    let chosen = seconds > 0.0 && seconds != SDK_DEFAULT_TIMEOUT;
    chosen.then(|| to_micros(seconds * 1_000.0)).flatten()
}

fn class_of(headers: &HeaderMap) -> Result<Option<Class>, ApiError> {
    let Some(value) = headers.get("x-sluice-class") else { return Ok(None) };
    let class = value.to_str().ok().and_then(class::by_label);
    class.map(Some).ok_or_else(|| {
        ApiError::invalid("x-sluice-class", "`x-sluice-class` must be `latency` or `throughput`.")
    })
}

fn retry_count(headers: &HeaderMap) -> u32 {
    let value = headers.get("x-stainless-retry-count").and_then(|value| value.to_str().ok());
    value.and_then(|text| text.trim().parse().ok()).unwrap_or(0).min(MAX_RETRY)
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    const ARRIVAL: Micros = Micros(5_000);

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let parse = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(parse).collect()
    }

    fn deadline(pairs: &[(&'static str, &'static str)], body: SloFields, stream: bool) -> Deadline {
        let terms = Terms::from_headers(&headers(pairs)).expect("valid headers");
        let class = Slo { ttft: Some(Micros::from_millis(1_500)), tpot: None, e2e: None };
        terms.deadline(&body, stream, ARRIVAL, &class).expect("valid body")
    }

    fn at(millis: u64) -> Option<Micros> {
        Some(ARRIVAL.plus(Micros::from_millis(millis)))
    }

    #[test]
    fn headers_win_over_the_body_and_the_body_over_the_gateway() {
        let body = SloFields { ttft_ms: Some(10.0), tpot_ms: Some(2.5), e2e_ms: Some(20.0) };
        let gateway = ("x-envoy-expected-rq-timeout-ms", "30");
        let got = deadline(&[gateway], body, false);
        assert_eq!((got.first_token, got.last_token), (at(10), at(20)));
        assert_eq!(got.tpot, Some(Micros(2_500)));
        let got = deadline(&[gateway, ("x-slo-ttft-ms", "1")], SloFields::default(), false);
        assert_eq!((got.first_token, got.last_token), (at(1), at(30)));
        assert_eq!(deadline(&[("x-request-deadline-ms", "7")], body, false).last_token, at(7));
    }

    #[test]
    fn the_sdk_timeout_only_tightens_and_its_default_is_nobodys_choice() {
        let none = SloFields::default();
        for name in ["x-stainless-timeout", "x-stainless-read-timeout"] {
            assert_eq!(deadline(&[(name, "600")], none, false), Deadline::default());
            assert_eq!(deadline(&[(name, "NOT_GIVEN")], none, false), Deadline::default());
            assert_eq!(deadline(&[(name, "2.5")], none, false).last_token, at(2_500));
            let explicit = ("x-request-deadline-ms", "1000");
            assert_eq!(deadline(&[(name, "2"), explicit], none, false).last_token, at(1_000));
            assert_eq!(deadline(&[(name, "0.5"), explicit], none, false).last_token, at(500));
            let streamed = deadline(&[(name, "1")], none, true);
            assert_eq!((streamed.first_token, streamed.last_token), (at(1_000), None));
            assert_eq!(deadline(&[(name, "2")], none, true), Deadline::default());
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (name, value) in [
            ("x-slo-ttft-ms", "soon"),
            ("x-slo-ttft-ms", "-1"),
            ("x-slo-ttft-ms", "0"),
            ("x-slo-tpot-ms", "0.0001"),
            ("x-request-deadline-ms", "-1"),
            ("x-slo-tpot-ms", "NaN"),
            ("x-request-deadline-ms", "1e18"),
            ("x-sluice-class", "first"),
        ] {
            let error = Terms::from_headers(&headers(&[(name, value)])).unwrap_err();
            assert_eq!(error.body().error.param.as_deref(), Some(name));
        }
        for e2e_ms in [-1.0, 0.0] {
            let body = SloFields { e2e_ms: Some(e2e_ms), ..Default::default() };
            assert!(Terms::default().deadline(&body, false, ARRIVAL, &Slo::default()).is_err());
        }
    }

    #[test]
    fn class_and_retry_count_are_read() {
        let pairs = [("x-sluice-class", "throughput"), ("x-stainless-retry-count", "2")];
        let terms = Terms::from_headers(&headers(&pairs)).expect("valid");
        assert_eq!((terms.class, terms.retry), (Some(Class::Throughput), 2));
        let odd = Terms::from_headers(&headers(&[("x-stainless-retry-count", "-4")]));
        assert_eq!(odd.expect("valid").retry, 0);
    }
}
