//! Tables, references and the cache against a naive model.

use alloc::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::prefix::CachedPrefixes;
use crate::request::RequestId;

const BLOCKS: u32 = 12;
const SIZE: u32 = 4;

/// Blocks of the longest content.
const DEPTH: u8 = 8;

#[derive(Clone, Debug)]
enum Op {
    /// A sequence with this content starts from the cache.
    Start(u64, u8),
    Grow(u64, u32),
    Share(u64, u64),
    /// The first so many blocks of a sequence are computed.
    Fill(u64, u32),
    Release(u64),
    /// The gate asks what has changed.
    Ask,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..5u64, 0..4u8).prop_map(|(id, content)| Op::Start(id, content)),
        4 => (0..5u64, 0..40u32).prop_map(|(id, tokens)| Op::Grow(id, tokens)),
        1 => (0..5u64, 0..5u64).prop_map(|(from, to)| Op::Share(from, to)),
        4 => (0..5u64, 0..9u32).prop_map(|(id, blocks)| Op::Fill(id, blocks)),
        3 => (0..5u64).prop_map(Op::Release),
        1 => Just(Op::Ask),
    ]
}

fn seq(id: u64) -> SeqId {
    SeqId { request: RequestId(id), index: 0 }
}

/// Block `depth` of a content. Contents 0 and 1 begin alike, for two blocks, and so do 2 and 3.
fn hash(content: u8, depth: u8) -> BlockHash {
    let family = content / 2;
    let member = if depth < 2 { 0 } else { content % 2 + 1 };
    let mut bytes = [0; 16];
    bytes[..3].copy_from_slice(&[family, member, depth]);
    BlockHash(bytes)
}

fn chain(content: u8) -> Chain {
    Chain::new((0..DEPTH).map(|depth| hash(content, depth)).collect())
}

/// Tables as they should be, what is known of blocks, and the order in which unused ones go.
#[derive(Default)]
struct Model {
    tables: BTreeMap<u64, Vec<u32>>,
    contents: BTreeMap<u64, u8>,
    names: BTreeMap<u32, BlockHash>,
    parked: Vec<u32>,
    gate: CachedPrefixes,
}

impl Model {
    fn used(&self) -> BTreeSet<u32> {
        self.tables.values().flatten().copied().collect()
    }

    fn free(&self) -> u32 {
        BLOCKS - self.used().len() as u32
    }

    fn block(&self, hash: BlockHash) -> Option<u32> {
        self.names.iter().find(|(_, name)| **name == hash).map(|(block, _)| *block)
    }

    fn apply(&mut self, kv: &mut KvBlocks, op: &Op) {
        match *op {
            Op::Start(id, content) => self.start(kv, id, content),
            Op::Grow(id, tokens) => self.grow(kv, id, tokens),
            Op::Share(from, to) => {
                let shared = self.tables.get(&from).cloned().unwrap_or_default();
                if !self.tables.contains_key(&to) && !shared.is_empty() {
                    kv.share(seq(from), seq(to), shared.len() as u32);
                    self.tables.insert(to, shared);
                    self.contents.insert(to, self.contents[&from]);
                }
            }
            Op::Fill(id, blocks) => self.fill(kv, id, blocks),
            Op::Release(id) => self.release(kv, id),
            Op::Ask => self.gate.update(kv.take_changes()),
        }
    }

    fn start(&mut self, kv: &mut KvBlocks, id: u64, content: u8) {
        if self.tables.contains_key(&id) {
            return;
        }
        let cached = (0..DEPTH).map_while(|depth| self.block(hash(content, depth)));
        let table: Vec<u32> = cached.collect();
        let in_use = table.iter().filter(|block| self.used().contains(block)).count() as u32;
        let hit = Hit { blocks: table.len() as u32, in_use };
        assert_eq!(kv.find(&chain(content), DEPTH.into()), hit);
        for blocks in 0..=DEPTH.into() {
            let ends = kv.ends_at(&chain(content), DEPTH.into(), blocks);
            assert_eq!(ends, blocks == hit.blocks);
        }
        assert_eq!(kv.reuse(seq(id), &chain(content), DEPTH.into()), hit.blocks);
        self.parked.retain(|block| !table.contains(block));
        self.contents.insert(id, content);
        if !table.is_empty() {
            self.tables.insert(id, table);
        }
    }

    fn grow(&mut self, kv: &mut KvBlocks, id: u64, tokens: u32) {
        let held = self.tables.get(&id).map_or(0, Vec::len);
        let more = tokens.div_ceil(SIZE).saturating_sub(held as u32);
        match kv.grow(seq(id), tokens) {
            Ok(table) => {
                assert!(more <= self.free());
                assert_eq!(table.len() as u32, held as u32 + more);
                let table = table.to_vec();
                for block in &table[held..] {
                    self.take(*block);
                }
                self.contents.entry(id).or_insert(0);
                if !table.is_empty() {
                    self.tables.insert(id, table);
                }
            }
            Err(OutOfBlocks { missing }) => assert_eq!(missing, more - self.free()),
        }
    }

    /// A block that was handed out: an empty one if there is one, else what was parked first.
    fn take(&mut self, block: u32) {
        let used = self.used();
        assert!(!used.contains(&block), "handed out a block in use");
        if used.len() + self.parked.len() < BLOCKS as usize {
            assert!(!self.parked.contains(&block), "an empty one was there");
        } else {
            assert_eq!(self.parked.remove(0), block, "the oldest goes first");
            self.names.remove(&block);
        }
        // Not in a table yet, but not to be handed out twice either.
        self.tables.entry(u64::MAX).or_default().push(block);
    }

    fn fill(&mut self, kv: &mut KvBlocks, id: u64, blocks: u32) {
        let Some(content) = self.contents.get(&id).copied() else { return };
        for depth in 0..blocks.min(DEPTH.into()) {
            let name = hash(content, depth as u8);
            kv.name(seq(id), depth, name);
            let Some(own) = self.tables.get(&id).and_then(|table| table.get(depth as usize)) else {
                return;
            };
            if self.names.contains_key(own) {
                continue;
            }
            match self.block(name) {
                None => {
                    let lists = |table: &&Vec<u32>| table.contains(own);
                    if self.tables.values().filter(lists).count() > 1 {
                        return;
                    }
                    self.names.insert(*own, name);
                }
                Some(other) => {
                    self.tables.get_mut(&id).unwrap()[depth as usize] = other;
                    self.parked.retain(|block| *block != other);
                }
            }
        }
    }

    fn release(&mut self, kv: &mut KvBlocks, id: u64) {
        let before = self.free();
        let table = self.tables.remove(&id).unwrap_or_default();
        let used = self.used();
        for block in table.iter().rev() {
            if !used.contains(block) && self.names.contains_key(block) {
                self.parked.push(*block);
            }
        }
        self.contents.remove(&id);
        assert_eq!(kv.release(seq(id)), self.free() - before);
    }

    fn check(&mut self, kv: &KvBlocks) {
        self.tables.remove(&u64::MAX);
        assert_eq!((kv.num_free(), kv.num_parked()), (self.free(), self.parked.len() as u32));
        for id in 0..5 {
            let expected = self.tables.get(&id).map_or(&[][..], Vec::as_slice);
            assert_eq!(kv.table(seq(id)), expected);
        }
        for name in self.names.values() {
            let [family, member, depth, ..] = name.0;
            let content = family * 2 + member.saturating_sub(1);
            let before = depth.checked_sub(1).map(|depth| hash(content, depth));
            assert!(before.is_none_or(|before| self.block(before).is_some()), "an orphan");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn blocks_are_conserved_and_found_by_their_content(
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let (mut kv, mut model) = (KvBlocks::new(BLOCKS, SIZE), Model::default());
        for op in &ops {
            model.apply(&mut kv, op);
            model.check(&kv);
        }
        for id in 0..5 {
            model.release(&mut kv, id);
        }
        prop_assert_eq!(kv.num_free(), kv.num_blocks());
        model.gate.update(kv.take_changes());
        let known: BTreeSet<BlockHash> = model.names.values().copied().collect();
        prop_assert_eq!(model.gate.contents(), &known, "the gate knows what is cached");
    }
}
