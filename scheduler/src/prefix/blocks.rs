//! Which block has which content, and in which order those that nobody uses are given up.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::BlockHash;
use super::index::CacheChanges;

/// The blocks whose content is known. One that no table lists is *parked*: it keeps its content
/// until the room is needed, and those parked first go first.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct NamedBlocks {
    by_hash: BTreeMap<BlockHash, u32>,
    /// Of each block of the pool.
    hashes: Vec<Option<BlockHash>>,
    /// Parked blocks in the order in which they were parked.
    parked: BTreeMap<u64, u32>,
    /// The place in that order of each block that is parked.
    places: Vec<u64>,
    next_place: u64,
    changes: CacheChanges,
}

impl NamedBlocks {
    pub(crate) fn new(num_blocks: u32) -> NamedBlocks {
        NamedBlocks {
            by_hash: BTreeMap::new(),
            hashes: alloc::vec![None; num_blocks as usize],
            parked: BTreeMap::new(),
            places: alloc::vec![0; num_blocks as usize],
            next_place: 0,
            changes: CacheChanges::default(),
        }
    }

    /// The block with this content.
    pub(crate) fn get(&self, hash: &BlockHash) -> Option<u32> {
        self.by_hash.get(hash).copied()
    }

    /// The content of a block is known.
    pub(crate) fn is_named(&self, block: u32) -> bool {
        self.hashes[block as usize].is_some()
    }

    /// The content of `block`, which had no name, is `hash`, which no other block is known by.
    pub(crate) fn name(&mut self, block: u32, hash: BlockHash) {
        let other = self.by_hash.insert(hash, block);
        assert!(other.is_none(), "a content has one block");
        self.hashes[block as usize] = Some(hash);
        self.changes.add(hash);
    }

    /// Nobody lists `block` any more. Returns whether it is kept: its content is known.
    pub(crate) fn park(&mut self, block: u32) -> bool {
        let named = self.is_named(block);
        if named {
            self.next_place += 1;
            self.places[block as usize] = self.next_place;
            self.parked.insert(self.next_place, block);
        }
        named
    }

    /// Somebody lists a parked block again.
    pub(crate) fn unpark(&mut self, block: u32) {
        let found = self.parked.remove(&self.places[block as usize]);
        assert_eq!(found, Some(block), "a named block that nobody lists is parked");
    }

    /// Gives up the block that was parked first.
    pub(crate) fn evict(&mut self) -> Option<u32> {
        let (_, block) = self.parked.pop_first()?;
        if let Some(hash) = self.hashes[block as usize].take() {
            self.by_hash.remove(&hash);
            self.changes.remove(hash);
        }
        Some(block)
    }

    /// Blocks that are parked.
    pub(crate) fn num_parked(&self) -> u32 {
        self.parked.len() as u32
    }

    /// What has changed since this was asked last.
    pub(crate) fn take_changes(&mut self) -> CacheChanges {
        core::mem::take(&mut self.changes)
    }
}
