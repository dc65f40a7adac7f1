//! Earliest deadline first (Liu and Layland 1973), and nothing else: on one preemptive processor it
//! meets every deadline if any order does (Dertouzos 1974), and in overload it serves just those
//! that are about to be late (Locke 1986). The baseline for `deadline`.

use core::cmp::Reverse;

use super::{AGING, Rank, SchedulerPolicy, View};
use crate::sequence::Sequence;
use crate::time::Micros;

/// Earliest deadline first; who is late is served all the same.
#[derive(Clone, Copy, Debug)]
pub struct EdfPolicy;

impl EdfPolicy {
    /// When its next deadline is; without one, when it has aged.
    fn due(seq: &Sequence) -> Micros {
        let first = seq.first_due.get().filter(|_| seq.generated == 0);
        let due = first.into_iter().chain(seq.last_due.get()).min();
        due.unwrap_or_else(|| seq.arrival.plus(AGING))
    }
}

impl SchedulerPolicy for EdfPolicy {
    fn name(&self) -> &'static str {
        "edf"
    }

    fn rank(&self, _: &View<'_>, seq: &Sequence) -> Option<Rank> {
        Some(Rank::of(seq, Self::due(seq)))
    }

    fn best_rank(&self, _: &View<'_>, seq: &Sequence) -> Rank {
        Rank::of(seq, Self::due(seq))
    }

    /// The last to be due.
    fn victim(&self, _: &View<'_>, candidates: &[&Sequence]) -> Option<usize> {
        (0..candidates.len()).max_by_key(|i| {
            let seq = candidates[*i];
            (Self::due(seq), Reverse(seq.preemptions), seq.id)
        })
    }
}
