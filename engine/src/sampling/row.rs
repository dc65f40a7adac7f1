//! Passes over one row of logits, written so that the compiler turns them into vector code: a row
//! has some 50,000 to 150,000 entries and every sampled token takes at least one pass.

use std::f32::consts::{LN_2, LOG2_E};

/// Values handled side by side; a few vector registers on any machine.
const LANES: usize = 16;
/// Entries whose weights are summed before the draw looks closer.
const BLOCK: usize = 512;

/// Every value is a finite number.
pub(super) fn is_finite(row: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    !row.iter().fold(false, |bad, x| bad | (x.to_bits() & EXPONENT == EXPONENT))
}

/// The largest value; negative infinity for an empty row. No value may be NaN.
pub(super) fn max(row: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, x);
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
}

/// The position of the first value that equals `value`.
pub(super) fn position(row: &[f32], value: f32) -> Option<usize> {
    let start = BLOCK
        * row
            .chunks(BLOCK)
            .position(|block| block.iter().fold(false, |hit, &x| hit | (x == value)))?;
    row[start..].iter().position(|&x| x == value).map(|offset| start + offset)
}

/// The sum of the weights that are at least `least`.
pub(super) fn mass_from(weights: &[f32], least: f32) -> f64 {
    let counted = |weight: f32| if weight >= least { weight } else { 0.0 };
    weights.chunks(BLOCK).map(|block| f64::from(sum_of(block, counted))).sum()
}

/// The sum of `term` over a block, in lanes.
#[inline(always)]
fn sum_of(block: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += term(x);
        }
    }
    lanes.iter().sum::<f32>() + rest.iter().map(|&x| term(x)).sum::<f32>()
}

/// The unnormalised softmax of a row: `exp((x - max) / temperature)` for every `x >= floor`, and 0
/// below the floor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Softmax {
    max: f32,
    temperature: f32,
    /// From a difference of logits to a power of two.
    scale: f32,
    pub(super) floor: f32,
}

impl Softmax {
    /// Without a floor; `max` is the largest value of the row.
    pub(super) fn new(max: f32, temperature: f32) -> Softmax {
        Softmax { max, temperature, scale: LOG2_E / temperature, floor: f32::MIN }
    }

    /// The weight of one value; 1 for the best.
    #[inline(always)]
    pub(super) fn weight(self, x: f32) -> f32 {
        let weight = exp2((x - self.max) * self.scale);
        if x >= self.floor { weight } else { 0.0 }
    }

    /// The value whose weight is `exp(log_weight)`.
    pub(super) fn value_at(self, log_weight: f32) -> f32 {
        self.max + self.temperature * log_weight
    }

    /// The sum of all weights.
    pub(super) fn sum(self, row: &[f32]) -> f64 {
        row.chunks(BLOCK).map(|block| f64::from(self.block_sum(block))).sum()
    }

    fn block_sum(self, block: &[f32]) -> f32 {
        sum_of(block, |x| self.weight(x))
    }

    /// The entry at which the running sum of weights passes `uniform` (in [0, 1)) of the whole.
    /// `sums` is working memory.
    pub(super) fn draw(self, row: &[f32], uniform: f64, sums: &mut Vec<f32>) -> Option<usize> {
        sums.clear();
        sums.extend(row.chunks(BLOCK).map(|block| self.block_sum(block)));
        let mut target = uniform * sums.iter().map(|&sum| f64::from(sum)).sum::<f64>();
        let mut block = 0;
        while block + 1 < sums.len() && target >= f64::from(sums[block]) {
            target -= f64::from(sums[block]);
            block += 1;
        }
        // Rounding may leave the target a hair beyond the last weight: then the last one is taken.
        let mut last = None;
        for (offset, &x) in row[block * BLOCK..].iter().enumerate() {
            let weight = f64::from(self.weight(x));
            if weight > 0.0 {
                last = Some(block * BLOCK + offset);
                if target < weight {
                    break;
                }
            }
            target -= weight;
        }
        last.or_else(|| position(row, self.max))
    }
}

/// `2^x` for `x <= 0`, with a relative error below 4e-7; 0 below -120. Branch-free, unlike the
/// library's, so that loops over it become vector code.
#[inline(always)]
fn exp2(x: f32) -> f32 {
    /// Adding it rounds to a whole number, which then sits in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    const LEAST: f32 = -120.0;
    let power = if x > LEAST { x } else { LEAST };
    let rounded = power + ROUND;
    let fraction = power - (rounded - ROUND);
    let scale = f32::from_bits(rounded.to_bits().wrapping_sub(ROUND.to_bits() - 127) << 23);
    // The Taylor series of 2^fraction; the fraction lies within half a unit of zero.
    let higher = [1.333_356e-3, 9.618_129e-3, 5.550_411e-2, 0.240_226_5, LN_2, 1.0];
    let series = higher.iter().fold(1.540_353e-4, |sum, term| sum * fraction + term);
    if x < LEAST { 0.0 } else { series * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_agree_with_the_library() {
        for step in 0..120_000 {
            let x = -0.001 * step as f32;
            let (ours, theirs) = (exp2(x), x.exp2());
            assert!((ours - theirs).abs() <= 4e-7 * theirs, "2^{x}: {ours} against {theirs}");
        }
        assert_eq!(exp2(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp2(0.0), 1.0);
    }

    #[test]
    fn scans_agree_with_the_obvious_loops_at_every_length() {
        let row: Vec<f32> =
            (0..1500u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32).collect();
        for len in 1..row.len() {
            let row = &row[..len];
            let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(max(row), best);
            assert_eq!(position(row, best), row.iter().position(|&x| x == best));
        }
    }

    #[test]
    fn a_value_that_is_not_finite_is_seen_anywhere() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..40 {
                let mut row = [1.0f32; 40];
                assert!(is_finite(&row));
                row[at] = bad;
                assert!(!is_finite(&row));
            }
        }
    }
}
