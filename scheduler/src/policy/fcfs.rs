//! First come, first served: the queue of most servers. It never looks at a deadline.

use super::{Rank, SchedulerPolicy, View};
use crate::sequence::Sequence;

/// First come, first served; the last to come is the first to be preempted.
#[derive(Clone, Copy, Debug)]
pub struct FcfsPolicy;

impl SchedulerPolicy for FcfsPolicy {
    fn name(&self) -> &'static str {
        "fcfs"
    }

    fn rank(&self, _: &View<'_>, seq: &Sequence) -> Option<Rank> {
        Some(Rank::of(seq, seq.arrival))
    }

    fn best_rank(&self, _: &View<'_>, seq: &Sequence) -> Rank {
        Rank::of(seq, seq.arrival)
    }

    fn victim(&self, _: &View<'_>, candidates: &[&Sequence]) -> Option<usize> {
        (0..candidates.len()).max_by_key(|i| (candidates[*i].arrival, candidates[*i].id))
    }
}
