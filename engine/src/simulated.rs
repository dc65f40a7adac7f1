//! The `simulated` runner: takes the time that a cost model says, with seeded noise, and makes
//! tokens up from a seed.

use models::{Chunk, ModelRunner, RunnerError, RunnerLimits};
use scheduler::CostModel;

/// Settings of the simulated runner.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedOptions {
    /// What a step takes.
    pub cost: CostModel,
    /// Standard deviation of the noise on each step, per mille.
    pub noise_permille: u32,
    /// Seed of noise and tokens.
    pub seed: u64,
    /// Sizes and bounds.
    pub limits: RunnerLimits,
}

/// The simulated runner.
#[derive(Debug)]
pub struct SimulatedRunner {}

impl SimulatedRunner {
    /// A runner with these settings.
    #[must_use]
    pub fn new(options: SimulatedOptions) -> SimulatedRunner {
        todo!()
    }
}

impl ModelRunner for SimulatedRunner {
    fn name(&self) -> &'static str {
        "simulated"
    }
    fn limits(&self) -> RunnerLimits {
        todo!()
    }
    fn run(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), RunnerError> {
        todo!()
    }
}
