//! The gate's questions and answers, as plain data.

use crate::admission_policy::AdmissionMode;
use crate::scheduler::SchedulerConfig;
use crate::time::Micros;

/// Settings of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GateConfig {
    /// How it decides.
    pub mode: AdmissionMode,
    /// Limits shared with the scheduler.
    pub scheduler: SchedulerConfig,
    /// Which kinds are refused first when somebody must be.
    pub kinds: KindConfig,
    /// When refused requests come back.
    pub retries: RetryConfig,
    /// How latency work is kept apart from throughput promises.
    pub isolation: IsolationConfig,
}

impl GateConfig {
    /// With the default rules for everything else.
    #[must_use]
    pub fn new(mode: AdmissionMode, scheduler: SchedulerConfig) -> GateConfig {
        GateConfig {
            mode,
            scheduler,
            kinds: KindConfig::default(),
            retries: RetryConfig::default(),
            isolation: IsolationConfig::default(),
        }
    }
}

/// Whom to refuse when somebody must be (rule C of the gate).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KindConfig {
    /// How much of the share that has to be refused is taken from the kinds with the least room in
    /// their deadlines, per mille. 0 favours tokens, 800 the number of requests in time.
    pub strength_permille: u32,
    /// How much the refusals that requests of one size have met lately count in their favour, per
    /// mille: at 0 large prompts, which are the hardest to fit in, are refused most.
    pub fairness_permille: u32,
}

impl Default for KindConfig {
    fn default() -> KindConfig {
        KindConfig { strength_permille: 800, fairness_permille: 0 }
    }
}

/// When refused requests come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RetryConfig {
    /// How far apart retries are told to come, as a share of what the forecast says, per mille:
    /// below 1000 sooner, above it later.
    pub scale_permille: u32,
    /// Retries for a thousand first attempts above which refused throughput work is told not to
    /// come back while latency work is there.
    pub budget_permille: u32,
}

impl Default for RetryConfig {
    fn default() -> RetryConfig {
        RetryConfig { scale_permille: 1_000, budget_permille: 100 }
    }
}

/// How latency work is kept apart from throughput promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IsolationConfig {
    /// The most of the device that throughput promises leave to latency work that is expected, as
    /// much of which came lately; per mille. 0 promises as if nobody came later.
    pub latency_share_permille: u32,
    /// How many of a thousand throughput promises latency work that is in time may break. Of the
    /// promises to latency work itself no more than that, and at most 18 of a thousand, may break
    /// for requests of a quarter of the work.
    pub displacement_permille: u32,
}

impl Default for IsolationConfig {
    fn default() -> IsolationConfig {
        IsolationConfig { latency_share_permille: 900, displacement_permille: 50 }
    }
}

/// Predicted absolute times of a request's tokens, and the work it adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Forecast {
    /// First token of its slowest sequence.
    pub first_token: Micros,
    /// Last token of its slowest sequence.
    pub last_token: Micros,
    /// Nine in ten first tokens come no later than this.
    pub upper_first: Micros,
    /// Nine in ten last tokens come no later than this.
    pub upper_last: Micros,
    /// Device time that it adds.
    pub work: Micros,
}

/// Why a request was shed; [`ShedReason::label`] is the metric label and the error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ShedReason {
    /// It, or a promise made before, would miss its deadline.
    SloMiss,
    /// The queue of its class is full.
    QueueFull,
    /// It, or a promise made before, would miss its deadline here, and another replica has room.
    ReplicaBusy,
    /// Its tenant has used its share.
    TenantBudget,
    /// Its KV blocks would not fit beside those already promised.
    KvPressure,
    /// More tokens came than the configured rate allows.
    RateLimit,
    /// Its deadline had passed on arrival.
    Expired,
    /// The server is shutting down.
    Draining,
}

impl ShedReason {
    /// All reasons, for metrics that exist from the start.
    pub const ALL: [ShedReason; 8] = [
        ShedReason::SloMiss,
        ShedReason::QueueFull,
        ShedReason::ReplicaBusy,
        ShedReason::TenantBudget,
        ShedReason::KvPressure,
        ShedReason::RateLimit,
        ShedReason::Expired,
        ShedReason::Draining,
    ];

    /// The metric label and the error code.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            ShedReason::SloMiss => "slo_miss",
            ShedReason::QueueFull => "queue_full",
            ShedReason::ReplicaBusy => "replica_busy",
            ShedReason::TenantBudget => "tenant_budget",
            ShedReason::KvPressure => "kv_pressure",
            ShedReason::RateLimit => "rate_limit",
            ShedReason::Expired => "expired",
            ShedReason::Draining => "draining",
        }
    }
}

/// Which check refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Rule {
    /// A bound or a state, not a forecast: a full queue, a passed deadline, draining.
    Bound,
    /// It would miss its own deadline.
    Own,
    /// It would break a promise made before.
    Harm,
    /// Its kind has the least room in its deadlines, and somebody must be refused.
    Kind,
    /// It would be late behind the latency work that is expected.
    Expected,
}

impl Rule {
    /// All rules, for metrics that exist from the start.
    pub const ALL: [Rule; 5] = [Rule::Bound, Rule::Own, Rule::Harm, Rule::Kind, Rule::Expected];

    /// The metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Rule::Bound => "bound",
            Rule::Own => "own",
            Rule::Harm => "harm",
            Rule::Kind => "kind",
            Rule::Expected => "expected",
        }
    }
}

/// A time that is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Quantity {
    /// Arrival to first token, TTFT.
    FirstToken,
    /// Arrival to last token, E2E.
    LastToken,
    /// First to last token, against the promised mean gap, TPOT.
    Gaps,
}

impl Quantity {
    /// The name in metrics and errors.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Quantity::FirstToken => "ttft",
            Quantity::LastToken => "e2e",
            Quantity::Gaps => "tpot",
        }
    }
}

/// A refusal that may succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Shed {
    /// Why.
    pub reason: ShedReason,
    /// Which check said so.
    pub rule: Rule,
    /// What `predicted` and `budget` are times of.
    pub quantity: Quantity,
    /// When to come back: a slot in the virtual queue of retries.
    pub retry_after: Micros,
    /// A retry is worth it (false tells SDKs not to).
    pub should_retry: bool,
    /// Predicted time from arrival to the token in question (from the first to the last token for
    /// [`Quantity::Gaps`]).
    pub predicted: Micros,
    /// Time that it may take at most; [`Micros::MAX`] where nobody set a limit.
    pub budget: Micros,
    /// Sequences that would be ahead of it.
    pub position: u32,
}

/// The gate's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Admission {
    /// Reserved; the forecast is the promise.
    Admit(Forecast),
    /// Too late now, or no room: 429.
    Shed(Shed),
    /// Would miss its explicit deadline even on an idle server.
    Unsatisfiable {
        /// What the two are times of.
        quantity: Quantity,
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

/// What the gate knows of a request at its end. It keeps spans in 32 bits: what was forecast for
/// more than 71 minutes after arrival is told as 71 minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Settled {
    /// The forecast at admission.
    pub forecast: Forecast,
    /// That forecast plus every delay accepted since: first token.
    pub carried_first: Micros,
    /// That forecast plus every delay accepted since: last token.
    pub carried_last: Micros,
    /// Its output length was known.
    pub exact: bool,
    /// Its promise was given up for others, and charged to their budget.
    pub displaced: bool,
}
