//! A sum of what happened lately.

use crate::time::Micros;

/// Each part of the sum is forgotten over about a window.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Fading {
    sum: u64,
    at: Micros,
    window: Micros,
}

impl Fading {
    pub(crate) const fn new(window: Micros) -> Fading {
        Fading { sum: 0, at: Micros(0), window }
    }

    /// The sum as of `now`.
    pub(crate) fn sum(&self, now: Micros) -> u64 {
        let left = self.window.minus(now.minus(self.at));
        (u128::from(self.sum) * u128::from(left.0) / u128::from(self.window.0)) as u64
    }

    pub(crate) fn add(&mut self, now: Micros, amount: u64) {
        // In small pieces of time the rounding would forget everything.
        if now.minus(self.at).0 > self.window.0 / 1_024 {
            (self.sum, self.at) = (self.sum(now), now);
        }
        self.sum = self.sum.saturating_add(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_flow_sums_up_to_that_of_a_window_however_fine_it_is() {
        for gap in [7, 1_000, 250_000] {
            let mut fading = Fading::new(Micros(10_000_000));
            let mut now = Micros(0);
            while now < Micros(60_000_000) {
                now = now.plus(Micros(gap));
                fading.add(now, gap);
            }
            let sum = fading.sum(now);
            assert!((9_700_000..10_300_000).contains(&sum), "{sum} with one each {gap} us");
            assert_eq!(fading.sum(now.plus(Micros(10_000_000))), 0);
        }
    }
}
