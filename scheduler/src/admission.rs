//! The gate's questions and answers, as plain data.

use crate::scheduler::SchedulerConfig;
use crate::time::Micros;

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
