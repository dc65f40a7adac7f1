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
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::request::RequestId;

    const BLOCKS: u32 = 12;
    const SIZE: u32 = 4;

    #[derive(Clone, Debug)]
    enum Op {
        Grow(u64, u32),
        Share(u64, u64),
        Release(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..5u64, 0..40u32).prop_map(|(id, tokens)| Op::Grow(id, tokens)),
            (0..5u64, 0..5u64).prop_map(|(from, to)| Op::Share(from, to)),
            (0..5u64).prop_map(Op::Release),
        ]
    }

    fn seq(id: u64) -> SeqId {
        SeqId { request: RequestId(id), index: 0 }
    }

    /// The naive model: tables as they should be; a block is free if no table lists it.
    #[derive(Default)]
    struct Model(BTreeMap<u64, Vec<u32>>);

    impl Model {
        fn used(&self) -> BTreeSet<u32> {
            self.0.values().flatten().copied().collect()
        }

        fn free(&self) -> u32 {
            BLOCKS - self.used().len() as u32
        }

        fn apply(&mut self, kv: &mut KvBlocks, op: &Op) {
            match *op {
                Op::Grow(id, tokens) => self.grow(kv, id, tokens),
                Op::Share(from, to) => {
                    let shared = self.0.get(&from).cloned().unwrap_or_default();
                    if !self.0.contains_key(&to) && !shared.is_empty() {
                        kv.share(seq(from), seq(to), shared.len() as u32);
                        self.0.insert(to, shared);
                    }
                }
                Op::Release(id) => {
                    let before = self.free();
                    self.0.remove(&id);
                    assert_eq!(kv.release(seq(id)), self.free() - before);
                }
            }
        }

        fn grow(&mut self, kv: &mut KvBlocks, id: u64, tokens: u32) {
            let held = self.0.get(&id).map_or(0, Vec::len) as u32;
            let more = tokens.div_ceil(SIZE).saturating_sub(held);
            let free = self.free();
            match kv.grow(seq(id), tokens) {
                Ok(table) => {
                    assert!(more <= free);
                    let added: BTreeSet<u32> = table[held as usize..].iter().copied().collect();
                    assert_eq!(added.len() as u32, more);
                    assert!(added.is_disjoint(&self.used()), "handed out a block in use");
                    if !table.is_empty() {
                        self.0.insert(id, table.to_vec());
                    }
                }
                Err(OutOfBlocks { missing }) => assert_eq!(missing, more - free),
            }
        }
    }

    proptest! {
        #[test]
        fn blocks_are_conserved(ops in prop::collection::vec(op(), 1..80)) {
            let (mut kv, mut model) = (KvBlocks::new(BLOCKS, SIZE), Model::default());
            for op in &ops {
                model.apply(&mut kv, op);
                prop_assert_eq!(kv.num_free(), model.free());
                for id in 0..5 {
                    let expected = model.0.get(&id).map_or(&[][..], Vec::as_slice);
                    prop_assert_eq!(kv.table(seq(id)), expected);
                }
            }
            for id in 0..5 {
                kv.release(seq(id));
            }
            prop_assert_eq!(kv.num_free(), kv.num_blocks());
        }
    }
}
