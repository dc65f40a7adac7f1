//! Cost coefficients: measured at start, refitted from every step.
//!
//! Both are least squares with non-negative coefficients over the five terms of [`CostModel`], on
//! relative errors: a step of 5 ms counts as much as one of 500 ms. Floats end here; the scheduler
//! gets whole nanoseconds and picoseconds.

mod fit;
mod measure;
mod online;

pub use measure::{MeasuredPoint, Measurement, measure, measure_thoroughly};
pub use online::Calibrator;

use scheduler::{CostModel, Micros, StepLoad};

/// What a decode step of one sequence alone costs at a moderate context: the unloaded gap between
/// tokens.
#[must_use]
pub fn unloaded_gap(cost: &CostModel, max_model_len: u32) -> Micros {
    let context_tokens = u64::from(max_model_len / 2).min(512);
    cost.step(&StepLoad { decode_seqs: 1, context_tokens, ..StepLoad::default() })
}
