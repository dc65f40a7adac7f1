//! Devices: what a step costs on them, and how much they hold.
//!
//! The H100 figures are fits of published kernel times (`ai-dynamo/aiconfigurator` 095f58a, H100
//! SXM with vLLM 0.19, Apache-2.0, (c) NVIDIA), reduced to step times of Llama-3.1 at bf16. Decode
//! steps of the 70B are taken 1.08 times, which matches published end-to-end measurements of
//! vLLM 0.15.1. The CPU's are of two cores with a small model.

use scheduler::{ClassConfig, ClassTable, CostModel, Micros, SchedulerConfig};

/// One replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name in tables.
    pub name: &'static str,
    /// What steps are predicted to cost.
    pub cost: CostModel,
    /// Most sequences in a step.
    pub max_num_seqs: u32,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u32,
    /// KV blocks of [`BLOCK_SIZE`] tokens.
    pub num_blocks: u32,
    /// Most tokens of a sequence.
    pub max_model_len: u32,
}

/// Tokens per KV block.
pub const BLOCK_SIZE: u32 = 16;

/// No queue of a class gets longer than this: what bounds it is the gate's forecast.
const MAX_WAITING: u32 = 100_000;

/// Llama-3.1-8B on one H100.
pub const H100_8B: Profile = Profile {
    name: "8B",
    cost: CostModel {
        fixed_ns: 6_440_000,
        per_seq_ns: 9_700,
        per_context_token_ps: 42_670,
        per_prefill_token_ns: 17_000,
        per_prefill_span_ps: 660,
    },
    max_num_seqs: 256,
    max_num_batched_tokens: 2_048,
    num_blocks: 28_125,
    max_model_len: 16_384,
};

/// Llama-3.1-70B on four H100s.
pub const H100_70B: Profile = Profile {
    name: "70B",
    cost: CostModel {
        fixed_ns: 16_840_000,
        per_seq_ns: 31_500,
        per_context_token_ps: 30_400,
        per_prefill_token_ns: 52_400,
        per_prefill_span_ps: 1_320,
    },
    num_blocks: 29_375,
    ..H100_8B
};

/// A small model on a CPU with two cores.
pub const CPU: Profile = Profile {
    name: "CPU",
    cost: CostModel {
        fixed_ns: 6_000_000,
        per_seq_ns: 1_600_000,
        per_context_token_ps: 1_000_000,
        per_prefill_token_ns: 1_300_000,
        per_prefill_span_ps: 107_000,
    },
    max_num_seqs: 32,
    max_num_batched_tokens: 128,
    num_blocks: 4_096,
    max_model_len: 2_048,
};

impl Profile {
    /// The scheduler's limits. Classes promise nothing by themselves: each request brings its own
    /// targets.
    #[must_use]
    pub fn config(&self) -> SchedulerConfig {
        let class = ClassConfig { max_waiting: MAX_WAITING, ..ClassConfig::default() };
        SchedulerConfig {
            num_blocks: self.num_blocks,
            block_size: BLOCK_SIZE,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            classes: ClassTable([class; 2]),
        }
    }

    /// Time of a request alone on the device, to its last token.
    #[must_use]
    pub fn unloaded(&self, prompt: u32, output: u32) -> Micros {
        unloaded(&self.cost, self.max_num_batched_tokens, prompt, output)
    }
}

/// Time of a request alone on a device of this cost, with steps of so many tokens.
pub(crate) fn unloaded(cost: &CostModel, max_step: u32, prompt: u32, output: u32) -> Micros {
    let decode = cost.decode(1, u64::from(prompt) + 1, output.saturating_sub(1));
    cost.prefill(0, prompt, max_step).plus(decode)
}
