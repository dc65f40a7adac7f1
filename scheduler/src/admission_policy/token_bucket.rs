//! A token bucket: so many tokens a second, and a burst on top. What gateways do, which know no
//! more of a server than what it was once measured to do.
//!
//! A request takes the tokens of its prompts and its predicted answers. One that takes more than
//! the whole burst enters when the bucket is full, and leaves it in debt.

use alloc::vec;
use alloc::vec::Vec;

use super::{AdmissionMode, AdmissionPolicy, Answer, Offer, Refused};
use crate::admission::ShedReason;
use crate::time::Micros;

/// Millionths of a token: what a rate of one a second gives in a microsecond.
const MILLIONTHS: i64 = 1_000_000;

/// The bucket. Levels are in millionths of a token.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    /// Tokens a second.
    rate: u32,
    /// Tokens.
    burst: u32,
    /// The level at `since`; below zero in debt.
    level: i64,
    since: Micros,
}

impl TokenBucket {
    /// A full bucket.
    pub(super) fn new(rate: u32, burst: u32) -> TokenBucket {
        let level = i64::from(burst) * MILLIONTHS;
        TokenBucket { rate, burst, level, since: Micros(0) }
    }

    fn full(&self) -> i64 {
        i64::from(self.burst) * MILLIONTHS
    }

    fn level(&self, now: Micros) -> i64 {
        let elapsed = i64::try_from(now.minus(self.since).0).unwrap_or(i64::MAX);
        self.level.saturating_add(elapsed.saturating_mul(self.rate.into())).min(self.full())
    }

    fn takes(offer: &Offer<'_>) -> i64 {
        let tokens = |n: u32| i64::from(n) * MILLIONTHS;
        let mut prompt = None;
        let mut sum = 0_i64;
        for spec in &offer.request.sequences {
            if prompt.replace(spec.prompt) != Some(spec.prompt) {
                sum = sum.saturating_add(tokens(spec.prompt_tokens));
            }
            sum = sum.saturating_add(tokens(spec.output.predicted));
        }
        sum
    }
}

impl AdmissionPolicy for TokenBucket {
    fn mode(&self) -> AdmissionMode {
        AdmissionMode::TokenBucket { rate: self.rate, burst: self.burst }
    }

    fn judge(&self, offer: &Offer<'_>) -> Answer {
        let missing = Self::takes(offer).min(self.full()) - self.level(offer.view.now);
        if missing <= 0 {
            return Answer::Enter;
        }
        let wait = Micros((missing as u64).div_ceil(self.rate.max(1).into()));
        Answer::Refuse(Refused { wait, ..Refused::state(ShedReason::RateLimit) })
    }

    fn entered(&mut self, offer: &Offer<'_>) {
        self.level = self.level(offer.view.now).saturating_sub(Self::takes(offer));
        self.since = offer.view.now;
    }

    fn state(&self) -> Vec<u64> {
        vec![self.level as u64, self.since.0]
    }

    fn restore(&mut self, state: &[u64]) -> bool {
        let &[level, since] = state else { return false };
        (self.level, self.since) = (level as i64, Micros(since));
        self.level <= self.full()
    }
}
