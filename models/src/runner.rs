//! The port between the engine and whatever computes: a ragged batch in, logits of chosen rows out.

/// Which rows of a chunk are wanted as logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// None: a prefill chunk that does not reach the end of the prompt.
    None,
    /// The last row: a next token is sampled from it.
    Last,
    /// Every row: scoring, and the numerics tests.
    All,
}

/// The tokens of one sequence in one step.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Token ids, at least one.
    pub tokens: &'a [u32],
    /// Position of the first of them; everything before is already in the KV pool.
    pub start: u32,
    /// The sequence's block table: block `p / block_size` holds position `p`. Covers all positions
    /// up to the end of this chunk.
    pub blocks: &'a [u32],
    /// Which rows are wanted.
    pub logits: Logits,
}

/// What a runner can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerLimits {
    /// Entries of one row of logits.
    pub vocab_size: u32,
    /// Longest sequence in tokens.
    pub max_model_len: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks in the pool.
    pub num_blocks: u32,
    /// Most rows (tokens) in one call.
    pub max_batched_tokens: u32,
    /// Most chunks in one call.
    pub max_chunks: u32,
}

/// Why a step did not run.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// This step failed; the device lives and the next step may run.
    #[error("step failed: {0}")]
    Step(String),
    /// The device is gone; the engine must stop.
    #[error("device lost: {0}")]
    DeviceLost(String),
}

/// Runs steps. Owned by the engine thread; the KV pool is inside, addressed by block numbers that
/// the scheduler hands out.
pub trait ModelRunner: Send {
    /// A name for logs and metrics (`cpu`, `candle`, `simulated`).
    fn name(&self) -> &'static str;

    /// What it can take.
    fn limits(&self) -> RunnerLimits;

    /// Computes all chunks: writes their keys and values, and appends the wanted rows of logits to
    /// `logits` (cleared first), `vocab_size` values each, in the order of the chunks.
    ///
    /// # Errors
    /// [`RunnerError::Step`] leaves the KV contents of these chunks undefined, nothing else.
    fn run(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), RunnerError>;
}
