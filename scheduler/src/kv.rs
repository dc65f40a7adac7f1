//! KV blocks with reference counts, and what is left in those that nobody uses.
//!
//! A block belongs to every table that lists it. When the last of them lets go it is free again; if
//! its content is known it is parked, and may be taken out again by who needs that content, until
//! the room is needed for others. What was parked first goes first, and of one table the deepest
//! block is parked first, so that no block outlives one before it.
//! Invariant: free blocks + parked blocks + distinct blocks in tables = blocks in the pool.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::prefix::{BlockHash, CacheChanges, Chain, NamedBlocks, leading};
use crate::request::SeqId;

/// There were not enough free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBlocks {
    /// Blocks that were missing.
    pub missing: u32,
}

/// The block tables of all sequences.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KvBlocks {
    block_size: u32,
    /// Free blocks with nothing in them, the next one to hand out last.
    free: Vec<u32>,
    /// How many tables list each block.
    refs: Vec<u32>,
    tables: BTreeMap<SeqId, Vec<u32>>,
    named: NamedBlocks,
}

/// The first blocks of a sequence that are cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) blocks: u32,
    /// How many of them somebody uses: the others take room of the pool when they are used again.
    pub(crate) in_use: u32,
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
            named: NamedBlocks::new(num_blocks),
        }
    }

    /// Makes room for `tokens` tokens of `seq` in all, and returns its table. Blocks with nothing
    /// in them are taken before those that are parked.
    ///
    /// # Errors
    /// [`OutOfBlocks`] if the pool cannot give that many; the table is then unchanged.
    pub fn grow(&mut self, seq: SeqId, tokens: u32) -> Result<&[u32], OutOfBlocks> {
        let wanted = tokens.div_ceil(self.block_size) as usize;
        let more = wanted.saturating_sub(self.table(seq).len());
        if more > self.num_free() as usize {
            return Err(OutOfBlocks { missing: more as u32 - self.num_free() });
        }
        let table = self.tables.entry(seq).or_default();
        for _ in 0..more {
            let block = self.free.pop().or_else(|| self.named.evict()).expect("counted above");
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

    /// The first of at most `most` blocks of `chain` that are cached.
    pub(crate) fn find(&self, chain: &Chain, most: u32) -> Hit {
        let block = |i: usize| chain.get(i).and_then(|hash| self.named.get(hash));
        let blocks = leading(chain.len().min(most as usize), |i| block(i).is_some());
        let used = |block: u32| self.refs[block as usize] > 0;
        // Whoever uses a block uses those before it.
        let in_use = leading(blocks, |i| block(i).is_some_and(used));
        Hit { blocks: blocks as u32, in_use: in_use as u32 }
    }

    /// Whether of at most `most` blocks of `chain` the first `blocks` are cached and no more: with
    /// two lookups.
    pub(crate) fn ends_at(&self, chain: &Chain, most: u32, blocks: u32) -> bool {
        let most = chain.len().min(most as usize);
        let cached = |i: usize| chain.get(i).is_some_and(|hash| self.named.get(hash).is_some());
        let blocks = blocks as usize;
        blocks <= most && (blocks == 0 || cached(blocks - 1)) && (blocks == most || !cached(blocks))
    }

    /// Starts the table of `seq`, which must have none, with the first of at most `most` blocks of
    /// `chain` that are cached; returns how many. They are full: nobody writes to them.
    pub(crate) fn reuse(&mut self, seq: SeqId, chain: &Chain, most: u32) -> u32 {
        assert!(self.table(seq).is_empty(), "only a new sequence starts from the cache");
        let hit = self.find(chain, most).blocks;
        let block = |i: u32| chain.get(i as usize).and_then(|hash| self.named.get(hash));
        let table: Vec<u32> = (0..hit).filter_map(block).collect();
        for block in &table {
            self.hold(*block);
        }
        if !table.is_empty() {
            self.tables.insert(seq, table);
        }
        hit
    }

    /// Block `i` of `seq` is full, computed and known by `hash`: others may use it from now on. If
    /// another block has this content already, that one takes its place. Nothing happens if it is
    /// known already, if the block before it is not, or if it is shared: who shares it may not hold
    /// the block that is known before it.
    pub(crate) fn name(&mut self, seq: SeqId, i: u32, hash: BlockHash) {
        let i = i as usize;
        let named = |i: usize| self.table(seq).get(i).map(|block| self.named.is_named(*block));
        if named(i) != Some(false) || (i > 0 && named(i - 1) != Some(true)) {
            return;
        }
        let own = self.table(seq)[i];
        let Some(other) = self.named.get(&hash) else {
            if self.refs[own as usize] == 1 {
                self.named.name(own, hash);
            }
            return;
        };
        self.hold(other);
        if let Some(place) = self.tables.get_mut(&seq).and_then(|table| table.get_mut(i)) {
            *place = other;
        }
        self.let_go(own);
    }

    /// One table more lists `block`.
    fn hold(&mut self, block: u32) {
        let refs = &mut self.refs[block as usize];
        *refs += 1;
        if *refs == 1 {
            self.named.unpark(block);
        }
    }

    /// One table less does.
    fn let_go(&mut self, block: u32) {
        let refs = &mut self.refs[block as usize];
        *refs -= 1;
        if *refs == 0 && !self.named.park(block) {
            self.free.push(block);
        }
    }

    /// Gives back the blocks of `seq`; returns how many became free. Those whose content is known
    /// keep it for a while.
    pub fn release(&mut self, seq: SeqId) -> u32 {
        let before = self.num_free();
        for block in self.tables.remove(&seq).unwrap_or_default().into_iter().rev() {
            self.let_go(block);
        }
        self.num_free() - before
    }

    /// The first blocks of `seq` that others use as well.
    pub(crate) fn num_shared(&self, seq: SeqId) -> u32 {
        let table = self.table(seq);
        leading(table.len(), |i| self.refs[table[i] as usize] > 1) as u32
    }

    /// The block table of `seq`, as raw block numbers (what runners take). Empty if it has none.
    #[must_use]
    pub fn table(&self, seq: SeqId) -> &[u32] {
        self.tables.get(&seq).map_or(&[], Vec::as_slice)
    }

    /// Free blocks, parked ones included.
    #[must_use]
    pub fn num_free(&self) -> u32 {
        self.free.len() as u32 + self.num_parked()
    }

    /// Free blocks whose content is kept until the room is needed.
    #[must_use]
    pub fn num_parked(&self) -> u32 {
        self.named.num_parked()
    }

    /// Contents that came into the cache or went since this was asked last.
    pub(crate) fn take_changes(&mut self) -> CacheChanges {
        self.named.take_changes()
    }

    /// All blocks.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.refs.len() as u32
    }
}

#[cfg(test)]
mod tests;
