//! Requests and sequences as the scheduler sees them: counts and times, never text.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use crate::class::Class;
use crate::prefix::BlockHash;
use crate::tenants::TenantId;
use crate::time::Micros;

/// Identifies one request; handed out by the engine's handle, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RequestId(pub u64);

/// Identifies one sequence: its request and its position among the request's choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SeqId {
    /// The request it belongs to.
    pub request: RequestId,
    /// Index among the sequences of that request.
    pub index: u32,
}

/// Absolute times by which parts of the answer are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Deadline {
    /// The first token.
    pub first_token: Option<Micros>,
    /// The last token.
    pub last_token: Option<Micros>,
    /// A span, not a point: the mean gap between tokens that was promised.
    pub tpot: Option<Micros>,
}

/// What is known of a sequence's output length, in tokens. Whatever else bounds an answer, such as
/// a grammar, narrows `min` and `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct OutputLength {
    /// No stop before this many tokens.
    pub min: u32,
    /// Hard limit (`max_tokens`, already cut to the context length).
    pub max: u32,
    /// The predicted length, within `min..=max`: the gate fills it in at admission, the scheduler
    /// revises it while the sequence decodes.
    pub predicted: u32,
    /// What the client says that it expects; cut to the bounds, and taken for the median until it
    /// is outlived.
    pub hint: Option<NonZeroU32>,
    /// The length is known exactly (`ignore_eos`, or `min == max`): `predicted == max`.
    pub exact: bool,
}

/// One sequence of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SequenceSpec {
    /// Which of the request's prompts it continues. Sequences with equal numbers have the same
    /// prompt and share its full KV blocks.
    pub prompt: u32,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// What is known of the output.
    pub output: OutputLength,
}

impl SequenceSpec {
    /// Tokens in the KV cache at the longest output. The last token is never written.
    #[must_use]
    pub const fn peak_tokens(&self) -> u32 {
        self.prompt_tokens + self.output.max.saturating_sub(1)
    }
}

/// One request: its class, its deadlines and its sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Request {
    /// Unique id.
    pub id: RequestId,
    /// Service class.
    pub class: Class,
    /// Who sends it.
    pub tenant: TenantId,
    /// It is more than its tenant's reservation is for: the gate fills it in.
    pub borrows: bool,
    /// When it reached the server.
    pub arrival: Micros,
    /// When its answer is due. The class's SLO, or tighter or looser targets that came with it.
    pub deadline: Deadline,
    /// How often the client has retried it already (0 on the first attempt).
    pub retry: u32,
    /// The same for every attempt of one request and, as far as possible, for no other: a hash of
    /// client and content that the server makes; 0 if it makes none.
    pub origin: u64,
    /// Of each prompt ([`SequenceSpec::prompt`] counts them), what its full KV blocks are known by,
    /// first to last. A prompt that is not in here shares nothing with other requests.
    pub prefixes: Vec<Arc<[BlockHash]>>,
    /// n choices of every prompt, at least one.
    pub sequences: Vec<SequenceSpec>,
}

/// Why a sequence ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FinishReason {
    /// An end-of-sequence token, a stop token or a stop string.
    Stop,
    /// `max_tokens` or the context length.
    Length,
}

/// How a request that had entered ended. Exactly one per admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Terminal {
    /// Every sequence finished.
    Completed,
    /// It waited until its deadline had become impossible.
    Expired,
    /// The client left.
    Cancelled,
    /// A step failed, or the engine stopped.
    Failed,
}

impl Terminal {
    /// The metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Terminal::Completed => "completed",
            Terminal::Expired => "expired",
            Terminal::Cancelled => "cancelled",
            Terminal::Failed => "failed",
        }
    }
}
