//! The sampler of one sequence.

use std::sync::Arc;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::candidates::{self, Candidate};
use super::history::History;
use super::params::{SamplingParams, TokenLogprobs};
use super::row::{self, Softmax};

/// Working memory, shared by all sequences.
#[derive(Debug, Default)]
pub struct Scratch {
    candidates: Vec<Candidate>,
    weights: Vec<f32>,
    raw: Vec<f32>,
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// Log-probabilities, if asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Turns the logits of one sequence into its tokens, one after the other.
#[derive(Debug)]
pub struct Sampler {
    params: Arc<SamplingParams>,
    eos: Arc<[u32]>,
    rng: Pcg64Mcg,
    history: Option<History>,
    generated: u32,
}

impl Sampler {
    /// For choice number `choice` of a request; `eos` are the model's end tokens.
    #[must_use]
    pub fn new(
        params: Arc<SamplingParams>,
        eos: Arc<[u32]>,
        prompt: &[u32],
        choice: u32,
    ) -> Sampler {
        /// The golden ratio's fraction: neighbouring choices get seeds far apart.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let seed = params.seed.wrapping_add(u64::from(choice).wrapping_mul(SPREAD));
        let history = params.has_penalties().then(|| History::new(&params, prompt));
        Sampler { params, eos, rng: Pcg64Mcg::seed_from_u64(seed), history, generated: 0 }
    }

    /// Chooses the next token from a row of logits, which is overwritten. `None` if the model
    /// returned a value that is not finite, or if no token is allowed.
    pub fn sample(&mut self, row: &mut [f32], scratch: &mut Scratch) -> Option<Sampled> {
        if !row::is_finite(row) {
            return None;
        }
        if self.params.logprobs.is_some() {
            scratch.raw.clear();
            scratch.raw.extend_from_slice(row);
        }
        self.adjust(row);
        let token = self.choose(row, scratch)?;
        self.generated += 1;
        if let Some(history) = &mut self.history {
            history.push(token);
        }
        let logprobs = self.params.logprobs.map(|top| logprobs(&scratch.raw, token, top));
        Some(Sampled { token, logprobs })
    }

    /// Bias, the mask before `min_tokens`, penalties.
    fn adjust(&self, row: &mut [f32]) {
        for &(token, bias) in &self.params.logit_bias {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if self.generated < self.params.min_tokens {
            let eos: &[u32] = if self.params.ignore_eos { &[] } else { &self.eos };
            for &token in eos.iter().chain(&self.params.stop_token_ids) {
                if let Some(logit) = row.get_mut(token as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        if let Some(history) = &self.history {
            history.penalise(&self.params, row);
        }
    }

    fn choose(&mut self, row: &[f32], scratch: &mut Scratch) -> Option<u32> {
        let max = row::max(row);
        if !max.is_finite() {
            return None;
        }
        if self.params.is_greedy() {
            return row::position(row, max).map(|token| token as u32);
        }
        let uniform = unit(self.rng.next_u64());
        let SamplingParams { temperature, top_p, min_p, .. } = *self.params;
        let mut softmax = Softmax::new(max, temperature);
        softmax.floor = softmax.value_at(min_p.ln()).max(f32::MIN);
        let top_k = usize::try_from(self.params.top_k).unwrap_or(usize::MAX);
        let kept = &mut scratch.candidates;
        if (1..row.len()).contains(&top_k) {
            candidates::select_top_k(row, top_k, softmax.floor, kept);
        } else if top_p < 1.0 {
            let floor = candidates::nucleus_floor(row, softmax, top_p);
            candidates::select_floor(row, floor, kept);
        } else {
            return softmax.draw(row, uniform, &mut scratch.weights).map(|token| token as u32);
        }
        if top_p < 1.0 {
            candidates::keep_nucleus(kept, &mut scratch.weights, softmax, top_p);
        }
        candidates::draw(kept, softmax, uniform)
    }
}

/// A number in [0, 1) from the upper 53 of 64 random bits.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// The model's own log-probabilities: of `token`, and of the `top` best.
fn logprobs(raw: &[f32], token: u32, top: u32) -> TokenLogprobs {
    let max = row::max(raw);
    let log_sum = Softmax::new(max, 1.0).sum(raw).ln() as f32;
    let logprob = |logit: f32| logit - max - log_sum;
    let mut top = candidates::sorted_top_k(raw, top as usize);
    for (_, value) in &mut top {
        *value = logprob(*value);
    }
    TokenLogprobs { chosen: logprob(raw[token as usize]), top }
}
