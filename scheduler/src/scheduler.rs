//! Enqueue, plan, complete: the state of everything that was admitted.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::class::ClassTable;
use crate::cost::CostModel;
use crate::plan::{Event, SeqOutcome, StepPlan};
use crate::policy::SchedulerPolicy;
use crate::request::{Request, RequestId, SeqId};
use crate::time::Micros;

/// Limits of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// How many sequences are where, and how full the KV pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sequences that wait (never started, or preempted).
    pub waiting: u32,
    /// Sequences that run.
    pub running: u32,
    /// Free KV blocks.
    pub free_blocks: u32,
    /// All KV blocks.
    pub num_blocks: u32,
    /// Preemptions since start.
    pub preemptions: u64,
}

/// The scheduler.
#[allow(missing_debug_implementations)]
pub struct Scheduler {}

impl Scheduler {
    /// An empty scheduler.
    #[must_use]
    pub fn new(
        config: SchedulerConfig,
        policy: Box<dyn SchedulerPolicy>,
        cost: CostModel,
    ) -> Scheduler {
        todo!()
    }
    /// Replaces the cost model after a refit.
    pub fn set_cost(&mut self, cost: CostModel) {
        todo!()
    }
    /// Takes in an admitted request.
    pub fn enqueue(&mut self, now: Micros, request: &Request) {
        todo!()
    }
    /// The client left: frees slots and blocks at once. Returns whether the request was live (then
    /// its one terminal state is `Cancelled`, and no event follows).
    pub fn cancel(&mut self, id: RequestId) -> bool {
        todo!()
    }
    /// Ends a sequence whose stop string was found downstream, between steps.
    pub fn stop(&mut self, seq: SeqId) -> Vec<Event> {
        todo!()
    }
    /// The next step. Never called while one is in flight.
    pub fn plan(&mut self, now: Micros) -> StepPlan {
        todo!()
    }
    /// Books the outcome of `plan`: one outcome for each chunk with `sample`.
    pub fn complete(
        &mut self,
        now: Micros,
        plan: &StepPlan,
        outcomes: &[SeqOutcome],
    ) -> Vec<Event> {
        todo!()
    }
    /// The step failed: each request with a chunk in it ends as `Failed`, nobody else.
    pub fn fail(&mut self, now: Micros, plan: &StepPlan) -> Vec<Event> {
        todo!()
    }
    /// The block table of a sequence, for the runner. Empty if it has none.
    #[must_use]
    pub fn blocks(&self, seq: SeqId) -> &[u32] {
        todo!()
    }
    /// Counts for metrics.
    #[must_use]
    pub fn counts(&self) -> Counts {
        todo!()
    }
    /// Nothing waits and nothing runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        todo!()
    }
}
