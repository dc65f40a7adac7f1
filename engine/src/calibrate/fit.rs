//! Least squares in the five terms of the cost model.

use scheduler::{CostModel, StepLoad};

/// Terms of the cost model.
pub(super) const TERMS: usize = 5;
/// The set of all terms, a bit each.
const ALL: u32 = (1 << TERMS) - 1;
/// One value for each term: fixed, decode sequence, context token, prefill token, prefill span.
pub(super) type Terms = [f64; TERMS];

/// How often each term occurs in a step.
pub(super) fn occurrences(load: &StepLoad) -> Terms {
    [
        1.0,
        f64::from(load.decode_seqs),
        load.context_tokens as f64,
        f64::from(load.prefill_tokens),
        load.prefill_span as f64,
    ]
}

/// The coefficients of a model, all in nanoseconds.
pub(super) fn coefficients(model: &CostModel) -> Terms {
    [
        model.fixed_ns as f64,
        model.per_seq_ns as f64,
        model.per_context_token_ps as f64 / 1e3,
        model.per_prefill_token_ns as f64,
        model.per_prefill_span_ps as f64 / 1e3,
    ]
}

/// The model with these coefficients, rounded. Conversions saturate: never negative.
pub(super) fn model(coefficients: &Terms) -> CostModel {
    let [fixed, per_seq, per_context_token, per_prefill_token, per_prefill_span] = *coefficients;
    CostModel {
        fixed_ns: fixed.round() as u64,
        per_seq_ns: per_seq.round() as u64,
        per_context_token_ps: (per_context_token * 1e3).round() as u64,
        per_prefill_token_ns: per_prefill_token.round() as u64,
        per_prefill_span_ps: (per_prefill_span * 1e3).round() as u64,
    }
}

/// Sum of the products.
pub(super) fn dot(a: &Terms, b: &Terms) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// The normal equations of a weighted least-squares problem: `matrix * solution = target`.
#[derive(Clone, Debug, Default)]
pub(super) struct Normal {
    matrix: [Terms; TERMS],
    target: Terms,
}

impl Normal {
    /// One observation: `row . solution` should be `value`.
    pub(super) fn add(&mut self, row: &Terms, value: f64, weight: f64) {
        for (i, equation) in self.matrix.iter_mut().enumerate() {
            for (entry, x) in equation.iter_mut().zip(row) {
                *entry += weight * row[i] * x;
            }
            self.target[i] += weight * row[i] * value;
        }
    }

    /// Everything observed so far counts `factor` times as much. What is next to nothing becomes
    /// nothing: subnormal numbers are slow.
    pub(super) fn scale(&mut self, factor: f64) {
        for value in self.matrix.iter_mut().flatten().chain(&mut self.target) {
            *value *= factor;
            if value.abs() < 1e-200 {
                *value = 0.0;
            }
        }
    }

    /// Pulls each coefficient towards `prior`, as `weight` observations of it alone would.
    pub(super) fn pull(&mut self, prior: &Terms, weight: f64) {
        for (i, value) in prior.iter().enumerate() {
            self.matrix[i][i] += weight;
            self.target[i] += weight * value;
        }
    }

    /// The best solution without a negative coefficient.
    ///
    /// Mostly all terms take part, or all but those that would be negative. Where that is not the
    /// best, trying every set of terms finds it: the solution is the unconstrained one over its own
    /// positive terms, so 32 small systems are enough.
    pub(super) fn solve_non_negative(&self) -> Terms {
        let mut set = ALL;
        while let Some(solution) = self.solve_over(set) {
            let negative = (0..TERMS).filter(|&i| solution[i] < 0.0).fold(0, |set, i| set | 1 << i);
            if negative == 0 {
                if self.is_best(&solution, set) {
                    return solution;
                }
                break;
            }
            set &= !negative;
        }
        self.search_every_set()
    }

    /// Whether no term that is left out would make the solution better.
    fn is_best(&self, solution: &Terms, set: u32) -> bool {
        const ROUNDING: f64 = 1e-9;
        (0..TERMS).filter(|i| set & (1 << i) == 0).all(|i| {
            self.target[i] - dot(&self.matrix[i], solution) <= ROUNDING * self.target[i].abs()
        })
    }

    fn search_every_set(&self) -> Terms {
        let mut best = ([0.0; TERMS], 0.0);
        for set in 1..=ALL {
            let Some(solution) = self.solve_over(set) else { continue };
            let gain = dot(&solution, &self.target);
            if gain > best.1 && solution.iter().all(|&x| x >= 0.0) {
                best = (solution, gain);
            }
        }
        best.0
    }

    /// The solution in which only the terms of `set` (a bit each) take part; `None` if they cannot
    /// be told apart. Gaussian elimination on the system scaled to a unit diagonal.
    fn solve_over(&self, set: u32) -> Option<Terms> {
        const DISTINCT: f64 = 1e-9;
        let mut terms = [0; TERMS];
        let mut n = 0;
        for term in (0..TERMS).filter(|term| set & (1 << term) != 0) {
            terms[n] = term;
            n += 1;
        }
        let terms = &terms[..n];
        if terms.iter().any(|&term| self.matrix[term][term] <= 0.0) {
            return None;
        }
        let unit: Terms = std::array::from_fn(|term| self.matrix[term][term].sqrt());
        let mut rows = [[0.0; TERMS + 1]; TERMS];
        for (row, &i) in rows.iter_mut().zip(terms) {
            for (entry, &j) in row.iter_mut().zip(terms) {
                *entry = self.matrix[i][j] / (unit[i] * unit[j]);
            }
            row[n] = self.target[i] / unit[i];
        }
        for pivot in 0..n {
            if rows[pivot][pivot] < DISTINCT {
                return None;
            }
            let (above, below) = rows[..n].split_at_mut(pivot + 1);
            let pivot_row = &above[pivot];
            for row in below {
                let factor = row[pivot] / pivot_row[pivot];
                for (x, p) in row[pivot..=n].iter_mut().zip(&pivot_row[pivot..=n]) {
                    *x -= factor * p;
                }
            }
        }
        let mut solution = [0.0; TERMS];
        for (i, row) in rows[..n].iter().enumerate().rev() {
            let known: f64 = (i + 1..n).map(|j| row[j] * solution[terms[j]] * unit[terms[j]]).sum();
            solution[terms[i]] = (row[n] - known) / row[i] / unit[terms[i]];
        }
        Some(solution)
    }

    /// The whole solution becomes `factor` times as large, and counts `trust` times as much.
    pub(super) fn rescale(&mut self, factor: f64, trust: f64) {
        self.scale(trust);
        for value in &mut self.target {
            *value *= factor;
        }
    }

    /// The Cholesky factor of the matrix. A column that depends on the others gets a large pivot,
    /// which makes its direction count as known.
    pub(super) fn factor(&self) -> Factor {
        let mut factor = [[0.0; TERMS]; TERMS];
        for i in 0..TERMS {
            for j in 0..=i {
                let known: f64 = (0..j).map(|k| factor[i][k] * factor[j][k]).sum();
                let left = self.matrix[i][j] - known;
                factor[i][j] = match i == j {
                    true if left > 1e-9 * self.matrix[i][i] => left.sqrt(),
                    true => f64::MAX.sqrt(),
                    false => left / factor[j][j],
                };
            }
        }
        Factor(factor)
    }
}

/// A Cholesky factor of normal equations.
#[derive(Clone, Debug)]
pub(super) struct Factor([Terms; TERMS]);

impl Factor {
    /// How little is known of what `row` costs: the variance of its predicted value, in that of one
    /// observation. Near 0 many like it were seen, above 1 none.
    pub(super) fn leverage(&self, row: &Terms) -> f64 {
        let mut solved = [0.0; TERMS];
        for i in 0..TERMS {
            let known: f64 = (0..i).map(|j| self.0[i][j] * solved[j]).sum();
            solved[i] = (row[i] - known) / self.0[i][i];
        }
        dot(&solved, &solved)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_step_from_the_solution_within_bounds_is_better(
            rows in prop::collection::vec((prop::array::uniform5(0.0f64..1.0), 0.0f64..2.0), 1..12),
            step in prop::array::uniform5(-0.1f64..0.1),
        ) {
            let mut normal = Normal::default();
            rows.iter().for_each(|(row, value)| normal.add(row, *value, 1.0));
            let error = |solution: &Terms| -> f64 {
                rows.iter().map(|(row, value)| (dot(row, solution) - value).powi(2)).sum()
            };
            let solution = normal.solve_non_negative();
            prop_assert!(solution.iter().all(|x| x.is_finite() && *x >= 0.0));
            let mut other = solution;
            other.iter_mut().zip(step).for_each(|(x, s)| *x = (*x + s).max(0.0));
            prop_assert!(error(&solution) <= error(&other) + 1e-6);
        }

        #[test]
        fn planted_coefficients_come_back(planted in prop::array::uniform5(0.0f64..5.0)) {
            let mut normal = Normal::default();
            for seed in 0..12u32 {
                let row = std::array::from_fn(|i| {
                    f64::from((seed * 37 + i as u32 * 91).wrapping_mul(2_654_435_761) >> 24)
                });
                normal.add(&row, dot(&row, &planted), 0.01);
            }
            let solution = normal.solve_non_negative();
            prop_assert!(solution.iter().zip(planted).all(|(x, p)| (x - p).abs() < 1e-3));
        }
    }

    #[test]
    fn what_was_seen_often_has_little_leverage() {
        let (seen, other) = ([1.0, 8.0, 4.0, 0.0, 0.0], [1.0, 0.0, 0.0, 6.0, 2.0]);
        let mut normal = Normal::default();
        (0..100).for_each(|_| normal.add(&seen, 1.0, 1.0));
        normal.pull(&[1.0; TERMS], 0.05);
        let factor = normal.factor();
        assert!((factor.leverage(&seen) - 0.01).abs() < 1e-3);
        assert!(factor.leverage(&other) > 100.0);
    }

    #[test]
    fn a_model_survives_the_round_trip() {
        let cost = CostModel {
            fixed_ns: 7_000_001,
            per_seq_ns: 3,
            per_context_token_ps: 12_345,
            per_prefill_token_ns: 0,
            per_prefill_span_ps: 7,
        };
        assert_eq!(model(&coefficients(&cost)), cost);
        assert_eq!(model(&[-1.0, f64::NAN, 0.0, 0.0, 0.0]).per_seq_ns, 0);
    }
}
