//! Shares of what happened lately: gauges that say by themselves what a rate of counters says.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The window in seconds.
const WINDOW: usize = 60;

/// The share of the events of the last minute that were hits.
#[derive(Debug)]
pub(crate) struct LastMinute {
    origin: Instant,
    /// One slot a second, used in turn.
    slots: Mutex<[Slot; WINDOW]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Seconds since the origin that it holds.
    second: u64,
    events: u64,
    hits: u64,
}

impl LastMinute {
    pub(crate) fn new(origin: Instant) -> LastMinute {
        LastMinute { origin, slots: Mutex::new([Slot::default(); WINDOW]) }
    }

    pub(crate) fn observe(&self, now: Instant, hit: bool) {
        let second = self.second(now);
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut slots[second as usize % WINDOW];
        if slot.second != second {
            *slot = Slot { second, ..Slot::default() };
        }
        slot.events += 1;
        slot.hits += u64::from(hit);
    }

    /// 0 if nothing happened.
    pub(crate) fn share(&self, now: Instant) -> f64 {
        let second = self.second(now);
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = slots.iter().filter(|slot| slot.second + WINDOW as u64 > second);
        let (hits, events) =
            recent.fold((0, 0), |(hits, events), slot| (hits + slot.hits, events + slot.events));
        if events == 0 { 0.0 } else { hits as f64 / events as f64 }
    }

    fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_secs()
    }
}

/// The share of hits among the last thousand events or so: each event fades as others come.
#[derive(Debug, Default)]
pub(crate) struct LastThousand(Mutex<Faded>);

#[derive(Clone, Copy, Debug, Default)]
struct Faded {
    events: f64,
    hits: f64,
}

impl LastThousand {
    const FADE: f64 = 0.999;

    /// Counts an event, and gives the share with it.
    pub(crate) fn observe(&self, hit: bool) -> f64 {
        let mut faded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        faded.events = faded.events * LastThousand::FADE + 1.0;
        faded.hits = faded.hits * LastThousand::FADE + f64::from(u8::from(hit));
        faded.hits / faded.events
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_minute_later_everything_is_forgotten() {
        let origin = Instant::now();
        let at = |second: u64| origin + Duration::from_secs(second);
        let share = LastMinute::new(origin);
        assert_eq!(share.share(at(0)), 0.0);
        (0..30).for_each(|second| share.observe(at(second), second < 10));
        assert_eq!(share.share(at(30)), 1.0 / 3.0);
        assert_eq!(share.share(at(64)), 5.0 / 25.0);
        assert_eq!(share.share(at(69)), 0.0);
        assert_eq!(share.share(at(200)), 0.0);
        share.observe(at(200), true);
        assert_eq!(share.share(at(201)), 1.0);
    }

    #[test]
    fn early_events_count_whole_and_old_ones_fade() {
        let share = LastThousand::default();
        assert_eq!(share.observe(true), 1.0);
        let mut last = (0..8_000).map(|_| share.observe(false));
        assert!(last.next().is_some_and(|share| (share - 0.5).abs() < 0.01));
        assert!(last.last().is_some_and(|share| share < 0.001));
    }
}
