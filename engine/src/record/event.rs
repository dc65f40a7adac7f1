//! What is written down. Whoever changes a type in here, or one of the scheduler's types that it is
//! made of, raises [`FORMAT`].

use std::borrow::Cow;

use scheduler::{
    Admission, BlockHash, ClusterView, CostModel, Deadline, Gate, GateConfig, Micros, Request,
    RequestId, SeqId, SeqOutcome, Settled, Shed, StepLoad, StepPlan, TenantId, TenantTable,
    Terminal,
};
use serde::{Deserialize, Serialize};

/// Version of the format; a reader takes its own and no other.
pub const FORMAT: u16 = 7;

/// How a segment begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// Version of the recording server.
    pub version: String,
    /// Name of its model.
    pub model: String,
    /// Unix time, in microseconds, at which the clock of all events read zero.
    pub origin_unix_us: u64,
    /// Segments of this run before this one.
    pub number: u64,
    /// Name of the scheduling policy.
    pub policy: String,
    /// Settings of gate and scheduler.
    pub gate: GateConfig,
    /// The tenants.
    pub tenants: TenantTable,
    /// The cost model in force.
    pub cost: CostModel,
    /// Gate and scheduler; absent if both are as new.
    pub state: Option<State>,
}

/// Gate and scheduler between two steps, written down. The event that follows installs a timeline,
/// which is not in here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The gate.
    pub gate: Vec<u8>,
    /// The scheduler.
    pub scheduler: Vec<u8>,
}

impl State {
    /// The state of a gate whose delays have been carried, and of a scheduler.
    #[must_use]
    pub fn of(gate: &Gate, scheduler: Vec<u8>) -> State {
        State { gate: encode(gate), scheduler }
    }

    /// What tells two states apart.
    #[must_use]
    pub fn sums(&self) -> [u32; 2] {
        [&self.gate, &self.scheduler].map(|bytes| crc32fast::hash(bytes))
    }
}

/// In the form in which everything is written down.
///
/// # Panics
/// Never: these types are plain data.
#[must_use]
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data, into memory that grows")
}

/// One call, with its result where that is a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event<'a> {
    /// The gate was asked.
    Admit {
        /// When.
        now: Micros,
        /// The request as the gate left it: with predicted lengths, and with the targets that it
        /// is promised.
        request: Cow<'a, Request>,
        /// The targets that it came with.
        asked: Deadline,
        /// The answer.
        decision: Admission,
    },
    /// The gate refused a request before its tokens were known.
    RefuseEarly {
        /// When.
        now: Micros,
        /// The shortest request that it might have been.
        least: Cow<'a, Request>,
        /// How many sequences it would have had.
        sequences: u32,
        /// The answer.
        decision: Shed,
    },
    /// The gate released a reservation.
    Finish {
        /// When.
        now: Micros,
        /// Whose.
        id: RequestId,
        /// How it ended.
        terminal: Terminal,
        /// Output tokens of each sequence.
        outputs: Cow<'a, [u32]>,
        /// When its first token came.
        first: Option<Micros>,
        /// When its last token came.
        last: Option<Micros>,
        /// How it had been forecast.
        settled: Option<Settled>,
    },
    /// The gate got a new timeline, built from the scheduler as it is at this point, and learned
    /// what has changed in its cache.
    Install {
        /// When.
        now: Micros,
        /// The predicted end of the step in flight.
        base: Micros,
    },
    /// The gate was told of the other replicas.
    Cluster {
        /// When.
        now: Micros,
        /// What.
        view: ClusterView,
    },
    /// So many requests of a tenant may be inside from now on.
    TenantLimit {
        /// Whose.
        tenant: TenantId,
        /// How many.
        requests: u32,
    },
    /// The gate began to refuse everything.
    Drain,
    /// The scheduler took in an admitted request.
    Enqueue {
        /// Which.
        id: RequestId,
        /// All of it, if it may have been admitted before the segment began.
        request: Option<Cow<'a, Request>>,
    },
    /// A client left.
    Cancel {
        /// Whose request.
        id: RequestId,
        /// It was live.
        live: bool,
    },
    /// A stop string was found.
    Stop(SeqId),
    /// A step was planned.
    Plan {
        /// When.
        now: Micros,
        /// What was planned.
        note: PlanNote<'a>,
    },
    /// A block with generated tokens is full.
    Block {
        /// Whose.
        seq: SeqId,
        /// What it is known by.
        hash: BlockHash,
    },
    /// The step ran.
    Complete {
        /// When it had.
        now: Micros,
        /// What became of its sampled chunks.
        outcomes: Outcomes<'a>,
    },
    /// The step failed.
    Fail,
    /// The cost model was refitted.
    Cost(CostModel),
    /// The segment ends here, and gate and scheduler have these checksums.
    Seal([u32; 2]),
    /// So many events are missing here, and the segment ends.
    Gap(u64),
    /// The record ends in good order.
    End,
}

impl Event<'_> {
    /// When it happened; `None` if it has no time of its own.
    #[must_use]
    pub fn time(&self) -> Option<Micros> {
        match self {
            Event::Admit { now, .. }
            | Event::RefuseEarly { now, .. }
            | Event::Finish { now, .. }
            | Event::Install { now, .. }
            | Event::Cluster { now, .. }
            | Event::Plan { now, .. }
            | Event::Complete { now, .. } => Some(*now),
            _ => None,
        }
    }
}

/// A plan in few bytes: what is not written out is in the digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanNote<'a> {
    /// What the step computes.
    pub load: StepLoad,
    /// How many chunks it has.
    pub chunks: u32,
    /// Of all chunks, in order.
    pub digest: u64,
    /// Sequences that lost their blocks.
    pub preempted: Cow<'a, [SeqId]>,
    /// Requests that were dropped.
    pub expired: Cow<'a, [RequestId]>,
}

impl PlanNote<'_> {
    /// The note of `plan`.
    #[must_use]
    pub fn of(plan: &StepPlan) -> PlanNote<'_> {
        let mut digest = Digest::default();
        for chunk in &plan.chunks {
            digest.add(chunk.seq.request.0);
            digest.add(u64::from(chunk.seq.index) << 32 | u64::from(chunk.start));
            digest.add(u64::from(chunk.len) << 1 | u64::from(chunk.sample));
        }
        PlanNote {
            load: plan.load,
            chunks: plan.chunks.len() as u32,
            digest: digest.0,
            preempted: Cow::Borrowed(&plan.preempted),
            expired: Cow::Borrowed(&plan.expired),
        }
    }
}

/// Tells two lists of numbers apart (FNV-1a over whole words, each mixed by a shift).
#[derive(Clone, Copy, Debug)]
struct Digest(u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn add(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        self.0 = mixed ^ mixed >> 29;
    }
}

/// What became of the sampled chunks of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcomes<'a> {
    /// One for each, in order; all go on but these, by position.
    Each(Vec<(u32, SeqOutcome)>),
    /// Exactly these.
    Listed(Cow<'a, [SeqOutcome]>),
}

impl Outcomes<'_> {
    /// The shortest form of the outcomes of `plan`.
    #[must_use]
    pub fn of<'a>(plan: &StepPlan, outcomes: &'a [SeqOutcome]) -> Outcomes<'a> {
        let sampled = || plan.chunks.iter().filter(|chunk| chunk.sample).map(|chunk| chunk.seq);
        if !sampled().eq(outcomes.iter().map(|outcome| seq(*outcome))) {
            return Outcomes::Listed(Cow::Borrowed(outcomes));
        }
        let numbered = (0..).zip(outcomes.iter().copied());
        let goes_on = |outcome: &SeqOutcome| matches!(outcome, SeqOutcome::Continue(_));
        Outcomes::Each(numbered.filter(|(_, outcome)| !goes_on(outcome)).collect())
    }

    /// All outcomes of `plan`. A position that the plan does not have is passed over.
    #[must_use]
    pub fn all(&self, plan: &StepPlan) -> Vec<SeqOutcome> {
        match self {
            Outcomes::Listed(outcomes) => outcomes.to_vec(),
            Outcomes::Each(exceptions) => {
                let sampled = plan.chunks.iter().filter(|chunk| chunk.sample);
                let mut all: Vec<_> =
                    sampled.map(|chunk| SeqOutcome::Continue(chunk.seq)).collect();
                for (position, outcome) in exceptions {
                    if let Some(place) = all.get_mut(*position as usize) {
                        *place = *outcome;
                    }
                }
                all
            }
        }
    }
}

fn seq(outcome: SeqOutcome) -> SeqId {
    match outcome {
        SeqOutcome::Continue(seq) | SeqOutcome::Finish(seq, _) | SeqOutcome::Fail(seq) => seq,
    }
}
