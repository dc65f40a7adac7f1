//! Quantiles, and means with their intervals.

use std::fmt;

/// The value at quantile `q` of `values`; not a number if there is none.
#[must_use]
pub fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * q).round() as usize).copied().unwrap_or(f64::NAN)
}

/// `value` with so many digits behind the point; a dash if it is not a number, because there was
/// nothing to measure.
#[must_use]
pub fn digits(value: f64, digits: usize) -> String {
    if value.is_nan() { "-".into() } else { format!("{value:.digits$}") }
}

/// A mean over seeds, with half the width of its 95 % t interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Half the interval; zero for a single value, which has none.
    pub half: f64,
}

/// 97.5 % points of Student's t for 1 to 19 degrees of freedom.
const T: [f64; 19] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
];

impl Mean {
    /// Of what is a number among `values`.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Mean {
        let values: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let half = match values.len() {
            0 | 1 => 0.0,
            many => {
                let t = T.get(many - 2).copied().unwrap_or(1.96);
                t * (squares / (n - 1.0) / n).sqrt()
            }
        };
        Mean { mean, half }
    }
}

/// Three digits, the sign only if asked for; a dash if there is no mean.
impl fmt::Display for Mean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mean.is_nan() {
            return write!(f, "-");
        }
        if f.sign_plus() {
            return write!(f, "{:+.3} ±{:.3}", self.mean, self.half);
        }
        write!(f, "{:.3} ±{:.3}", self.mean, self.half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_has_the_interval_of_its_few_values() {
        let mean = Mean::of([1.0, 2.0, 3.0, f64::NAN]);
        assert_eq!(mean.to_string(), "2.000 ±2.484");
        assert_eq!(format!("{:+}", Mean::of([0.5])), "+0.500 ±0.000");
        assert_eq!(format!("{0} {0:+}", Mean::of([f64::NAN])), "- -", "nothing was measured");
        assert_eq!([digits(0.25, 1), digits(1.0, 3), digits(f64::NAN, 3)], ["0.2", "1.000", "-"]);
        assert_eq!(quantile(vec![3.0, 1.0, 2.0], 0.5), 2.0);
        assert!(quantile(Vec::new(), 0.5).is_nan());
    }
}
