//! What a step costs: a linear form with a quadratic prefill term, in integers.

use crate::time::Micros;

/// What one step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepLoad {
    /// Decoding sequences (rows that are sampled), B.
    pub decode_seqs: u32,
    /// Context tokens that the decoding sequences read, K.
    pub context_tokens: u64,
    /// Prompt tokens computed, P.
    pub prefill_tokens: u32,
    /// Sum over prefill chunks of `end^2 - start^2`.
    pub prefill_span: u64,
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
        let ns = u128::from(self.fixed_ns)
            + u128::from(self.per_seq_ns) * u128::from(load.decode_seqs)
            + u128::from(self.per_prefill_token_ns) * u128::from(load.prefill_tokens);
        let ps = u128::from(self.per_context_token_ps) * u128::from(load.context_tokens)
            + u128::from(self.per_prefill_span_ps) * u128::from(load.prefill_span);
        let micros = ns / 1_000 + ps / 1_000_000;
        Micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}
