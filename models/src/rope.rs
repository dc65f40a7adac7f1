//! Rotary position embedding: the angles, computed once in f64 for every position a runner can
//! meet.
//!
//! Both runners read the same table, so that they can differ in their arithmetic only.

use std::f64::consts::TAU;

use crate::config::{Rope, RopeScaling};

/// Cosines and sines of all positions, one row of `half` values per position.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Half the width of a head: one angle per rotated pair.
    pub half: usize,
    /// `[positions, half]`, row by row.
    pub cos: Vec<f32>,
    /// `[positions, half]`, row by row.
    pub sin: Vec<f32>,
}

impl RopeTable {
    /// The table of `positions` rows for heads of width `head_dim` (even).
    #[must_use]
    pub fn new(rope: &Rope, head_dim: usize, positions: usize) -> RopeTable {
        let frequencies = frequencies(rope, head_dim);
        let angles = || (0..positions).flat_map(|p| frequencies.iter().map(move |f| p as f64 * f));
        RopeTable {
            half: frequencies.len(),
            cos: angles().map(|angle| angle.cos() as f32).collect(),
            sin: angles().map(|angle| angle.sin() as f32).collect(),
        }
    }

    /// The cosines and the sines of one position, `half` values each.
    #[must_use]
    pub fn row(&self, position: usize) -> (&[f32], &[f32]) {
        let range = position * self.half..(position + 1) * self.half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

/// Angle per position of each rotated pair, in radians: scaled first, then divided by the explicit
/// factors (of which [`crate::ModelConfig`] has as many as there are pairs, or none).
fn frequencies(rope: &Rope, head_dim: usize) -> Vec<f64> {
    let scaled = (0..head_dim / 2).map(|pair| {
        let exponent = (2 * pair) as f64 / head_dim as f64;
        scale(f64::from(rope.theta).powf(-exponent), &rope.scaling)
    });
    match &rope.factors {
        None => scaled.collect(),
        Some(factors) => scaled.zip(factors).map(|(f, &factor)| f / f64::from(factor)).collect(),
    }
}

/// One frequency after scaling.
fn scale(frequency: f64, scaling: &RopeScaling) -> f64 {
    match *scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / f64::from(factor),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position,
        } => {
            let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
            let turns = f64::from(original_max_position) * frequency / TAU;
            // How much of the unscaled frequency stays: nothing for waves that turn less than `low`
            // times in the original context, all for those that turn more than `high` times.
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            frequency * (kept + (1.0 - kept) / f64::from(factor))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope { theta: 10_000.0, scaling, factors: None, interleaved: false }
    }

    #[test]
    fn first_pair_turns_one_radian_per_position_and_all_rows_are_unit_vectors() {
        let table = RopeTable::new(&rope(RopeScaling::None), 16, 50);
        assert_eq!((table.half, table.cos.len(), table.sin.len()), (8, 400, 400));
        for position in 0..50 {
            let (cos, sin) = table.row(position);
            assert!((f64::from(sin[0]) - (position as f64).sin()).abs() < 1e-6);
            assert!(cos.iter().zip(sin).all(|(c, s)| (c * c + s * s - 1.0).abs() < 1e-6));
        }
    }

    #[test]
    fn linear_scaling_and_equal_factors_stretch_positions_alike() {
        let plain = RopeTable::new(&rope(RopeScaling::None), 16, 8);
        let linear = RopeTable::new(&rope(RopeScaling::Linear { factor: 4.0 }), 16, 32);
        let by_factors = Rope { factors: Some(vec![4.0; 8]), ..rope(RopeScaling::None) };
        let by_factors = RopeTable::new(&by_factors, 16, 32);
        for position in 0..8 {
            assert_eq!(linear.row(4 * position), plain.row(position));
            assert_eq!(by_factors.row(4 * position), plain.row(position));
        }
    }

    #[test]
    fn llama3_scaling_keeps_short_waves_stretches_long_ones_and_is_monotonic() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 8192,
        };
        let stretched = frequencies(&rope(scaling), 128);
        let plain = frequencies(&rope(RopeScaling::None), 128);
        assert_eq!(stretched[0], plain[0]);
        assert_eq!(stretched[63], plain[63] / 8.0);
        assert!(stretched.windows(2).all(|pair| pair[0] > pair[1]));
        assert!(stretched.iter().zip(&plain).any(|(s, p)| *s < *p && *s > *p / 8.0));
    }
}
