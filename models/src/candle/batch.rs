//! A ragged batch as index tensors: what the forward pass needs to know of its chunks.

use candle_core::{Device, Result, Tensor};

use crate::runner::{Chunk, Logits, RunnerLimits};

/// All rows of a step, one per token, in the order of the chunks.
#[derive(Debug)]
pub(super) struct Batch {
    /// `[rows]` token ids.
    pub(super) tokens: Tensor,
    /// `[rows]` positions in their sequences.
    pub(super) positions: Tensor,
    /// `[rows]` slots of the KV pool that the rows write: block times block size plus offset.
    pub(super) slots: Tensor,
    /// `[wanted]` rows whose logits are wanted; none if no chunk wants any.
    pub(super) wanted: Option<Tensor>,
    /// The rows by sequence.
    pub(super) spans: Vec<Span>,
}

/// The rows of one sequence and what they attend to.
#[derive(Debug)]
pub(super) struct Span {
    /// First row.
    pub(super) row: usize,
    /// Rows.
    pub(super) len: usize,
    /// Positions up to and with the last row: all keys that the last row sees.
    pub(super) context: usize,
    /// `[blocks]` block numbers that hold the context.
    pub(super) blocks: Tensor,
}

impl Batch {
    /// Flattens chunks that [`crate::validate`] has passed.
    pub(super) fn new(
        chunks: &[Chunk<'_>],
        limits: &RunnerLimits,
        device: &Device,
    ) -> Result<Batch> {
        let mut rows = Rows::default();
        let mut spans = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let (row, len) = (rows.tokens.len(), chunk.tokens.len());
            let context = chunk.start as usize + len;
            let blocks = &chunk.blocks[..context.div_ceil(limits.block_size as usize)];
            spans.push(Span { row, len, context, blocks: Tensor::new(blocks, device)? });
            rows.push(chunk, limits.block_size);
        }
        let wanted = match rows.wanted.is_empty() {
            true => None,
            false => Some(Tensor::new(rows.wanted, device)?),
        };
        Ok(Batch {
            tokens: Tensor::new(rows.tokens, device)?,
            positions: Tensor::new(rows.positions, device)?,
            slots: Tensor::new(rows.slots, device)?,
            wanted,
            spans,
        })
    }
}

/// The rows on the host, before they become tensors.
#[derive(Default)]
struct Rows {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    wanted: Vec<u32>,
}

impl Rows {
    fn push(&mut self, chunk: &Chunk<'_>, block_size: u32) {
        let first = self.tokens.len() as u32;
        self.tokens.extend(chunk.tokens);
        let rows = self.tokens.len() as u32;
        for position in (chunk.start..).take(chunk.tokens.len()) {
            let block = chunk.blocks[(position / block_size) as usize];
            self.positions.push(position);
            self.slots.push(block * block_size + position % block_size);
        }
        match chunk.logits {
            Logits::None => {}
            Logits::Last => self.wanted.push(rows - 1),
            Logits::All => self.wanted.extend(first..rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_positions_and_slots_follow_the_block_tables() {
        let limits = RunnerLimits {
            vocab_size: 100,
            max_model_len: 100,
            block_size: 4,
            num_blocks: 8,
            max_batched_tokens: 100,
            max_chunks: 3,
        };
        let decode = Chunk { tokens: &[7], start: 5, blocks: &[6, 2, 5], logits: Logits::Last };
        let prefill = Chunk { tokens: &[1, 2, 3], start: 3, blocks: &[0, 7], logits: Logits::None };
        let scored = Chunk { tokens: &[4, 5], start: 0, blocks: &[1], logits: Logits::All };
        let batch = Batch::new(&[decode, prefill, scored], &limits, &Device::Cpu).unwrap();
        let values = |tensor: &Tensor| tensor.to_vec1::<u32>().unwrap();
        assert_eq!(values(&batch.tokens), [7, 1, 2, 3, 4, 5]);
        assert_eq!(values(&batch.positions), [5, 3, 4, 5, 0, 1]);
        assert_eq!(values(&batch.slots), [9, 3, 28, 29, 4, 5]);
        assert_eq!(values(&batch.wanted.unwrap()), [0, 4, 5]);
        let spans: Vec<_> = batch.spans.iter().map(|s| (s.row, s.len, s.context)).collect();
        assert_eq!(spans, [(0, 1, 6), (1, 3, 6), (4, 2, 2)]);
        assert_eq!(values(&batch.spans[0].blocks), [6, 2]);
    }
}
