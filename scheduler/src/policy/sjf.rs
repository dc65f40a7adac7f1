//! Shortest job first, by predicted length (Fu et al., "Efficient LLM Scheduling by Learning to
//! Rank", NeurIPS 2024): of work that is known at once it has the least mean waiting time (Smith
//! 1956). Lengths are those that the gate has learned.
//!
//! Pure shortest-job-first starves long jobs. Here a job may be overtaken by those that come within
//! a multiple of its size after it, and by nobody later.

use super::{Rank, SchedulerPolicy, View};
use crate::sequence::Sequence;
use crate::time::Micros;

/// A job is overtaken by shorter ones that come within this many times its size.
pub(super) const PATIENCE: u64 = 16;

/// Shortest predicted job first.
#[derive(Clone, Copy, Debug)]
pub struct SjfPolicy;

/// Device time for all of `seq` alone: its prompt and its predicted answer.
pub(super) fn size(view: &View<'_>, seq: &Sequence) -> Micros {
    let tokens = seq.generated + seq.remaining();
    let decode = view.cost.decode(1, u64::from(seq.prompt_tokens) + 1, tokens - 1);
    view.cost.prefill(0, seq.prompt_tokens, view.config.max_num_batched_tokens).plus(decode)
}

/// The place of `seq` if what counts is `size`.
pub(super) fn patient(seq: &Sequence, size: Micros) -> Rank {
    Rank::of(seq, seq.arrival.plus(Micros(size.0.saturating_mul(PATIENCE))))
}

impl SchedulerPolicy for SjfPolicy {
    fn name(&self) -> &'static str {
        "sjf"
    }

    fn rank(&self, view: &View<'_>, seq: &Sequence) -> Option<Rank> {
        Some(patient(seq, size(view, seq)))
    }

    /// That of a job of no size.
    fn best_rank(&self, _: &View<'_>, seq: &Sequence) -> Rank {
        patient(seq, Micros(0))
    }
}
