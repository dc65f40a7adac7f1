//! When to come back: slots of a virtual queue.
//!
//! Each refused request is promised the next slot in which the device would have time for it, so
//! that retries return spread at the rate at which they can be served. The rate is what first
//! attempts leave over, corrected by promises that turned out broken: a retry that came when it was
//! told and was refused again lowers it, one that was admitted raises it. For a second a slot is
//! kept for its retry against first attempts, as far as clients have come back lately. A constant
//! hint brings everybody back at once, and most of a burst gives up (the test below has both).
//!
//! A retry is known by its origin: what the server makes of the client and of what it asks, the
//! same for each attempt. One that comes before its time is told its slot again and gets no
//! second one, so impatient clients do not push everybody else's slots away.

mod budget;
pub(crate) mod fading;

use alloc::collections::VecDeque;

use crate::admission::RetryConfig;
use crate::cluster::ClusterView;
use crate::request::Request;
use crate::time::Micros;
use budget::Budget;
pub(crate) use fading::Fading;

/// No client is told to wait longer, and the queue of promises reaches no further.
const LONGEST: Micros = Micros(60_000_000);
const SHORTEST: Micros = Micros(1_000);

/// Who finds no slot before [`LONGEST`] is told to come back, and to be given one, from this on.
const OVERFLOW: Micros = Micros(45_000_000);

/// A slot is kept for so long after it is due: a second for clients that wait whole seconds only,
/// and the jitter. A retry may also be so early.
const KEPT: Micros = Micros(1_000_000 + MOST_JITTER);
const EARLY: Micros = Micros(500_000);

/// The jitter is a twentieth of the wait and at most this, microseconds.
const MOST_JITTER: u64 = 500_000;

/// Most promises that are remembered.
const MAX_PROMISES: usize = 4_096;

/// Over this time the work of first attempts is averaged, and a correction of the rate that nobody
/// needs any more is forgotten.
const WINDOW: Micros = Micros(15_000_000);

/// First attempts are never thought to take more than this, per mille of the device.
const MOST_FIRST: u64 = 950;

/// The rate is never corrected below this, per mille.
const LEAST_TRUST: u32 = 200;

/// Each promise that is kept or lapses moves the faith in the next ones by this part of the way.
const FAITH_STEPS: u32 = 8;

#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Slot {
    due: Micros,
    work: Micros,
    origin: u64,
    /// The number of the attempt that it is for.
    attempt: u32,
}

/// The virtual queue, and the budget of retries.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct RetrySlots {
    config: RetryConfig,
    budget: Budget,
    /// When the last promised slot begins.
    last: Micros,
    /// Promised slots that nobody has come for, earliest first.
    promised: VecDeque<Slot>,
    /// What share of the computed rate is promised, per mille.
    trust: u32,
    /// What share of those with a promise came back lately, per mille.
    faith: u32,
    /// Device time of what was admitted without a slot, which is first attempts.
    first_work: Fading,
}

impl RetrySlots {
    pub(crate) const fn new(config: RetryConfig) -> RetrySlots {
        RetrySlots {
            config,
            budget: Budget::new(),
            last: Micros(0),
            promised: VecDeque::new(),
            trust: 1_000,
            faith: 0,
            first_work: Fading::new(WINDOW),
        }
    }

    /// A request asked for admission; it was admitted, and then takes `work` of the device, or
    /// not. Returns when the slot is due that it came too early for.
    pub(crate) fn came(
        &mut self,
        now: Micros,
        request: &Request,
        admitted: bool,
        work: Micros,
    ) -> Option<Micros> {
        self.age(now);
        self.budget.came(now, request);
        if let Some(index) = self.due_slot(now, request) {
            self.promised.remove(index);
            self.faith += (1_000 - self.faith) / FAITH_STEPS;
            let trust = if admitted { self.trust * 101 / 100 } else { self.trust * 9 / 10 };
            self.trust = trust.clamp(LEAST_TRUST, 1_000);
            return None;
        }
        let early = self.early_slot(request);
        if admitted {
            self.first_work.add(now, work.0);
            // What it was promised is nobody's any more.
            if let Some(index) = early {
                self.promised.remove(index);
            }
            return None;
        }
        early.map(|index| {
            let slot = &mut self.promised[index];
            slot.attempt = request.retry.saturating_add(1);
            slot.due
        })
    }

    /// The next slot, for a request that was refused, would take `work` of the device, and could
    /// not have been admitted before `earliest`. It may come back to any of the replicas in `view`.
    /// Returns how long to wait.
    pub(crate) fn promise(
        &mut self,
        now: Micros,
        earliest: Micros,
        work: Micros,
        request: &Request,
        view: &ClusterView,
    ) -> Micros {
        self.age(now);
        let spread = mix(request.id.0);
        let due = self.last.max(earliest).max(now).plus(self.length(now, work));
        if due > now.plus(LONGEST) {
            return OVERFLOW.plus(Micros(spread % LONGEST.minus(OVERFLOW).0));
        }
        self.last = due;
        let wait = view.slot(due.minus(now));
        if self.promised.len() < MAX_PROMISES {
            let (due, attempt) = (now.plus(wait), request.retry.saturating_add(1));
            let place = self.promised.partition_point(|slot| slot.due <= due);
            let slot = Slot { due, work, origin: request.origin, attempt };
            self.promised.insert(place, slot);
        }
        let jitter = (wait.0 / 20).min(MOST_JITTER) * (spread % 1_024) / 1_024;
        wait.plus(Micros(jitter)).clamp(SHORTEST, LONGEST)
    }

    /// Clients of a replica that died will come back, and what they ask for takes `work` here: the
    /// slots promised from now on lie behind theirs, as far as those come `within` that time.
    pub(crate) fn expect(&mut self, now: Micros, work: Micros, within: Micros) {
        let from = self.last.max(now);
        let latest = from.max(now.plus(within));
        self.last = from.plus(self.length(now, work)).min(latest);
    }

    /// How far the queue of promises reaches from now.
    pub(crate) const fn reach(&self, now: Micros) -> Micros {
        self.last.minus(now)
    }

    /// Whether a request that is refused should come back at all.
    pub(crate) fn is_invited(&self, now: Micros, request: &Request) -> bool {
        self.budget.invites(now, request.class, self.config.budget_permille)
    }

    /// Work of slots that are due and kept for their retries, as far as these can be expected; none
    /// against a request that has come for its own slot.
    pub(crate) fn kept(&self, now: Micros, request: &Request) -> Micros {
        if self.due_slot(now, request).is_some() {
            return Micros(0);
        }
        let due = self.promised.iter().take_while(|slot| slot.due <= now.plus(EARLY));
        let due = due.filter(|slot| slot.due.plus(KEPT) >= now);
        let work = due.fold(Micros(0), |sum, slot| sum.plus(slot.work));
        Micros(work.0 / 1_000 * u64::from(self.faith))
    }

    /// How long a slot is for a request that takes `work`.
    fn length(&self, now: Micros, work: Micros) -> Micros {
        let busy = (self.first_work.sum(now) * 1_000 / WINDOW.0).min(MOST_FIRST);
        let rate = (1_000 - busy) * u64::from(self.trust) / 1_000;
        let scaled = u128::from(work.0) * u128::from(self.config.scale_permille);
        let length = scaled / u128::from(rate.max(1));
        Micros(u64::try_from(length).unwrap_or(u64::MAX))
    }

    /// The slot for which a retry has come: of its origin, and due. Where all ask the same, one is
    /// as good as another; but first attempts must not take them.
    fn due_slot(&self, now: Micros, request: &Request) -> Option<usize> {
        if request.retry == 0 {
            return None;
        }
        let due = self.promised.iter().take_while(|slot| slot.due <= now.plus(EARLY));
        due.enumerate().find(|(_, slot)| slot.origin == request.origin).map(|(index, _)| index)
    }

    /// The slot of a retry that comes before it is due.
    fn early_slot(&self, request: &Request) -> Option<usize> {
        let of = |slot: &Slot| (slot.origin, slot.attempt) == (request.origin, request.retry);
        (request.retry > 0).then(|| self.promised.iter().position(of)).flatten()
    }

    /// Forgets slots that nobody came for, and after a quiet time that they were too early.
    fn age(&mut self, now: Micros) {
        while self.promised.front().is_some_and(|slot| slot.due.plus(KEPT) < now) {
            self.promised.pop_front();
            self.faith -= self.faith / FAITH_STEPS;
        }
        if self.promised.is_empty() && self.last.plus(WINDOW) < now {
            self.trust = 1_000;
        }
    }
}

/// Spreads close numbers (the finaliser of `SplitMix64`).
const fn mix(seed: u64) -> u64 {
    let a = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    b ^ (b >> 31)
}

#[cfg(test)]
mod tests;
