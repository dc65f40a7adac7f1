//! Scheduling policies: three questions, one file each.
//!
//! A new policy is one file beside these and one line in [`by_name`].

mod deadline;
mod fcfs;
#[cfg(feature = "serde")]
pub(crate) mod named;

use alloc::boxed::Box;
use core::fmt::Debug;

use crate::cost::CostModel;
use crate::scheduler::SchedulerConfig;
use crate::sequence::Sequence;
use crate::time::Micros;

pub use deadline::DeadlinePolicy;
pub use fcfs::FcfsPolicy;

/// What a policy may look at besides the sequences: the same in the scheduler, in the forecast and
/// in the gate.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The time.
    pub now: Micros,
    /// Limits.
    pub config: &'a SchedulerConfig,
    /// What steps cost.
    pub cost: &'a CostModel,
}

/// A place in the queue: the smaller goes first. Ties go by arrival, then by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rank(u64);

impl Rank {
    /// Before everybody but those who were preempted.
    pub const FIRST_NEW: Rank = Rank::new(1, Micros(0));

    /// Behind everybody.
    pub const LAST: Rank = Rank::new(u8::MAX, Micros::MAX);

    /// Tiers are compared first; tier 0 is for preempted sequences, which return before anybody
    /// new. Within a tier keys are compared, usually times; from 2^56 microseconds (two thousand
    /// years) on they are equal.
    #[must_use]
    pub const fn new(tier: u8, key: Micros) -> Rank {
        const KEY_BITS: u32 = 56;
        let most = (1 << KEY_BITS) - 1;
        let key = if key.0 < most { key.0 } else { most };
        Rank((tier as u64) << KEY_BITS | key)
    }

    /// `key`, in the tier of new or of preempted sequences, whichever `seq` is.
    #[must_use]
    pub const fn of(seq: &Sequence, key: Micros) -> Rank {
        Rank::new(if seq.preemptions > 0 { 0 } else { 1 }, key)
    }
}

/// The decoding part of a step to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepState {
    /// Sequences that decode.
    pub decode_seqs: u32,
    /// Context tokens that they read.
    pub context_tokens: u64,
    /// The tightest gap promised to one of them in the latency class.
    pub tightest_tpot: Option<Micros>,
    /// Position at which the first prefill chunk begins.
    pub prefill_start: u32,
}

/// Decides who is next, whom to preempt, and how big a step may be.
pub trait SchedulerPolicy: Debug + Send {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// Where a sequence stands among those that wait for prefill. `None`: it is not worth starting
    /// any more. Such a sequence expires with its request, unless that has produced a token
    /// already; then it goes last.
    fn rank(&self, view: &View<'_>, seq: &Sequence) -> Option<Rank>;

    /// A place before which no new sequence of the class, arrival and deadlines of `seq` stands,
    /// however long prompt and answer are. Before everybody new, if the policy does not know.
    fn best_rank(&self, _view: &View<'_>, _seq: &Sequence) -> Rank {
        Rank::FIRST_NEW
    }

    /// Which of `candidates` (running, not protected, in order of id) loses its blocks when there
    /// are none left. An index; `None` if there is no candidate.
    fn victim(&self, view: &View<'_>, candidates: &[&Sequence]) -> Option<usize>;

    /// How many tokens the next step may have, decoding sequences (which always go) included.
    fn token_budget(&self, view: &View<'_>, state: &StepState) -> u32;
}

/// Names of the shipped policies, default first.
pub const NAMES: [&str; 2] = ["deadline", "fcfs"];

/// The policy called `name`.
#[must_use]
pub fn by_name(name: &str) -> Option<Box<dyn SchedulerPolicy>> {
    match name {
        "deadline" => Some(Box::new(DeadlinePolicy)),
        "fcfs" => Some(Box::new(FcfsPolicy)),
        _ => None,
    }
}
