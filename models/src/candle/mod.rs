//! The `candle` runner: the whole forward pass as candle tensors in f32, on any device.
//!
//! It is written to be read: dense layers see one tensor with a row per token of the step, whatever
//! sequence the row belongs to, and only attention looks at each sequence by itself. On a CPU it is
//! the slow reference that faster runners are compared with.

mod batch;
mod forward;
mod kv;
mod weights;

use candle_core::{Device, Error, Result, Tensor};

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::rope::RopeTable;
use crate::runner::{Chunk, ModelRunner, RunnerError, RunnerLimits, validate};
use batch::Batch;
use kv::KvPool;
use weights::Weights;

/// The `candle` runner.
#[derive(Debug)]
pub struct CandleRunner {
    device: Device,
    config: ModelConfig,
    limits: RunnerLimits,
    weights: Weights,
    rope: Rotary,
    /// One pool per layer.
    pools: Vec<KvPool>,
}

/// Cosines and sines on the device, `[max_model_len, head_dim / 2]` each.
#[derive(Debug)]
struct Rotary {
    cos: Tensor,
    sin: Tensor,
}

impl CandleRunner {
    /// Loads the weights as f32 tensors on the CPU and allocates the KV pool. `limits` carries the
    /// pool's size and the batch bounds; its `vocab_size` is replaced by the model's. `progress` is
    /// called with (layers done, layers in all).
    ///
    /// # Errors
    /// What [`Checkpoint::tensor`] says, or candle's own error in one line.
    pub fn load(
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        limits: RunnerLimits,
        progress: &mut dyn FnMut(usize, usize),
    ) -> std::result::Result<CandleRunner, LoadError> {
        let device = Device::Cpu;
        let weights = Weights::load(config, checkpoint, &device, progress)?;
        let limits = RunnerLimits { vocab_size: config.vocab_size as u32, ..limits };
        let rope = Rotary::new(config, limits.max_model_len as usize, &device)?;
        let pools = (0..config.num_layers)
            .map(|_| KvPool::new(config, &limits, &device))
            .collect::<Result<_>>()?;
        Ok(CandleRunner { rope, pools, config: config.clone(), device, limits, weights })
    }
}

impl ModelRunner for CandleRunner {
    fn name(&self) -> &'static str {
        "candle"
    }

    fn limits(&self) -> RunnerLimits {
        self.limits
    }

    fn run(
        &mut self,
        chunks: &[Chunk<'_>],
        logits: &mut Vec<f32>,
    ) -> std::result::Result<(), RunnerError> {
        logits.clear();
        validate(chunks, &self.limits)?;
        if chunks.is_empty() {
            return Ok(());
        }
        let step = Batch::new(chunks, &self.limits, &self.device)
            .and_then(|batch| self.forward(&batch))
            .map_err(|error| RunnerError::Step(one_line(&error)))?;
        logits.extend(step);
        Ok(())
    }
}

impl Rotary {
    fn new(config: &ModelConfig, positions: usize, device: &Device) -> Result<Rotary> {
        let table = RopeTable::new(&config.rope, config.head_dim, positions);
        let shape = (positions, table.half);
        Ok(Rotary {
            cos: Tensor::from_vec(table.cos, shape, device)?,
            sin: Tensor::from_vec(table.sin, shape, device)?,
        })
    }
}

impl From<Error> for LoadError {
    fn from(error: Error) -> LoadError {
        LoadError::Device(one_line(&error))
    }
}

/// The message without the backtrace that candle prints after it.
fn one_line(error: &Error) -> String {
    match error {
        Error::WithBacktrace { inner, .. } => one_line(inner),
        Error::Context { inner, context } => format!("{context}: {}", one_line(inner)),
        other => other.to_string().lines().next().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_without_its_backtrace() {
        let matrix = Tensor::zeros((2, 3), candle_core::DType::F32, &Device::Cpu).unwrap();
        let line = one_line(&matrix.matmul(&matrix).unwrap_err().context("layer 1"));
        assert!(line.starts_with("layer 1: shape mismatch in matmul"), "{line}");
        assert!(!line.contains('\n'), "{line}");
    }
}
