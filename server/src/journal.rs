//! One log line for each request at its end, whichever end that is.
//!
//! Lines are written by a task of their own, so that a slow terminal holds up neither a step nor an
//! answer. In a storm of refusals only some of them get a line each second; the others, and ends
//! that the task could not keep up with, are counted in a summary line.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use engine::{Refusal, RequestReport};
use scheduler::{Class, Micros, TenantId, Terminal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use crate::error::{Explanation, refusal_code};

/// Lines that may wait to be written.
const QUEUE: usize = 1_024;
/// Refusals that get a line of their own in a second.
const REFUSALS_PER_SECOND: u64 = 20;
/// How often what got no line is summed up.
const SUMMARY: Duration = Duration::from_secs(1);

/// A request that the gate did not take.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its `x-request-id`.
    pub name: Arc<str>,
    /// Its class.
    pub class: Class,
    /// Who sent it.
    pub tenant: TenantId,
    /// How often it had been retried.
    pub retry: u32,
    /// Tokens of all prompts; as many as they have at least, if they were not tokenised.
    pub prompt_tokens: u32,
    /// Tokens that each choice may have, if that was known.
    pub max_tokens: Option<u32>,
}

#[derive(Debug)]
enum Line {
    Ended(Box<RequestReport>),
    Refused(Box<(Asked, Refusal)>),
    /// Everything before this is written.
    Flush(oneshot::Sender<()>),
}

/// Where ends are noted.
#[derive(Debug)]
pub struct Journal {
    lines: mpsc::Sender<Line>,
    quota: Quota,
    left_out: Arc<LeftOut>,
}

/// Ends without a line of their own since the last summary.
#[derive(Debug, Default)]
struct LeftOut {
    refused: AtomicU64,
    ended: AtomicU64,
}

impl Journal {
    /// Starts the task that writes; must be called inside a runtime. `tenants` are the names of the
    /// tenants in the order of their ids.
    #[must_use]
    pub fn start(tenants: Vec<Arc<str>>) -> Arc<Journal> {
        let (lines, queue) = mpsc::channel(QUEUE);
        let left_out = Arc::new(LeftOut::default());
        tokio::spawn(write(queue, tenants, Arc::clone(&left_out)));
        Arc::new(Journal { lines, quota: Quota::default(), left_out })
    }

    /// An admitted request ended.
    pub fn ended(&self, report: &RequestReport) {
        if self.lines.try_send(Line::Ended(Box::new(report.clone()))).is_err() {
            self.left_out.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The gate refused a request.
    pub fn refused(&self, asked: &Asked, refusal: &Refusal) {
        let line = || Line::Refused(Box::new((asked.clone(), refusal.clone())));
        if !self.quota.take(Instant::now()) || self.lines.try_send(line()).is_err() {
            self.left_out.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns once everything that was noted so far is written.
    pub async fn flush(&self) {
        let (written, done) = oneshot::channel();
        if self.lines.send(Line::Flush(written)).await.is_ok() {
            // An error means that the task is gone, and with it whatever could be waited for.
            let _gone = done.await;
        }
    }
}

/// So many in each second, counted from the first that asked.
#[derive(Debug, Default)]
struct Quota {
    origin: OnceLock<Instant>,
    /// The second in the upper half, how many were taken in it in the lower.
    taken: AtomicU64,
}

impl Quota {
    fn take(&self, now: Instant) -> bool {
        let origin = *self.origin.get_or_init(|| now);
        let second = now.saturating_duration_since(origin).as_secs();
        let next = |taken: u64| {
            let count = if taken >> 32 == second { taken & u64::from(u32::MAX) } else { 0 };
            (count < REFUSALS_PER_SECOND).then_some(second << 32 | (count + 1))
        };
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

async fn write(mut queue: mpsc::Receiver<Line>, tenants: Vec<Arc<str>>, left_out: Arc<LeftOut>) {
    let name = |tenant: TenantId| tenants.get(tenant.index()).map(|name| &**name);
    let mut tick = tokio::time::interval(SUMMARY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            line = queue.recv() => match line {
                Some(Line::Ended(report)) => ended(&report, name(report.tenant)),
                Some(Line::Refused(refused)) => {
                    write_refused(&refused.0, &refused.1, name(refused.0.tenant));
                }
                Some(Line::Flush(written)) => {
                    summary(&left_out);
                    // Whoever waited may have given up.
                    let _unheard = written.send(());
                }
                None => return summary(&left_out),
            },
            _ = tick.tick() => summary(&left_out),
        }
    }
}

fn summary(left_out: &LeftOut) {
    let refused = left_out.refused.swap(0, Ordering::Relaxed);
    if refused > 0 {
        tracing::info!(count = refused, "more requests were refused");
    }
    let ended = left_out.ended.swap(0, Ordering::Relaxed);
    if ended > 0 {
        tracing::warn!(count = ended, "more requests ended than lines could be written");
    }
}

fn ended(report: &RequestReport, tenant: Option<&str>) {
    let since = |time: Micros| time.minus(report.arrival).as_millis();
    let forecast = report.settled.map(|settled| settled.forecast);
    tracing::info!(
        request_id = &*report.name,
        id = report.id.0,
        class = report.class.label(),
        tenant,
        outcome = report.terminal.label(),
        reason = reason(report),
        prompt_tokens = report.prompt_tokens,
        cached_tokens = report.cached_tokens,
        output_tokens = report.output_tokens,
        queue_ms = report.scheduled.map(since),
        ttft_ms = report.first_token.map(since),
        e2e_ms = since(report.ended),
        predicted_ttft_ms = forecast.map(|forecast| since(forecast.first_token)),
        predicted_e2e_ms = forecast.map(|forecast| since(forecast.last_token)),
        preemptions = report.preemptions,
        "request ended"
    );
}

fn reason(report: &RequestReport) -> &str {
    match (report.terminal, report.finished) {
        (Terminal::Completed, [_, 0]) => "stop",
        (Terminal::Completed, [0, _]) => "length",
        (Terminal::Completed, _) => "stop and length",
        (Terminal::Expired, _) => "its deadline was out of reach",
        (Terminal::Cancelled, _) => "the client left",
        (Terminal::Failed, _) => report.failure.as_deref().unwrap_or("unknown"),
    }
}

fn write_refused(asked: &Asked, refusal: &Refusal, tenant: Option<&str>) {
    let Explanation { rule, quantity, predicted_ms, budget_ms, position } =
        Explanation::of(refusal);
    let retry_after_ms = match refusal {
        Refusal::Shed(shed) => Some(shed.retry_after.0.div_ceil(1_000)),
        _ => None,
    };
    tracing::info!(
        request_id = &*asked.name,
        class = asked.class.label(),
        tenant,
        outcome = "shed",
        reason = refusal_code(refusal).unwrap_or("invalid"),
        rule,
        quantity,
        predicted_ms,
        budget_ms,
        position,
        retry_after_ms,
        retry = asked.retry,
        prompt_tokens = asked.prompt_tokens,
        max_tokens = asked.max_tokens,
        "request refused"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_gets_some_lines_each_second() {
        let (quota, begin) = (Quota::default(), Instant::now());
        for second in [0, 1, 5] {
            let now = begin + Duration::from_secs(second);
            let taken = (0..1_000).filter(|_| quota.take(now)).count();
            assert_eq!(taken as u64, REFUSALS_PER_SECOND);
        }
        assert!(!quota.take(begin + Duration::from_millis(5_999)));
        assert!(quota.take(begin + Duration::from_secs(6)));
    }
}
