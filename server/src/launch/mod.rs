//! From a configuration to a running service: open the model, size the KV pool, load the weights,
//! measure, start the engine.

mod calibrate;
mod classes;
mod kv;
mod memory;
mod progress;
mod runner;
mod summary;

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use engine::{Profile, record};
use models::{ChatTemplate, ModelRunner, RunnerLimits, Tokenizer};
use scheduler::{IsolationConfig, KindConfig, RetryConfig};
use tokio::sync::{Semaphore, watch};

use crate::config::{Admission, Config, RunnerKind};
use crate::endpoint::Endpoint;
use crate::error::OverloadStatus;
use crate::journal::Journal;
use crate::metrics::observer::Reporter;
use crate::metrics::{Facts, Metrics};
use crate::origin::Origins;
use crate::state::{Model, Service};
use crate::tenants::{self, Tenants};

use progress::Progress;

pub use calibrate::calibrate;
pub(crate) use classes::{table as class_table, target};
pub use summary::Summary;

/// Large requests that are encoded at a time; the others wait.
const ENCODERS: usize = 4;

/// A model ready to compute, and what the server needs to know of it.
#[allow(missing_debug_implementations)]
struct Loaded {
    runner: Box<dyn ModelRunner>,
    name: String,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    eos: Vec<u32>,
    limits: RunnerLimits,
    kv_bytes: u64,
}

/// Loads the model and starts the engine; takes as long as that takes, and shows how far it is.
/// Must be called inside a runtime, whose tasks write the log lines of ended requests.
///
/// # Errors
/// One line that says what is wrong with the model, the memory or the configuration.
pub fn launch(config: &Config) -> anyhow::Result<(Service, Summary)> {
    let began = Instant::now();
    if let Some(path) = &config.record {
        let shown = path.display();
        record::prepare(path).with_context(|| format!("cannot record to {shown}"))?;
    }
    let mut progress = Progress::start();
    let loaded = runner::load(config, &mut progress)?;
    let Loaded { runner, name, tokenizer, template, eos, limits, kv_bytes } = loaded;
    let runner_name = runner.name();
    let model = Model::new(config, name, tokenizer, template, limits.max_model_len);
    let tenants = Tenants::new(config);
    let metrics = Arc::new(Metrics::new(&Facts {
        model_name: model.name().to_owned(),
        max_model_len: limits.max_model_len,
        block_size: limits.block_size,
        num_blocks: limits.num_blocks,
        prefix_caching: config.enable_prefix_caching,
        promises: config.admission == Admission::default(),
        tenants: tenants.all().iter().map(|t| (t.tier, t.reserved_permille)).collect(),
    }));
    let journal = Journal::start(tenants.all().iter().map(|tenant| tenant.name.clone()).collect());
    let reporter = Reporter { metrics: Arc::clone(&metrics), journal: Arc::clone(&journal) };

    let profile = config.profile.as_deref().map(Profile::read).transpose()?;
    if let Some(profile) = &profile {
        warn_of_differences(profile, config, runner_name, model.name());
    }
    progress.stage("measuring the cost of a step");
    let settings = engine_config(config, model.name(), eos, profile.as_ref());
    let engine =
        engine::start(runner, settings, Arc::new(reporter), &mut |line| progress.stage(line))
            .context("cannot start the engine")?;
    progress.finish();
    let summary = Summary {
        model: model.name().to_owned(),
        runner: runner_name,
        threads: runner::threads(config),
        limits,
        kv_bytes,
        classes: engine.classes(),
        cost: engine.cost(),
        profile: profile.map(|profile| profile.name),
        admission: config.admission,
        open: tenants::keys(config).is_empty(),
        took: began.elapsed(),
    };
    let service = Service {
        engine,
        model,
        metrics,
        journal,
        overload: OverloadStatus::new(config.overload_status),
        default_class: config.default_class.into(),
        routes: Endpoint::ALL.map(|endpoint| config.class.of_route(endpoint.route())),
        tenants,
        origins: Origins::default(),
        in_flight: watch::Sender::new(0),
        closing: watch::Sender::new(false),
        encoders: Semaphore::new(ENCODERS),
    };
    Ok((service, summary))
}

/// A profile may have been measured on something else than what is served.
fn warn_of_differences(profile: &Profile, config: &Config, runner: &str, model: &str) {
    if config.runner == RunnerKind::Simulated {
        return;
    }
    let threads = runner::threads(config).to_string();
    let measured = &profile.provenance;
    let measured_threads = measured.threads.map(|threads| threads.to_string());
    for (what, measured, served) in [
        ("model", measured.model.as_deref(), model),
        ("runner", measured.runner.as_deref(), runner),
        ("threads", measured_threads.as_deref(), threads.as_str()),
    ] {
        let measured = measured.unwrap_or("unknown");
        if measured != served {
            tracing::warn!(
                profile = profile.name,
                measured,
                served,
                "the profile was measured with another {what}; forecasts will be wrong until the \
                 refit has corrected them"
            );
        }
    }
}

fn engine_config(
    config: &Config,
    model: &str,
    eos: Vec<u32>,
    profile: Option<&Profile>,
) -> engine::Config {
    engine::Config {
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        classes: classes::table(&config.class),
        admission: config.admission.0,
        tenants: tenants::table(config),
        kinds: KindConfig {
            strength_permille: permille(config.kind_strength),
            fairness_permille: permille(config.kind_fairness),
        },
        retries: RetryConfig {
            scale_permille: permille(config.retry_after_scale),
            budget_permille: permille(config.retry_budget),
        },
        isolation: IsolationConfig {
            latency_share_permille: permille(config.latency_share),
            displacement_permille: permille(config.displacement_budget),
        },
        policy: config.scheduling_policy.clone(),
        eos,
        prefix_caching: config.enable_prefix_caching,
        record: config.record.as_ref().map(|path| record::Options {
            path: path.clone(),
            max_bytes: config.record_max_size.0,
            model: model.to_owned(),
        }),
        cost: profile.map(|profile| profile.cost.into()),
    }
}

/// A share, within the bounds of the configuration, in whole per mille.
fn permille(share: f64) -> u32 {
    (share * 1_000.0).round() as u32
}
