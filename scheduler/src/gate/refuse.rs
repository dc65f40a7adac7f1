//! The refusal: its explanation, and the slot at which to come back.

use super::Gate;
use super::times::Miss;
use crate::admission::{Rule, Shed, ShedReason};
use crate::candidate::Candidate;
use crate::class::Class;
use crate::request::Request;
use crate::time::Micros;

/// How much of the way the full batch follows a smaller one that was full as well.
const BATCH_STEPS: u32 = 8;

/// How much of the way the mean share of a class follows the next one.
const SHARE_STEPS: u64 = 16;

impl Gate {
    /// What a candidate takes of a device that is full: its own work, and its part of what steps
    /// cost whoever is in them.
    pub(super) fn share(&self, candidate: &Candidate, prefill_steps: u32) -> Micros {
        self.share_of(candidate, candidate.steps, prefill_steps)
    }

    /// The same if it decoded so many `steps`.
    pub(super) fn share_of(&self, candidate: &Candidate, steps: u32, prefill_steps: u32) -> Micros {
        let work = candidate.prefill.plus(candidate.shared(steps));
        let steps = u64::from(steps) + u64::from(prefill_steps);
        let fixed = self.cost.fixed_ns.saturating_mul(steps) / 1_000;
        let part = fixed.saturating_mul(candidate.slots.into()) / u64::from(self.batch.max(1));
        work.plus(Micros(part))
    }

    /// Learns what requests of a class take, for those of which too little is known.
    pub(super) fn learn_share(&mut self, class: Class, work: Micros) {
        let mean = &mut self.shares[class.index()];
        *mean = match mean.0 {
            0 => work,
            _ => mean.minus(Micros(mean.0 / SHARE_STEPS)).plus(Micros(work.0 / SHARE_STEPS)),
        };
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

    /// The next slot of a refused request that takes `work` of the device: at the earliest when the
    /// device has caught up by what the forecast, with its margin, is too late, and after `least`.
    /// Returns how long to wait.
    pub(super) fn slot(
        &mut self,
        now: Micros,
        request: &Request,
        margin: u32,
        work: Micros,
        shown: &Miss,
        least: Micros,
    ) -> Micros {
        self.full = true;
        let room = Micros(shown.budget.0.saturating_mul(1_000) / u64::from(margin.max(1)));
        let earliest = now.plus(shown.predicted.minus(room).max(least));
        self.retries.promise(now, earliest, work, request, &self.elsewhere.view)
    }

    /// A refusal, with what the client is told of it.
    pub(super) fn shed(
        &self,
        now: Micros,
        request: &Request,
        index: usize,
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
            position: (index - self.timeline.decoding) as u32,
        }
    }
}
