//! Which tokens a sequence has seen, for the penalties.

use std::collections::HashMap;

use super::params::SamplingParams;

/// Occurrences by token. Kept only for sequences that have a penalty; at most one entry for each
/// token of the sequence.
#[derive(Debug)]
pub(super) struct History {
    /// Occurrences in the output; 0 for tokens that only the prompt has.
    outputs: HashMap<u32, u32>,
}

impl History {
    /// With the prompt's tokens, if the parameters look at them.
    pub(super) fn new(params: &SamplingParams, prompt: &[u32]) -> History {
        let prompt = if params.repetition_penalty == 1.0 { &[] } else { prompt };
        History { outputs: prompt.iter().map(|&token| (token, 0)).collect() }
    }

    /// A token was generated.
    pub(super) fn push(&mut self, token: u32) {
        *self.outputs.entry(token).or_default() += 1;
    }

    /// Lowers the logits of what was seen: first the repetition penalty, then the additive ones.
    pub(super) fn penalise(&self, params: &SamplingParams, row: &mut [f32]) {
        for (&token, &count) in &self.outputs {
            let Some(logit) = row.get_mut(token as usize) else { continue };
            if *logit > 0.0 {
                *logit /= params.repetition_penalty;
            } else {
                *logit *= params.repetition_penalty;
            }
            if count > 0 {
                *logit -= params.presence_penalty + params.frequency_penalty * count as f32;
            }
        }
    }
}
