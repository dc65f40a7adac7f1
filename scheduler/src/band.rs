//! How late nine in ten requests are at most, against what was forecast when they were admitted.
//! For showing only.
//!
//! A band is an online 90 % quantile of actual / forecast at admission. It holds what later
//! admissions and expiries do to a request as well, which is what a client wants to know, and which
//! is why nothing is decided by it: see [`crate::margin`].
//! An observation above the band raises it by nine times what one below lowers it by; the two
//! balance when one in ten is above.

use crate::time::Micros;

/// A ratio of 1.
const ONE: u32 = 1_000_000;
const START: u32 = ONE / 4 * 5;
const LEAST: u32 = ONE / 10;
const MOST: u32 = ONE * 100;
/// An observation below lowers the band by a 512th.
const STEP_SHIFT: u32 = 9;

/// One band, in millionths.
#[derive(Clone, Copy, Debug)]
struct Band(u32);

impl Band {
    fn upper(self, span: Micros) -> Micros {
        Micros(span.0.saturating_mul(self.0.into()) / u64::from(ONE))
    }

    fn observe(&mut self, actual: Micros, forecast: Micros) {
        let step = self.0 >> STEP_SHIFT;
        let moved = if actual > self.upper(forecast) { self.0 + 9 * step } else { self.0 - step };
        self.0 = moved.clamp(LEAST, MOST);
    }
}

/// The bands of one class: requests of known and of learned lengths are told apart, because the
/// last tokens of the latter are spread far wider.
#[derive(Clone, Copy, Debug)]
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

    /// A first token came after `actual` where `forecast` was said.
    pub(crate) fn observe_first(&mut self, exact: bool, actual: Micros, forecast: Micros) {
        self.first[usize::from(exact)].observe(actual, forecast);
    }

    /// A last token came after `actual` where `forecast` was said.
    pub(crate) fn observe_last(&mut self, exact: bool, actual: Micros, forecast: Micros) {
        self.last[usize::from(exact)].observe(actual, forecast);
    }

    /// A request expired: its tokens never came.
    pub(crate) fn observe_lost(&mut self, exact: bool) {
        self.observe_first(exact, Micros::MAX, Micros(0));
        self.observe_last(exact, Micros::MAX, Micros(0));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the scale and the spread of the error, and where it shifts: about nine in ten
        /// of what comes next lie below the band.
        #[test]
        fn nine_in_ten_are_below(
            base in 200_u64..5_000,
            spread in 1_u64..8_000,
            shift in 500_u64..2_000,
        ) {
            let mut band = Band(START);
            let mut below = 0;
            let forecast = Micros(1_000);
            for i in 0..12_000_u64 {
                let scale = if i < 6_000 { 1_000 } else { shift };
                let actual = Micros((base + i * 7_919 % spread) * scale / 1_000);
                if i >= 2_000 {
                    below += u64::from(actual <= band.upper(forecast));
                }
                band.observe(actual, forecast);
            }
            prop_assert!((8_500..=9_500).contains(&below), "{below} of 10000");
        }
    }

    #[test]
    fn expiries_raise_it_and_bounds_hold() {
        let mut bands = Bands::new();
        let said = |bands: &Bands| bands.upper(false, Micros(1_000), Micros(2_000));
        let before = said(&bands);
        bands.observe_lost(false);
        assert!(said(&bands).0 > before.0 && said(&bands).1 > before.1);
        assert_eq!(bands.upper(true, Micros(1_000), Micros(2_000)), before);
        (0..10_000).for_each(|_| bands.observe_lost(false));
        assert_eq!(said(&bands), (Micros(100_000), Micros(200_000)));
        let none = Micros(0);
        for _ in 0..10_000 {
            bands.observe_first(false, none, Micros(1_000));
            bands.observe_last(false, none, Micros(1_000));
        }
        assert_eq!(said(&bands), (Micros(100), Micros(200)));
        assert_eq!(bands.upper(false, Micros::MAX, Micros::MAX).1, Micros(u64::MAX / 1_000_000));
    }
}
