//! When to come back: slots of a virtual queue.
//!
//! Each refused request is promised the next slot in which the device would have time for it, so
//! that retries return spread at the rate at which they can be served. The rate is what first
//! attempts leave over, corrected by promises that turned out broken: a retry that came and was
//! refused again lowers it, one that was admitted raises it. For a second a slot is kept for its
//! retry against first attempts, as far as clients have come back lately. A constant hint
//! brings everybody back at once, and most of a burst gives up (the test below has both).

use alloc::collections::VecDeque;

use crate::time::Micros;

/// No client is told to wait longer, and the queue of promises reaches no further.
const LONGEST: Micros = Micros(60_000_000);
const SHORTEST: Micros = Micros(1_000);

/// A slot is kept this long for a retry that is late, and from this long before it is due.
const KEPT: Micros = Micros(1_000_000);
const EARLY: Micros = Micros(250_000);

/// Most promises that are remembered.
const MAX_PROMISES: usize = 4_096;

/// Over this time the work of first attempts is averaged.
const WINDOW: Micros = Micros(10_000_000);

/// First attempts are never thought to take more than this, per mille of the device.
const MOST_FIRST: u64 = 950;

/// The rate is never corrected below this, per mille.
const LEAST_TRUST: u32 = 200;

/// Each promise that is kept or lapses moves the faith in the next ones by this part of the way.
const FAITH_STEPS: u32 = 8;

#[derive(Clone, Copy, Debug)]
struct Slot {
    due: Micros,
    work: Micros,
}

/// The virtual queue.
#[derive(Clone, Debug)]
pub(crate) struct RetrySlots {
    /// When the last promised slot begins.
    last: Micros,
    /// Promised slots that nobody has come for, earliest first.
    promised: VecDeque<Slot>,
    /// What share of the computed rate is promised, per mille.
    trust: u32,
    /// What share of those with a promise came back lately, per mille.
    faith: u32,
    /// Device time of first attempts that were admitted, decaying, as of `first_seen`.
    first_work: Micros,
    first_seen: Micros,
}

impl RetrySlots {
    pub(crate) const fn new() -> RetrySlots {
        RetrySlots {
            last: Micros(0),
            promised: VecDeque::new(),
            trust: 1_000,
            faith: 0,
            first_work: Micros(0),
            first_seen: Micros(0),
        }
    }

    /// Promises a slot for a request that takes `work` of the device, and could not have been
    /// admitted before `earliest`. Returns how long to wait. `seed` spreads those whose slots are
    /// close by up to a twentieth of the wait.
    pub(crate) fn promise(
        &mut self,
        now: Micros,
        earliest: Micros,
        work: Micros,
        seed: u64,
    ) -> Micros {
        self.age(now);
        let busy = (self.first_work.0 * 1_000 / WINDOW.0).min(MOST_FIRST);
        let rate = (1_000 - busy) * u64::from(self.trust) / 1_000;
        let slot = Micros(work.0.saturating_mul(1_000) / rate.max(1));
        let furthest = now.plus(LONGEST);
        self.last = self.last.max(earliest).max(now).plus(slot).min(furthest);
        if self.promised.len() < MAX_PROMISES {
            self.promised.push_back(Slot { due: self.last, work });
        }
        let wait = self.last.minus(now);
        let jitter = wait.0 / 20 * (mix(seed) % 1_024) / 1_024;
        wait.plus(Micros(jitter)).clamp(SHORTEST, LONGEST)
    }

    /// A retry came back; it was admitted or refused again.
    pub(crate) fn returned(&mut self, now: Micros, admitted: bool) {
        self.age(now);
        let due = self.promised.front().is_some_and(|slot| slot.due <= now.plus(EARLY));
        if !due {
            return;
        }
        self.promised.pop_front();
        self.faith += (1_000 - self.faith) / FAITH_STEPS;
        self.trust = if admitted { self.trust * 101 / 100 } else { self.trust * 9 / 10 };
        self.trust = self.trust.clamp(LEAST_TRUST, 1_000);
    }

    /// A first attempt was admitted.
    pub(crate) fn admitted_first(&mut self, now: Micros, work: Micros) {
        self.age(now);
        self.first_work = self.first_work.plus(work);
    }

    /// Work of slots that are due and kept for their retries, as far as these can be expected.
    pub(crate) fn kept(&mut self, now: Micros) -> Micros {
        self.age(now);
        let due = self.promised.iter().take_while(|slot| slot.due <= now.plus(EARLY));
        let work = due.fold(Micros(0), |sum, slot| sum.plus(slot.work));
        Micros(work.0 / 1_000 * u64::from(self.faith))
    }

    fn age(&mut self, now: Micros) {
        while self.promised.front().is_some_and(|slot| slot.due.plus(KEPT) < now) {
            self.promised.pop_front();
            self.faith -= self.faith / FAITH_STEPS;
        }
        let passed = now.minus(self.first_seen).min(WINDOW);
        let faded = u128::from(self.first_work.0) * u128::from(passed.0) / u128::from(WINDOW.0);
        self.first_work = self.first_work.minus(Micros(faded as u64));
        self.first_seen = self.first_seen.max(now);
    }
}

/// Spreads close numbers (the finaliser of `SplitMix64`).
const fn mix(seed: u64) -> u64 {
    let a = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    b ^ (b >> 31)
}

#[cfg(test)]
mod tests {
    use alloc::collections::BinaryHeap;
    use alloc::vec::Vec;
    use core::cmp::Reverse;

    use super::*;

    const SERVICE: Micros = Micros(2_000_000);
    const SERVERS: usize = 64;

    /// A burst of 600 on 64 servers of 2 s each; every client retries twice, exactly when told.
    /// `hint` says when to come back. Returns how many give up.
    fn burst(hint: impl Fn(&mut RetrySlots, Micros, u64) -> Micros) -> u32 {
        let mut slots = RetrySlots::new();
        let mut busy: Vec<Micros> = alloc::vec![Micros(0); SERVERS];
        let mut attempts: BinaryHeap<_> =
            (0..600u64).map(|id| Reverse((Micros(id * 80), id, 0))).collect();
        let mut gave_up = 0;
        while let Some(Reverse((now, id, attempt))) = attempts.pop() {
            let free = busy.iter_mut().find(|until| **until <= now);
            if attempt > 0 {
                slots.returned(now, free.is_some());
            }
            match free {
                Some(until) => *until = now.plus(SERVICE),
                None if attempt == 2 => gave_up += 1,
                None => {
                    let wait = hint(&mut slots, now, id);
                    attempts.push(Reverse((now.plus(wait), id, attempt + 1)));
                }
            }
        }
        gave_up
    }

    #[test]
    fn a_burst_comes_back_spread_even_if_the_rate_is_thought_too_high() {
        // What the gate thinks that a request takes of the device.
        let exact = SERVICE.0 / SERVERS as u64;
        for work in [exact * 2, exact, exact * 2 / 3, exact / 2] {
            let gave_up = burst(|slots, now, id| slots.promise(now, now, Micros(work), id));
            assert!(gave_up <= 24, "{gave_up} of 600 gave up with slots of {work} us");
        }
        let constant = burst(|_, _, _| SERVICE);
        assert!(constant >= 300, "only {constant} gave up");
    }

    #[test]
    fn waits_and_memory_are_bounded() {
        let mut slots = RetrySlots::new();
        for id in 0..10_000 {
            let wait = slots.promise(Micros(id), Micros(0), Micros(u64::MAX), id);
            assert!((SHORTEST..=LONGEST).contains(&wait));
        }
        assert_eq!(slots.promised.len(), MAX_PROMISES);
        let first = slots.promised[0].due;
        assert_eq!(slots.kept(first), Micros(0), "nobody has ever come back");
        slots.returned(first, true);
        assert!(slots.kept(first) > Micros(0));
        slots.returned(first.plus(KEPT).plus(KEPT), true);
        assert!(slots.promised.is_empty(), "lapsed promises are forgotten");
    }
}
