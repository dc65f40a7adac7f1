//! The `candle` runner: candle tensors on any device; on CPU the slow f32 reference.

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::runner::{Chunk, ModelRunner, RunnerError, RunnerLimits};

/// The `candle` runner.
#[allow(missing_debug_implementations)]
pub struct CandleRunner {}

impl CandleRunner {
    /// Loads the weights as f32 tensors. `limits` carries the pool's size and the batch bounds.
    ///
    /// # Errors
    /// What [`Checkpoint::tensor`] says, or candle's own error in one line.
    pub fn load(
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        limits: RunnerLimits,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<CandleRunner, LoadError> {
        todo!()
    }
}

impl ModelRunner for CandleRunner {
    fn name(&self) -> &'static str {
        "candle"
    }
    fn limits(&self) -> RunnerLimits {
        todo!()
    }
    fn run(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), RunnerError> {
        todo!()
    }
}
