//! The engine's reports: into the series at once, and for each request that ended into the journal.

use std::sync::Arc;

use engine::{FirstToken, Observer, RequestReport, StepReport};
use scheduler::Micros;

use super::Metrics;
use crate::journal::Journal;

/// Hands reports on.
#[derive(Debug)]
pub struct Reporter {
    /// The series.
    pub metrics: Arc<Metrics>,
    /// The log lines.
    pub journal: Arc<Journal>,
}

impl Observer for Reporter {
    fn step(&self, report: &StepReport) {
        self.metrics.step(report);
    }

    fn token_gap(&self, gap: Micros) {
        self.metrics.token_gap(gap);
    }

    fn first_token(&self, report: &FirstToken) {
        self.metrics.first_token(report);
    }

    fn request(&self, report: &RequestReport) {
        self.metrics.request(report);
        self.journal.ended(report);
    }
}
