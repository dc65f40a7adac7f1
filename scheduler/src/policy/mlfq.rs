//! Multi-level feedback queue with skip-join (FastServe: Wu et al., "Fast Distributed Inference
//! Serving for Large Language Models", 2023): the less service a job needs or has had, the higher
//! its level. No length has to be known: a prompt joins at the level that its prefill belongs to,
//! and every doubling of the service received is one level down.
//!
//! Who has waited for [`AGING`] is back on the highest level, before those that came later. A slot
//! is never taken away for order's sake (FastServe swaps caches to the host instead); when blocks
//! run out, the lowest level gives its own up.

use super::{AGING, Rank, SchedulerPolicy, View, cheapest};
use crate::sequence::Sequence;

/// Levels; the lowest has no quantum.
const LEVELS: u8 = 10;

/// Levels by service, first come, first served within each.
#[derive(Clone, Copy, Debug)]
pub struct MlfqPolicy;

impl MlfqPolicy {
    /// The level of `seq`, zero the highest. The first quantum is a decode step of one sequence,
    /// each further one twice the one before.
    fn level(view: &View<'_>, seq: &Sequence) -> u8 {
        if view.now.minus(seq.arrival) >= AGING {
            return 0;
        }
        let prompt = view.cost.prefill(0, seq.prompt_tokens, view.config.max_num_batched_tokens);
        let context = u64::from(seq.prompt_tokens) + 1;
        let service = prompt.plus(view.cost.decode(1, context, seq.generated));
        let quanta = service.0 / view.cost.decode(1, 1, 1).0.max(1);
        let doublings = quanta.checked_ilog2().map_or(0, |log| log + 1);
        u8::try_from(doublings).unwrap_or(u8::MAX).min(LEVELS - 1)
    }
}

impl SchedulerPolicy for MlfqPolicy {
    fn name(&self) -> &'static str {
        "mlfq"
    }

    fn rank(&self, view: &View<'_>, seq: &Sequence) -> Option<Rank> {
        match seq.preemptions {
            0 => Some(Rank::new(1 + Self::level(view, seq), seq.arrival)),
            _ => Some(Rank::of(seq, seq.arrival)),
        }
    }

    fn best_rank(&self, _: &View<'_>, seq: &Sequence) -> Rank {
        Rank::new(1, seq.arrival)
    }

    /// The lowest level.
    fn victim(&self, view: &View<'_>, candidates: &[&Sequence]) -> Option<usize> {
        cheapest(view, candidates, |seq| Self::level(view, seq))
    }
}
