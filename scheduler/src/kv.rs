//! KV blocks with reference counts.

use crate::request::SeqId;

/// One block of the KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct BlockId(pub u32);

/// There were not enough free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBlocks {
    /// Blocks that were missing.
    pub missing: u32,
}

/// The block tables of all sequences.
#[derive(Debug)]
pub struct KvBlocks {}

impl KvBlocks {
    /// A pool of `num_blocks` blocks of `block_size` tokens.
    #[must_use]
    pub fn new(num_blocks: u32, block_size: u32) -> KvBlocks {
        todo!()
    }
    /// Makes room for `tokens` tokens of `seq` in all.
    pub fn grow(&mut self, seq: SeqId, tokens: u32) -> Result<&[u32], OutOfBlocks> {
        todo!()
    }
    /// Gives back the blocks of `seq`; returns how many became free.
    pub fn release(&mut self, seq: SeqId) -> u32 {
        todo!()
    }
    /// The block table of `seq`, as raw block numbers (what runners take).
    #[must_use]
    pub fn table(&self, seq: SeqId) -> &[u32] {
        todo!()
    }
}
