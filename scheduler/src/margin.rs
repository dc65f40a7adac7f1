//! How far a forecast is stretched before it is compared with a deadline.
//!
//! The margin of a class is an online 95 % quantile of actual / carried time. Carried is the
//! forecast at admission plus every delay that the gate accepted since: measured against the
//! forecast at admission the margin would learn the gate's own later admissions and run away.
//! Each observation above the margin raises it by 1.9 %, each one below lowers it by 0.1 %; the two
//! balance when one in twenty is above.

use crate::time::Micros;

const START: u32 = 1_250;
/// Deadlines fall inside steps, and clients see tokens a little later than the engine. On the real
/// engine a floor of 1.03 with the 90 % quantile kept 93 to 99 % of promises at twice and four
/// times capacity.
const FLOOR: u32 = 1_050;
const CAP_EXACT: u32 = 2_500;
/// With learned lengths large errors are those of the lengths, which no margin mends.
const CAP_LEARNED: u32 = 1_250;
const RAISE: u32 = 19;
const LOWER: u32 = 1;

/// The margin of one class, per mille of the time still to come.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum Margin {
    Fixed(u32),
    Learned(u32),
}

impl Margin {
    /// Fixed if the class fixes the multiple of the SLO that a forecast may use.
    pub(crate) fn new(safety_permille: Option<u32>) -> Margin {
        match safety_permille {
            Some(safety) => Margin::Fixed(1_000_000 / safety.clamp(1, 1_000)),
            None => Margin::Learned(START),
        }
    }

    pub(crate) fn permille(self, exact: bool) -> u32 {
        match self {
            Margin::Fixed(permille) => permille,
            Margin::Learned(permille) if exact => permille,
            Margin::Learned(permille) => permille.min(CAP_LEARNED),
        }
    }

    /// A promise took `actual` where `carried` was forecast.
    pub(crate) fn observe(&mut self, actual: Micros, carried: Micros) {
        if let Margin::Learned(permille) = self {
            let late =
                actual.0.saturating_mul(1_000) > carried.0.saturating_mul((*permille).into());
            let moved = if late { *permille + RAISE } else { *permille - LOWER };
            *permille = moved.clamp(FLOOR, CAP_EXACT);
        }
    }

    /// A promise was lost: its request expired.
    pub(crate) fn observe_lost(&mut self) {
        self.observe(Micros::MAX, Micros(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_settles_where_one_in_twenty_is_later() {
        let mut margin = Margin::new(None);
        // Ratios 0.91, 0.92, ... 1.90, evenly: the 95 % quantile is 1.86.
        for i in 0..20_000u64 {
            margin.observe(Micros(91 + i * 37 % 100), Micros(100));
        }
        let settled = margin.permille(true);
        assert!((1_800..1_920).contains(&settled), "{settled}");
        assert_eq!(margin.permille(false), CAP_LEARNED);
    }

    #[test]
    fn a_fixed_safety_factor_is_never_moved() {
        let mut margin = Margin::new(Some(800));
        margin.observe_lost();
        assert_eq!((margin.permille(true), margin.permille(false)), (1_250, 1_250));
    }
}
