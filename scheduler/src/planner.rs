//! The next step: who computes how many tokens.
//!
//! There are no phases. Each sequence has computed tokens that chase its known ones; a step gives
//! every sequence that lacks one token that token (or its turn, if the policy rations decoding),
//! then spends what is left of the token budget on longer chunks in the order of the policy: those
//! of running sequences and those of waiting ones, which start with them (`intake.rs`).

use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::class::Class;
use crate::intake::Intake;
use crate::lean;
use crate::line::Line;
use crate::plan::StepPlan;
use crate::policy::{Change, Decoding, Rank, StepState};
use crate::request::{RequestId, SeqId};
use crate::room::{Held, Room};
use crate::scheduler::Scheduler;
use crate::segments::{Gap, Tempo};
use crate::sequence::Sequence;
use crate::time::Micros;

/// A place among those that have a prompt to compute.
pub(crate) type Place = (Rank, Micros, SeqId);

/// The best rank of those that wait, by line. Who runs goes before all of its own line that wait:
/// only the others overtake it.
pub(crate) struct Heads([Rank; 4]);

impl Heads {
    /// Of `waiting`, next one first.
    pub(crate) fn new<'a>(waiting: impl Iterator<Item = &'a Sequence>) -> Heads {
        let mut heads = [None; 4];
        for seq in waiting {
            heads[seq.line().index()].get_or_insert(seq.rank);
            if heads.iter().all(Option::is_some) {
                break;
            }
        }
        Heads(heads.map(|head| head.unwrap_or(Rank::LAST)))
    }

    /// The rank of a running sequence of `line` that would have `rank` by itself.
    pub(crate) fn of_running(&self, line: Line, rank: Rank) -> Rank {
        rank.min(self.0[line.index()])
    }
}

impl Scheduler {
    /// The next step. Never called while one is in flight.
    pub fn plan(&mut self, now: Micros) -> StepPlan {
        let mut plan = StepPlan { expired: self.order_waiting(now), ..StepPlan::default() };
        let held = self.held();
        self.wanted.follow(&held, self.config.slots());
        let reserved = self.service.reserved_permille();
        let room = Room::new(&self.config, &*self.policy, self.wanted, reserved);
        let prefills = self.running_prefills(now);
        let state = self.demand(now, &room, &held, &prefills);
        let turns = state.bounded(self.policy.turns(&self.view(now), &state));
        let passed = self.pass_over(now, &state, turns);
        self.plan_decodes(now, &passed, &mut plan);
        let (state, decoding) = (&state, &state.decoding(turns));
        let budget = self.policy.token_budget(&self.view(now), state, decoding);
        let decodes = plan.chunks.len() as u32;
        let budget = budget.max(decodes + 1).min(self.config.max_num_batched_tokens);
        let intake = Intake::new(self, room, held);
        self.plan_prefills(now, &prefills, intake, budget.saturating_sub(decodes), &mut plan);
        for chunk in &plan.chunks {
            plan.load.add_chunk(chunk.start, chunk.len);
        }
        plan
    }

    /// Ranks those that wait, next one last, and drops requests that are not worth starting.
    fn order_waiting(&mut self, now: Micros) -> Vec<RequestId> {
        let mut expired = Vec::new();
        let mut waiting = core::mem::take(&mut self.waiting);
        self.look_again(&mut waiting);
        for seq in &mut waiting {
            let mut rank = self.policy.rank(&self.view(now), seq);
            if rank.is_none() {
                // It may be cached by now.
                self.look(seq);
                rank = self.policy.rank(&self.view(now), seq);
            }
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
        if self.service.matters() {
            self.share_among_tenants();
        }
        expired
    }

    /// What the classes hold and want.
    fn held(&self) -> Held {
        let mut held = Held::default();
        for seq in self.running.iter().chain(&self.waiting) {
            held.enter(seq.line());
        }
        for seq in &self.running {
            held.start(seq.line(), self.config.blocks_for(seq.peak_tokens()));
        }
        held
    }

    /// Running sequences that lack more than one token, in the order of the policy.
    fn running_prefills(&self, now: Micros) -> Vec<Place> {
        let mut running = self.running.iter().filter(|seq| seq.pending() > 1).peekable();
        if running.peek().is_none() {
            return Vec::new();
        }
        let heads = Heads::new(self.waiting.iter().rev());
        let place = |seq: &Sequence| {
            let rank = self.rank(now, seq).unwrap_or(Rank::late(seq));
            (heads.of_running(seq.line(), rank), seq.arrival, seq.id)
        };
        let mut places: Vec<Place> = running.map(place).collect();
        places.sort_unstable();
        places
    }

    /// What the policy is told of the step to come.
    fn demand(&self, now: Micros, room: &Room, held: &Held, prefills: &[Place]) -> StepState {
        let bulk = held.inside[Class::Throughput.index()] > 0;
        let borrowers = held.borrowers > 0;
        let mut state = StepState { bulk, borrowers, ..StepState::default() };
        let full = self.config.max_num_batched_tokens;
        let free = room.free(held);
        let latency = |seq: &&Sequence| seq.class == Class::Latency;
        let begun = self.running.iter().filter(|seq| seq.pending() > 1).filter(latency);
        let starting = |borrows| {
            let line = Line { class: Class::Latency, borrows };
            let waiting = self.waiting.iter().rev().filter(move |seq| seq.line() == line);
            waiting.take(free[line.index()] as usize)
        };
        let borrowing = starting(true).take(if borrowers { usize::MAX } else { 0 });
        for seq in begun.chain(starting(false)).chain(borrowing) {
            if seq.borrows && state.latency_prefill >= full {
                continue;
            }
            state.add_latency_prefill(seq.line(), seq.tempo(), seq.to_compute());
            if state.reserved_prefill >= full {
                break;
            }
        }
        for seq in self.running.iter().filter(|seq| seq.pending() == 1).filter(latency) {
            state.tighten(seq.tempo());
        }
        let pace = state.tightest_pace.unwrap_or_default();
        for seq in self.running.iter().filter(|seq| seq.pending() == 1) {
            let patient = seq.can_wait(now, &self.cost, pace);
            let of = if patient { &mut state.patient } else { &mut state.steady };
            of.add(u64::from(seq.known()));
        }
        let starts = |line: Line| free[line.index()] > 0 && held.waits(line.class);
        state.prefills = !prefills.is_empty() || Line::ALL.into_iter().any(starts);
        state.prefill_start = self.prefill_start(prefills);
        state
    }

    /// Where the first chunk of the next step begins in its sequence.
    fn prefill_start(&self, prefills: &[Place]) -> u32 {
        let waits = self.waiting.last().map_or(Rank::LAST, |seq| seq.rank);
        let first = prefills.first().filter(|(rank, ..)| *rank <= waits);
        let running = first.and_then(|(_, _, id)| self.running_index(*id).ok());
        running.map_or(0, |i| self.running[i].computed)
    }

    /// Chooses `turns` of the patient sequences, those first that were passed over most often; the
    /// others wait, and are returned in order.
    fn pass_over(&mut self, now: Micros, state: &StepState, turns: u32) -> Vec<SeqId> {
        if turns >= state.patient.seqs {
            return Vec::new();
        }
        let pace = state.tightest_pace.unwrap_or_default();
        let mut patient: Vec<_> = (0..)
            .zip(&self.running)
            .filter(|(_, seq)| seq.pending() == 1 && seq.can_wait(now, &self.cost, pace))
            .map(|(i, seq)| (Reverse(seq.bypassed), seq.id, i))
            .collect();
        patient.sort_unstable();
        let mut passed = Vec::new();
        for (_, id, i) in patient.into_iter().skip(turns as usize) {
            let seq: &mut Sequence = &mut self.running[i];
            seq.bypassed += 1;
            passed.push(id);
        }
        passed.sort_unstable();
        passed
    }

    /// Every running sequence that lacks one token gets it, unless it was passed over.
    fn plan_decodes(&mut self, now: Micros, passed: &[SeqId], plan: &mut StepPlan) {
        let mut i = 0;
        while let Some(seq) = self.running.get_mut(i) {
            let decodes = seq.pending() == 1 && passed.binary_search(&seq.id).is_err();
            // In most steps the token has room in the last block.
            if decodes && !seq.computed.is_multiple_of(self.config.block_size) {
                plan.chunks.push(seq.advance(1));
            } else if decodes {
                let id = seq.id;
                self.plan_chunk(now, id, 1, plan);
                // Others may have lost their places to it, or it its own.
                i = self.running.partition_point(|seq| seq.id <= id);
                continue;
            }
            i += 1;
        }
    }

    /// Chunks of more than one token in the order of the policy: of running sequences, and of
    /// waiting ones, which start unless somebody had to be preempted.
    fn plan_prefills(
        &mut self,
        now: Micros,
        prefills: &[Place],
        mut intake: Intake,
        mut left: u32,
        plan: &mut StepPlan,
    ) {
        let mut prefills = prefills.iter().peekable();
        while left > 0 {
            if !plan.preempted.is_empty() {
                intake.close();
            }
            if let Some(len) = intake.start(self, prefills.peek().copied(), left, plan) {
                left -= len;
            } else if let Some((_, _, id)) = prefills.next() {
                left -= self.plan_chunk(now, *id, left, plan);
                intake.recount(self);
            } else {
                break;
            }
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
        let mut candidates: Vec<&Sequence> =
            self.running.iter().filter(|seq| !seq.is_protected()).collect();
        // Those who borrow go before those who are within their reservations.
        if candidates.iter().any(|seq| seq.borrows) {
            candidates.retain(|seq| seq.borrows);
        }
        let Some(chosen) = self.policy.victim(&self.view(now), &candidates) else { return false };
        let Some(id) = candidates.get(chosen).map(|seq| seq.id) else { return false };
        let i = self.running_index(id).expect("candidates run");
        let mut seq = self.running.remove(i);
        self.kv.release(id);
        plan.chunks.retain(|chunk| chunk.seq != id);
        plan.preempted.push(id);
        self.preemptions += 1;
        seq.reset();
        self.look(&mut seq);
        self.policy.observe(&seq, Change::Preempted);
        lean::push(&mut self.waiting, seq);
        true
    }

    /// Blocks that running sequences are still expected to take.
    pub(crate) fn committed_blocks(&self) -> u32 {
        self.running.iter().map(|seq| self.growth(seq)).sum()
    }

    /// Blocks that a running sequence is still expected to take: it has those of what is computed.
    pub(crate) fn growth(&self, seq: &Sequence) -> u32 {
        let peak = self.config.blocks_for(seq.peak_tokens());
        peak.saturating_sub(self.config.blocks_for(seq.computed))
    }

    /// Blocks that a running sequence holds or is expected to take, and gives back when it ends.
    pub(crate) fn leaves(&self, seq: &Sequence) -> u32 {
        let held = self.config.blocks_for(seq.computed) + self.growth(seq);
        let shared = match seq.alone {
            true => self.kv.num_shared(seq.id),
            false => seq.shared_blocks(self.config.block_size),
        };
        held - shared.min(held)
    }
}

impl StepState {
    /// Latency work has `tokens` to prefill.
    pub(crate) fn add_latency_prefill(&mut self, line: Line, tempo: Tempo, tokens: u32) {
        self.latency_prefill = self.latency_prefill.saturating_add(tokens);
        if !line.borrows {
            self.reserved_prefill = self.reserved_prefill.saturating_add(tokens);
        }
        self.tighten(tempo);
    }

    /// Latency work is inside.
    pub(crate) fn tighten(&mut self, tempo: Tempo) {
        let tighter = |a: Option<Micros>, b: Gap| a.into_iter().chain(b.micros()).min();
        self.tightest_tpot = tighter(self.tightest_tpot, tempo.tpot);
        self.tightest_pace = tighter(self.tightest_pace, tempo.pace);
        self.reserved_pace = tighter(self.reserved_pace, tempo.reserved);
    }
}

impl Decoding {
    /// Counts a sequence with `context_tokens` in its context.
    pub(crate) const fn add(&mut self, context_tokens: u64) {
        self.seqs += 1;
        self.context_tokens += context_tokens;
    }

    /// Takes it off again. What by turns was read is known to no more than a token a step, so the
    /// last one takes all.
    pub(crate) fn remove(&mut self, context_tokens: u64) {
        self.seqs -= 1;
        self.context_tokens = match self.seqs {
            0 => 0,
            _ => self.context_tokens.saturating_sub(context_tokens),
        };
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::class::{ClassConfig, ClassTable};
    use crate::cost::CostModel;
    use crate::plan::{Chunk, SeqOutcome};
    use crate::policy;
    use crate::request::{Deadline, FinishReason, OutputLength, Request, SequenceSpec};
    use crate::scheduler::SchedulerConfig;
    use crate::sequence::MAX_PREEMPTIONS;
    use crate::tenants::TenantId;

    const COST: CostModel = CostModel {
        fixed_ns: 1_000,
        per_seq_ns: 1_000,
        per_context_token_ps: 0,
        per_prefill_token_ns: 1_000,
        per_prefill_span_ps: 0,
    };

    fn scheduler(num_blocks: u32) -> Scheduler {
        let class = ClassConfig { max_waiting: 10, ..ClassConfig::default() };
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
            tenant: TenantId::DEFAULT,
            borrows: false,
            arrival: Micros(id),
            deadline: Deadline::default(),
            retry: 0,
            origin: 0,
            prefixes: Vec::new(),
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
