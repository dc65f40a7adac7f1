//! What keeps latency work apart from throughput promises: a share of the device that is expected
//! to be asked for, and a budget of displaced promises.
//!
//! Deadlines and no harm to others do not isolate a class of 1.5 s from one of 60 s. Bulk work is
//! promised as long as it fits; its promises pile up until none of them has any slack, and then
//! each of them vetoes whoever comes. Two things are done about it.
//!
//! *Expected work*: the device time that latency work asked for lately, admitted or not, is
//! expected to be asked for again. Throughput is promised as if that share of the device were gone.
//!
//! *Displacement*: what the expectation did not foresee may break throughput promises, so many for
//! each that was given. The ledger is exact: every promise that an admission makes late by the
//! forecast is paid for when it is made so, and an admission that cannot pay is refused. Those that
//! break by themselves, because a forecast was wrong, are paid for when they end.

use crate::time::Micros;

/// Work is counted over two halves; what is older than both is forgotten.
const HALF: Micros = Micros(30_000_000);

/// A share is not believed to be of less time than this.
const LEAST: Micros = Micros(5_000_000);

/// Device time asked for lately.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Offered {
    current: Micros,
    previous: Option<Micros>,
    /// When the current half began; not before the first request.
    since: Option<Micros>,
}

impl Offered {
    /// A request asked for `work`.
    pub(crate) fn add(&mut self, now: Micros, work: Micros) {
        let since = *self.since.get_or_insert(now);
        let age = now.minus(since);
        if age >= HALF {
            let recent = age < HALF.plus(HALF);
            self.previous = Some(if recent { self.current } else { Micros(0) });
            self.current = Micros(0);
            self.since = Some(now);
        }
        self.current = self.current.plus(work);
    }

    /// The share of time that was asked for, per mille.
    pub(crate) fn permille(&self, now: Micros) -> u64 {
        let Some(since) = self.since else { return 0 };
        let age = now.minus(since);
        let current = if age < HALF.plus(HALF) { self.current } else { Micros(0) };
        let previous = if age < HALF { self.previous } else { None };
        let span = age.plus(previous.map_or(Micros(0), |_| HALF)).max(LEAST);
        let sum = current.plus(previous.unwrap_or(Micros(0)));
        sum.0.saturating_mul(1_000) / span.0
    }
}

/// The most promises that can be saved up for, or be owed.
const MOST_SAVED: i64 = 64;

/// One promise, in what a budget counts.
const PROMISE: i64 = 1_000;

/// What may still be broken of the promises that were given: each one that is given adds a part of
/// one, so that never more than this part of them has been displaced.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Budget {
    /// Thousandths of a promise; below zero after losses.
    saved: i64,
}

impl Budget {
    /// A promise was given, of which `permille` may be broken.
    pub(crate) fn give(&mut self, permille: u32) {
        self.saved = (self.saved + i64::from(permille)).min(MOST_SAVED * PROMISE);
    }

    /// Promises that may be broken now.
    pub(crate) const fn left(&self) -> usize {
        if self.saved > 0 { (self.saved / PROMISE) as usize } else { 0 }
    }

    /// So many are broken.
    ///
    /// # Panics
    /// If they are more than are left.
    pub(crate) fn charge(&mut self, promises: usize) {
        assert!(promises <= self.left(), "only what is left is spent");
        self.saved -= promises as i64 * PROMISE;
    }

    /// One broke that nobody gave up.
    pub(crate) fn lose(&mut self) {
        self.saved = (self.saved - PROMISE).max(-MOST_SAVED * PROMISE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_follows_what_is_asked_for_and_forgets() {
        let mut offered = Offered::default();
        assert_eq!(offered.permille(Micros(9)), 0);
        let mut now = Micros(7_000_000);
        // Ten requests a second of 60 ms each.
        for _ in 0..1_000 {
            offered.add(now, Micros(60_000));
            now = now.plus(Micros(100_000));
        }
        let share = offered.permille(now);
        assert!((590..=620).contains(&share), "{share}");
        assert_eq!(offered.permille(now.plus(Micros(61_000_000))), 0, "a quiet time forgets");
    }

    #[test]
    fn no_more_is_displaced_than_was_given_for() {
        let mut budget = Budget::default();
        let (mut given, mut displaced) = (0, 0);
        for i in 0..10_000u64 {
            budget.give(50);
            given += 1;
            if i % 7 == 0 {
                displaced += budget.left();
                budget.charge(budget.left());
            }
            assert!(displaced * 1_000 <= given * 50);
        }
        assert!(displaced * 1_000 >= given * 50 - 7 * 50 - 1_000, "and nearly all of that may be");
    }

    #[test]
    fn what_breaks_by_itself_is_paid_for_first() {
        let mut budget = Budget::default();
        let give = |budget: &mut Budget, promises| (0..promises).for_each(|_| budget.give(50));
        budget.lose();
        give(&mut budget, 39);
        assert_eq!(budget.left(), 0);
        give(&mut budget, 1);
        assert_eq!(budget.left(), 1);
        (0..1_000).for_each(|_| budget.lose());
        give(&mut budget, 65 * 20);
        assert_eq!(budget.left(), 1, "what is owed is bounded");
    }
}
