//! Rule C: whom to refuse when somebody must be.
//!
//! The *room* of a request is the time until its deadline over the time that it needs alone on the
//! device. Two rules use it.
//!
//! The cut: when a share x of those that would be in time alone had to be refused lately, those
//! with the least room go first, all below the (k x)-quantile of recent requests of their class;
//! below x = 1/3 less than that, because where few must go the rule costs more than it saves.
//! The cut must not feed on its own refusals, or a kind of request that is new would be refused for
//! long on an idle device: it leaves a share 1 - k of x to the other rules, so x is not thought to
//! be much more than what these have refused, over 1 - k.
//! Where deadlines are proportional to the work, everybody has the same room and nothing is cut.
//! Where they are absolute, the large ones, which would use up all slack and veto everybody after
//! them, go first. Fairness multiplies the room by what requests of the same size suffered lately,
//! so that those who were refused least are cut first.
//!
//! The headroom: where rooms differ widely, a request must be in time with something to spare at
//! the moment that it comes. One that only just fits would veto everybody until it has ended.

use alloc::boxed::Box;

use crate::admission::KindConfig;
use crate::cluster::shedding;
use crate::refusals::{Refusals, Verdict};
use crate::time::Micros;

/// Eight buckets to an octave of room, from 1 to 256 times the unloaded time.
const PER_OCTAVE: u32 = 8;
const BUCKETS: usize = 64;

/// What one request counts at first; each later one takes a 256th of it away.
const WEIGHT: u64 = 1 << 16;
const DECAY_SHIFT: u32 = 8;

/// The cut has its full strength from this share of refusals on, per mille.
const FULL_CUT: u64 = 333;

/// What is asked for to spare where the least room is far below the usual, per mille of the
/// forecast, and the margin that it comes on top of.
const MOST_HEADROOM: u32 = 600;
const MARGIN: u32 = 1_050;

/// Octaves of prompt lengths, and over how many requests of one its refusals are averaged.
const SIZES: usize = 21;
const SIZE_STEPS: u32 = 32;

/// Recent requests by some measure of room, per mille.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Histogram(#[cfg_attr(feature = "serde", serde(with = "crate::boxed"))] Box<[u64; BUCKETS]>);

impl Histogram {
    fn new() -> Histogram {
        Histogram(Box::new([0; BUCKETS]))
    }

    fn add(&mut self, room: u32) {
        for weight in self.0.iter_mut() {
            *weight -= *weight >> DECAY_SHIFT;
        }
        self.0[bucket(room)] += WEIGHT;
    }

    fn all(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The weight of those with this room or less.
    fn up_to(&self, room: u32) -> u64 {
        self.0[..=bucket(room)].iter().sum()
    }

    /// The room that a share of them, per mille, does not exceed: the lower edge of its bucket.
    fn quantile(&self, permille: u64) -> u32 {
        let wanted = self.all() * permille / 1_000;
        let mut up_to = 0;
        let reaches = |weight: &u64| {
            up_to += weight;
            up_to > wanted
        };
        lower_edge(self.0.iter().position(reaches).unwrap_or(0))
    }
}

/// Recent requests of one class that would have been in time alone.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Kinds {
    rooms: Histogram,
    /// By room and fairness.
    scores: Histogram,
    refusals: Refusals,
    /// The share that all replicas had to refuse lately, on average, per mille.
    fleet: u32,
    /// The refused share by octave of the prompt, per million.
    refused_by_size: [u32; SIZES],
}

/// What counts of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Its room, per mille.
    pub(crate) room: u32,
    /// Its prompt tokens.
    pub(crate) size: u32,
}

impl Kinds {
    pub(crate) fn new() -> Kinds {
        Kinds {
            rooms: Histogram::new(),
            scores: Histogram::new(),
            refusals: Refusals::default(),
            fleet: 0,
            refused_by_size: [0; SIZES],
        }
    }

    /// Whether a request is cut.
    pub(crate) fn cuts(&self, now: Micros, config: &KindConfig, standing: Standing) -> bool {
        let share = shedding(self.share(now, config), self.fleet);
        let strength = u64::from(config.strength_permille) * (share * 1_000 / FULL_CUT).min(1_000);
        let cut = u128::from(self.scores.all()) * u128::from(share * strength) / 1_000_000_000;
        u128::from(self.scores.up_to(self.score(config, standing))) < cut
    }

    /// The share of requests that had to be refused here lately, per mille.
    pub(crate) fn share(&self, now: Micros, config: &KindConfig) -> u64 {
        self.refusals.share(now, config.strength_permille)
    }

    /// All replicas had to refuse this share lately, on average, per mille.
    pub(crate) const fn follow(&mut self, fleet: u32) {
        self.fleet = fleet;
    }

    /// Whether a request that has `loaded` room now, per mille of its forecast, has too little to
    /// spare.
    pub(crate) fn is_tight(&self, loaded: u32) -> bool {
        loaded < MARGIN * (1_000 + MOST_HEADROOM * self.apart() / 1_000) / 1_000
    }

    /// How far the least rooms are below the usual one, per mille of it: 0 where deadlines are
    /// proportional to the work.
    pub(crate) fn apart(&self) -> u32 {
        let (least, usual) = (self.rooms.quantile(200), self.rooms.quantile(500));
        1_000 - least.min(usual) * 1_000 / usual.max(1)
    }

    /// A request came.
    pub(crate) fn observe(
        &mut self,
        now: Micros,
        config: &KindConfig,
        standing: Standing,
        verdict: Verdict,
    ) {
        self.rooms.add(standing.room);
        self.scores.add(self.score(config, standing));
        let of_size = &mut self.refused_by_size[size_octave(standing.size)];
        *of_size -= *of_size / SIZE_STEPS;
        *of_size += if verdict != Verdict::LetIn { 1_000_000 / SIZE_STEPS } else { 0 };
        self.refusals.count(now, verdict);
    }

    /// A request came and was refused before its room was known.
    pub(crate) fn count_refused(&mut self, now: Micros) {
        self.refusals.count(now, Verdict::Refused);
    }

    /// The room, and more of it for sizes that were refused often.
    fn score(&self, config: &KindConfig, standing: Standing) -> u32 {
        let suffered = u64::from(self.refused_by_size[size_octave(standing.size)]) / 1_000;
        let more = 1_000_000 + suffered * u64::from(config.fairness_permille);
        u32::try_from(u64::from(standing.room) * more / 1_000_000).unwrap_or(u32::MAX)
    }
}

fn size_octave(tokens: u32) -> usize {
    (tokens.max(1).ilog2() as usize).min(SIZES - 1)
}

/// The bucket of a room, per mille.
fn bucket(room: u32) -> usize {
    let room = room.clamp(1_000, 255_999);
    let octave = (room / 1_000).ilog2();
    let within = (room - (1_000 << octave)) * PER_OCTAVE / (1_000 << octave);
    (octave * PER_OCTAVE + within) as usize
}

/// The least room of a bucket, per mille.
const fn lower_edge(bucket: usize) -> u32 {
    let (octave, within) = (bucket as u32 / PER_OCTAVE, bucket as u32 % PER_OCTAVE);
    (1_000 << octave) + (1_000 << octave) / PER_OCTAVE * within
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusals::WINDOW;

    const fn refused(is: bool) -> Verdict {
        if is { Verdict::Refused } else { Verdict::LetIn }
    }

    const fn standing(room: u32) -> Standing {
        Standing { room, size: 100 }
    }

    #[test]
    fn buckets_are_in_order_and_within_bounds() {
        let all: alloc::vec::Vec<usize> = (0..300_000).map(bucket).collect();
        assert!(all.is_sorted());
        assert_eq!((all[0], all[2_000], all[299_999]), (0, 8, 63));
        assert!((1_000..256_000).all(|room| lower_edge(bucket(room)) <= room));
    }

    /// The least room that is not cut.
    fn cut(now: Micros, kinds: &Kinds, config: &KindConfig, size: u32) -> u32 {
        let cut = |room: &u32| kinds.cuts(now, config, Standing { room: *room, size });
        1_000 + (1_000..16_000).take_while(cut).count() as u32
    }

    #[test]
    fn the_least_room_goes_first_by_the_share_that_has_to_go() {
        let config = KindConfig::default();
        let mut kinds = Kinds::new();
        assert_eq!(cut(Micros(0), &kinds, &config, 100), 1_000, "nobody has been refused");
        // Rooms from 1 to 9, evenly; every other one is refused.
        for i in 0..400u32 {
            let room = 1_000 + i * 3_217 % 8_000;
            kinds.observe(
                Micros(u64::from(i) * 1_000),
                &config,
                standing(room),
                refused(i % 2 == 0),
            );
        }
        let now = Micros(400_000);
        let cut_at = cut(now, &kinds, &config, 100);
        assert!((3_800..4_700).contains(&cut_at), "{cut_at}");
        assert!(kinds.is_tight(1_300), "one that only just fits would veto the others");
        assert!(!kinds.is_tight(1_900));
        let none = KindConfig { strength_permille: 0, ..config };
        assert_eq!(cut(now, &kinds, &none, 100), 1_000);
        let later = now.plus(WINDOW);
        assert_eq!(cut(later, &kinds, &config, 100), 1_000, "a quiet time forgets");
    }

    #[test]
    fn equal_rooms_are_neither_cut_nor_kept_waiting() {
        let config = KindConfig::default();
        let mut kinds = Kinds::new();
        for i in 0..400 {
            kinds.observe(Micros(i * 1_000), &config, standing(4_000), refused(i % 4 != 0));
        }
        assert!(!kinds.cuts(Micros(400_000), &config, standing(4_000)));
        assert!(!kinds.is_tight(1_060));
    }

    #[test]
    fn fairness_cuts_those_who_were_refused_least() {
        let config = KindConfig { fairness_permille: 1_000, ..KindConfig::default() };
        let mut kinds = Kinds::new();
        for i in 0..800 {
            let size = if i % 3 == 0 { 100 } else { 4_000 };
            let standing = Standing { room: 4_000, size };
            kinds.observe(Micros(i * 1_000), &config, standing, refused(size == 4_000));
        }
        let now = Micros(800_000);
        assert!(kinds.cuts(now, &config, Standing { room: 4_000, size: 100 }));
        assert!(!kinds.cuts(now, &config, Standing { room: 4_000, size: 4_000 }));
    }

    /// After an overload everybody has less room than those in the histogram, and nobody has to be
    /// refused any more: the cut ends within its window, though everybody would be below it.
    #[test]
    fn the_cut_does_not_feed_on_itself() {
        let config = KindConfig::default();
        let mut kinds = Kinds::new();
        let mut now = Micros(0);
        for i in 0..1_000u32 {
            now = now.plus(Micros(10_000));
            let room = standing(8_000 + i * 3_217 % 8_000);
            let cut = kinds.cuts(now, &config, room);
            let verdict = if cut { Verdict::Cut } else { Verdict::Refused };
            kinds.observe(now, &config, room, verdict);
        }
        assert!(kinds.cuts(now, &config, standing(4_000)));
        let end = now;
        let mut last_cut = now;
        for _ in 0..100 {
            now = now.plus(Micros(300_000));
            let cut = kinds.cuts(now, &config, standing(4_000));
            let verdict = if cut { Verdict::Cut } else { Verdict::LetIn };
            kinds.observe(now, &config, standing(4_000), verdict);
            last_cut = if cut { now } else { last_cut };
        }
        assert!(last_cut <= end.plus(WINDOW), "{last_cut:?}");
    }
}
