//! Kernels in plain Rust, in the shape that compilers vectorise for any processor.
//!
//! Quantised weights and activations are multiplied as floats. That loses nothing: the dot product
//! of a block is a whole number below 2^24 at every step, so float sums are exact in any order.

use super::product::STRIP;
use crate::activations::{BLOCK, Block};

/// Bytes of the weights of a block, where its scales begin.
const Q4_COLUMNS: usize = STRIP * BLOCK / 2;
const Q8_COLUMNS: usize = STRIP * BLOCK;

/// Computes the rows of `tile` from as many rows of activations.
pub(super) fn q4(panel: &[u8], x: &[Block], tile: &mut [[f32; STRIP]]) {
    let (blocks, _) = panel.as_chunks::<{ Q4_COLUMNS + 4 * STRIP }>();
    tile.fill([0.0; STRIP]);
    let mut weights = [[0.0; STRIP]; BLOCK];
    for (b, block) in blocks.iter().enumerate() {
        let (low, high) = weights.split_at_mut(BLOCK / 2);
        let bytes = block.as_chunks::<STRIP>().0;
        for ((low, high), bytes) in low.iter_mut().zip(high).zip(bytes) {
            *low = bytes.map(|q| f32::from(q & 15));
            *high = bytes.map(|q| f32::from(q >> 4));
        }
        let (scale, min) = (halves(block, Q4_COLUMNS), halves(block, Q4_COLUMNS + 2 * STRIP));
        for (row, x) in tile.iter_mut().zip(x[b..].iter().step_by(blocks.len())) {
            let dots = dots(&weights, x);
            for (lane, sum) in row.iter_mut().enumerate() {
                *sum += dots[lane] * (scale[lane] * x.scale) + min[lane] * x.sum;
            }
        }
    }
}

/// As [`q4`], for 8-bit weights.
pub(super) fn q8(panel: &[u8], x: &[Block], tile: &mut [[f32; STRIP]]) {
    let (blocks, _) = panel.as_chunks::<{ Q8_COLUMNS + 2 * STRIP }>();
    tile.fill([0.0; STRIP]);
    let mut weights = [[0.0; STRIP]; BLOCK];
    for (b, block) in blocks.iter().enumerate() {
        for (weights, bytes) in weights.iter_mut().zip(block.as_chunks::<STRIP>().0) {
            *weights = bytes.map(|q| f32::from(q) - 128.0);
        }
        let scale = halves(block, Q8_COLUMNS);
        for (row, x) in tile.iter_mut().zip(x[b..].iter().step_by(blocks.len())) {
            let dots = dots(&weights, x);
            for (lane, sum) in row.iter_mut().enumerate() {
                *sum += dots[lane] * (scale[lane] * x.scale);
            }
        }
    }
}

/// As [`q4`], for f32 weights.
pub(super) fn f32(panel: &[u8], x: &[f32], tile: &mut [[f32; STRIP]]) {
    let (columns, _) = panel.as_chunks::<{ 4 * STRIP }>();
    for (row, x) in tile.iter_mut().zip(x.chunks_exact(columns.len())) {
        *row = [0.0; STRIP];
        for (column, x) in columns.iter().zip(x) {
            for (sum, w) in row.iter_mut().zip(column.as_chunks().0) {
                *sum += f32::from_ne_bytes(*w) * x;
            }
        }
    }
}

/// The dot products of a block's weights, `[column][lane]`, with `x`.
#[inline(always)]
fn dots(weights: &[[f32; STRIP]; BLOCK], x: &Block) -> [f32; STRIP] {
    let mut dots = [0.0; STRIP];
    for (weights, x) in weights.iter().zip(x.q.map(f32::from)) {
        dots.iter_mut().zip(weights).for_each(|(dot, w)| *dot += w * x);
    }
    dots
}

/// The f16 scales or minima from byte `at` of a block on.
fn halves(block: &[u8], at: usize) -> [f32; STRIP] {
    let bytes = block[at..at + 2 * STRIP].as_chunks::<2>().0;
    std::array::from_fn(|lane| widen(u16::from_ne_bytes(bytes[lane])))
}

/// An f16 that is finite, as f32: without branches, so that it vectorises. The exponent and the
/// mantissa move to their places, and a multiplication makes up for the difference in bias, also
/// for subnormal numbers.
#[inline(always)]
fn widen(half: u16) -> f32 {
    const BIAS: f32 = f32::from_bits((127 + 127 - 15) << 23);
    let magnitude = f32::from_bits(u32::from(half & 0x7fff) << 13) * BIAS;
    f32::from_bits(magnitude.to_bits() | u32::from(half & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_finite_half_is_widened_exactly() {
        for half in (0..=u16::MAX).map(f16::from_bits).filter(|half| half.is_finite()) {
            assert_eq!(widen(half.to_bits()).to_bits(), half.to_f32().to_bits());
        }
    }
}
