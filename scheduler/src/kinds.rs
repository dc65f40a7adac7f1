//! Rule C: whom to refuse when somebody must be.
//!
//! The *room* of a request is the time until its deadline over the time that it needs alone on the
//! device. When a share x of those that would be in time alone had to be refused lately, those with
//! the least room go first: all below the (k x)-quantile of recent requests of their class. Where
//! deadlines are proportional to the work, everybody has the same room and nothing is cut. Where
//! they are absolute, the large ones, which would use up all slack and veto everybody after them,
//! go first.

use alloc::boxed::Box;

use crate::admission::KindConfig;
use crate::time::Micros;

/// Sixteen buckets to an octave of room, from 1 to 16 times the unloaded time.
const PER_OCTAVE: u32 = 16;
const BUCKETS: usize = 64;

/// What one request counts at first; each later one takes a 256th of it away.
const WEIGHT: u64 = 1 << 16;
const DECAY_SHIFT: u32 = 8;

/// Refusals are forgotten over this time.
const WINDOW: Micros = Micros(10_000_000);

/// The share is not believed before this many requests.
const ENOUGH: u64 = 8;

/// Recent requests of one class that would have been in time alone, by their room.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Kinds {
    #[cfg_attr(feature = "serde", serde(with = "crate::boxed"))]
    rooms: Box<[u64; BUCKETS]>,
    /// How many of them came and were refused in the window, in units of [`WEIGHT`].
    seen: u64,
    refused: u64,
    at: Micros,
}

impl Kinds {
    pub(crate) fn new() -> Kinds {
        Kinds { rooms: Box::new([0; BUCKETS]), seen: 0, refused: 0, at: Micros(0) }
    }

    /// Whether a request with this room (per mille) is cut.
    pub(crate) fn cuts(&self, config: &KindConfig, room: u32) -> bool {
        let all: u64 = self.rooms.iter().sum();
        let share = u128::from(self.refused) * u128::from(config.strength_permille)
            / u128::from(self.seen.max(ENOUGH * WEIGHT));
        let cut = (u128::from(all) * share / 1_000) as u64;
        let mut up_to = 0;
        for weight in &self.rooms[..=bucket(room)] {
            up_to += weight;
        }
        up_to < cut
    }

    /// A request with this room came, and was refused or not.
    pub(crate) fn observe(&mut self, now: Micros, room: u32, refused: bool) {
        for weight in self.rooms.iter_mut() {
            *weight -= *weight >> DECAY_SHIFT;
        }
        self.rooms[bucket(room)] += WEIGHT;
        self.count(now, refused);
    }

    /// A request came and was refused before its room was known.
    pub(crate) fn count_refused(&mut self, now: Micros) {
        self.count(now, true);
    }

    fn count(&mut self, now: Micros, refused: bool) {
        let left = WINDOW.minus(now.minus(self.at)).0;
        let fade = |sum: u64| (u128::from(sum) * u128::from(left) / u128::from(WINDOW.0)) as u64;
        self.seen = fade(self.seen) + WEIGHT;
        self.refused = fade(self.refused) + if refused { WEIGHT } else { 0 };
        self.at = self.at.max(now);
    }
}

/// The bucket of a room, per mille.
fn bucket(room: u32) -> usize {
    let room = room.clamp(1_000, 15_999);
    let octave = (room / 1_000).ilog2();
    let within = (room - (1_000 << octave)) * PER_OCTAVE / (1_000 << octave);
    (octave * PER_OCTAVE + within) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_within_bounds() {
        let all: alloc::vec::Vec<usize> = (0..20_000).map(bucket).collect();
        assert!(all.is_sorted());
        assert_eq!((all[0], all[2_000], all[19_999]), (0, 16, 63));
    }

    #[test]
    fn the_least_room_goes_first_by_the_share_that_has_to_go() {
        let config = KindConfig::default();
        let mut kinds = Kinds::new();
        assert!(!kinds.cuts(&config, 1_000), "nobody has been refused");
        // Rooms from 1 to 9, evenly; every other one is refused.
        for i in 0..400u32 {
            kinds.observe(Micros(u64::from(i) * 1_000), 1_000 + i * 3_217 % 8_000, i % 2 == 0);
        }
        let cut = (1_000..16_000).take_while(|room| kinds.cuts(&config, *room)).count() as u32;
        assert!((3_800..4_700).contains(&(1_000 + cut)), "{cut}");
        let none = KindConfig { strength_permille: 0, ..config };
        assert!(!kinds.cuts(&none, 1_000));
        kinds.observe(Micros(60_000_000), 5_000, false);
        assert!(!kinds.cuts(&config, 1_000), "a quiet time forgets");
    }

    #[test]
    fn equal_rooms_are_not_cut() {
        let mut kinds = Kinds::new();
        for i in 0..400 {
            kinds.observe(Micros(i * 1_000), 4_000, i % 4 != 0);
        }
        assert!(!kinds.cuts(&KindConfig::default(), 4_000));
    }
}
