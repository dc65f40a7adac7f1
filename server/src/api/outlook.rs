//! Headers of an admitted request: when its tokens are expected, and how many more like it would
//! be taken.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use engine::{Room, Submission, TokenStream};
use scheduler::{Deadline, Forecast, Micros, Slo};

const PREDICTED_TTFT: HeaderName = HeaderName::from_static("x-sluice-predicted-ttft-ms");
const PREDICTED_E2E: HeaderName = HeaderName::from_static("x-sluice-predicted-e2e-ms");
const UPPER_TTFT: HeaderName = HeaderName::from_static("x-sluice-upper-ttft-ms");
const UPPER_E2E: HeaderName = HeaderName::from_static("x-sluice-upper-e2e-ms");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit-requests");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining-requests");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset-requests");

/// What was asked for, as far as the headers depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    arrival: Micros,
    deadline: Deadline,
    sequences: u32,
}

/// What the headers say.
#[derive(Clone, Copy, Debug)]
pub struct Outlook {
    terms: Terms,
    forecast: Forecast,
    room: Room,
}

impl Terms {
    /// Of a submission to a class that promises `slo`.
    #[must_use]
    pub fn of(submission: &Submission, slo: &Slo) -> Terms {
        let Submission { arrival, deadline, .. } = *submission;
        let after = |span: Option<Micros>| span.map(|span| arrival.plus(span));
        let deadline = Deadline {
            first_token: deadline.first_token.or(after(slo.ttft)),
            last_token: deadline.last_token.or(after(slo.e2e)),
            tpot: None,
        };
        let sequences: u32 = submission.prompts.iter().map(|prompt| prompt.n).sum();
        Terms { arrival, deadline, sequences: sequences.max(1) }
    }

    /// Once it is admitted.
    #[must_use]
    pub fn admitted(self, tokens: &TokenStream) -> Outlook {
        Outlook { terms: self, forecast: tokens.forecast(), room: tokens.room() }
    }
}

impl Outlook {
    /// Adds the headers to those of the answer.
    pub fn write(&self, headers: &mut HeaderMap) {
        let Forecast { first_token, last_token, upper_first, upper_last, .. } = self.forecast;
        for (name, time) in [
            (PREDICTED_TTFT, first_token),
            (PREDICTED_E2E, last_token),
            (UPPER_TTFT, upper_first),
            (UPPER_E2E, upper_last),
        ] {
            headers.insert(name, time.minus(self.terms.arrival).as_millis().into());
        }
        headers.insert(LIMIT, (self.room.places / self.terms.sequences).into());
        headers.insert(REMAINING, self.remaining().into());
        let reset = format!("{}ms", self.room.outstanding.as_millis());
        headers.insert(RESET, HeaderValue::from_str(&reset).expect("digits and letters"));
    }

    /// How many more requests like this one would be taken now, as far as places in the queue and
    /// its own deadlines say: each of them would be later by the work of the one before.
    fn remaining(&self) -> u32 {
        let Terms { deadline, sequences, .. } = self.terms;
        let places = u64::from(self.room.free / sequences);
        let after = |time: Micros, due: Option<Micros>| match due {
            Some(due) => due.minus(time).0 / self.forecast.work.0.max(1),
            None => u64::MAX,
        };
        let first = after(self.forecast.first_token, deadline.first_token);
        let last = after(self.forecast.last_token, deadline.last_token);
        u32::try_from(places.min(first).min(last)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_fit_as_far_as_queue_and_deadline_go() {
        let arrival = Micros(1_000_000);
        let at = |millis: u64| arrival.plus(Micros::from_millis(millis));
        let forecast = Forecast {
            first_token: at(300),
            last_token: at(900),
            upper_first: at(400),
            upper_last: at(1_200),
            work: Micros::from_millis(100),
        };
        let headers = |first: Option<u64>, last: Option<u64>, sequences| {
            let deadline =
                Deadline { first_token: first.map(at), last_token: last.map(at), tpot: None };
            let terms = Terms { arrival, deadline, sequences };
            let room = Room { places: 64, free: 20, outstanding: Micros::from_millis(1_234) };
            let mut headers = HeaderMap::new();
            Outlook { terms, forecast, room }.write(&mut headers);
            headers
        };
        let remaining = |first, last, sequences| {
            let headers = headers(first, last, sequences);
            headers[REMAINING].to_str().expect("a number").to_owned()
        };
        assert_eq!(remaining(None, None, 1), "20");
        assert_eq!(remaining(None, None, 3), "6");
        assert_eq!(remaining(Some(1_000), None, 1), "7");
        assert_eq!(remaining(Some(1_000), Some(1_450), 1), "5");
        assert_eq!(remaining(Some(200), None, 1), "0");
        let headers = headers(Some(1_000), None, 2);
        for (name, value) in [
            (PREDICTED_TTFT, "300"),
            (PREDICTED_E2E, "900"),
            (UPPER_TTFT, "400"),
            (UPPER_E2E, "1200"),
            (LIMIT, "32"),
            (RESET, "1234ms"),
        ] {
            assert_eq!(headers[&name], value, "{name}");
        }
    }
}
