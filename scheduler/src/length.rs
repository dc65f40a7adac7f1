//! Predicted output lengths: decaying histograms of what finished.
//!
//! One histogram for each class and octave of `max_tokens` and of the prompt, and one for all
//! prompts, which answers until the first has seen enough. The median is the prediction: a high
//! quantile would refuse nearly everything, and the mean follows the heavy tail.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::class::Class;
use crate::request::OutputLength;

/// Buckets: four to an octave, up to 2^20 tokens.
const BUCKETS: usize = 80;

/// What one observation counts at first. Each later one takes a 256th of it away.
const WEIGHT: u32 = 1 << 16;
const DECAY_SHIFT: u32 = 8;

/// Below this many observations a histogram is asked together with the prior.
const ENOUGH: u32 = 16;

/// Without observations an answer is expected to have half of `max_tokens`, and no more than this.
const PRIOR: u32 = 256;

/// What a histogram is for. `prompt` is `None` for all prompts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    class: Class,
    max: u32,
    prompt: Option<u32>,
}

#[derive(Clone, Debug)]
struct Histogram {
    weights: Box<[u32; BUCKETS]>,
    /// Observations, up to [`ENOUGH`].
    seen: u32,
}

/// Learns lengths and predicts them. At most 2 x 33 x 34 histograms of 320 bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lengths {
    histograms: BTreeMap<Kind, Histogram>,
}

impl Lengths {
    /// The median length of an output with these bounds, after a prompt of `prompt_tokens`.
    pub(crate) fn predict(&self, class: Class, prompt_tokens: u32, output: &OutputLength) -> u32 {
        let most = output.max.max(1);
        if output.exact || output.min >= most {
            return most;
        }
        if let Some(hint) = output.hint {
            return hint.clamp(output.min.max(1), most);
        }
        let [of_prompt, of_all] = kinds(class, prompt_tokens, output.max);
        let full = self.histograms.get(&of_prompt).filter(|histogram| histogram.seen >= ENOUGH);
        let prior = (most / 2).min(PRIOR);
        let expected = match full.or_else(|| self.histograms.get(&of_all)) {
            Some(histogram) => {
                let (seen, median) = (histogram.seen, histogram.median());
                (median * seen + prior * (ENOUGH - seen)) / ENOUGH
            }
            None => prior,
        };
        expected.clamp(output.min.max(1), most)
    }

    /// An output that could have had `max_tokens` tokens ended by itself after `tokens`.
    pub(crate) fn learn(&mut self, class: Class, prompt_tokens: u32, max_tokens: u32, tokens: u32) {
        for kind in kinds(class, prompt_tokens, max_tokens) {
            self.histograms.entry(kind).or_insert_with(Histogram::new).learn(tokens);
        }
    }
}

fn kinds(class: Class, prompt_tokens: u32, max_tokens: u32) -> [Kind; 2] {
    let (max, prompt) = (octave(max_tokens), Some(octave(prompt_tokens)));
    [Kind { class, max, prompt }, Kind { class, max, prompt: None }]
}

impl Histogram {
    fn new() -> Histogram {
        Histogram { weights: Box::new([0; BUCKETS]), seen: 0 }
    }

    fn learn(&mut self, tokens: u32) {
        for weight in self.weights.iter_mut() {
            *weight -= *weight >> DECAY_SHIFT;
        }
        self.weights[bucket(tokens)] += WEIGHT;
        self.seen = (self.seen + 1).min(ENOUGH);
    }

    /// The median, interpolated within its bucket.
    fn median(&self) -> u32 {
        let half = self.weights.iter().map(|weight| u64::from(*weight)).sum::<u64>() / 2;
        let mut below = 0;
        for (i, weight) in self.weights.iter().enumerate() {
            let weight = u64::from(*weight);
            if below + weight > half {
                let (from, to) = (u64::from(lower_edge(i)), u64::from(lower_edge(i + 1)));
                return (from + (to - from) * (half - below) / weight) as u32;
            }
            below += weight;
        }
        lower_edge(BUCKETS)
    }
}

/// The number of binary digits.
const fn octave(tokens: u32) -> u32 {
    u32::BITS - tokens.leading_zeros()
}

/// The bucket of a length: its octave and the two digits after the leading one.
fn bucket(tokens: u32) -> usize {
    let tokens = tokens.max(4);
    let octave = octave(tokens) - 3;
    ((octave * 4 + (tokens >> octave) - 4) as usize).min(BUCKETS - 1)
}

/// The least length of a bucket; the first one also takes what is shorter.
const fn lower_edge(bucket: usize) -> u32 {
    (4 + bucket as u32 % 4) << (bucket / 4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn output(min: u32, max: u32) -> OutputLength {
        OutputLength { min, max, predicted: 0, hint: None, exact: false }
    }

    proptest! {
        #[test]
        fn a_length_lies_in_its_bucket(tokens in 4..1u32 << 20) {
            let i = bucket(tokens);
            prop_assert!(lower_edge(i) <= tokens);
            prop_assert!(tokens < lower_edge(i + 1));
        }

        #[test]
        fn predictions_stay_within_their_bounds(
            learnt in prop::collection::vec((1..5_000u32, 1..5_000u32), 0..80),
            prompt in 1..5_000u32,
            max in 1..5_000u32,
            min in 0..50u32,
        ) {
            let mut lengths = Lengths::default();
            for (prompt, tokens) in learnt {
                lengths.learn(Class::Latency, prompt, max, tokens);
            }
            let predicted = lengths.predict(Class::Latency, prompt, &output(min.min(max), max));
            prop_assert!((min.min(max).max(1)..=max).contains(&predicted));
        }
    }

    #[test]
    fn it_finds_the_median_and_follows_a_change() {
        let mut lengths = Lengths::default();
        assert_eq!(lengths.predict(Class::Latency, 50, &output(0, 100)), 50);
        let learn = |lengths: &mut Lengths, from: u32| {
            for i in 0..1_000 {
                lengths.learn(Class::Latency, 50, 2_000, from + i * 7 % 100);
            }
            lengths.predict(Class::Latency, 60, &output(0, 2_000))
        };
        let short = learn(&mut lengths, 300);
        assert!((320..=380).contains(&short), "{short}");
        let long = learn(&mut lengths, 1_000);
        assert!((960..=1_150).contains(&long), "{long}");
    }
}
