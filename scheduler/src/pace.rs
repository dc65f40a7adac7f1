//! Whether steps stay within the gaps that latency work was promised.
//!
//! A policy that bounds steps keeps those gaps itself: bulk work waits for turns, prompts are cut
//! into shorter chunks. What it cannot put off is what decodes in every step. So that is what
//! admission looks at, instead of the steps of the forecast, which bulk work fills to the bound.

use crate::candidate::Candidate;
use crate::placement::Placement;
use crate::rules::Rules;
use crate::time::Micros;
use crate::timeline::Timeline;

/// A step, and the tightest gap promised to somebody who decodes in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) step: Micros,
    pub(crate) gap: Micros,
}

impl Timeline {
    /// The tightest step in which `candidate` would decode, at `at`, if whoever can wait makes
    /// room. `None` if it can itself, or if no gap is promised that the policy keeps.
    pub(crate) fn pace(
        &self,
        rules: &Rules<'_>,
        candidate: &Candidate,
        at: &Placement,
    ) -> Option<Pace> {
        if candidate.is_patient() {
            return None;
        }
        let steps = at.decoding_steps();
        let paces = self.segments.states_within(steps).filter_map(|state| {
            let gap = state.tempo.tpot.tighter(candidate.tempo.tpot).micros()?;
            rules.policy.step_limit(gap)?;
            let mut step = state.step();
            step.steady.seqs += candidate.slots;
            step.steady.context_tokens += candidate.context_tokens;
            let least = step.decoding(step.bounded(0));
            let step = rules.view.cost.decode(least.seqs, least.context_tokens, 1);
            Some(Pace { step, gap })
        });
        paces.max_by_key(|pace| pace.step.0.saturating_mul(1_000) / pace.gap.0.max(1))
    }
}
