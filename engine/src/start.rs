//! Starting the engine: measure, fill in what is automatic, spawn the thread.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use crossbeam_channel::bounded;
use models::ModelRunner;
use scheduler::{
    AdmissionMode, Class, ClassTable, CostModel, Gate, GateConfig, IsolationConfig, KindConfig,
    Micros, RetryConfig, Scheduler, SchedulerConfig, Slo, TenantTable, policy,
};

use crate::calibrate;
use crate::clock::Clock;
use crate::handle::{Handle, Inner};
use crate::observer::Observer;
use crate::prefix::BlockHasher;
use crate::record::{self, Opening, RecordedGate, RecordedScheduler, Tape};
use crate::shared::{Live, Shared};
use crate::submission::Bounds;
use crate::thread::{EngineThread, Parts};

/// Settings of the engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most sequences in a step.
    pub max_num_seqs: u32,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u32,
    /// Class settings. A `tpot` target of `Some(Micros::MAX)` stands for `auto`: four times the
    /// unloaded gap, measured at start.
    pub classes: ClassTable,
    /// How the gate decides.
    pub admission: AdmissionMode,
    /// The tenants; `auto` targets as in `classes`.
    pub tenants: TenantTable,
    /// Which kinds are refused first when somebody must be.
    pub kinds: KindConfig,
    /// When refused requests come back.
    pub retries: RetryConfig,
    /// How latency work is kept apart from throughput promises.
    pub isolation: IsolationConfig,
    /// The scheduling policy's name, one of [`scheduler::policy::NAMES`].
    pub policy: String,
    /// The model's end tokens.
    pub eos: Vec<u32>,
    /// Prompts that begin alike are computed once: KV blocks are kept and found by their content.
    pub prefix_caching: bool,
    /// Where to record what gate and scheduler are asked and decide, if at all.
    pub record: Option<record::Options>,
    /// What a step costs, if that is known already; it is measured otherwise.
    pub cost: Option<CostModel>,
}

/// Why the engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no such policy.
    #[error("unknown scheduling policy {0:?}; known: {names}", names = policy::NAMES.join(", "))]
    UnknownPolicy(String),
    /// The runner failed while it was measured.
    #[error("calibration failed: {0}")]
    Calibration(String),
    /// The system gave no random numbers, which prefix caching needs.
    #[error("no random key for the prefix cache: {0}")]
    Key(String),
    /// The record cannot be written.
    #[error("cannot record to {path}: {error}")]
    Record {
        /// Where it should have been.
        path: String,
        /// Why not.
        error: std::io::Error,
    },
    /// The thread could not be started.
    #[error("cannot start the engine thread: {0}")]
    Thread(String),
}

/// Measures the runner, unless its cost is known, and starts the engine thread. `progress` gets one
/// line for each stage of the measurement.
///
/// # Errors
/// See [`EngineError`].
pub fn start(
    mut runner: Box<dyn ModelRunner>,
    config: Config,
    observer: Arc<dyn Observer>,
    progress: &mut dyn FnMut(&str),
) -> Result<Handle, EngineError> {
    let policy = || {
        policy::by_name(&config.policy)
            .ok_or_else(|| EngineError::UnknownPolicy(config.policy.clone()))
    };
    let (gate_policy, policy) = (policy()?, policy()?);
    let cost = match config.cost {
        Some(cost) => cost,
        None => calibrate::measure(&mut *runner, progress)
            .map_err(|error| EngineError::Calibration(error.to_string()))?,
    };
    let limits = runner.limits();
    let (mut classes, mut tenants) = (config.classes, config.tenants.clone());
    let slos = classes.0.iter_mut().map(|class| &mut class.slo);
    let own = tenants.iter_mut().flat_map(|tenant| tenant.slo.iter_mut().flatten());
    fill_in_auto(slos.chain(own), &cost, limits.max_model_len);
    let settings = SchedulerConfig {
        num_blocks: limits.num_blocks,
        block_size: limits.block_size,
        max_num_seqs: config.max_num_seqs.min(limits.max_chunks).max(1),
        max_num_batched_tokens: config.max_num_batched_tokens.min(limits.max_batched_tokens).max(1),
        max_model_len: limits.max_model_len,
        classes,
    };
    let gate_config = GateConfig {
        kinds: config.kinds,
        retries: config.retries,
        isolation: config.isolation,
        ..GateConfig::new(config.admission, settings)
    };
    let hasher = match config.prefix_caching {
        false => None,
        true => Some(
            BlockHasher::new(limits.block_size)
                .map_err(|error| EngineError::Key(error.to_string()))?,
        ),
    };
    let clock = Clock::start();
    let tape = match &config.record {
        None => None,
        Some(options) => Some(tape(options, &config.policy, gate_config, tenants.clone(), cost)?),
    };
    let gate = Gate::new(gate_config, gate_policy, cost).with_tenants(&tenants);
    let gate = RecordedGate::new(gate, tape.clone());
    let scheduler = Scheduler::new(settings, policy, cost).with_tenants(&tenants);
    let scheduler = RecordedScheduler::new(scheduler, tape);
    let live = Live { counts: scheduler.counts(), cost, progress: None };
    let shared = Arc::new(Shared::new(clock, gate, live));
    let (commands, receiver) = bounded(channel_capacity(&settings));
    let parts =
        Parts { runner, scheduler, cost, observer, eos: config.eos.into(), hasher: hasher.clone() };
    let thread = EngineThread::new(Arc::clone(&shared), receiver, parts);
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || thread.main())
        .map_err(|error| EngineError::Thread(error.to_string()))?;
    let vocab_size = limits.vocab_size;
    Ok(Handle(Arc::new(Inner {
        shared,
        commands,
        thread: Mutex::new(Some(thread)),
        next_id: AtomicU64::new(0),
        bounds: Bounds { max_model_len: limits.max_model_len, vocab_size, classes, tenants },
        hasher,
    })))
}

/// Begins the record. The clock of its events starts now.
fn tape(
    options: &record::Options,
    policy: &str,
    gate: GateConfig,
    tenants: TenantTable,
    cost: CostModel,
) -> Result<Tape, EngineError> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let opening = Opening {
        version: env!("CARGO_PKG_VERSION").into(),
        model: options.model.clone(),
        origin_unix_us: u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX),
        number: 0,
        policy: policy.into(),
        gate,
        tenants,
        cost,
        state: None,
    };
    Tape::start(options, &opening)
        .map_err(|error| EngineError::Record { path: options.path.display().to_string(), error })
}

/// Replaces `auto` gaps by four times the unloaded one, at least a millisecond.
fn fill_in_auto<'a>(slos: impl Iterator<Item = &'a mut Slo>, cost: &CostModel, max_model_len: u32) {
    const FLOOR: Micros = Micros(1_000);
    let gap = calibrate::unloaded_gap(cost, max_model_len);
    for slo in slos.filter(|slo| slo.tpot == Some(Micros::MAX)) {
        slo.tpot = Some(Micros(gap.0.saturating_mul(4)).max(FLOOR));
    }
}

/// Room for everything that the gate lets wait or run at once, within reason, and for wake-ups.
fn channel_capacity(settings: &SchedulerConfig) -> usize {
    const MOST: u32 = 65_536;
    const WAKE_UPS: u32 = 16;
    let waiting = Class::ALL.map(|class| settings.classes.get(class).max_waiting);
    let room = waiting.into_iter().fold(settings.slots(), u32::saturating_add);
    room.min(MOST).saturating_add(WAKE_UPS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn automatic_gaps_are_four_times_the_unloaded_one() {
        let cost = |per_seq_ns| CostModel {
            fixed_ns: 5_000_000,
            per_seq_ns,
            per_context_token_ps: 1_000_000,
            per_prefill_token_ns: 0,
            per_prefill_span_ps: 0,
        };
        let filled = |cost: CostModel| {
            let slo = |tpot| Slo { ttft: None, tpot, e2e: None };
            let mut slos = [slo(Some(Micros::MAX)), slo(Some(Micros(7)))];
            fill_in_auto(slos.iter_mut(), &cost, 2_048);
            slos.map(|slo| slo.tpot)
        };
        assert_eq!(filled(cost(2_000_000)), [Some(Micros(4 * 7_512)), Some(Micros(7))]);
        assert!(filled(cost(u64::MAX))[0] > Some(Micros(1_000_000_000_000)));
        let free = CostModel { fixed_ns: 0, per_context_token_ps: 0, ..cost(0) };
        assert_eq!(filled(free)[0], Some(Micros(1_000)));
    }
}
