//! KV blocks with reference counts.
//!
//! A block belongs to every table that lists it and is free again when the last of them lets go.
//! Invariant: free blocks + distinct blocks in tables = blocks in the pool.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::request::SeqId;

/// There were not enough free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBlocks {
    /// Blocks that were missing.
    pub missing: u32,
}

/// The block tables of all sequences.
#[derive(Debug)]
pub struct KvBlocks {
    block_size: u32,
    /// Free blocks, the next one to hand out last.
    free: Vec<u32>,
    /// How many tables list each block.
    refs: Vec<u32>,
    tables: BTreeMap<SeqId, Vec<u32>>,
}

impl KvBlocks {
    /// A pool of `num_blocks` blocks of `block_size` tokens.
    #[must_use]
    pub fn new(num_blocks: u32, block_size: u32) -> KvBlocks {
        assert!(block_size > 0, "a block holds at least one token");
        KvBlocks {
            block_size,
            free: (0..num_blocks).rev().collect(),
            refs: alloc::vec![0; num_blocks as usize],
            tables: BTreeMap::new(),
        }
    }

    /// Makes room for `tokens` tokens of `seq` in all, and returns its table.
    ///
    /// # Errors
    /// [`OutOfBlocks`] if the pool cannot give that many; the table is then unchanged.
    pub fn grow(&mut self, seq: SeqId, tokens: u32) -> Result<&[u32], OutOfBlocks> {
        let wanted = tokens.div_ceil(self.block_size) as usize;
        let more = wanted.saturating_sub(self.table(seq).len());
        if more > self.free.len() {
            return Err(OutOfBlocks { missing: (more - self.free.len()) as u32 });
        }
        let table = self.tables.entry(seq).or_default();
        for _ in 0..more {
            let block = self.free.pop().expect("counted above");
            self.refs[block as usize] = 1;
            table.push(block);
        }
        Ok(table)
    }

    /// Starts the table of `to`, which must have none, with the first `full_blocks` blocks of
    /// `from`. Both read them; neither may write to them again, so they must be full.
    pub fn share(&mut self, from: SeqId, to: SeqId, full_blocks: u32) {
        assert!(self.table(to).is_empty(), "only a new sequence can share");
        let shared = self.table(from)[..full_blocks as usize].to_vec();
        for block in &shared {
            self.refs[*block as usize] += 1;
        }
        if !shared.is_empty() {
            self.tables.insert(to, shared);
        }
    }

    /// Gives back the blocks of `seq`; returns how many became free.
    pub fn release(&mut self, seq: SeqId) -> u32 {
        let before = self.free.len();
        for block in self.tables.remove(&seq).unwrap_or_default().into_iter().rev() {
            let refs = &mut self.refs[block as usize];
            *refs -= 1;
            if *refs == 0 {
                self.free.push(block);
            }
        }
        (self.free.len() - before) as u32
    }

    /// The block table of `seq`, as raw block numbers (what runners take). Empty if it has none.
    #[must_use]
    pub fn table(&self, seq: SeqId) -> &[u32] {
        self.tables.get(&seq).map_or(&[], Vec::as_slice)
    }

    /// Free blocks.
    #[must_use]
    pub fn num_free(&self) -> u32 {
        self.free.len() as u32
    }

    /// All blocks.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.refs.len() as u32
    }
}
