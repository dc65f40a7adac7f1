//! Predicted output lengths: decaying histograms of what finished.
//!
//! One histogram for each class and octave of `max_tokens` and of the prompt, and one for all
//! prompts, which answers until the first has seen enough. The median is the prediction: a high
//! quantile would refuse nearly everything, and the mean follows the heavy tail. While a sequence
//! is decoded its prediction is the median of what lies beyond the tokens it has already
//! (conditional survival), so a sequence that outlives its prediction gets a new one.
//!
//! The gate owns one of these and learns when requests end, the scheduler another and learns when
//! sequences do. Integers only: the same observations give the same predictions.

mod histogram;

use alloc::collections::BTreeMap;
use core::num::NonZeroU32;

use crate::class::Class;
use crate::request::OutputLength;
use crate::sequence::Sequence;
use histogram::{Histogram, is_edge};

/// Octaves of `max_tokens` and of prompts that are told apart: longer ones are taken together.
const OCTAVES: u32 = 20;

/// What a histogram is for. `prompt` is `None` for all prompts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Kind {
    class: Class,
    max: u32,
    prompt: Option<u32>,
}

/// What must be kept of a sequence to learn from its length.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Lesson {
    prompt_tokens: u32,
    /// None if the length is known: there is nothing to learn.
    max: Option<NonZeroU32>,
}

impl Lesson {
    pub(crate) fn new(prompt_tokens: u32, output: &OutputLength) -> Lesson {
        let max = if is_known(output) { 0 } else { output.max };
        Lesson { prompt_tokens, max: NonZeroU32::new(max) }
    }
}

/// Learns lengths and predicts them. At most 2 x 20 x 21 histograms of 360 bytes: 300 KB in all,
/// and that only if prompts and `max_tokens` of every size come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Lengths {
    histograms: BTreeMap<Kind, Histogram>,
}

impl Lengths {
    /// The median length of an output of which `generated` tokens exist and which goes on, after a
    /// prompt of `prompt_tokens`: more than `generated`, within the bounds of `output`. A hint is
    /// taken for the median until it is outlived.
    pub(crate) fn predict(
        &self,
        class: Class,
        prompt_tokens: u32,
        output: &OutputLength,
        generated: u32,
    ) -> u32 {
        let most = output.max.max(1);
        if is_known(output) {
            return most;
        }
        let least = output.min.max(generated.saturating_add(1)).min(most);
        if let Some(hint) = output.hint.map(NonZeroU32::get).filter(|hint| *hint > generated) {
            return hint.clamp(least, most);
        }
        let known = self.known(class, prompt_tokens, output);
        histogram::median_beyond(known, most, least - 1).clamp(least, most)
    }

    /// The mean length of an output that has not begun: what it takes of a device on average. A
    /// hint is taken as it is.
    pub(crate) fn mean(&self, class: Class, prompt_tokens: u32, output: &OutputLength) -> u32 {
        let most = output.max.max(1);
        if is_known(output) {
            return most;
        }
        let hint = output.hint.map(NonZeroU32::get);
        let mean = || histogram::mean(self.known(class, prompt_tokens, output), most);
        hint.unwrap_or_else(mean).clamp(output.min.clamp(1, most), most)
    }

    /// What has been seen of outputs like this one.
    fn known(&self, class: Class, prompt_tokens: u32, output: &OutputLength) -> Option<&Histogram> {
        let [of_prompt, of_all] = kinds(class, prompt_tokens, output.max);
        let full = self.histograms.get(&of_prompt).filter(|histogram| histogram.is_full());
        full.or_else(|| self.histograms.get(&of_all))
    }

    /// Revises the prediction of a sequence that goes on: where it enters the next bucket, and
    /// before it outlives what was predicted. Forecasts look from the end of the step in flight,
    /// so its next token is taken to be there, and not the last.
    pub(crate) fn revise(&self, seq: &mut Sequence) {
        let next = seq.generated + 1;
        if !is_known(&seq.output) && (seq.output.predicted <= next || is_edge(next)) {
            seq.output.predicted = self.predict(seq.class, seq.prompt_tokens, &seq.output, next);
        }
    }

    /// An output ended after `tokens`. One that was cut at its `max` would have gone on: among
    /// those that may be longer it counts as one of the longest.
    pub(crate) fn learn(&mut self, class: Class, lesson: Lesson, tokens: u32) {
        let Some(max) = lesson.max.map(NonZeroU32::get) else { return };
        let longest = (1 << octave(max)) - 1;
        let tokens = if tokens >= max { longest } else { tokens };
        for kind in kinds(class, lesson.prompt_tokens, max) {
            self.histograms.entry(kind).or_default().learn(tokens);
        }
    }
}

/// There is nothing to predict, and nothing to learn either.
const fn is_known(output: &OutputLength) -> bool {
    output.exact || output.min >= output.max
}

fn kinds(class: Class, prompt_tokens: u32, max_tokens: u32) -> [Kind; 2] {
    let (max, prompt) = (octave(max_tokens), Some(octave(prompt_tokens)));
    [Kind { class, max, prompt }, Kind { class, max, prompt: None }]
}

/// The number of binary digits, from 1 to [`OCTAVES`].
fn octave(tokens: u32) -> u32 {
    (u32::BITS - tokens.leading_zeros()).clamp(1, OCTAVES)
}

#[cfg(test)]
mod cold;
#[cfg(test)]
mod tests;
