//! The `cpu` runner: our own packed kernels, workspace buffers, no tensor in the hot loop.

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::runner::{Chunk, ModelRunner, RunnerError, RunnerLimits};

/// How weights are kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// As stored: quantised blocks stay quantised, floats become f32.
    Auto,
    /// Everything as f32.
    F32,
    /// Everything as int8 blocks (Q8_0).
    Q8_0,
}

/// Settings of the `cpu` runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads in all.
    pub threads: usize,
    /// How weights are kept.
    pub weights: WeightType,
    /// Element type of the KV pool.
    pub kv_dtype: kernels::KvDtype,
    /// KV blocks of 32 tokens.
    pub num_blocks: u32,
    /// Longest sequence.
    pub max_model_len: u32,
    /// Most rows in one step.
    pub max_batched_tokens: u32,
    /// Most chunks in one step.
    pub max_chunks: u32,
}

/// The `cpu` runner.
#[allow(missing_debug_implementations)]
pub struct CpuRunner {}

impl CpuRunner {
    /// Packs the weights. `progress` is called with (layers done, layers in all).
    ///
    /// # Errors
    /// What [`Checkpoint::tensor`] says.
    pub fn load(
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        options: CpuOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<CpuRunner, LoadError> {
        todo!()
    }
    /// Bytes of one KV block with these settings.
    #[must_use]
    pub fn block_bytes(config: &ModelConfig, kv_dtype: kernels::KvDtype) -> u64 {
        todo!()
    }
}

impl ModelRunner for CpuRunner {
    fn name(&self) -> &'static str {
        "cpu"
    }
    fn limits(&self) -> RunnerLimits {
        todo!()
    }
    fn run(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), RunnerError> {
        todo!()
    }
}
