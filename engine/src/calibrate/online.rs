//! The refit from every step: recursive least squares with forgetting, kept in information form
//! (the normal equations themselves), which stays exact and never loses its footing.
//!
//! - Errors are relative to what the current model predicts, and coefficients are multiples of the
//!   measured ones, so every number here is near 1.
//! - Outliers (a stalled step) are clamped, and weighted down by how far they lie beyond the usual
//!   error (Huber's weight).
//! - Steps under steady load do not tell the terms apart. A weak pull towards the measured shape,
//!   scaled by the current pace of the machine, decides what the data leave open.

use scheduler::{CostModel, Micros, StepLoad};

use super::fit::{Normal, TERMS, Terms, coefficients, dot, model, occurrences};

/// Weight that a step keeps with each later step: a memory of some 250 steps.
const MEMORY: f64 = 0.996;
/// Steps between two models.
const REFIT_EVERY: u32 = 16;
/// Strength of the pull towards the measured shape, in steps that consist of one term only.
const PULL: f64 = 0.05;
/// A step counts as at most this many times slower or faster than predicted.
const CLAMP: f64 = 4.0;
/// Errors beyond this many times the usual error are weighted down.
const USUAL: f64 = 3.0;

/// Refits the cost model from every step.
#[derive(Clone, Debug)]
pub struct Calibrator {
    /// Unit of each coefficient in nanoseconds: the measured one, or a little if that is zero.
    units: Terms,
    /// The measured model in these units.
    measured: Terms,
    /// The current model in these units.
    current: Terms,
    observed: Normal,
    /// Mean of actual over measured cost.
    pace: f64,
    /// Mean relative error of the current model.
    spread: f64,
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
            measured,
            current: measured,
            observed: Normal::default(),
            pace: 1.0,
            spread: 0.1,
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
        let error = (ratio - 1.0).abs();
        let weight = (USUAL * self.spread / error.max(1e-6)).min(1.0);
        self.spread += 0.05 * (error.min(1.0) - self.spread);
        self.spread = self.spread.max(0.01);
        let measured = dot(&shares, &self.measured);
        if measured > 1e-3 {
            let pace = (ratio * predicted / measured).clamp(0.01, 100.0);
            self.pace += 0.03 * weight * (pace - self.pace);
        }
        self.observed.scale(MEMORY);
        self.observed.add(&shares.map(|share| share / predicted), ratio, weight);
        self.steps += 1;
        self.steps.is_multiple_of(REFIT_EVERY).then(|| self.refit())
    }

    fn refit(&mut self) -> CostModel {
        let mut normal = self.observed.clone();
        normal.pull(&self.measured.map(|x| x * self.pace), PULL);
        self.current = normal.solve_non_negative();
        model(&std::array::from_fn(|i| self.current[i] * self.units[i]))
    }
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
mod tests {
    use proptest::prelude::*;
    use rand_pcg::Pcg64Mcg;
    use rand_pcg::rand_core::{Rng, SeedableRng};

    use super::*;

    const TRUTH: CostModel = CostModel {
        fixed_ns: 5_000_000,
        per_seq_ns: 2_500_000,
        per_context_token_ps: 2_000_000,
        per_prefill_token_ns: 2_700_000,
        per_prefill_span_ps: 900_000,
    };

    /// Steps of a busy server: decoding, often with a prefill chunk beside it.
    struct Steps(Pcg64Mcg);

    impl Steps {
        fn new(seed: u64) -> Steps {
            Steps(Pcg64Mcg::seed_from_u64(seed))
        }

        fn below(&mut self, bound: u32) -> u32 {
            self.0.next_u32() % bound
        }

        fn load(&mut self) -> StepLoad {
            let decode_seqs = self.below(33);
            let context_tokens = u64::from(decode_seqs) * u64::from(50 + self.below(500));
            let prefill_tokens = if self.below(2) == 0 { 0 } else { 1 + self.below(200) };
            let start = u64::from(self.below(300));
            let end = start + u64::from(prefill_tokens);
            StepLoad {
                decode_seqs,
                context_tokens,
                prefill_tokens,
                prefill_span: end * end - start * start,
            }
        }

        /// `permille` of the cost by `TRUTH`, up to 8 % more or less.
        fn took(&mut self, load: &StepLoad, permille: u32) -> Micros {
            let noise = 920 + self.below(161);
            Micros(TRUTH.step(load).0 * u64::from(permille) * u64::from(noise) / 1_000_000)
        }
    }

    fn scaled(model: &CostModel, permille: [u64; 5]) -> CostModel {
        CostModel {
            fixed_ns: model.fixed_ns * permille[0] / 1_000,
            per_seq_ns: model.per_seq_ns * permille[1] / 1_000,
            per_context_token_ps: model.per_context_token_ps * permille[2] / 1_000,
            per_prefill_token_ns: model.per_prefill_token_ns * permille[3] / 1_000,
            per_prefill_span_ps: model.per_prefill_span_ps * permille[4] / 1_000,
        }
    }

    /// The mean relative error of `model` against `permille` of the truth, in per cent.
    fn error(model: &CostModel, steps: &mut Steps, permille: u64) -> f64 {
        let one = |load: StepLoad| {
            let truth = (TRUTH.step(&load).0 * permille / 1_000) as f64;
            (model.step(&load).0 as f64 / truth - 1.0).abs() * 100.0
        };
        (0..200).map(|_| one(steps.load())).sum::<f64>() / 200.0
    }

    #[test]
    fn planted_coefficients_are_recovered_from_a_wrong_start() {
        for start in [[2_000, 500, 0, 1_500, 300], [500, 2_000, 3_000, 500, 2_000]] {
            let (mut steps, mut last) = (Steps::new(1), None);
            let mut calibrator = Calibrator::new(&scaled(&TRUTH, start));
            for _ in 0..600 {
                let load = steps.load();
                let took = steps.took(&load, 1_000);
                last = calibrator.observe(&load, took).or(last);
            }
            let found = last.expect("600 steps");
            assert!(error(&found, &mut steps, 1_000) < 3.0, "{found:?}");
            for (found, truth) in coefficients(&found).into_iter().zip(coefficients(&TRUTH)) {
                assert!((found / truth - 1.0).abs() < 0.3, "{found} against {truth}");
            }
        }
    }

    #[test]
    fn a_drift_is_followed_and_outliers_are_not() {
        let (mut steps, mut last) = (Steps::new(2), TRUTH);
        let mut calibrator = Calibrator::new(&TRUTH);
        for step in 0..3_000u32 {
            // After a third the machine is 1.6 times as slow; every 25th step stalls for 20 times.
            let pace = if step < 1_000 { 1_000 } else { 1_600 };
            let load = steps.load();
            let stall = if step % 25 == 0 { 20 } else { 1 };
            let took = Micros(steps.took(&load, pace).0 * stall);
            last = calibrator.observe(&load, took).unwrap_or(last);
            if step == 999 {
                assert!(error(&last, &mut steps, 1_000) < 6.0, "{last:?}");
            }
            if step == 1_500 {
                assert!(error(&last, &mut steps, 1_600) < 10.0, "{last:?}");
            }
        }
        assert!(error(&last, &mut steps, 1_600) < 6.0, "{last:?}");
    }

    #[test]
    fn a_steady_load_changes_the_pace_and_keeps_the_shape() {
        let (mut steps, mut last) = (Steps::new(3), TRUTH);
        let mut calibrator = Calibrator::new(&TRUTH);
        let steady = StepLoad { decode_seqs: 8, context_tokens: 1_600, ..StepLoad::default() };
        for _ in 0..1_000 {
            let took = steps.took(&steady, 1_300);
            last = calibrator.observe(&steady, took).unwrap_or(last);
        }
        assert!(error(&last, &mut steps, 1_300) < 8.0, "{last:?}");
    }

    proptest! {
        #[test]
        fn models_are_always_usable(
            start in prop::array::uniform5(0u64..u64::MAX / 1_000),
            steps in prop::collection::vec(
                (0u32..500, any::<u64>(), any::<u32>(), any::<u64>(), any::<u64>()), 16..80),
        ) {
            let start = CostModel {
                fixed_ns: start[0],
                per_seq_ns: start[1],
                per_context_token_ps: start[2],
                per_prefill_token_ns: start[3],
                per_prefill_span_ps: start[4],
            };
            let mut calibrator = Calibrator::new(&start);
            for (decode_seqs, context_tokens, prefill_tokens, prefill_span, took) in steps {
                let load = StepLoad { decode_seqs, context_tokens, prefill_tokens, prefill_span };
                calibrator.observe(&load, Micros(took));
                prop_assert!(calibrator.current.iter().all(|x| x.is_finite() && *x >= 0.0));
            }
        }
    }
}
