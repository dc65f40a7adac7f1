//! What the full blocks of one sequence are known by.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{BlockHash, leading};

/// Hashes of the prompt, which n choices share, and of what was generated. Counted apart from the
/// 256 bytes of a waiting request: 16 bytes a block, and about 64 a sequence.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Chain {
    prompt: Arc<[BlockHash]>,
    written: Vec<BlockHash>,
}

impl Chain {
    pub(crate) const fn new(prompt: Arc<[BlockHash]>) -> Chain {
        Chain { prompt, written: Vec::new() }
    }

    /// The next full block is known by `hash`.
    pub(crate) fn push(&mut self, hash: BlockHash) {
        self.written.push(hash);
    }

    /// Full blocks that are known.
    pub(crate) fn len(&self) -> usize {
        self.prompt.len() + self.written.len()
    }

    /// What block number `i` of the sequence is known by.
    pub(crate) fn get(&self, i: usize) -> Option<&BlockHash> {
        self.prompt.get(i).or_else(|| self.written.get(i - self.prompt.len()))
    }

    /// Of the first `most` blocks, those that `other` has as well.
    pub(crate) fn common(&self, other: &Chain, most: usize) -> usize {
        let len = most.min(self.len()).min(other.len());
        leading(len, |i| self.get(i) == other.get(i))
    }
}
