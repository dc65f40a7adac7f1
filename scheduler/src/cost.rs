//! What a step costs: a linear form with a quadratic prefill term, in integers.
//!
//! The form holds for both kinds of device: on a GPU decoding is bound by bytes (weights and
//! resident KV) and prefill by arithmetic, on a CPU the same terms carry other numbers.

use crate::time::Micros;

/// What one step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// `end^2 - start^2` of a chunk.
const fn span(start: u32, len: u32) -> u64 {
    (2 * start as u64 + len as u64) * len as u64
}

/// `fixed + per_seq*B + per_context_token*K + per_prefill_token*P + per_prefill_span*span`.
/// Measured at start-up and refitted online by the engine; immutable here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub fn steps(&self, n: u32, load: &StepLoad) -> Micros {
        let (n, b) = (u128::from(n), u128::from(load.decode_seqs));
        let per_step = u128::from(self.fixed_ns)
            + u128::from(self.per_seq_ns) * b
            + u128::from(self.per_prefill_token_ns) * u128::from(load.prefill_tokens);
        let context = n * u128::from(load.context_tokens) + b * (n * n.saturating_sub(1) / 2);
        let ps = u128::from(self.per_context_token_ps) * context
            + u128::from(self.per_prefill_span_ps) * u128::from(load.prefill_span);
        let micros = (n * per_step * 1_000 + ps) / 1_000_000;
        Micros(u64::try_from(micros).unwrap_or(u64::MAX))
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

    /// What `len` prefill tokens from position `start` add to steps that run anyway.
    #[must_use]
    pub fn prefill_work(&self, start: u32, len: u32) -> Micros {
        let ps = u128::from(self.per_prefill_token_ns) * u128::from(len) * 1_000
            + u128::from(self.per_prefill_span_ps) * u128::from(span(start, len));
        Micros(u64::try_from(ps / 1_000_000).unwrap_or(u64::MAX))
    }

    /// The longest prefill chunk from position `start` that adds at most `time` to a step; at most
    /// `limit`.
    #[must_use]
    pub fn chunk_within(&self, time: Micros, start: u32, limit: u32) -> u32 {
        let (mut fits, mut too_long) = (0, limit.saturating_add(1));
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
