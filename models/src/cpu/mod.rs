//! The `cpu` runner: our own packed kernels, workspace buffers, no tensor in the hot loop.
//!
//! Whatever the batch, the cut of a prefill, or the number of threads, a sequence gets the same
//! logits bit for bit: all kernels compute a row from that row alone, in a fixed order.

mod forward;
mod weights;

use kernels::{KvDtype, KvShape, PagedKv, Pool};

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::rope::RopeTable;
use crate::runner::{Chunk, Logits, ModelRunner, RunnerError, RunnerLimits, validate};

use forward::{Model, Workspace};
use weights::Weights;

/// Most bytes of logits in one step, unless the last row of each chunk alone takes more: scoring
/// long prompts of a large vocabulary goes in several steps.
const MAX_LOGITS_BYTES: usize = 256 << 20;

/// How weights are kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// As stored: Q4_0, Q4_1 and Q8_0 blocks keep their values, floats become f32. Q4_K and Q6_K
    /// are requantised to Q8_0, which adds about a tenth of the error that they have.
    Auto,
    /// Everything as f32.
    F32,
    /// Everything as int8 blocks (Q8_0); f32 where a row is not a multiple of 32 wide.
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
pub struct CpuRunner {
    model: Model,
    workspace: Workspace,
    kv: PagedKv,
    pool: Pool,
    limits: RunnerLimits,
}

impl CpuRunner {
    /// Packs the weights and maps the KV pool. `progress` is called with (layers done, layers in
    /// all).
    ///
    /// # Errors
    /// What [`Checkpoint::tensor`] says; [`LoadError::Device`] if the KV pool cannot be mapped.
    pub fn load(
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        options: CpuOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<CpuRunner, LoadError> {
        let CpuOptions { num_blocks, kv_dtype, .. } = options;
        let kv = PagedKv::new(kv_shape(config), kv_dtype, num_blocks).map_err(|error| {
            LoadError::Device(format!("cannot map a KV pool of {num_blocks} blocks: {error}"))
        })?;
        let pool = Pool::new(options.threads);
        let weights = Weights::load(config, checkpoint, options.weights, &pool, progress)?;
        let positions = options.max_model_len as usize;
        let rows = options.max_batched_tokens as usize;
        Ok(CpuRunner {
            model: Model {
                weights,
                rope: RopeTable::new(&config.rope, config.head_dim, positions),
                interleaved: config.rope.interleaved,
                norm_eps: config.norm_eps,
            },
            workspace: Workspace::new(config, num_blocks, rows, pool.threads()),
            kv,
            pool,
            limits: limits(config, options),
        })
    }

    /// Bytes of one KV block with these settings.
    #[must_use]
    pub fn block_bytes(config: &ModelConfig, kv_dtype: KvDtype) -> u64 {
        PagedKv::block_bytes(kv_shape(config), kv_dtype)
    }
}

/// Fails if the logits of a step would take too much memory.
fn bound_logits(chunks: &[Chunk<'_>], limits: &RunnerLimits) -> Result<(), RunnerError> {
    let wanted = chunks.iter().map(|chunk| match chunk.logits {
        Logits::None => 0,
        Logits::Last => 1,
        Logits::All => chunk.tokens.len(),
    });
    let wanted: usize = wanted.sum();
    let row_bytes = limits.vocab_size as usize * size_of::<f32>();
    let most = (MAX_LOGITS_BYTES / row_bytes).max(limits.max_chunks as usize);
    if wanted > most {
        let problem = format!("logits of {wanted} rows, at most {most}: split the step");
        return Err(RunnerError::Step(problem));
    }
    Ok(())
}

fn kv_shape(config: &ModelConfig) -> KvShape {
    KvShape { layers: config.num_layers, kv_heads: config.num_kv_heads, head_dim: config.head_dim }
}

fn limits(config: &ModelConfig, options: CpuOptions) -> RunnerLimits {
    RunnerLimits {
        vocab_size: config.vocab_size as u32,
        max_model_len: options.max_model_len,
        block_size: PagedKv::BLOCK as u32,
        num_blocks: options.num_blocks,
        max_batched_tokens: options.max_batched_tokens,
        max_chunks: options.max_chunks,
    }
}

impl ModelRunner for CpuRunner {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn limits(&self) -> RunnerLimits {
        self.limits
    }

    fn run(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), RunnerError> {
        let checked = validate(chunks, &self.limits);
        let checked = checked.and_then(|()| bound_logits(chunks, &self.limits));
        checked.inspect_err(|_| logits.clear())?;
        self.model.forward(&self.pool, &mut self.kv, &mut self.workspace, chunks, logits);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_of_a_step_are_bounded_but_a_row_of_each_chunk_always_passes() {
        let limits = RunnerLimits {
            vocab_size: 1 << 20,
            max_model_len: 4096,
            block_size: 32,
            num_blocks: 999,
            max_batched_tokens: 4096,
            max_chunks: 100,
        };
        let chunk = |tokens, logits| Chunk { tokens, start: 0, blocks: &[], logits };
        let tokens = [0; 101];
        bound_logits(&[chunk(&tokens, Logits::Last); 100], &limits).unwrap();
        bound_logits(&[chunk(&tokens, Logits::None); 100], &limits).unwrap();
        bound_logits(&[chunk(&tokens[..100], Logits::All)], &limits).unwrap();
        let error = bound_logits(&[chunk(&tokens, Logits::All)], &limits).unwrap_err();
        assert!(error.to_string().contains("101 rows, at most 100"), "{error}");
    }
}
