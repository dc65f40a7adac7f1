//! A decaying histogram over lengths, and the median of its mass beyond a length.

use alloc::boxed::Box;
use core::ops::Range;

/// Buckets: four to an octave, up to 2^20 tokens. The first one also takes what is shorter.
pub(super) const BUCKETS: usize = 72;

/// What one observation counts at first. Each later one takes a 256th of it away, and what is left
/// below a sixteenth is forgotten, some 700 observations later.
const WEIGHT: u32 = 1 << 16;
const DECAY: u32 = 256;
const FORGOTTEN: u32 = WEIGHT / 16;

/// Until a histogram has this many observations the prior takes the place of the others.
const ENOUGH: u32 = 16;

/// Without observations half of `max_tokens` is expected, and no more than this; anything from a
/// quarter to four times as much is as likely, octave by octave.
const PRIOR: u32 = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Histogram {
    #[cfg_attr(feature = "serde", serde(with = "crate::boxed"))]
    weights: Box<[u32; BUCKETS]>,
    /// Observations, up to [`ENOUGH`].
    seen: u32,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { weights: Box::new([0; BUCKETS]), seen: 0 }
    }
}

impl Histogram {
    pub(super) const fn is_full(&self) -> bool {
        self.seen >= ENOUGH
    }

    pub(super) fn learn(&mut self, tokens: u32) {
        for weight in self.weights.iter_mut() {
            let left = *weight - weight.div_ceil(DECAY);
            *weight = if left < FORGOTTEN { 0 } else { left };
        }
        self.weights[bucket(tokens)] += WEIGHT;
        self.seen = (self.seen + 1).min(ENOUGH);
    }
}

/// The mean of the lengths that `known` and the prior for `most` tokens hold, none of them taken
/// for longer than `most`.
pub(super) fn mean(known: Option<&Histogram>, most: u32) -> u32 {
    let seen = known.map_or(0, |histogram| histogram.seen);
    let expected = prior(most);
    let assumed = u64::from(ENOUGH - seen) * u64::from(WEIGHT) / expected.len() as u64;
    let (mut sum, mut weights) = (0_u64, 0_u64);
    for i in 0..BUCKETS {
        let learnt = known.map_or(0, |histogram| u64::from(histogram.weights[i]));
        let weight = learnt + if expected.contains(&i) { assumed } else { 0 };
        let middle = u64::midpoint(lower_edge(i).into(), lower_edge(i + 1).into());
        sum += weight * middle.min(most.into());
        weights += weight;
    }
    u32::try_from(sum / weights.max(1)).unwrap_or(most).clamp(1, most.max(1))
}

/// The median of the lengths above `floor` that `known` and the prior for `most` tokens hold.
/// Within a bucket each length is as likely. Where nothing is known of longer ones it is a quarter
/// more than `floor`, at least eight tokens.
pub(super) fn median_beyond(known: Option<&Histogram>, most: u32, floor: u32) -> u32 {
    let seen = known.map_or(0, |histogram| histogram.seen);
    let expected = prior(most);
    let assumed = u64::from(ENOUGH - seen) * u64::from(WEIGHT) / expected.len() as u64;
    let first = bucket(floor.saturating_add(1));
    // From where, to where, and how much.
    let part = |i: usize| {
        let learnt = known.map_or(0, |histogram| u64::from(histogram.weights[i]));
        let whole = learnt + if expected.contains(&i) { assumed } else { 0 };
        let (edge, to) = (u64::from(lower_edge(i)), u64::from(lower_edge(i + 1)));
        let from = edge.max(u64::from(floor) + 1).min(to);
        (from, to, whole * (to - from) / (to - edge))
    };
    let half = (first..BUCKETS).map(|i| part(i).2).sum::<u64>() / 2;
    let mut below = 0;
    for i in first..BUCKETS {
        let (from, to, weight) = part(i);
        if below + weight > half {
            return (from + (to - from) * (half - below) / weight) as u32;
        }
        below += weight;
    }
    floor.saturating_add((floor / 4).max(8))
}

/// The buckets among which the prior lies, all alike.
fn prior(most: u32) -> Range<usize> {
    let median = (most / 2).clamp(1, PRIOR);
    let longest = most.min(4 * median);
    bucket(median * median / longest)..bucket(longest - 1) + 1
}

/// Whether a bucket begins here.
pub(super) fn is_edge(tokens: u32) -> bool {
    lower_edge(bucket(tokens)) == tokens
}

/// The bucket of a length: its octave and the two digits after the leading one.
pub(super) fn bucket(tokens: u32) -> usize {
    let tokens = tokens.max(4);
    let octave = u32::BITS - tokens.leading_zeros() - 3;
    ((octave * 4 + (tokens >> octave) - 4) as usize).min(BUCKETS - 1)
}

/// The least length of a bucket.
pub(super) const fn lower_edge(bucket: usize) -> u32 {
    match bucket {
        0 => 1,
        _ => (4 + bucket as u32 % 4) << (bucket / 4),
    }
}
