//! What the gate is asked for, in devices.

use super::Gate;
use super::judge::Refusal;
use crate::admission::ShedReason;
use crate::candidate::Candidate;
use crate::demand::{Demand, Outcome};
use crate::request::Request;
use crate::time::Micros;

/// Whether more devices would have taken a request that was shed. One that came to a server that
/// ends is served by another: it counts here, as its next attempt is a retry.
pub(super) const fn outcome(reason: ShedReason) -> Outcome {
    match reason {
        ShedReason::SloMiss
        | ShedReason::QueueFull
        | ShedReason::KvPressure
        | ShedReason::RateLimit
        | ShedReason::ReplicaBusy
        | ShedReason::Draining => Outcome::Wanting,
        ShedReason::TenantBudget | ShedReason::Expired => Outcome::Hopeless,
    }
}

impl Gate {
    /// Work that was asked for lately.
    #[must_use]
    pub fn demand(&self, now: Micros) -> Demand {
        self.meter.report(now)
    }

    /// Counts what `request` takes of a full device, with outputs of mean length.
    pub(super) fn count_demand<T>(
        &mut self,
        now: Micros,
        request: &Request,
        candidate: &Candidate,
        prefill_steps: u32,
        verdict: &Result<T, Refusal>,
    ) {
        let (mut median, mut mean) = (0, 0);
        for spec in &request.sequences {
            median += u64::from(spec.output.predicted);
            mean += u64::from(self.lengths.mean(request.class, spec.prompt_tokens, &spec.output));
        }
        let steps = u64::from(candidate.steps).saturating_mul(mean) / median.max(1);
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        let work = self.share_of(candidate, steps, prefill_steps);
        let outcome = match verdict {
            Ok(_) => Outcome::Admitted,
            Err(Refusal::Shed { reason, .. }) => outcome(*reason),
            Err(Refusal::OverBudget(..)) => outcome(ShedReason::TenantBudget),
            Err(Refusal::Unsatisfiable(_)) => Outcome::Hopeless,
        };
        self.meter.came(now, request, work, outcome);
    }
}
