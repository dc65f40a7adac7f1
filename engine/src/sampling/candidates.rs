//! The tokens that `top_k`, `top_p` and `min_p` leave over, found by selection: a row is scanned, a
//! few hundred entries are partitioned, nothing is ever sorted as a whole.

use std::cmp::Ordering;

use super::row::{Softmax, mass_from, max};

/// One token that may still be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) logit: f32,
    pub(super) token: u32,
}

/// Best first; of equals, the lower token first.
fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Entries that one look at the bar decides about.
const STRIDE: usize = 64;

/// Puts the `k` best of the entries `>= floor` into `kept`, in no particular order.
///
/// The bar rises to the k-th best whenever twice `k` have gathered, so that in a row in random
/// order few of the later entries are even looked at.
pub(super) fn select_top_k(row: &[f32], k: usize, floor: f32, kept: &mut Vec<Candidate>) {
    kept.clear();
    let mut bar = floor.next_down();
    for (stride, entries) in row.chunks(STRIDE).enumerate() {
        if max(entries) <= bar {
            continue;
        }
        for (offset, &logit) in entries.iter().enumerate() {
            if logit > bar {
                kept.push(Candidate { logit, token: (stride * STRIDE + offset) as u32 });
            }
        }
        if kept.len() >= k.saturating_mul(2).saturating_add(STRIDE) {
            bar = cut(kept, k);
        }
    }
    cut(kept, k);
}

/// Keeps the `k` best; returns the worst logit kept. Later entries of the row that equal it lose to
/// it, as their tokens are higher.
fn cut(kept: &mut Vec<Candidate>, k: usize) -> f32 {
    if k == 0 || kept.len() <= k {
        return f32::NEG_INFINITY;
    }
    let (_, worst, _) = kept.select_nth_unstable_by(k - 1, best_first);
    let worst = worst.logit;
    kept.truncate(k);
    worst
}

/// The `k` best entries of a row, best first.
pub(super) fn sorted_top_k(row: &[f32], k: usize) -> Vec<(u32, f32)> {
    let mut kept = Vec::new();
    if k > 0 {
        select_top_k(row, k, f32::MIN, &mut kept);
    }
    kept.sort_unstable_by(best_first);
    kept.into_iter().map(|candidate| (candidate.token, candidate.logit)).collect()
}

/// Puts the entries `>= floor` into `kept`.
pub(super) fn select_floor(row: &[f32], floor: f32, kept: &mut Vec<Candidate>) {
    select_top_k(row, row.len(), floor, kept);
}

/// The floor below which no entry can belong to the nucleus `top_p`: entries that hold less than
/// `(1 - top_p) / n` of the mass each hold less than `1 - top_p` together. Halved against rounding.
pub(super) fn nucleus_floor(row: &[f32], softmax: Softmax, top_p: f32) -> f32 {
    let share = f64::from(1.0 - top_p) * softmax.sum(row) / row.len() as f64;
    softmax.value_at((share / 2.0).ln() as f32).max(softmax.floor)
}

/// Keeps the smallest set of best candidates that holds `top_p` of the mass of all candidates.
/// `weights` is working memory.
///
/// Bisection for the weight at the edge, over the bits of a float (of positive floats, they are in
/// the order of the values): some thirty sums in vector code, whatever the distribution.
pub(super) fn keep_nucleus(
    kept: &mut Vec<Candidate>,
    weights: &mut Vec<f32>,
    softmax: Softmax,
    top_p: f32,
) {
    weights.clear();
    weights.extend(kept.iter().map(|candidate| softmax.weight(candidate.logit)));
    let needed = f64::from(top_p) * mass_from(weights, 0.0);
    let (mut low, mut high) = (0, 2f32.to_bits());
    while high - low > 1 {
        let middle = u32::midpoint(low, high);
        if mass_from(weights, f32::from_bits(middle)) >= needed {
            low = middle;
        } else {
            high = middle;
        }
    }
    let edge = f32::from_bits(low);
    let missing = needed - mass_from(weights, f32::from_bits(high));
    let mut at_edge = Vec::new();
    let mut each = weights.iter();
    kept.retain(|candidate| {
        let weight = *each.next().expect("every candidate has a weight");
        if weight == edge {
            at_edge.push(*candidate);
        }
        weight > edge
    });
    at_edge.sort_unstable_by(best_first);
    let few = (missing / f64::from(edge)).ceil().max(1.0);
    kept.extend(at_edge.into_iter().take(few as usize));
}

/// The candidate at which the running sum of weights passes `uniform` (in [0, 1)) of the whole.
pub(super) fn draw(kept: &[Candidate], softmax: Softmax, uniform: f64) -> Option<u32> {
    let weight = |candidate: &Candidate| f64::from(softmax.weight(candidate.logit));
    let mut target = uniform * kept.iter().map(weight).sum::<f64>();
    for candidate in kept {
        target -= weight(candidate);
        if target < 0.0 {
            return Some(candidate.token);
        }
    }
    // Rounding may leave the target a hair beyond the last weight.
    kept.last().map(|candidate| candidate.token)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Few distinct values, so that ties are common.
    fn rows() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec((-20i8..20).prop_map(f32::from), 1..400)
    }

    fn sorted(row: &[f32]) -> Vec<Candidate> {
        let mut all: Vec<Candidate> =
            (0u32..).zip(row).map(|(token, &logit)| Candidate { logit, token }).collect();
        all.sort_by(best_first);
        all
    }

    proptest! {
        #[test]
        fn top_k_is_the_head_of_the_sorted_row(row in rows(), k in 1usize..50, floor in -25i8..20) {
            let floor = f32::from(floor);
            let mut kept = Vec::new();
            select_top_k(&row, k, floor, &mut kept);
            kept.sort_by(best_first);
            let expected: Vec<Candidate> =
                sorted(&row).into_iter().filter(|c| c.logit >= floor).take(k).collect();
            prop_assert_eq!(kept, expected);
        }

        #[test]
        fn the_nucleus_is_the_shortest_head_with_the_mass(row in rows(), top_p in 0.01f32..0.999) {
            let softmax = Softmax::new(max(&row), 3.0);
            let mut kept = Vec::new();
            select_floor(&row, nucleus_floor(&row, softmax, top_p), &mut kept);
            let (all, part) = (softmax.sum(&row), kept.iter());
            let lost = all - part.map(|c| f64::from(softmax.weight(c.logit))).sum::<f64>();
            prop_assert!(lost <= all * f64::from(1.0 - top_p), "the floor cut into the nucleus");

            let mut kept = sorted(&row);
            kept.reverse();
            keep_nucleus(&mut kept, &mut Vec::new(), softmax, top_p);
            kept.sort_by(best_first);
            let expected = sorted(&row);
            prop_assert_eq!(&kept[..], &expected[..kept.len()]);
            let mass = |part: &[Candidate]| -> f64 {
                part.iter().map(|c| f64::from(softmax.weight(c.logit))).sum()
            };
            let needed = f64::from(top_p) * mass(&expected);
            prop_assert!(mass(&kept) >= needed * (1.0 - 1e-9));
            prop_assert!(mass(&kept[..kept.len() - 1]) < needed * (1.0 + 1e-9));
        }
    }
}
