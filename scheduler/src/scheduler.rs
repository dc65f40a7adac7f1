//! Enqueue, plan, complete: the state of everything that was admitted.
//!
//! The scheduler owns every sequence from admission to its end. `plan` decides a step (in
//! `planner.rs`), `complete` or `fail` books what became of it. Between the two a step is in
//! flight; requests may be enqueued and cancelled meanwhile.
//!
//! Invariants: a sequence is either in `waiting` (no blocks) or in `running`; a request ends
//! exactly once, when its last sequence has ended; at most `max_num_seqs` sequences run.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::class::ClassTable;
use crate::cost::CostModel;
use crate::kv::KvBlocks;
use crate::lean;
use crate::length::{Lengths, Lesson};
use crate::plan::{Chunk, Event, SeqOutcome, StepPlan};
use crate::policy::{Change, Rank, SchedulerPolicy, View};
use crate::prefix::{BlockHash, CacheChanges, Chain};
use crate::request::{FinishReason, Request, RequestId, SeqId, Terminal};
use crate::room::Wanted;
use crate::sequence::Sequence;
use crate::tenants::{Service, TenantTable};
use crate::time::Micros;

/// Limits of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SchedulerConfig {
    /// Blocks in the KV pool.
    pub num_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Most sequences in a step.
    pub max_num_seqs: u32,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u32,
    /// Most tokens (prompt and output) of a sequence.
    pub max_model_len: u32,
    /// Class settings.
    pub classes: ClassTable,
}

impl SchedulerConfig {
    /// Blocks that `tokens` tokens take.
    #[must_use]
    pub const fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size)
    }

    /// Blocks that admission into the running set leaves free, so that sequences that outgrow their
    /// prediction do not preempt each other at once.
    #[must_use]
    pub const fn watermark(&self) -> u32 {
        self.num_blocks / 100
    }

    /// Sequences that may run at once: each needs a token of the step.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.max_num_seqs.min(self.max_num_batched_tokens)
    }
}

/// How many sequences are where, and how full the KV pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sequences that wait (never started, or preempted).
    pub waiting: u32,
    /// Sequences that run.
    pub running: u32,
    /// Free KV blocks, cached ones included.
    pub free_blocks: u32,
    /// Free KV blocks whose content is kept for who may need it.
    pub cached_blocks: u32,
    /// All KV blocks.
    pub num_blocks: u32,
    /// Known tokens of sequences that started, and those of them that were found in the cache,
    /// since start. Returns from a preemption do not count.
    pub cache_queries: u64,
    /// See `cache_queries`.
    pub cache_hits: u64,
    /// Preemptions since start.
    pub preemptions: u64,
}

/// What the scheduler remembers of a request with several sequences besides them.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Choices {
    /// Sequences that have not ended.
    pub(crate) live: u32,
    /// One of its sequences has produced a token: it no longer expires.
    pub(crate) produced: bool,
}

/// The scheduler.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    #[cfg_attr(feature = "serde", serde(with = "crate::policy::named"))]
    pub(crate) policy: Box<dyn SchedulerPolicy>,
    pub(crate) cost: CostModel,
    /// Live requests with several sequences. Of any other its one sequence tells everything.
    pub(crate) choices: BTreeMap<RequestId, Choices>,
    /// In order of id.
    pub(crate) running: Vec<Sequence>,
    /// The next one to be taken in is the last, as of the latest plan.
    pub(crate) waiting: Vec<Sequence>,
    pub(crate) kv: KvBlocks,
    /// What the blocks of live sequences are known by, if they may be shared.
    pub(crate) chains: BTreeMap<SeqId, Chain>,
    /// How many looks into the cache there have been for those that wait.
    pub(crate) looks: u64,
    pub(crate) cache_queries: u64,
    pub(crate) cache_hits: u64,
    pub(crate) lengths: Lengths,
    pub(crate) service: Service,
    pub(crate) preemptions: u64,
    /// What is kept for latency work.
    pub(crate) wanted: Wanted,
}

impl Scheduler {
    /// An empty scheduler.
    #[must_use]
    pub fn new(
        config: SchedulerConfig,
        policy: Box<dyn SchedulerPolicy>,
        cost: CostModel,
    ) -> Scheduler {
        assert!(config.slots() > 0, "at least one sequence must fit into a step");
        Scheduler {
            config,
            policy,
            cost,
            choices: BTreeMap::new(),
            running: Vec::new(),
            waiting: Vec::new(),
            kv: KvBlocks::new(config.num_blocks, config.block_size),
            chains: BTreeMap::new(),
            looks: 0,
            cache_queries: 0,
            cache_hits: 0,
            lengths: Lengths::default(),
            service: Service::default(),
            preemptions: 0,
            wanted: Wanted::default(),
        }
    }

    /// With tenants; the gate has the same ones. Only for a scheduler that has nothing to do yet.
    #[must_use]
    pub fn with_tenants(self, tenants: &TenantTable) -> Scheduler {
        Scheduler { service: Service::new(tenants), ..self }
    }

    /// Replaces the cost model after a refit.
    pub fn set_cost(&mut self, cost: CostModel) {
        self.cost = cost;
    }

    /// Takes in an admitted request: the gate has checked that each of its sequences fits the pool.
    pub fn enqueue(&mut self, request: &Request) {
        let live = request.sequences.len() as u32;
        assert!(live > 0, "a request has at least one sequence");
        if live > 1 {
            let known = self.choices.insert(request.id, Choices { live, produced: false });
            assert!(known.is_none(), "request ids are never reused");
        }
        for (index, spec) in request.sequences.iter().enumerate() {
            let peak = self.config.blocks_for(spec.peak_tokens());
            assert!(peak <= self.config.num_blocks, "the gate refuses what can never fit");
            let mut seq = Sequence::new(request, index);
            if let Some(prefix) = request.prefixes.get(spec.prompt as usize) {
                self.chains.insert(seq.id, Chain::new(Arc::clone(prefix)));
                self.look(&mut seq);
            }
            seq.rank = self.rank(request.arrival, &seq).unwrap_or(Rank::LAST);
            self.policy.observe(&seq, Change::Queued);
            lean::push(&mut self.waiting, seq);
        }
    }

    /// The client left: frees slots and blocks at once. Returns whether the request was live (then
    /// its one terminal state is `Cancelled`, and no event follows).
    pub fn cancel(&mut self, id: RequestId) -> bool {
        self.drop_request(id)
    }

    /// Ends a sequence whose stop string was found downstream, between steps. Nothing happens if it
    /// has ended already.
    pub fn stop(&mut self, seq: SeqId) -> Vec<Event> {
        let mut events = Vec::new();
        self.finish(seq, FinishReason::Stop, 0, &mut events);
        events
    }

    /// Books the outcome of `plan`: one outcome for each chunk with `sample`. Outcomes of sequences
    /// that were cancelled while the step ran are ignored.
    pub fn complete(
        &mut self,
        now: Micros,
        plan: &StepPlan,
        outcomes: &[SeqOutcome],
    ) -> Vec<Event> {
        plan.chunks.iter().for_each(|chunk| self.settle(chunk));
        let mut events = Vec::new();
        for outcome in outcomes {
            match *outcome {
                SeqOutcome::Continue(id) => self.book_token(now, id),
                SeqOutcome::Finish(id, reason) => self.finish(id, reason, 1, &mut events),
                SeqOutcome::Fail(id) => self.fail_request(id.request, &mut events),
            }
        }
        events
    }

    /// The next full block of `seq`, generated tokens included, is known by `hash`. To be called
    /// before the `complete` that books the last of its tokens as computed; ignored if `seq` shares
    /// nothing.
    pub fn know_block(&mut self, seq: SeqId, hash: BlockHash) {
        if let Some(chain) = self.chains.get_mut(&seq) {
            chain.push(hash);
        }
    }

    /// What came into the cache and what went since this was asked last, for
    /// [`Gate::update_cache`](crate::Gate::update_cache).
    pub fn take_cache_changes(&mut self) -> CacheChanges {
        self.kv.take_changes()
    }

    /// The step failed: each request with a chunk in it ends as `Failed`, nobody else.
    pub fn fail(&mut self, plan: &StepPlan) -> Vec<Event> {
        let mut events = Vec::new();
        for chunk in &plan.chunks {
            self.fail_request(chunk.seq.request, &mut events);
        }
        events
    }

    /// The block table of a sequence, for the runner. Empty if it has none.
    #[must_use]
    pub fn blocks(&self, seq: SeqId) -> &[u32] {
        self.kv.table(seq)
    }

    /// Counts for metrics.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            waiting: self.waiting.len() as u32,
            running: self.running.len() as u32,
            free_blocks: self.kv.num_free(),
            cached_blocks: self.kv.num_parked(),
            num_blocks: self.kv.num_blocks(),
            cache_queries: self.cache_queries,
            cache_hits: self.cache_hits,
            preemptions: self.preemptions,
        }
    }

    /// Nothing waits and nothing runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub(crate) const fn view(&self, now: Micros) -> View<'_> {
        View { now, config: &self.config, cost: &self.cost }
    }

    /// Where a sequence stands by itself; `None` if it is not worth starting any more.
    pub(crate) fn rank(&self, now: Micros, seq: &Sequence) -> Option<Rank> {
        let rank = self.policy.rank(&self.view(now), seq)?;
        let round = || self.service.next_round(seq.tenant);
        Some(if seq.borrows { rank.borrowed(round()) } else { rank })
    }

    pub(crate) fn running_index(&self, id: SeqId) -> Result<usize, usize> {
        self.running.binary_search_by_key(&id, |seq| seq.id)
    }

    /// A chunk is in the cache; the blocks that it filled may be used by others.
    fn settle(&mut self, chunk: &Chunk) {
        let block_size = self.config.block_size;
        let Ok(i) = self.running_index(chunk.seq) else { return };
        let seq = &mut self.running[i];
        let before = seq.settled / block_size;
        seq.settled = seq.computed;
        self.policy.observe(seq, Change::Served(*chunk));
        let filled = before..seq.settled / block_size;
        if filled.is_empty() {
            return;
        }
        let Some(chain) = self.chains.get(&chunk.seq) else { return };
        for i in filled {
            let Some(hash) = chain.get(i as usize) else { break };
            self.kv.name(chunk.seq, i, *hash);
        }
    }

    /// A token of a running sequence came and more are expected.
    fn book_token(&mut self, now: Micros, id: SeqId) {
        let Ok(i) = self.running_index(id) else { return };
        let seq = &mut self.running[i];
        assert!(seq.generated + 1 < seq.output.max, "the last token finishes its sequence");
        seq.generated += 1;
        seq.first_token.get_or_insert(now);
        self.lengths.revise(seq);
        if !seq.alone {
            self.choices_mut(id.request).produced = true;
        }
    }

    /// Ends a sequence, `more` tokens after those that are booked.
    fn finish(&mut self, id: SeqId, reason: FinishReason, more: u32, events: &mut Vec<Event>) {
        let Some(seq) = self.remove_sequence(id) else { return };
        let lesson = Lesson::new(seq.prompt_tokens, &seq.output);
        self.lengths.learn(seq.class, lesson, seq.generated + more);
        events.push(Event::SequenceFinished(id, reason));
        if seq.alone || self.was_last(id.request) {
            events.push(Event::RequestEnded(id.request, Terminal::Completed));
        }
    }

    /// One of several sequences has finished. Returns whether it was the last of its request.
    fn was_last(&mut self, id: RequestId) -> bool {
        let choices = self.choices_mut(id);
        choices.live -= 1;
        choices.produced = true;
        let last = choices.live == 0;
        if last {
            self.choices.remove(&id);
        }
        last
    }

    fn choices_mut(&mut self, id: RequestId) -> &mut Choices {
        self.choices.get_mut(&id).expect("it has a live sequence, and had several")
    }

    /// The request of `seq` has produced a token: it no longer expires.
    pub(crate) fn has_produced(&self, seq: &Sequence) -> bool {
        if seq.alone { seq.generated > 0 } else { self.choices[&seq.id.request].produced }
    }

    fn fail_request(&mut self, id: RequestId, events: &mut Vec<Event>) {
        if self.drop_request(id) {
            events.push(Event::RequestEnded(id, Terminal::Failed));
        }
    }

    /// Removes a request with all its sequences. Returns whether it was live.
    fn drop_request(&mut self, id: RequestId) -> bool {
        let sequences = self.running.len() + self.waiting.len();
        self.drop_requests(&[id]);
        self.running.len() + self.waiting.len() < sequences
    }

    /// Removes requests, in order of id, with all their sequences.
    pub(crate) fn drop_requests(&mut self, ids: &[RequestId]) {
        if ids.is_empty() {
            return;
        }
        for id in ids {
            self.choices.remove(id);
        }
        let (kv, chains) = (&mut self.kv, &mut self.chains);
        let mut stays = |seq: &Sequence| {
            let stays = ids.binary_search(&seq.id.request).is_err();
            if !stays {
                kv.release(seq.id);
                chains.remove(&seq.id);
            }
            stays
        };
        let policy = &mut self.policy;
        self.running.retain(&mut stays);
        self.waiting.retain(|seq| {
            let stays = stays(seq);
            if !stays {
                policy.observe(seq, Change::Left);
            }
            stays
        });
    }

    fn remove_sequence(&mut self, id: SeqId) -> Option<Sequence> {
        self.chains.remove(&id);
        if let Ok(i) = self.running_index(id) {
            self.kv.release(id);
            return Some(self.running.remove(i));
        }
        let i = self.waiting.iter().position(|seq| seq.id == id)?;
        let seq = self.waiting.remove(i);
        self.policy.observe(&seq, Change::Left);
        Some(seq)
    }
}
