//! Whose blocks to take: who is cheapest to recompute for each block that becomes free.

use core::cmp::Reverse;

use super::View;
use crate::class::Class;
use crate::sequence::Sequence;

/// Of `candidates`, who comes first by `before` (the larger goes first), then throughput before
/// latency work, then who was preempted least, then who is cheapest to recompute for each block
/// that it frees, then who came last. An index.
pub fn cheapest<K: Ord>(
    view: &View<'_>,
    candidates: &[&Sequence],
    before: impl Fn(&Sequence) -> K,
) -> Option<usize> {
    (0..candidates.len()).max_by_key(|i| {
        let seq = candidates[*i];
        let bulk = seq.class == Class::Throughput;
        let price = price(view, seq);
        (before(seq), bulk, Reverse(seq.preemptions), Reverse(price), seq.id)
    })
}

/// Device time to recompute `seq` for each block that it frees, in nanoseconds. What it shares with
/// siblings is not freed; who frees nothing has no price that is worth paying.
fn price(view: &View<'_>, seq: &Sequence) -> u64 {
    let held = view.config.blocks_for(seq.computed);
    let shared = if seq.alone { 0 } else { seq.shared_blocks(view.config.block_size) };
    let recompute = view.cost.prefill_work(0, seq.computed);
    match held.saturating_sub(shared) {
        0 => u64::MAX,
        freed => recompute.0.saturating_mul(1_000) / u64::from(freed),
    }
}
