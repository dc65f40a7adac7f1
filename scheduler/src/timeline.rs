//! The forecast: the scheduler's state replayed forward, built once a step, looked up by the gate.

use crate::scheduler::Scheduler;
use crate::time::Micros;

/// The predicted future of everything that was admitted.
#[derive(Clone, Debug, Default)]
pub struct Timeline {}

impl Timeline {
    /// Replays `scheduler` forward from `base`: now, or the predicted end of the step in flight
    /// (call it right after `plan`, before the step runs).
    #[must_use]
    pub fn build(base: Micros, scheduler: &Scheduler) -> Timeline {
        let _ = (base, scheduler);
        Timeline {}
    }
}
