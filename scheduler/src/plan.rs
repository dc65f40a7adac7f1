//! What a step does and what came of it, as plain data.

use alloc::vec::Vec;

use crate::cost::StepLoad;
use crate::request::{FinishReason, RequestId, SeqId, Terminal};

/// The tokens of one sequence in one step. There is no prefill or decode phase: decode is a chunk
/// of length 1 (after a preemption the recomputed tokens are chunks like any others).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Whose tokens.
    pub seq: SeqId,
    /// Position of the first token in the sequence (prompt and output together).
    pub start: u32,
    /// How many tokens.
    pub len: u32,
    /// The chunk reaches the end of what is known: a next token is sampled.
    pub sample: bool,
}

/// One step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// What is computed; empty when there is nothing to do.
    pub chunks: Vec<Chunk>,
    /// Sequences that lost their blocks to make room; they wait and recompute.
    pub preempted: Vec<SeqId>,
    /// Requests that were dropped because their deadline has become impossible. Terminal.
    pub expired: Vec<RequestId>,
    /// What the step costs by the cost model's measure.
    pub load: StepLoad,
}

/// What became of one sampled chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SeqOutcome {
    /// A token was sampled and the sequence goes on.
    Continue(SeqId),
    /// A token was sampled and it was the last.
    Finish(SeqId, FinishReason),
    /// The sequence failed (its logits were not finite, say).
    Fail(SeqId),
}

/// What happened to requests and sequences, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A sequence ended by itself; its blocks are free.
    SequenceFinished(SeqId, FinishReason),
    /// A request ended; emitted exactly once, after its last sequence.
    RequestEnded(RequestId, Terminal),
}
