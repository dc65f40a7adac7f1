//! What a step costs: a linear form with a quadratic prefill term, in integers.
//!
//! The form holds for both kinds of device: on a GPU decoding is bound by bytes (weights and
//! resident KV) and prefill by arithmetic, on a CPU the same terms carry other numbers.

use crate::time::Micros;

/// What one step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StepLoad {
    /// Decoding sequences (chunks of length 1), B.
    pub decode_seqs: u32,
    /// Context tokens that the decoding sequences read, K.
    pub context_tokens: u64,
    /// Tokens of longer chunks, P.
    pub prefill_tokens: u32,
    /// Sum over prefill chunks of `end^2 - start^2`.
    pub prefill_span: u64,
}

impl StepLoad {
    /// Adds the chunk of `len` tokens that begins at position `start`.
    pub fn add_chunk(&mut self, start: u32, len: u32) {
        if len == 1 {
            self.decode_seqs += 1;
            self.context_tokens += u64::from(start) + 1;
        } else {
            self.prefill_tokens += len;
            self.prefill_span += span(start, len);
        }
    }
}

/// Sums are kept in picoseconds, in 64 bits that saturate at 213 days.
const PS_PER_MICRO: u64 = 1_000_000;

/// `end^2 - start^2` of a chunk.
const fn span(start: u32, len: u32) -> u64 {
    (2 * start as u64 + len as u64).saturating_mul(len as u64)
}

/// `fixed + per_seq*B + per_context_token*K + per_prefill_token*P + per_prefill_span*span`.
/// Measured at start-up and refitted online by the engine; immutable here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CostModel {
    /// Cost of any step, nanoseconds.
    pub fixed_ns: u64,
    /// Cost of one decoding sequence, nanoseconds.
    pub per_seq_ns: u64,
    /// Cost of one context token read by a decoding sequence, picoseconds.
    pub per_context_token_ps: u64,
    /// Cost of one prefill token, nanoseconds.
    pub per_prefill_token_ns: u64,
    /// Cost of one unit of prefill span, picoseconds.
    pub per_prefill_span_ps: u64,
}

impl CostModel {
    /// Predicted duration of a step with this load.
    #[must_use]
    pub fn step(&self, load: &StepLoad) -> Micros {
        self.steps(1, load)
    }

    /// Predicted duration of `n` steps: each decodes the same sequences, whose context grows by one
    /// token a step, and computes the same number of prefill tokens; `prefill_span` is the sum over
    /// all of them. A closed form, so that a forecast may jump.
    #[must_use]
    pub const fn steps(&self, n: u32, load: &StepLoad) -> Micros {
        self.growing_steps(n, load, load.decode_seqs as u64)
    }

    /// The same where the context that is read grows by `growth` tokens a step.
    pub(crate) const fn growing_steps(&self, n: u32, load: &StepLoad, growth: u64) -> Micros {
        let (n, b) = (n as u64, load.decode_seqs as u64);
        let per_step = self
            .fixed_ns
            .saturating_add(self.per_seq_ns.saturating_mul(b))
            .saturating_add(self.per_prefill_token_ns.saturating_mul(load.prefill_tokens as u64));
        let growth = growth.saturating_mul(n.saturating_mul(n.saturating_sub(1)) / 2);
        let context = n.saturating_mul(load.context_tokens).saturating_add(growth);
        let ps = per_step
            .saturating_mul(1_000)
            .saturating_mul(n)
            .saturating_add(self.per_context_token_ps.saturating_mul(context))
            .saturating_add(self.per_prefill_span_ps.saturating_mul(load.prefill_span));
        Micros(ps / PS_PER_MICRO)
    }

    /// Predicted duration of `n` steps that only decode `seqs` sequences, which read
    /// `context_tokens` in the first of them.
    #[must_use]
    pub fn decode(&self, seqs: u32, context_tokens: u64, n: u32) -> Micros {
        let load = StepLoad { decode_seqs: seqs, context_tokens, ..StepLoad::default() };
        self.steps(n, &load)
    }

    /// Predicted time to compute `len` tokens from position `start` alone on the device, in steps
    /// of at most `step_tokens`.
    #[must_use]
    pub fn prefill(&self, start: u32, len: u32, step_tokens: u32) -> Micros {
        let steps = len.div_ceil(step_tokens.max(1));
        Micros(self.fixed_ns / 1_000 * u64::from(steps)).plus(self.prefill_work(start, len))
    }

    /// What one decoding sequence with `context_tokens` in its context adds to a step that runs
    /// anyway, nanoseconds.
    #[must_use]
    pub const fn decode_work_ns(&self, context_tokens: u64) -> u64 {
        self.per_seq_ns + self.per_context_token_ps.saturating_mul(context_tokens) / 1_000
    }

    /// What `len` prefill tokens from position `start` add to steps that run anyway.
    #[must_use]
    pub const fn prefill_work(&self, start: u32, len: u32) -> Micros {
        let tokens = self.per_prefill_token_ns.saturating_mul(1_000).saturating_mul(len as u64);
        let spans = self.per_prefill_span_ps.saturating_mul(span(start, len));
        Micros(tokens.saturating_add(spans) / PS_PER_MICRO)
    }

    /// The longest prefill chunk from position `start` that adds at most `time` to a step; at most
    /// `limit`.
    #[must_use]
    pub fn chunk_within(&self, time: Micros, start: u32, limit: u32) -> u32 {
        // What is above whole microseconds is not seen.
        let most = time.0.checked_add(1).and_then(|micros| micros.checked_mul(PS_PER_MICRO));
        let Some(most) = most.map(|ps| ps - 1) else { return limit };
        let per_token = self.per_prefill_token_ns.saturating_mul(1_000);
        let longest = most.checked_div(per_token).unwrap_or(u64::MAX).min(limit.into());
        let spans = self.per_prefill_span_ps.saturating_mul(2 * u64::from(start) + longest);
        let surely = most.checked_div(per_token.saturating_add(spans)).unwrap_or(u64::MAX);
        let (mut fits, mut too_long) =
            (surely.min(longest) as u32, (longest as u32).saturating_add(1));
        while too_long - fits > 1 {
            let middle = fits + (too_long - fits) / 2;
            if self.prefill_work(start, middle) <= time {
                fits = middle;
            } else {
                too_long = middle;
            }
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// One token more would take too long, or is beyond the limit; also for costs of zero and
        /// costs that saturate.
        #[test]
        fn the_longest_chunk_within_a_time_is_found(
            per_token in prop_oneof![Just(0_u64), 1..100_000_u64, Just(u64::MAX)],
            per_span in prop_oneof![Just(0_u64), 1..10_000_u64, Just(u64::MAX)],
            time in prop_oneof![0..10_000_000_u64, Just(u64::MAX)],
            start in 0..200_000_u32,
            limit in prop_oneof![0..20_000_u32, Just(u32::MAX)],
        ) {
            let cost = CostModel {
                fixed_ns: 0,
                per_seq_ns: 0,
                per_context_token_ps: 0,
                per_prefill_token_ns: per_token,
                per_prefill_span_ps: per_span,
            };
            let fits = |len: u32| len == 0 || cost.prefill_work(start, len) <= Micros(time);
            let found = cost.chunk_within(Micros(time), start, limit);
            prop_assert!(found <= limit && fits(found));
            prop_assert!(found == limit || !fits(found + 1));
        }
    }
}
