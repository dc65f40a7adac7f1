//! The next step: who computes how many tokens.
//!
//! There are no phases. Each sequence has computed tokens that chase its known ones; a step gives
//! every sequence that lacks one token that token, then spends what is left of the token budget on
//! longer chunks, running sequences first, then waiting ones in the order of the policy.

use alloc::vec::Vec;

use crate::class::Class;
use crate::lean;
use crate::plan::StepPlan;
use crate::policy::{Change, Rank, StepState};
use crate::request::{RequestId, SeqId};
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;
use crate::time::Micros;

/// How many waiting sequences are tried when the head does not fit.
pub(crate) const BYPASS_WINDOW: usize = 8;

/// How often a sequence is overtaken because it does not fit; after that the queue waits for it.
const MAX_BYPASSES: u8 = 64;

/// Why a waiting sequence was not taken in.
enum NotNow {
    /// No slot, or nothing left of the token budget: nobody else fits either.
    Full,
    /// Its blocks are not there; a smaller one may fit.
    TooLarge,
    /// A sibling is computing the prompt that it will share.
    SiblingFirst,
}

impl Scheduler {
    /// The next step. Never called while one is in flight.
    pub fn plan(&mut self, now: Micros) -> StepPlan {
        let mut plan = StepPlan { expired: self.order_waiting(now), ..StepPlan::default() };
        self.plan_decodes(now, &mut plan);
        let mut left = self.prefill_budget(now);
        self.plan_prefills(now, &mut left, &mut plan);
        if plan.preempted.is_empty() {
            self.take_in(&mut left, &mut plan);
        }
        for chunk in &plan.chunks {
            plan.load.add_chunk(chunk.start, chunk.len);
        }
        plan
    }

    /// Ranks those that wait, next one last, and drops requests that are not worth starting.
    fn order_waiting(&mut self, now: Micros) -> Vec<RequestId> {
        let mut expired = Vec::new();
        let mut waiting = core::mem::take(&mut self.waiting);
        for seq in &mut waiting {
            let rank = self.policy.rank(&self.view(now), seq);
            if rank.is_none() && !self.has_produced(seq) {
                expired.push(seq.id.request);
            }
            seq.rank = rank.unwrap_or(Rank::late(seq));
        }
        self.policy.spread(&mut waiting);
        waiting.sort_by_key(|seq| core::cmp::Reverse((seq.rank, seq.arrival, seq.id)));
        self.waiting = waiting;
        expired.sort_unstable();
        expired.dedup();
        self.drop_requests(&expired);
        expired
    }

    /// Every running sequence that lacks one token gets it.
    fn plan_decodes(&mut self, now: Micros, plan: &mut StepPlan) {
        let mut i = 0;
        while let Some(seq) = self.running.get_mut(i) {
            // In most steps the token has room in the last block.
            if seq.pending() == 1 && !seq.computed.is_multiple_of(self.config.block_size) {
                plan.chunks.push(seq.advance(1));
            } else if seq.pending() == 1 {
                let id = seq.id;
                self.plan_chunk(now, id, 1, plan);
                // Others may have lost their places to it, or it its own.
                i = self.running.partition_point(|seq| seq.id <= id);
                continue;
            }
            i += 1;
        }
    }

    /// Tokens that the policy leaves for longer chunks in this step.
    fn prefill_budget(&self, now: Micros) -> u32 {
        let mut state = StepState::default();
        let (mut decoding, mut prefilling) = (0, None);
        for seq in &self.running {
            if seq.computed == seq.known() {
                state.add_decoding(seq.class, seq.tpot.micros(), u64::from(seq.known()));
                decoding += 1;
            } else {
                prefilling = prefilling.or(Some(seq.computed));
            }
        }
        state.prefill_start = prefilling.unwrap_or(0);
        let budget = self.policy.token_budget(&self.view(now), &state).max(decoding + 1);
        budget.min(self.config.max_num_batched_tokens).saturating_sub(decoding)
    }

    /// Chunks of running sequences that lack more than one token, in the order of the policy.
    fn plan_prefills(&mut self, now: Micros, left: &mut u32, plan: &mut StepPlan) {
        let view = self.view(now);
        let mut order: Vec<_> = self
            .running
            .iter()
            .filter(|seq| seq.pending() > 1)
            .map(|seq| {
                let rank = self.policy.rank(&view, seq).unwrap_or(Rank::LAST);
                (rank, seq.arrival, seq.id)
            })
            .collect();
        order.sort_unstable();
        for (_, _, id) in order {
            if *left == 0 {
                break;
            }
            *left -= self.plan_chunk(now, id, *left, plan);
        }
    }

    /// Plans a chunk of at most `limit` tokens of a running sequence, preempting others if blocks
    /// run out. Returns its length: zero if the sequence was itself preempted.
    fn plan_chunk(&mut self, now: Micros, id: SeqId, limit: u32, plan: &mut StepPlan) -> u32 {
        loop {
            let Ok(i) = self.running_index(id) else { return 0 };
            let len = self.running[i].pending().min(limit);
            let end = self.running[i].computed + len;
            if self.kv.grow(id, end).is_ok() {
                plan.chunks.push(self.running[i].advance(len));
                return len;
            }
            if !self.preempt(now, plan) {
                return 0;
            }
        }
    }

    /// Takes the blocks of the policy's victim; it waits again and recomputes. Protected sequences
    /// reserve for their longest output, so once the others are gone they cannot run out.
    fn preempt(&mut self, now: Micros, plan: &mut StepPlan) -> bool {
        let candidates: Vec<&Sequence> =
            self.running.iter().filter(|seq| !seq.is_protected()).collect();
        let Some(chosen) = self.policy.victim(&self.view(now), &candidates) else { return false };
        let Some(id) = candidates.get(chosen).map(|seq| seq.id) else { return false };
        let i = self.running_index(id).expect("candidates run");
        let mut seq = self.running.remove(i);
        self.kv.release(id);
        plan.chunks.retain(|chunk| chunk.seq != id);
        plan.preempted.push(id);
        self.preemptions += 1;
        seq.reset();
        self.policy.observe(&seq, Change::Preempted);
        lean::push(&mut self.waiting, seq);
        true
    }

    /// Starts waiting sequences while slots, blocks and token budget last.
    fn take_in(&mut self, left: &mut u32, plan: &mut StepPlan) {
        let mut from_head = 0;
        let mut committed = self.committed_blocks();
        while from_head < self.waiting.len().min(BYPASS_WINDOW) {
            let i = self.waiting.len() - 1 - from_head;
            match self.may_start(&self.waiting[i], *left, committed) {
                Ok(shared) => {
                    committed += self.start(i, shared, left, plan);
                    self.count_bypass(i);
                }
                Err(NotNow::Full) => return,
                Err(NotNow::TooLarge) if self.waiting[i].bypassed >= MAX_BYPASSES => return,
                Err(NotNow::TooLarge | NotNow::SiblingFirst) => from_head += 1,
            }
        }
    }

    /// Those nearer the head than place `i` have been overtaken.
    fn count_bypass(&mut self, i: usize) {
        for seq in &mut self.waiting[i..] {
            seq.bypassed = seq.bypassed.saturating_add(1);
        }
    }

    /// Whether a waiting sequence can start now, and the sibling and number of blocks that it
    /// shares then. `committed` blocks are still to be taken by those that run.
    fn may_start(
        &self,
        seq: &Sequence,
        left: u32,
        committed: u32,
    ) -> Result<Option<(SeqId, u32)>, NotNow> {
        if left == 0 || self.running.len() as u32 >= self.config.slots() {
            return Err(NotNow::Full);
        }
        let shared = self.shareable(seq)?;
        let have = shared.map_or(0, |(_, blocks)| blocks);
        let needed = self.config.blocks_for(seq.peak_tokens()) - have;
        let kept = if self.running.is_empty() { 0 } else { self.config.watermark() };
        if needed + kept + committed > self.kv.num_free() {
            return Err(NotNow::TooLarge);
        }
        Ok(shared)
    }

    /// Running sequences of the same request with the same prompt.
    pub(crate) fn siblings(&self, seq: &Sequence) -> impl Iterator<Item = &Sequence> {
        let (request, prompt) = (seq.id.request, seq.prompt);
        let first = match seq.alone {
            true => self.running.len(),
            false => self.running.partition_point(|other| other.id.request < request),
        };
        self.running[first..]
            .iter()
            .take_while(move |other| other.id.request == request)
            .filter(move |other| other.prompt == prompt)
    }

    /// The running sibling whose full prompt blocks `seq` can share. A sibling that still computes
    /// them is waited for.
    fn shareable(&self, seq: &Sequence) -> Result<Option<(SeqId, u32)>, NotNow> {
        let blocks = seq.shared_blocks(self.config.block_size);
        let mut found = Ok(None);
        for other in self.siblings(seq) {
            if other.settled >= blocks * self.config.block_size {
                return Ok(Some((other.id, blocks)));
            }
            found = Err(NotNow::SiblingFirst);
        }
        found
    }

    /// Blocks that running sequences are still expected to take.
    pub(crate) fn committed_blocks(&self) -> u32 {
        self.running.iter().map(|seq| self.growth(seq)).sum()
    }

    /// Blocks that a running sequence is still expected to take: it has those of what is computed.
    fn growth(&self, seq: &Sequence) -> u32 {
        let peak = self.config.blocks_for(seq.peak_tokens());
        peak.saturating_sub(self.config.blocks_for(seq.computed))
    }

    /// Blocks that a running sequence holds or is expected to take, and gives back when it ends.
    pub(crate) fn leaves(&self, seq: &Sequence) -> u32 {
        let held = self.config.blocks_for(seq.computed) + self.growth(seq);
        if seq.alone { held } else { held - seq.shared_blocks(self.config.block_size).min(held) }
    }

    /// Moves the sequence at place `i` of the queue into the running set, with its first chunk.
    /// Returns how many blocks it is still expected to take.
    fn start(
        &mut self,
        i: usize,
        shared: Option<(SeqId, u32)>,
        left: &mut u32,
        plan: &mut StepPlan,
    ) -> u32 {
        let mut seq = self.waiting.remove(i);
        self.policy.observe(&seq, Change::Started);
        if let Some((sibling, blocks)) = shared {
            self.kv.share(sibling, seq.id, blocks);
            seq.computed = blocks * self.config.block_size;
            seq.settled = seq.computed;
        }
        let len = seq.pending().min(*left);
        let grown = self.kv.grow(seq.id, seq.computed + len);
        assert!(grown.is_ok(), "its whole peak was free");
        plan.chunks.push(seq.advance(len));
        *left -= len;
        let place = self.running_index(seq.id).unwrap_or_else(|place| place);
        self.running.insert(place, seq);
        self.growth(&seq)
    }
}

impl StepState {
    /// Counts a sequence that decodes with `context_tokens` in its context.
    pub(crate) fn add_decoding(&mut self, class: Class, tpot: Option<Micros>, context_tokens: u64) {
        self.decode_seqs += 1;
        self.context_tokens += context_tokens;
        if class == Class::Latency {
            self.tightest_tpot = self.tightest_tpot.into_iter().chain(tpot).min();
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::class::{ClassConfig, ClassTable, Slo};
    use crate::cost::CostModel;
    use crate::plan::{Chunk, SeqOutcome};
    use crate::policy;
    use crate::request::{Deadline, FinishReason, OutputLength, Request, SequenceSpec};
    use crate::scheduler::SchedulerConfig;
    use crate::sequence::MAX_PREEMPTIONS;

    const COST: CostModel = CostModel {
        fixed_ns: 1_000,
        per_seq_ns: 1_000,
        per_context_token_ps: 0,
        per_prefill_token_ns: 1_000,
        per_prefill_span_ps: 0,
    };

    fn scheduler(num_blocks: u32) -> Scheduler {
        let class = ClassConfig { slo: Slo::default(), max_waiting: 10, safety_permille: None };
        let config = SchedulerConfig {
            num_blocks,
            block_size: 4,
            max_num_seqs: 8,
            max_num_batched_tokens: 64,
            max_model_len: 64,
            classes: ClassTable([class; 2]),
        };
        Scheduler::new(config, policy::by_name("fcfs").unwrap(), COST)
    }

    fn request(id: u64, n: usize, prompt_tokens: u32, predicted: u32) -> Request {
        let output = OutputLength { min: 0, max: 20, predicted, hint: None, exact: false };
        Request {
            id: RequestId(id),
            class: Class::Latency,
            arrival: Micros(id),
            deadline: Deadline::default(),
            retry: 0,
            origin: 0,
            sequences: vec![SequenceSpec { prompt: 0, prompt_tokens, output }; n],
        }
    }

    /// Plans a step in which everybody goes on.
    fn step(scheduler: &mut Scheduler) -> StepPlan {
        let plan = scheduler.plan(Micros(0));
        let sampled = plan.chunks.iter().filter(|chunk| chunk.sample);
        let outcomes: Vec<_> = sampled.map(|chunk| SeqOutcome::Continue(chunk.seq)).collect();
        scheduler.complete(Micros(0), &plan, &outcomes);
        plan
    }

    #[test]
    fn siblings_share_the_full_blocks_of_their_prompt() {
        let mut scheduler = scheduler(32);
        scheduler.enqueue(&request(1, 3, 10, 10));
        let seq = |index| SeqId { request: RequestId(1), index };
        let chunks = step(&mut scheduler).chunks;
        assert_eq!(chunks, [Chunk { seq: seq(0), start: 0, len: 10, sample: true }]);
        let chunks = step(&mut scheduler).chunks;
        let rest = |index| Chunk { seq: seq(index), start: 8, len: 2, sample: true };
        assert_eq!(chunks[1..], [rest(1), rest(2)]);
        let first = scheduler.blocks(seq(0)).to_vec();
        for index in [1, 2] {
            let table = scheduler.blocks(seq(index));
            assert_eq!(table[..2], first[..2], "full blocks are shared");
            assert_ne!(table[2], first[2], "the block that is written to is its own");
        }
        assert_eq!(scheduler.counts().free_blocks, 32 - 5);
    }

    #[test]
    fn who_outgrows_the_pool_is_preempted_a_bounded_number_of_times() {
        let mut scheduler = scheduler(8);
        for id in 0..3 {
            scheduler.enqueue(&request(id, 1, 4, 2));
        }
        let mut preempted = [0; 3];
        for _ in 0..200 {
            let plan = scheduler.plan(Micros(0));
            for seq in &plan.preempted {
                preempted[seq.request.0 as usize] += 1;
            }
            let outcome = |chunk: &Chunk| match chunk.start + chunk.len {
                23 => SeqOutcome::Finish(chunk.seq, FinishReason::Length),
                _ => SeqOutcome::Continue(chunk.seq),
            };
            let sampled = plan.chunks.iter().filter(|chunk| chunk.sample);
            let outcomes: Vec<_> = sampled.map(outcome).collect();
            scheduler.complete(Micros(0), &plan, &outcomes);
        }
        assert!(scheduler.is_idle());
        assert_eq!(preempted[0], 0, "the first to come keeps its blocks");
        assert!(preempted[2] > 0 && preempted.iter().all(|n| *n <= MAX_PREEMPTIONS));
    }
}
