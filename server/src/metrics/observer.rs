//! The engine's reports: into the series at once, and as one log line for each request that ended.
//! The line is written elsewhere, so that a slow terminal never holds up a step.

use std::sync::Arc;

use engine::{Observer, RequestReport, StepReport};
use scheduler::Micros;
use tokio::sync::mpsc;

use super::Metrics;

/// Reports that may wait for their line; more are counted in the series but not logged.
const LOG_QUEUE: usize = 1_024;

/// Hands reports on.
#[derive(Debug)]
pub struct Reporter {
    metrics: Arc<Metrics>,
    log: mpsc::Sender<RequestReport>,
}

impl Reporter {
    /// A reporter, and the queue that [`write_lines`] empties.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> (Reporter, mpsc::Receiver<RequestReport>) {
        let (log, queue) = mpsc::channel(LOG_QUEUE);
        (Reporter { metrics, log }, queue)
    }
}

impl Observer for Reporter {
    fn step(&self, report: &StepReport) {
        self.metrics.step(report);
    }

    fn token_gap(&self, gap: Micros) {
        self.metrics.token_gap(gap);
    }

    fn request(&self, report: &RequestReport) {
        self.metrics.request(report);
        // Full: the log is too slow, and the engine must not wait for it.
        let _dropped = self.log.try_send(report.clone());
    }
}

/// One line for each request that ended, until the engine is gone.
pub async fn write_lines(mut queue: mpsc::Receiver<RequestReport>) {
    while let Some(report) = queue.recv().await {
        let since = |time: Micros| time.minus(report.arrival).as_millis();
        tracing::info!(
            id = report.id.0,
            class = report.class.label(),
            outcome = report.terminal.label(),
            prompt_tokens = report.prompt_tokens,
            output_tokens = report.output_tokens,
            queue_ms = report.scheduled.map(since),
            ttft_ms = report.first_token.map(since),
            e2e_ms = since(report.ended),
            predicted_ttft_ms = since(report.forecast.first_token),
            predicted_e2e_ms = since(report.forecast.last_token),
            preemptions = report.preemptions,
            "request ended"
        );
    }
}
