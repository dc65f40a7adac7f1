//! What a sequence that starts need not compute: the blocks of a sibling, or of the prefix cache.

use crate::cost::StepLoad;
use crate::kv::Hit;
use crate::plan::{Chunk, StepPlan};
use crate::prefix::Chain;
use crate::request::SeqId;
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;

/// So many of those that wait, the next ones and others in turn, are looked up in the cache before
/// each step; of the rest what was found last is believed.
pub(crate) const LOOKS: usize = 32;

/// What is computed already.
#[derive(Clone, Copy)]
pub(crate) enum Basis {
    /// So many full blocks of a sibling.
    Sibling(SeqId, u32),
    /// So many blocks of the cache; perhaps none.
    Cache(Hit),
}

impl Basis {
    /// Blocks that somebody uses already.
    pub(crate) const fn in_use(self) -> u32 {
        match self {
            Basis::Sibling(_, blocks) => blocks,
            Basis::Cache(hit) => hit.in_use,
        }
    }
}

impl Scheduler {
    /// What `seq` need not compute if it starts now; `None` if it is better to wait until what
    /// another one computes is there. A sibling that still computes their prompt is waited for.
    pub(crate) fn basis(&self, seq: &Sequence, plan: &StepPlan) -> Option<Basis> {
        let blocks = seq.shared_blocks(self.config.block_size);
        let mut siblings = self.siblings(seq).peekable();
        let waits = siblings.peek().is_some();
        let ready = |other: &&Sequence| other.settled >= blocks * self.config.block_size;
        if let Some(other) = siblings.find(ready) {
            return Some(Basis::Sibling(other.id, blocks));
        }
        if waits {
            return None;
        }
        let Some(chain) = self.chains.get(&seq.id) else {
            return Some(Basis::Cache(Hit::default()));
        };
        let hit = self.kv.find(chain, seq.cacheable_blocks(self.config.block_size));
        (!self.is_worth_waiting(seq, chain, hit.blocks, plan)).then_some(Basis::Cache(hit))
    }

    /// Whether more of `seq` than the first `cached` blocks is computed for others in this step,
    /// and so much that a step without it is the lesser delay. Who computes it goes before `seq`,
    /// so if there is room for `seq` in this step, that one computes all that it has left.
    fn is_worth_waiting(
        &self,
        seq: &Sequence,
        chain: &Chain,
        cached: u32,
        plan: &StepPlan,
    ) -> bool {
        let block_size = self.config.block_size;
        let most = seq.cacheable_blocks(block_size);
        let common = |chunk: &Chunk| {
            let computed = ((chunk.start + chunk.len) / block_size).min(most);
            let other = self.chains.get(&chunk.seq).filter(|_| chunk.len > 1)?;
            Some(chain.common(other, computed as usize) as u32)
        };
        let soon = plan.chunks.iter().filter_map(common).max().unwrap_or(0);
        if soon <= cached {
            return false;
        }
        let mut load = StepLoad::default();
        let decodes = plan.chunks.iter().filter(|chunk| chunk.len == 1);
        decodes.for_each(|chunk| load.add_chunk(chunk.start, chunk.len));
        let saved = self.cost.prefill_work(cached * block_size, (soon - cached) * block_size);
        saved >= self.cost.step(&load)
    }

    /// Gives `seq`, which starts, what it need not compute.
    pub(crate) fn build_on(&mut self, seq: &mut Sequence, basis: Basis) {
        let blocks = match (basis, self.chains.get(&seq.id)) {
            (Basis::Sibling(sibling, blocks), _) => {
                self.kv.share(sibling, seq.id, blocks);
                blocks
            }
            (Basis::Cache(hit), Some(chain)) => self.kv.reuse(seq.id, chain, hit.blocks),
            (Basis::Cache(_), None) => 0,
        };
        seq.computed = blocks * self.config.block_size;
        seq.settled = seq.computed;
        if seq.preemptions == 0 && self.chains.contains_key(&seq.id) {
            self.cache_queries += u64::from(seq.known());
            self.cache_hits += u64::from(seq.computed);
        }
    }

    /// Looks up how much of a waiting sequence is cached.
    pub(crate) fn look(&self, seq: &mut Sequence) {
        let Some(chain) = self.chains.get(&seq.id) else { return };
        let block_size = self.config.block_size;
        let most = seq.cacheable_blocks(block_size);
        // In most steps nothing has changed for it.
        if !self.kv.ends_at(chain, most, seq.settled / block_size) {
            seq.settled = self.kv.find(chain, most).blocks * block_size;
        }
    }

    /// Looks up in the cache those that come next, and others in turn.
    pub(crate) fn look_again(&mut self, waiting: &mut [Sequence]) {
        if self.chains.is_empty() || waiting.is_empty() {
            return;
        }
        let (others, next) = waiting.split_at_mut(waiting.len().saturating_sub(LOOKS));
        for seq in next {
            self.look(seq);
        }
        for _ in 0..others.len().min(LOOKS) {
            self.looks += 1;
            let turn = (self.looks % others.len() as u64) as usize;
            self.look(&mut others[turn]);
        }
    }

    /// Of what a waiting sequence finds in the cache, the blocks that somebody uses already.
    pub(crate) fn blocks_in_use(&self, seq: &Sequence) -> u32 {
        let chain = self.chains.get(&seq.id).filter(|_| seq.settled > 0);
        chain.map_or(0, |chain| self.kv.find(chain, seq.settled / self.config.block_size).in_use)
    }

    /// Blocks at the peak of a running sequence, without those that others use as well: they stay.
    pub(crate) fn expected_blocks(&self, seq: &Sequence) -> u32 {
        let peak = self.config.blocks_for(seq.peak_tokens());
        if seq.alone { peak.saturating_sub(self.kv.num_shared(seq.id)) } else { peak }
    }
}
