//! The admission gate: decides and reserves in one critical section.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::class::Class;
use crate::cost::CostModel;
use crate::policy::SchedulerPolicy;
use crate::request::{Request, RequestId, Terminal};
use crate::scheduler::SchedulerConfig;
use crate::time::Micros;
use crate::timeline::Timeline;

/// How the gate decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionMode {
    /// By forecast against the deadline.
    Deadline,
    /// Admits whatever fits the queue bounds: the FIFO baseline.
    None,
}

/// Settings of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateConfig {
    /// How it decides.
    pub mode: AdmissionMode,
    /// Limits shared with the scheduler.
    pub scheduler: SchedulerConfig,
}

/// Predicted absolute times of a request's tokens, and the work it adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// First token of its slowest sequence.
    pub first_token: Micros,
    /// Last token of its slowest sequence.
    pub last_token: Micros,
    /// Device time that it adds.
    pub work: Micros,
}

/// Why a request was shed; [`ShedReason::label`] is the metric label and the error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShedReason {
    /// It, or a promise made before, would miss its deadline.
    SloMiss,
    /// The queue of its class is full.
    QueueFull,
    /// Its tenant has used its share.
    TenantBudget,
    /// Its KV blocks would not fit beside those already promised.
    KvPressure,
    /// Its deadline had passed on arrival.
    Expired,
    /// The server is shutting down.
    Draining,
}

impl ShedReason {
    /// All reasons, for metrics that exist from the start.
    pub const ALL: [ShedReason; 6] = [
        ShedReason::SloMiss,
        ShedReason::QueueFull,
        ShedReason::TenantBudget,
        ShedReason::KvPressure,
        ShedReason::Expired,
        ShedReason::Draining,
    ];

    /// The metric label and the error code.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            ShedReason::SloMiss => "slo_miss",
            ShedReason::QueueFull => "queue_full",
            ShedReason::TenantBudget => "tenant_budget",
            ShedReason::KvPressure => "kv_pressure",
            ShedReason::Expired => "expired",
            ShedReason::Draining => "draining",
        }
    }
}

/// A refusal that may succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shed {
    /// Why.
    pub reason: ShedReason,
    /// When to come back: a slot in the virtual queue of retries.
    pub retry_after: Micros,
    /// A retry is worth it (false tells SDKs not to).
    pub should_retry: bool,
    /// Predicted time from arrival to the token whose deadline would be missed.
    pub predicted: Micros,
    /// Time from arrival that it may take at most.
    pub budget: Micros,
    /// Sequences that would be ahead of it.
    pub position: u32,
}

/// The gate's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Reserved; the forecast is the promise.
    Admit(Forecast),
    /// Too late now, or no room: 429.
    Shed(Shed),
    /// Would miss its explicit deadline even on an idle server.
    Unsatisfiable {
        /// Predicted time from arrival on an idle server.
        predicted: Micros,
        /// Time from arrival that it may take at most.
        budget: Micros,
    },
    /// Needs more KV blocks than the pool has.
    NeverFits {
        /// Blocks it needs at its peak.
        needed: u32,
        /// Blocks there are.
        available: u32,
    },
}

/// The admission gate.
#[derive(Debug)]
pub struct Gate {
    config: GateConfig,
    policy: Box<dyn SchedulerPolicy>,
    cost: CostModel,
    draining: bool,
    live: BTreeMap<RequestId, (Class, Micros)>,
}

impl Gate {
    /// An empty gate. `policy` is the scheduler's.
    #[must_use]
    pub fn new(config: GateConfig, policy: Box<dyn SchedulerPolicy>, cost: CostModel) -> Gate {
        Gate { config, policy, cost, draining: false, live: BTreeMap::new() }
    }

    /// Decides, and on `Admit` reserves for all sequences at once and fills in their predicted
    /// lengths. Microseconds; no allocation proportional to the queue.
    pub fn admit(&mut self, now: Micros, request: &mut Request) -> Admission {
        let available = self.config.scheduler.num_blocks;
        for seq in &mut request.sequences {
            let needed = self.config.scheduler.blocks_for(seq.peak_tokens());
            if needed > available {
                return Admission::NeverFits { needed, available };
            }
            seq.output.predicted = seq.output.max;
        }
        let shed = |reason| {
            Admission::Shed(Shed {
                reason,
                retry_after: Micros::from_millis(1_000),
                should_retry: true,
                predicted: Micros(0),
                budget: Micros(0),
                position: self.live.len() as u32,
            })
        };
        if self.draining {
            return shed(ShedReason::Draining);
        }
        let waiting = self.config.scheduler.classes.get(request.class).max_waiting;
        if self.live.len() as u32 >= waiting + self.config.scheduler.max_num_seqs {
            return shed(ShedReason::QueueFull);
        }
        let work = self.cost.prefill_work(0, request.sequences[0].prompt_tokens);
        self.live.insert(request.id, (request.class, work));
        Admission::Admit(Forecast { first_token: now.plus(work), last_token: now.plus(work), work })
    }

    /// Swaps in the timeline that the engine thread built; requests admitted since are inserted
    /// into it again. `cost` is the model it was built with.
    pub fn install(&mut self, _now: Micros, _timeline: Timeline, cost: CostModel) {
        self.cost = cost;
    }

    /// Ends a reservation. `outputs` are the generated lengths of its sequences (in order), `first`
    /// and `last` the times of its first and last token if they came.
    pub fn finish(
        &mut self,
        _now: Micros,
        id: RequestId,
        _terminal: Terminal,
        _outputs: &[u32],
        _first: Option<Micros>,
        _last: Option<Micros>,
    ) {
        self.live.remove(&id);
    }

    /// From now on everything is shed with `Draining`.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Outstanding work of a class: predicted device time of admitted, unfinished requests.
    #[must_use]
    pub fn outstanding(&self, class: Class) -> Micros {
        let of_class = self.live.values().filter(|(c, _)| *c == class);
        of_class.fold(Micros(0), |sum, (_, work)| sum.plus(*work))
    }
}
