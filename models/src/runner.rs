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

/// Checks a batch against the limits, so that a runner may index without looking: as many chunks
/// and rows as allowed, no chunk without tokens, every token in the vocabulary, every position
/// within the longest sequence and covered by a block of the pool.
///
/// # Errors
/// [`RunnerError::Step`] with the chunk and what is wrong with it. Nothing has been written then.
pub fn validate(chunks: &[Chunk<'_>], limits: &RunnerLimits) -> Result<(), RunnerError> {
    if chunks.len() > limits.max_chunks as usize {
        let problem = format!("{} chunks, at most {}", chunks.len(), limits.max_chunks);
        return Err(RunnerError::Step(problem));
    }
    let mut rows = 0;
    for (index, chunk) in chunks.iter().enumerate() {
        validate_chunk(chunk, limits)
            .map_err(|problem| RunnerError::Step(format!("chunk {index}: {problem}")))?;
        rows += chunk.tokens.len();
    }
    if rows > limits.max_batched_tokens as usize {
        let problem = format!("{rows} rows, at most {}", limits.max_batched_tokens);
        return Err(RunnerError::Step(problem));
    }
    Ok(())
}

fn validate_chunk(chunk: &Chunk<'_>, limits: &RunnerLimits) -> Result<(), String> {
    if chunk.tokens.is_empty() {
        return Err("no tokens".into());
    }
    if let Some(token) = chunk.tokens.iter().find(|&&token| token >= limits.vocab_size) {
        return Err(format!("token {token}, the vocabulary has {}", limits.vocab_size));
    }
    let end = chunk.start as usize + chunk.tokens.len();
    if end > limits.max_model_len as usize {
        return Err(format!("position {}, at most {}", end - 1, limits.max_model_len - 1));
    }
    let needed = end.div_ceil(limits.block_size as usize);
    let Some(blocks) = chunk.blocks.get(..needed) else {
        return Err(format!("{} blocks for {end} positions, {needed} needed", chunk.blocks.len()));
    };
    match blocks.iter().find(|&&block| block >= limits.num_blocks) {
        Some(block) => Err(format!("block {block}, the pool has {}", limits.num_blocks)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RunnerLimits = RunnerLimits {
        vocab_size: 10,
        max_model_len: 70,
        block_size: 32,
        num_blocks: 4,
        max_batched_tokens: 40,
        max_chunks: 2,
    };
    const GOOD: Chunk<'static> =
        Chunk { tokens: &[9, 0], start: 62, blocks: &[3, 0], logits: Logits::Last };

    #[test]
    fn a_batch_within_the_limits_passes() {
        validate(&[GOOD, GOOD], &LIMITS).unwrap();
        validate(&[], &LIMITS).unwrap();
    }

    #[test]
    fn each_violation_is_named() {
        let refused = |chunk, word: &str| {
            let error = validate(&[GOOD, chunk], &LIMITS).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        refused(Chunk { tokens: &[], ..GOOD }, "chunk 1: no tokens");
        refused(Chunk { tokens: &[10], ..GOOD }, "token 10");
        refused(Chunk { start: 69, blocks: &[0, 1, 2], ..GOOD }, "position 70, at most 69");
        refused(Chunk { start: u32::MAX, ..GOOD }, "position 4294967296");
        refused(Chunk { start: 63, ..GOOD }, "3 needed");
        refused(Chunk { blocks: &[0, 4], ..GOOD }, "block 4");
        refused(Chunk { tokens: &[1; 39], start: 0, ..GOOD }, "41 rows");
        let error = validate(&[GOOD; 3], &LIMITS).unwrap_err().to_string();
        assert!(error.contains("3 chunks"), "{error}");
    }
}
