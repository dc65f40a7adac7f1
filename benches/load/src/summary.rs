//! From records to figures.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::outcome::{End, Record, Slo};

/// How requests ended; the fields after `sent` sum to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests sent.
    pub sent: u64,
    /// Streams that ran to their end.
    pub completed: u64,
    /// Refused for load at the door.
    pub shed: u64,
    /// Refused for load after being let in.
    pub expired: u64,
    /// Other answers that are no success.
    pub refused: u64,
    /// Given up by the client.
    pub timed_out: u64,
    /// Answers that broke off.
    pub broken: u64,
    /// No connection or no answer.
    pub unreachable: u64,
}

impl Counts {
    fn of(records: &[Record]) -> Self {
        let mut counts = Self { sent: records.len() as u64, ..Self::default() };
        for record in records {
            *match record.end {
                End::Completed => &mut counts.completed,
                End::Shed => &mut counts.shed,
                End::Expired => &mut counts.expired,
                End::Refused => &mut counts.refused,
                End::TimedOut => &mut counts.timed_out,
                End::Broken => &mut counts.broken,
                End::Unreachable => &mut counts.unreachable,
            } += 1;
        }
        counts
    }

    /// Requests that have an end: equal to `sent`, or something is lost.
    #[must_use]
    pub fn ended(&self) -> u64 {
        let refused = self.shed + self.expired + self.refused;
        self.completed + refused + self.timed_out + self.broken + self.unreachable
    }
}

/// Three percentiles of a set of times, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Percentiles {
    /// Percentiles by nearest rank, or none of nothing.
    #[must_use]
    pub fn of(times: impl Iterator<Item = Duration>) -> Option<Self> {
        let mut sorted: Vec<Duration> = times.collect();
        sorted.sort_unstable();
        let at = |permille| Some(nearest_rank(&sorted, permille)?.as_secs_f64() * 1e3);
        Some(Self { p50: at(500)?, p95: at(950)?, p99: at(990)? })
    }
}

/// The smallest value that at least `permille` of the values do not exceed.
fn nearest_rank<T: Copy>(sorted: &[T], permille: usize) -> Option<T> {
    let rank = (sorted.len() * permille).div_ceil(1_000).max(1);
    sorted.get(rank - 1).copied()
}

/// The figures of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How requests ended.
    pub counts: Counts,
    /// Answers by HTTP status (text, as JSON keys are).
    pub status: BTreeMap<String, u64>,
    /// What rates are over: from the first scheduled arrival to the end of the offered load, or to
    /// the end of the last completed answer where that is later.
    pub window_s: f64,
    /// Requests scheduled a second, over the offered load.
    pub offered_per_s: f64,
    /// Completed requests a second.
    pub requests_per_s: f64,
    /// Output tokens a second of completed requests.
    pub output_tokens_per_s: f64,
    /// Output tokens a second of requests that met the SLO.
    pub goodput_tokens_per_s: f64,
    /// Requests a second that met the SLO.
    pub goodput_requests_per_s: f64,
    /// Share of the offered requests that met the SLO.
    pub attainment_offered: Option<f64>,
    /// Share of the admitted requests that met it (neither shed, refused nor unreachable).
    pub attainment_admitted: Option<f64>,
    /// Tokens received for requests that did not meet the SLO.
    pub wasted_tokens: u64,
    /// Time to first token, of all requests that got one.
    pub ttft_ms: Option<Percentiles>,
    /// Gaps between tokens, of all requests.
    pub itl_ms: Option<Percentiles>,
    /// Mean gap of each request, of all that have one.
    #[serde(default)]
    pub tpot_ms: Option<Percentiles>,
    /// End-to-end time of completed requests.
    pub e2e_ms: Option<Percentiles>,
    /// How long a shed request waited for its refusal.
    pub shed_ms: Option<Percentiles>,
    /// Least, median and greatest `Retry-After` seen, in seconds.
    pub retry_after_s: Option<(u32, u32, u32)>,
    /// Mean prompt length by the server's count.
    pub mean_prompt_tokens: Option<f64>,
}

impl Summary {
    /// Sums up `records` of a run that offered load for `offered_for`.
    #[must_use]
    pub fn of(records: &[Record], slo: &Slo, offered_for: Duration) -> Self {
        let completed = || records.iter().filter(|r| r.end == End::Completed);
        let met = || records.iter().filter(|r| slo.met(r));
        let last = completed().map(|r| r.arrival.at + r.ended).max().unwrap_or_default();
        let window_s = offered_for.max(last).as_secs_f64().max(1e-6);
        let admitted = records.iter().filter(|r| r.admitted()).count();
        let received: u64 = records.iter().map(Record::output_tokens).sum();
        let good_tokens: u64 = met().map(Record::output_tokens).sum();
        let share = |of: usize| (of > 0).then(|| met().count() as f64 / of as f64);
        let per_s = |count: u64| count as f64 / window_s;
        Self {
            counts: Counts::of(records),
            status: by_status(records),
            window_s,
            offered_per_s: records.len() as f64 / offered_for.as_secs_f64().max(1e-6),
            requests_per_s: per_s(completed().count() as u64),
            output_tokens_per_s: per_s(completed().map(Record::output_tokens).sum()),
            goodput_tokens_per_s: per_s(good_tokens),
            goodput_requests_per_s: per_s(met().count() as u64),
            attainment_offered: share(records.len()),
            attainment_admitted: share(admitted),
            wasted_tokens: received - good_tokens,
            ttft_ms: Percentiles::of(records.iter().filter_map(|r| r.first_text)),
            itl_ms: Percentiles::of(records.iter().flat_map(|r| r.gaps.iter().copied())),
            tpot_ms: Percentiles::of(records.iter().filter_map(mean_gap)),
            e2e_ms: Percentiles::of(completed().map(|r| r.ended)),
            shed_ms: Percentiles::of(
                records.iter().filter(|r| r.end == End::Shed).map(|r| r.ended),
            ),
            retry_after_s: retry_after(records),
            mean_prompt_tokens: mean_prompt(records),
        }
    }
}

fn mean_gap(record: &Record) -> Option<Duration> {
    let gaps = u32::try_from(record.gaps.len()).ok().filter(|gaps| *gaps > 0)?;
    Some(record.gaps.iter().sum::<Duration>() / gaps)
}

fn by_status(records: &[Record]) -> BTreeMap<String, u64> {
    let mut status = BTreeMap::new();
    for code in records.iter().filter_map(|r| r.status) {
        *status.entry(code.to_string()).or_default() += 1;
    }
    status
}

fn retry_after(records: &[Record]) -> Option<(u32, u32, u32)> {
    let mut seconds: Vec<u32> = records.iter().filter_map(|r| r.retry_after).collect();
    seconds.sort_unstable();
    Some((*seconds.first()?, nearest_rank(&seconds, 500)?, *seconds.last()?))
}

fn mean_prompt(records: &[Record]) -> Option<f64> {
    let counts: Vec<u32> = records.iter().filter_map(|r| r.prompt_tokens).collect();
    let sum: u64 = counts.iter().copied().map(u64::from).sum();
    (!counts.is_empty()).then(|| sum as f64 / counts.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Arrival;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let values: Vec<u32> = (1..=100).collect();
        for (permille, expected) in [(0, 1), (10, 1), (500, 50), (950, 95), (990, 99), (1_000, 100)]
        {
            assert_eq!(nearest_rank(&values, permille), Some(expected), "{permille}");
        }
        assert_eq!(nearest_rank(&[7], 500), Some(7));
        assert_eq!(nearest_rank(&[1, 2], 501), Some(2));
        assert_eq!(nearest_rank::<u32>(&[], 500), None);
        assert_eq!(Percentiles::of(std::iter::empty()), None);
    }

    fn record(end: End, at_s: u64, ended_ms: u64, tokens: u32) -> Record {
        let at = Duration::from_secs(at_s);
        let mut record = Record::new(Arrival { at, prompt_tokens: 8, max_tokens: 8 });
        record.end = end;
        record.ended = Duration::from_millis(ended_ms);
        record.usage_tokens = Some(tokens);
        record
    }

    #[test]
    fn goodput_counts_only_what_met_the_slo_and_nothing_is_lost() {
        let records = [
            record(End::Completed, 0, 500, 60),
            record(End::Completed, 9, 2_000, 60),
            record(End::TimedOut, 1, 30_000, 10),
            record(End::Shed, 2, 5, 0),
            record(End::Expired, 3, 900, 0),
            record(End::Unreachable, 4, 1, 0),
        ];
        let slo = Slo { e2e_us: Some(1_000_000), ..Slo::default() };
        let summary = Summary::of(&records, &slo, Duration::from_secs(10));
        assert_eq!(summary.counts.ended(), summary.counts.sent);
        assert_eq!(summary.window_s, 11.0, "the last completed answer ends the window");
        assert_eq!(summary.goodput_tokens_per_s, 60.0 / 11.0);
        assert_eq!(summary.output_tokens_per_s, 120.0 / 11.0);
        assert_eq!(summary.wasted_tokens, 70);
        assert_eq!(summary.attainment_offered, Some(1.0 / 6.0));
        assert_eq!(summary.attainment_admitted, Some(1.0 / 4.0));
        assert_eq!(summary.shed_ms.map(|p| p.p99), Some(5.0));
        assert_eq!(summary.offered_per_s, 0.6);
    }
}
