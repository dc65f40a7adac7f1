//! How late nine in ten requests are at most, against what was forecast when they were admitted.
//! For showing only.
//!
//! A band is an online 90 % quantile of actual / forecast at admission. It holds what later
//! admissions and expiries do to a request as well, which is what a client wants to know, and which
//! is why nothing is decided by it: see [`crate::margin`].
//! A request that came later than it was told raises the band by nine times what one that did not
//! lowers it by; the two balance when one in ten is later. What counts is the bound that it was
//! told, not the band at its end: between the two lie as many requests as are in the server.

use crate::time::Micros;

/// A ratio of 1.
const ONE: u32 = 1_000_000;
const START: u32 = ONE / 4 * 5;
const LEAST: u32 = ONE / 10;
const MOST: u32 = ONE * 100;
/// An observation within it lowers the band by a 512th.
const STEP_SHIFT: u32 = 9;

/// One band, in millionths.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Band(u32);

impl Band {
    fn upper(self, span: Micros) -> Micros {
        Micros(span.0.saturating_mul(self.0.into()) / u64::from(ONE))
    }

    fn observe(&mut self, within: bool) {
        let step = self.0 >> STEP_SHIFT;
        let moved = if within { self.0 - step } else { self.0 + 9 * step };
        self.0 = moved.clamp(LEAST, MOST);
    }
}

/// The bands of one class: requests of known and of learned lengths are told apart, because the
/// last tokens of the latter are spread far wider.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Bands {
    first: [Band; 2],
    last: [Band; 2],
}

impl Bands {
    pub(crate) const fn new() -> Bands {
        Bands { first: [Band(START); 2], last: [Band(START); 2] }
    }

    /// The longest that nine in ten take to the first and to the last token, where the forecast
    /// says `first` and `last`.
    pub(crate) fn upper(&self, exact: bool, first: Micros, last: Micros) -> (Micros, Micros) {
        let index = usize::from(exact);
        let first = self.first[index].upper(first);
        (first, self.last[index].upper(last).max(first))
    }

    /// A first token came within the bound that was told, or did not.
    pub(crate) fn observe_first(&mut self, exact: bool, within: bool) {
        self.first[usize::from(exact)].observe(within);
    }

    /// A last token came within the bound that was told, or did not.
    pub(crate) fn observe_last(&mut self, exact: bool, within: bool) {
        self.last[usize::from(exact)].observe(within);
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the scale and the spread of the error, where it shifts, and however many
        /// requests are told a bound before the first of them ends: about nine in ten of what
        /// comes next lie below it.
        #[test]
        fn nine_in_ten_are_within(
            base in 200_u64..5_000,
            spread in 1_u64..8_000,
            shift in 500_u64..2_000,
            inside in 0_usize..200,
        ) {
            let mut band = Band(START);
            let mut told = VecDeque::new();
            let (mut within, mut seen) = (0, 0);
            for i in 0..12_000_u64 {
                let scale = if i < 6_000 { 1_000 } else { shift };
                let actual = Micros((base + i * 7_919 % spread) * scale / 1_000);
                told.push_back((actual, band.upper(Micros(1_000))));
                if told.len() > inside {
                    let (actual, upper) = told.pop_front().expect("somebody is inside");
                    band.observe(actual <= upper);
                    if i >= 2_000 {
                        (within, seen) = (within + u64::from(actual <= upper), seen + 1);
                    }
                }
            }
            prop_assert!((850..=950).contains(&(within * 1_000 / seen)), "{within} of {seen}");
        }
    }

    #[test]
    fn known_and_learned_lengths_are_apart_and_bounds_hold() {
        let mut bands = Bands::new();
        let said = |bands: &Bands, exact| bands.upper(exact, Micros(1_000), Micros(2_000));
        let before = said(&bands, true);
        for _ in 0..10_000 {
            bands.observe_first(false, false);
            bands.observe_last(false, false);
        }
        assert_eq!(said(&bands, true), before);
        assert_eq!(said(&bands, false), (Micros(100_000), Micros(200_000)));
        for _ in 0..10_000 {
            bands.observe_first(false, true);
            bands.observe_last(false, true);
        }
        assert_eq!(said(&bands, false), (Micros(100), Micros(200)));
        assert!(bands.upper(true, Micros::MAX, Micros::MAX).1 > Micros(0), "no overflow");
    }
}
