//! From logits to a token.
//!
//! Order of the stages, as in vLLM: `logit_bias`, the mask before `min_tokens`, penalties, then
//! temperature, `min_p`, `top_k`, `top_p`, one draw. Log-probabilities are those of the model
//! itself: before any of that.
//!
//! A sequence's tokens depend on its logits, its parameters and its seed, and on nothing else: each
//! sequence has its own generator, and each sampled token takes exactly one number from it.

mod candidates;
mod history;
mod params;
mod row;
mod sampler;
#[cfg(test)]
mod tests;

pub use params::{SamplingParams, TokenLogprobs};
pub use sampler::{Sampled, Sampler, Scratch};
