//! The refit from every step: recursive least squares with forgetting, kept in information form
//! (the normal equations themselves), which stays exact and never loses its footing.
//!
//! - Errors are relative to what the current model predicts, and coefficients are multiples of the
//!   measured ones, so every number here is near 1.
//! - Outliers (a stalled step) are clamped, and weighted down by how far they lie beyond the usual
//!   error (Huber's weight). They still take time, so the whole model is lifted by the share that
//!   they add on average.
//! - Steps under steady load do not tell the terms apart. A weak pull decides what the data leave
//!   open. It points to a reference that begins as the measured model and slowly follows what was
//!   found, times the current pace of the machine: terms that do not occur for a while keep what
//!   was learned of them, and change their pace with the others.
//! - A machine that changes its clock changes all terms at once. That is seen when several steps
//!   in a row, all of a kind that was well known, are off to the same side; what was learned is
//!   rescaled then instead of forgotten.

mod shift;

use scheduler::{CostModel, Micros, StepLoad};

use super::fit::{Factor, Normal, TERMS, Terms, coefficients, dot, model, occurrences};
use shift::Shift;

/// Weight that a step keeps with each later step: a memory of some 250 steps.
const MEMORY: f64 = 0.996;
/// Steps between two models; the first ones come sooner.
const REFIT_EVERY: u32 = 16;
/// Strength of the pull, in steps that consist of one term only.
const PULL: f64 = 0.05;
/// How far the reference moves with each refit: a memory of some thousand steps.
const FOLLOW: f64 = 1.0 / 64.0;
/// A step counts as at most this many times slower or faster than predicted.
const CLAMP: f64 = 4.0;
/// Errors beyond this many times the usual error are weighted down.
const USUAL: f64 = 3.0;
/// Most that stalled steps may add to the model.
const LIFT: f64 = 1.25;
/// How far the mean behind it moves with each step.
const LIFT_RATE: f64 = 1.0 / 512.0;
/// Weight that the past keeps when the clock has changed.
const TRUST: f64 = 0.25;

/// Refits the cost model from every step.
#[derive(Clone, Debug)]
pub struct Calibrator {
    /// Unit of each coefficient in nanoseconds: the measured one, or a little if that is zero.
    units: Terms,
    /// Where the data leave coefficients open, in these units.
    reference: Terms,
    /// The current model in these units, without the lift.
    current: Terms,
    observed: Normal,
    /// What the last refit knew.
    known: Factor,
    shift: Shift,
    /// Mean of actual over reference cost.
    pace: f64,
    /// Mean relative error of the current model.
    spread: f64,
    /// Mean of actual over predicted cost, with the stalls that the fit ignores.
    lift: f64,
    steps: u32,
}

impl Calibrator {
    /// Starts from the measured model.
    #[must_use]
    pub fn new(measured: &CostModel) -> Calibrator {
        let units = units(measured);
        let coefficients = coefficients(measured);
        let measured = std::array::from_fn(|i| coefficients[i] / units[i]);
        Calibrator {
            units,
            reference: measured,
            current: measured,
            observed: Normal::default(),
            known: pulled(&Normal::default(), &measured).factor(),
            shift: Shift::default(),
            pace: 1.0,
            spread: 0.1,
            lift: 1.0,
            steps: 0,
        }
    }

    /// Takes in what a step computed and how long it took; every few steps returns a new model.
    pub fn observe(&mut self, load: &StepLoad, took: Micros) -> Option<CostModel> {
        let occurrences = occurrences(load);
        let nanos: Terms = std::array::from_fn(|i| occurrences[i] * self.units[i]);
        // The fixed unit is positive, so this is too; shares and cost are now free of units.
        let total: f64 = nanos.iter().sum();
        let shares = nanos.map(|term| term / total);
        let predicted = dot(&shares, &self.current).max(1e-3);
        let ratio = took.0 as f64 * 1e3 / total / predicted;
        let ratio = ratio.clamp(CLAMP.recip(), CLAMP);
        let row = shares.map(|share| share / predicted);
        let weight = self.weigh(ratio);
        self.follow_pace(&shares, ratio * predicted, weight);
        self.lift += LIFT_RATE * (ratio - self.lift);
        self.observed.scale(MEMORY);
        self.observed.add(&row, ratio, weight);
        self.steps = self.steps.wrapping_add(1);
        let shifted = self.shift.observe(ratio, self.known.leverage(&row));
        if let Some(factor) = shifted {
            self.change_clock(factor);
        }
        let due = self.steps.is_multiple_of(REFIT_EVERY) || self.steps.is_power_of_two();
        (due || shifted.is_some()).then(|| self.refit())
    }

    /// How much a step with this ratio of actual to predicted cost counts.
    fn weigh(&mut self, ratio: f64) -> f64 {
        let error = (ratio - 1.0).abs();
        let weight = (USUAL * self.spread / error.max(1e-6)).min(1.0);
        self.spread += 0.05 * (error.min(1.0) - self.spread);
        self.spread = self.spread.max(0.01);
        weight
    }

    fn follow_pace(&mut self, shares: &Terms, actual: f64, weight: f64) {
        let reference = dot(shares, &self.reference);
        if reference > 1e-3 {
            let pace = (actual / reference).clamp(0.01, 100.0);
            self.pace += 0.03 * weight * (pace - self.pace);
        }
    }

    /// Everything takes `factor` times as long from now on.
    fn change_clock(&mut self, factor: f64) {
        self.observed.rescale(factor, TRUST);
        self.reference = self.reference.map(|x| within_reason(x * factor));
        self.lift = 1.0;
    }

    fn refit(&mut self) -> CostModel {
        let pull = self.reference.map(|x| x * self.pace);
        let normal = pulled(&self.observed, &pull);
        self.known = normal.factor();
        self.current = normal.solve_non_negative().map(within_reason);
        for (reference, current) in self.reference.iter_mut().zip(self.current) {
            *reference += FOLLOW * (current - *reference);
        }
        let lift = self.lift.clamp(1.0, LIFT);
        model(&std::array::from_fn(|i| self.current[i] * self.units[i] * lift))
    }
}

/// A coefficient may grow by any factor that a machine can, and no further.
fn within_reason(coefficient: f64) -> f64 {
    coefficient.clamp(0.0, 1e6)
}

fn pulled(observed: &Normal, to: &Terms) -> Normal {
    let mut normal = observed.clone();
    normal.pull(to, PULL);
    normal
}

/// A coefficient that was measured as zero may grow: its unit is what would make it five per cent
/// of an ordinary step.
fn units(measured: &CostModel) -> Terms {
    let ordinary = StepLoad {
        decode_seqs: 8,
        context_tokens: 2_048,
        prefill_tokens: 64,
        prefill_span: 64 * 64,
    };
    let occurrences = occurrences(&ordinary);
    let coefficients = coefficients(measured);
    let cost = dot(&occurrences, &coefficients).max(10_000.0);
    std::array::from_fn::<f64, TERMS, _>(|i| coefficients[i].max(0.05 * cost / occurrences[i]))
}

#[cfg(test)]
mod tests;
