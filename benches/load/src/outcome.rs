//! What became of one request, and whether it met its objective.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::arrivals::Arrival;

/// How a request ended. Every request that was sent has exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// The stream ran to its `[DONE]`.
    Completed,
    /// Refused for load (429, 503 or 529) before it entered.
    Shed,
    /// Refused for load after it had been let in: an error whose code is `expired`, as a 429 or in
    /// a stream that had begun.
    Expired,
    /// Any other answer that is not a success.
    Refused,
    /// The client gave up waiting, with or without part of an answer.
    TimedOut,
    /// The answer began and then broke off, or carried another error.
    Broken,
    /// No connection, or the connection ended before any answer.
    Unreachable,
}

/// All that is kept of one request. Times count from the scheduled arrival.
#[derive(Debug, Clone)]
pub struct Record {
    /// What was asked for and when.
    pub arrival: Arrival,
    /// How it ended.
    pub end: End,
    /// HTTP status, if an answer came.
    pub status: Option<u16>,
    /// When it ended.
    pub ended: Duration,
    /// When the first text came.
    pub first_text: Option<Duration>,
    /// When the last text came.
    pub last_text: Option<Duration>,
    /// Gaps between pieces of text, in order.
    pub gaps: Vec<Duration>,
    /// Output tokens by the server's own count (`usage`), if it gave one.
    pub usage_tokens: Option<u32>,
    /// Prompt tokens by the server's own count, if it gave one.
    pub prompt_tokens: Option<u32>,
    /// The `Retry-After` of a refusal, in seconds.
    pub retry_after: Option<u32>,
    /// The beginning of what the server said when it refused for another reason than load.
    pub complaint: Option<String>,
}

impl Record {
    /// A request that has been scheduled and has seen nothing yet.
    #[must_use]
    pub fn new(arrival: Arrival) -> Self {
        Self {
            arrival,
            end: End::Unreachable,
            status: None,
            ended: Duration::ZERO,
            first_text: None,
            last_text: None,
            gaps: Vec::new(),
            usage_tokens: None,
            prompt_tokens: None,
            retry_after: None,
            complaint: None,
        }
    }

    /// Notes that text came at `at`.
    pub fn text_at(&mut self, at: Duration) {
        match self.last_text {
            Some(last) => self.gaps.push(at.saturating_sub(last)),
            None => self.first_text = Some(at),
        }
        self.last_text = Some(at);
    }

    /// Output tokens received: the server's count, or pieces of text where the stream was cut
    /// before that count came (at most too low: a piece holds one token or more).
    #[must_use]
    pub fn output_tokens(&self) -> u64 {
        let pieces = self.gaps.len() as u64 + u64::from(self.first_text.is_some());
        self.usage_tokens.map_or(pieces, u64::from)
    }

    /// Mean time per output token after the first, if there are two.
    #[must_use]
    pub fn tpot(&self) -> Option<Duration> {
        let span = self.last_text?.saturating_sub(self.first_text?);
        let steps = u32::try_from(self.output_tokens()).ok()?.checked_sub(1)?;
        span.checked_div(steps)
    }

    /// True if the server took the request in: it was neither refused at the door nor lost on the
    /// way to it.
    #[must_use]
    pub fn admitted(&self) -> bool {
        !matches!(self.end, End::Shed | End::Refused | End::Unreachable)
    }
}

/// The objective a request is judged by. With no limit set, completing is enough.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slo {
    /// Limit of the end-to-end time, in microseconds.
    pub e2e_us: Option<u64>,
    /// Limit of the time to the first token, in microseconds.
    pub ttft_us: Option<u64>,
    /// Limit of the mean time per output token after the first, in microseconds.
    pub tpot_us: Option<u64>,
}

impl Slo {
    /// True if the request completed within every limit.
    #[must_use]
    pub fn met(&self, record: &Record) -> bool {
        let within = |limit: Option<u64>, value: Option<Duration>| match (limit, value) {
            (Some(limit), Some(value)) => value <= Duration::from_micros(limit),
            (Some(_), None) => false,
            (None, _) => true,
        };
        // An answer of one token has no gap to be late with.
        let tpot = record.tpot().or((record.output_tokens() <= 1).then_some(Duration::ZERO));
        record.end == End::Completed
            && within(self.e2e_us, Some(record.ended))
            && within(self.ttft_us, record.first_text)
            && within(self.tpot_us, tpot)
    }

    /// The limits in words, for titles: `E2E 2.40 s`.
    #[must_use]
    pub fn describe(&self) -> String {
        let limits = [("E2E", self.e2e_us), ("TTFT", self.ttft_us), ("TPOT", self.tpot_us)];
        let parts: Vec<String> = limits
            .iter()
            .filter_map(|(name, limit)| limit.map(|us| format!("{name} {:.2} s", us as f64 / 1e6)))
            .collect();
        if parts.is_empty() { "completion".to_owned() } else { parts.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(end: End, text_ms: &[u64], ended_ms: u64) -> Record {
        let arrival = Arrival { at: Duration::ZERO, prompt_tokens: 8, max_tokens: 8 };
        let mut record = Record::new(arrival);
        text_ms.iter().for_each(|ms| record.text_at(Duration::from_millis(*ms)));
        record.end = end;
        record.ended = Duration::from_millis(ended_ms);
        record
    }

    #[test]
    fn each_limit_decides_alone() {
        let done = record(End::Completed, &[100, 120, 160], 170);
        let us = |ms: u64| Some(ms * 1_000);
        let cases = [
            (Slo::default(), true),
            (Slo { e2e_us: us(170), ..Slo::default() }, true),
            (Slo { e2e_us: us(169), ..Slo::default() }, false),
            (Slo { ttft_us: us(100), ..Slo::default() }, true),
            (Slo { ttft_us: us(99), ..Slo::default() }, false),
            (Slo { tpot_us: us(30), ..Slo::default() }, true),
            (Slo { tpot_us: us(29), ..Slo::default() }, false),
        ];
        for (slo, met) in cases {
            assert_eq!(slo.met(&done), met, "{slo:?}");
        }
    }

    #[test]
    fn only_completed_requests_meet_anything() {
        for end in [End::Shed, End::Expired, End::Refused, End::TimedOut, End::Broken] {
            assert!(!Slo::default().met(&record(end, &[1, 2], 3)), "{end:?}");
        }
        let silent = record(End::Completed, &[], 3);
        assert!(!Slo { ttft_us: Some(9_000_000), ..Slo::default() }.met(&silent));
        assert!(Slo { tpot_us: Some(1), ..Slo::default() }.met(&record(End::Completed, &[5], 6)));
    }

    #[test]
    fn tokens_are_the_servers_count_where_there_is_one() {
        let mut cut = record(End::TimedOut, &[10, 20, 30], 40);
        assert_eq!(cut.output_tokens(), 3);
        cut.usage_tokens = Some(5);
        assert_eq!(cut.output_tokens(), 5);
        assert_eq!(cut.tpot(), Some(Duration::from_millis(5)));
    }
}
