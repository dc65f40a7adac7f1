//! Longest prompt first; a minute of waiting is worth any length.

use scheduler::Micros;
use scheduler::policy::{AGING, Rank, SchedulerPolicy, View};
use scheduler::sequence::Sequence;

/// The longest prompt goes first.
#[derive(Debug)]
pub(crate) struct LongestFirst;

impl SchedulerPolicy for LongestFirst {
    fn name(&self) -> &'static str {
        "longest-first"
    }

    fn rank(&self, view: &View<'_>, seq: &Sequence) -> Option<Rank> {
        let most = u64::from(view.config.max_model_len);
        let missing = most.saturating_sub(u64::from(seq.prompt_tokens));
        // A place is a time, and the smaller goes first.
        Some(Rank::of(seq, seq.arrival.plus(Micros(AGING.0 * missing / most))))
    }
}
