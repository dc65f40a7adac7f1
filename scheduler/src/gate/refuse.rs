//! The refusal: its explanation, and the slot at which to come back.

use super::Gate;
use super::times::Miss;
use crate::admission::{Rule, Shed, ShedReason};
use crate::candidate::Candidate;
use crate::placement::Placement;
use crate::time::Micros;

impl Gate {
    /// A refusal with its slot in the queue of retries: at the earliest when the device has caught
    /// up by what the forecast is too late.
    pub(super) fn shed(
        &mut self,
        now: Micros,
        candidate: &Candidate,
        at: &Placement,
        (reason, rule): (ShedReason, Rule),
        shown: Miss,
    ) -> Shed {
        let running = self.timeline.running().max(1);
        let steps = u64::from(candidate.steps) + u64::from(at.prefill_steps);
        let share = Micros(self.cost.fixed_ns / 1_000 * steps / u64::from(running));
        let work = candidate.work().plus(share);
        let earliest = now.plus(shown.predicted.minus(shown.budget));
        Shed {
            reason,
            rule,
            quantity: shown.quantity,
            retry_after: self.retries.promise(now, earliest, work, candidate.id.0),
            should_retry: true,
            predicted: shown.predicted,
            budget: shown.budget,
            position: (at.index - self.timeline.decoding) as u32,
        }
    }
}
