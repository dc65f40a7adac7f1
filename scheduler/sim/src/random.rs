//! Draws from the few distributions that are needed, from a seed alone.

use std::f64::consts::TAU;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Random(Pcg64Mcg);

impl Random {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(Pcg64Mcg::seed_from_u64(seed))
    }

    /// Below `n`, evenly.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n)
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        // 1 - u lies in (0, 1], so the logarithm is finite.
        -(1.0 - self.0.random::<f64>()).ln()
    }

    /// Standard normal (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        (2.0 * self.exponential()).sqrt() * (TAU * self.0.random::<f64>()).cos()
    }

    /// Log-normal with this median, within bounds.
    pub fn log_normal(&mut self, median: f64, sigma: f64, bounds: (u32, u32)) -> u32 {
        let value = median * (sigma * self.normal()).exp();
        value.clamp(f64::from(bounds.0), f64::from(bounds.1)) as u32
    }
}
