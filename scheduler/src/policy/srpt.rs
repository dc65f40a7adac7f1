//! Shortest remaining processing time first (Schrage 1968: the least mean response time on one
//! preemptive machine; for answers of predicted length Shahout et al., "Don't Stop Me Now", 2024).
//!
//! What remains shrinks as a sequence runs, so of two that prefill the nearer to its end goes
//! first, and when blocks run out the one with the most before it gives its own up. A slot is never
//! taken away for order's sake: there is no swap, and what was computed would be computed again.

use super::sjf::patient;
use super::{Rank, SchedulerPolicy, View, cheapest};
use crate::sequence::Sequence;
use crate::time::Micros;

/// Shortest predicted rest first; ages as `sjf` does.
#[derive(Clone, Copy, Debug)]
pub struct SrptPolicy;

impl SrptPolicy {
    /// Device time alone until its last token.
    fn rest(view: &View<'_>, seq: &Sequence) -> Micros {
        let budget = view.config.max_num_batched_tokens;
        let todo = seq.to_compute();
        let prefill = view.cost.prefill(seq.known() - todo, todo, budget);
        prefill.plus(view.cost.decode(1, u64::from(seq.known()) + 1, seq.remaining() - 1))
    }
}

impl SchedulerPolicy for SrptPolicy {
    fn name(&self) -> &'static str {
        "srpt"
    }

    fn rank(&self, view: &View<'_>, seq: &Sequence) -> Option<Rank> {
        Some(patient(seq, Self::rest(view, seq)))
    }

    /// That of a job of no size.
    fn best_rank(&self, _: &View<'_>, seq: &Sequence) -> Rank {
        patient(seq, Micros(0))
    }

    /// Who has the most to come.
    fn victim(&self, view: &View<'_>, candidates: &[&Sequence]) -> Option<usize> {
        cheapest(view, candidates, |seq| Self::rest(view, seq))
    }
}
