//! The refusal: its explanation, and the slot at which to come back.

use super::Gate;
use super::times::Miss;
use crate::admission::{Rule, Shed, ShedReason};
use crate::candidate::Candidate;
use crate::placement::Placement;
use crate::request::Request;
use crate::time::Micros;

/// How much of the way the full batch follows a smaller one that was full as well.
const BATCH_STEPS: u32 = 8;

impl Gate {
    /// What a candidate takes of a device that is full: its own work, and its part of what steps
    /// cost whoever is in them.
    pub(super) fn share(&self, candidate: &Candidate, at: &Placement) -> Micros {
        let steps = u64::from(candidate.steps) + u64::from(at.prefill_steps);
        let fixed = self.cost.fixed_ns.saturating_mul(steps) / 1_000;
        let part = fixed.saturating_mul(candidate.slots.into()) / u64::from(self.batch.max(1));
        candidate.work().plus(Micros(part))
    }

    /// Learns how many sequences run at once when the device is full: as many as the forecast has
    /// at its peak while somebody is refused.
    pub(super) fn learn_batch(&mut self) {
        if core::mem::take(&mut self.full) {
            let peak = self.timeline.segments.peak_running();
            let slowly = self.batch - self.batch / BATCH_STEPS;
            self.batch = slowly.max(peak).max(1);
        }
    }

    /// The next slot of a refused candidate: at the earliest when the device has caught up by what
    /// the forecast, with its margin, is too late. Returns how long to wait.
    pub(super) fn slot(
        &mut self,
        now: Micros,
        request: &Request,
        candidate: &Candidate,
        at: &Placement,
        shown: &Miss,
    ) -> Micros {
        self.full = true;
        let margin = u64::from(self.margin(candidate).max(1));
        let room = Micros(shown.budget.0.saturating_mul(1_000) / margin);
        let earliest = now.plus(shown.predicted.minus(room));
        self.retries.promise(now, earliest, self.share(candidate, at), request)
    }

    /// A refusal, with what the client is told of it.
    pub(super) fn shed(
        &self,
        now: Micros,
        request: &Request,
        at: &Placement,
        (reason, rule): (ShedReason, Rule),
        shown: Miss,
        retry_after: Micros,
    ) -> Shed {
        Shed {
            reason,
            rule,
            quantity: shown.quantity,
            retry_after,
            should_retry: self.retries.is_invited(now, request),
            predicted: shown.predicted,
            budget: shown.budget,
            position: (at.index - self.timeline.decoding) as u32,
        }
    }
}
