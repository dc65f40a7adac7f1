//! A device of a tenant's own, as fast as its reservation, that serves the earliest deadline first.
//!
//! What was admitted within the reservation and would not be done there yet is kept by deadline. A
//! request fits if, with it, everything would still be done when it is due (Liu and Layland 1973:
//! the earliest deadline first serves whatever can be served in time). Work is as of the real
//! device; the virtual one does a part of it in the time that passes.

use alloc::vec::Vec;

use crate::time::Micros;

/// Deadlines that are told from each other; of more the last ones are taken for one.
const MOST_KEPT: usize = 64;

/// Work by deadline.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Share {
    /// Until when it has worked.
    at: Micros,
    /// Deadlines in order, with the work left, in thousandths of a microsecond.
    left: Vec<(Micros, u64)>,
}

impl Share {
    pub(crate) const NEW: Share = Share { at: Micros(0), left: Vec::new() };

    /// Works until `now` as a device that is `permille` as fast.
    pub(crate) fn advance(&mut self, now: Micros, permille: u32) {
        let mut able = now.minus(self.at).0.saturating_mul(permille.into());
        self.at = self.at.max(now);
        let mut done = 0;
        for (_, left) in &mut self.left {
            let served = (*left).min(able);
            *left -= served;
            able -= served;
            if *left > 0 {
                break;
            }
            done += 1;
        }
        self.left.drain(..done);
    }

    /// Whether `work` more would be done at `due`, and nothing that was in time late by it. `now`
    /// is when it has worked until.
    pub(crate) fn fits(&self, now: Micros, permille: u32, work: Micros, due: Micros) -> bool {
        let able = |due: Micros| due.minus(now).0.saturating_mul(permille.into());
        let work = work.0.saturating_mul(1_000);
        let mut sum = 0u64;
        let mut asked = false;
        for (other, left) in &self.left {
            if *other > due && !asked {
                asked = true;
                if sum.saturating_add(work) > able(due) {
                    return false;
                }
            }
            sum = sum.saturating_add(*left);
            let able = able(*other);
            if asked && sum <= able && sum.saturating_add(work) > able {
                return false;
            }
        }
        asked || sum.saturating_add(work) <= able(due)
    }

    /// Takes `work` on that is due at `due`.
    pub(crate) fn add(&mut self, work: Micros, due: Micros) {
        let work = work.0.saturating_mul(1_000);
        let place = self.left.partition_point(|(other, _)| *other <= due);
        self.left.insert(place, (due, work));
        if self.left.len() > MOST_KEPT
            && let Some((_, more)) = self.left.pop()
            && let Some((_, left)) = self.left.last_mut()
        {
            *left = left.saturating_add(more);
        }
    }

    /// `work` will not be asked for after all: what is due last is taken for it.
    pub(crate) fn drop_work(&mut self, work: Micros) {
        let mut work = work.0.saturating_mul(1_000);
        while let Some((_, left)) = self.left.last_mut() {
            let dropped = (*left).min(work);
            *left -= dropped;
            work -= dropped;
            if *left > 0 {
                break;
            }
            self.left.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = Micros(1_000_000);
    const HALF: u32 = 500;

    fn seconds(tenths: u64) -> Micros {
        Micros(tenths * SECOND.0 / 10)
    }

    #[test]
    fn what_is_urgent_fits_before_what_can_wait() {
        let mut share = Share::NEW;
        // Half of what there is until the tenth second.
        share.add(seconds(25), seconds(100));
        assert!(share.fits(Micros(0), HALF, seconds(5), seconds(10)), "it goes first");
        assert!(!share.fits(Micros(0), HALF, seconds(6), seconds(10)), "alone it would be late");
        share.add(seconds(5), seconds(10));
        assert!(!share.fits(Micros(0), HALF, seconds(1), seconds(10)), "that second is full");
        assert!(share.fits(Micros(0), HALF, seconds(20), seconds(100)));
        assert!(!share.fits(Micros(0), HALF, seconds(21), seconds(100)));
        assert!(!share.fits(Micros(0), HALF, seconds(21), seconds(50)), "it makes another late");
    }

    #[test]
    fn work_is_done_as_time_passes_the_most_urgent_first() {
        let mut share = Share::NEW;
        share.add(seconds(10), seconds(40));
        share.add(seconds(5), seconds(20));
        share.advance(seconds(10), HALF);
        assert_eq!(share.left, [(seconds(40), 10_000 * 100_000)]);
        share.drop_work(seconds(4));
        share.advance(seconds(22), HALF);
        assert!(share.left.is_empty());
        assert!(share.fits(seconds(22), HALF, seconds(5), seconds(32)));
        assert!(!share.fits(seconds(22), HALF, seconds(5), seconds(31)));
    }

    #[test]
    fn deadlines_beyond_the_bound_are_taken_for_the_last() {
        let mut share = Share::NEW;
        for i in 0..1_000 {
            share.add(SECOND, seconds(1_000 - i));
        }
        assert_eq!(share.left.len(), MOST_KEPT);
        let all: u64 = share.left.iter().map(|(_, left)| left).sum();
        assert_eq!(all, 1_000 * SECOND.0 * 1_000, "and nothing is lost");
    }
}
