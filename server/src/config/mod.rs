//! The effective configuration: flag over environment over file over default.
//!
//! Each source is a TOML table that holds only what was said there; the tables are merged and read
//! once into [`Config`]. So there is one schema, `--print-config` prints exactly what a file may
//! hold, and an unknown key is an error wherever it comes from.

mod choices;
mod classes;
mod scaling;
mod tenants;
mod units;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use engine::profile::{Costs, Limits, Profile};
use serde::{Deserialize, Serialize};

pub use choices::{Alias, KvCacheDtype, LogFormat, RunnerKind, Weights};
pub use classes::{ClassSettings, Classes};
pub use scaling::ScalingSettings;
pub use tenants::{
    DEFAULT as DEFAULT_TENANT, TenantSettings, TenantTargets, permille as share_permille,
};
pub use units::{Admission, ByteSize, Safety, Target, duration, seconds};

use crate::class::ClassName;
use crate::coordinator::address::{self, Address};

/// Everything that can be set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Directory, `.gguf` file or hub id; absent means the demo model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Address to listen on.
    pub host: String,
    /// Port to listen on.
    pub port: u16,
    /// Keys that clients may use; none means that the server is open. Never printed.
    #[serde(skip_serializing)]
    pub api_key: Vec<String>,
    /// Names that clients may use; empty means the model's own.
    pub served_model_name: Vec<String>,
    /// Longest sequence; absent means what the model and the memory allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u32>,
    /// Most sequences in a step.
    pub max_num_seqs: u32,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u32,
    /// Size of the KV pool; absent means a share of the free memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_memory: Option<ByteSize>,
    /// Element type of the KV pool.
    pub kv_cache_dtype: KvCacheDtype,
    /// How weights are kept in memory.
    pub weights: Weights,
    /// Threads that compute; absent means one per core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// What computes.
    pub runner: RunnerKind,
    /// File with the cost of a step, from `sluice calibrate`; absent means that it is measured at
    /// start. The simulated runner takes its cost and sizes from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<PathBuf>,
    /// How the gate decides.
    pub admission: Admission,
    /// Who runs next.
    pub scheduling_policy: String,
    /// Status of a shed request: 429, 503 or 529.
    pub overload_status: u16,
    /// How much the kinds with the least room in their deadlines are refused first: 0 favours
    /// tokens, 0.8 the number of requests in time.
    pub kind_strength: f64,
    /// How much the refusals that prompts of one size met lately count in their favour.
    pub kind_fairness: f64,
    /// The most of the device that promises to class throughput leave to latency work that is
    /// expected.
    pub latency_share: f64,
    /// How many of the promises to class throughput latency work may break.
    pub displacement_budget: f64,
    /// How far apart retries are told to come, against what the forecast says.
    pub retry_after_scale: f64,
    /// Retries for each first attempt above which bulk work is told not to retry.
    pub retry_budget: f64,
    /// Prompts that begin alike are computed once.
    pub enable_prefix_caching: bool,
    /// Class of requests for which nothing else says it.
    pub default_class: ClassName,
    /// Where replicas meet: `memory` for one that is alone, or a URL of Redis.
    #[serde(serialize_with = "address::serialize_shown")]
    pub coordinator: Address,
    /// Its password, if it is not in the URL. Never printed.
    #[serde(skip_serializing)]
    pub coordinator_password: Option<String>,
    /// Under what name replicas of one model meet; absent means the first name of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator_cluster: Option<String>,
    /// What all keys begin with.
    pub coordinator_prefix: String,
    /// What this replica is called; absent means its host's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator_replica: Option<String>,
    /// Among how many replicas a cap for all of them is divided until others have been heard of.
    pub coordinator_replicas: u32,
    /// Headers of a gateway say who sends a request.
    pub trust_tenant_header: bool,
    /// Shape of log lines.
    pub log_format: LogFormat,
    /// Where to record what gate and scheduler are asked and decide; absent means nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<PathBuf>,
    /// Most bytes of all segments of the record.
    pub record_max_size: ByteSize,
    /// Largest request body.
    pub body_limit: ByteSize,
    /// Most connections at a time.
    pub max_connections: usize,
    /// Origins that browsers may call from; `*` means all.
    pub allowed_origins: Vec<String>,
    /// After SIGTERM: how long the server goes on accepting while load balancers notice.
    #[serde(with = "humantime_serde")]
    pub shutdown_delay: Duration,
    /// After SIGTERM: how long running answers may take to finish.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// The number of replicas that is recommended.
    pub scaling: ScalingSettings,
    /// Settings by class.
    pub class: Classes,
    /// Further names of the model, each with the class that it selects.
    pub model_alias: BTreeMap<String, Alias>,
    /// Who pays, and what for.
    pub tenant: BTreeMap<String, TenantSettings>,
    /// The `simulated` runner.
    pub simulated: Simulated,
}

/// What the `simulated` runner pretends to be. The default resembles the demo model on one core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Simulated {
    /// What a step costs.
    #[serde(deserialize_with = "simulated_cost")]
    pub cost: Costs,
    /// Standard deviation of the noise on each step, per mille.
    pub noise_permille: u32,
    /// Seed of noise and tokens.
    pub seed: u64,
    /// KV blocks.
    pub num_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            model: None,
            host: "127.0.0.1".into(),
            port: 8000,
            api_key: Vec::new(),
            served_model_name: Vec::new(),
            max_model_len: None,
            max_num_seqs: 32,
            max_num_batched_tokens: 512,
            kv_cache_memory: None,
            kv_cache_dtype: KvCacheDtype::F16,
            weights: Weights::Auto,
            threads: None,
            runner: RunnerKind::Cpu,
            profile: None,
            admission: Admission::default(),
            scheduling_policy: scheduler::policy::NAMES[0].into(),
            overload_status: 429,
            kind_strength: 0.8,
            kind_fairness: 0.0,
            latency_share: 0.9,
            displacement_budget: 0.05,
            retry_after_scale: 1.0,
            retry_budget: 0.1,
            enable_prefix_caching: true,
            default_class: ClassName::Latency,
            coordinator: Address::default(),
            coordinator_password: None,
            coordinator_cluster: None,
            coordinator_prefix: "sluice:".into(),
            coordinator_replica: None,
            coordinator_replicas: 1,
            trust_tenant_header: false,
            log_format: LogFormat::Text,
            record: None,
            record_max_size: ByteSize(256 << 20),
            body_limit: ByteSize(4 << 20),
            max_connections: 1024,
            allowed_origins: vec!["*".into()],
            shutdown_delay: Duration::from_secs(1),
            grace: Duration::from_secs(30),
            scaling: ScalingSettings::default(),
            class: Classes::default(),
            model_alias: BTreeMap::new(),
            tenant: BTreeMap::new(),
            simulated: Simulated::default(),
        }
    }
}

impl Default for Simulated {
    fn default() -> Simulated {
        Simulated {
            cost: Costs {
                fixed_ns: 5_000_000,
                per_seq_ns: 1_500_000,
                per_context_token_ps: 10_000,
                per_prefill_token_ns: 1_300_000,
                per_prefill_span_ps: 0,
            },
            noise_permille: 20,
            seed: 0,
            num_blocks: 2_048,
            block_size: 32,
        }
    }
}

/// A table in a file may be partial: what it leaves out keeps its default.
fn over_default<'de, D, T>(deserializer: D, default: &T) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Serialize + serde::de::DeserializeOwned,
{
    use serde::de::Error;
    let said = toml::Table::deserialize(deserializer)?;
    let mut all = toml::Table::try_from(default).map_err(D::Error::custom)?;
    merge(&mut all, said);
    // In full it names the key, on a line of its own.
    let problem = |error: toml::de::Error| error.to_string().trim().replace('\n', " ");
    all.try_into().map_err(|error| D::Error::custom(problem(error)))
}

fn simulated_cost<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Costs, D::Error> {
    over_default(d, &Simulated::default().cost)
}

/// What the simulated runner takes from a profile unless something else is said.
fn simulated_by(profile: &Profile) -> anyhow::Result<toml::Table> {
    let mut table = toml::Table::new();
    let mut simulated = toml::Table::new();
    simulated.insert("cost".into(), toml::Value::try_from(profile.cost)?);
    if let Some(Limits { num_blocks, block_size, .. }) = profile.limits {
        simulated.insert("num_blocks".into(), num_blocks.into());
        simulated.insert("block_size".into(), block_size.into());
    }
    if let Some(limits) = profile.limits {
        table.insert("max_model_len".into(), limits.max_model_len.into());
        table.insert("max_num_seqs".into(), limits.max_num_seqs.into());
        table.insert("max_num_batched_tokens".into(), limits.max_num_batched_tokens.into());
    }
    table.insert("simulated".into(), simulated.into());
    Ok(table)
}

/// Lays `over` over `base`, table by table.
fn merge(base: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(base)), toml::Value::Table(over)) => merge(base, over),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

impl Config {
    /// Reads `file` if there is one (and below it the profile of a simulated runner), lays `flags`
    /// (what the command line and the environment said) over it, and checks the result.
    ///
    /// # Errors
    /// One message that names the file and the key, or the flag's key and what it may be.
    pub fn resolve(file: Option<&Path>, flags: toml::Table) -> anyhow::Result<Config> {
        let mut table = match file {
            None => toml::Table::new(),
            Some(path) => read_table(path)?,
        };
        merge(&mut table, flags);
        if table.get("runner").and_then(toml::Value::as_str) == Some("simulated")
            && let Some(path) = table.get("profile").and_then(toml::Value::as_str)
        {
            let mut base = simulated_by(&Profile::read(Path::new(path))?)?;
            merge(&mut base, table);
            table = base;
        }
        let config: Config = table.try_into().context("bad configuration")?;
        config.check()?;
        Ok(config)
    }

    /// The configuration as a TOML file that [`Config::resolve`] reads (API keys left out).
    ///
    /// # Errors
    /// Never for a configuration that was resolved.
    pub fn to_toml(&self) -> anyhow::Result<String> {
        toml::to_string(self).context("cannot print the configuration")
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=4_096).contains(&self.max_num_seqs), "max_num_seqs must be 1 to 4096");
        ensure!(
            (self.max_num_seqs..=1 << 20).contains(&self.max_num_batched_tokens),
            "max_num_batched_tokens must be at least max_num_seqs and at most 1048576"
        );
        ensure!(self.max_model_len.is_none_or(|n| n >= 2), "max_model_len must be at least 2");
        ensure!(
            (1..=1_024).contains(&self.simulated.block_size),
            "simulated.block_size must be 1 to 1024"
        );
        ensure!(self.threads.is_none_or(|n| (1..=1_024).contains(&n)), "threads must be 1 to 1024");
        ensure!(
            matches!(self.overload_status, 429 | 503 | 529),
            "overload_status must be 429, 503 or 529"
        );
        ensure!(
            (0.1..=10.0).contains(&self.retry_after_scale),
            "retry_after_scale must be 0.1 to 10"
        );
        ensure!((0.0..=1.0).contains(&self.kind_strength), "kind_strength must be 0 to 1");
        ensure!((0.0..=1.0).contains(&self.kind_fairness), "kind_fairness must be 0 to 1");
        ensure!((0.0..=0.99).contains(&self.latency_share), "latency_share must be 0 to 0.99");
        ensure!(
            (0.0..=1.0).contains(&self.displacement_budget),
            "displacement_budget must be 0 to 1"
        );
        ensure!((0.0..=10.0).contains(&self.retry_budget), "retry_budget must be 0 to 10");
        let policies = scheduler::policy::NAMES;
        if !policies.contains(&self.scheduling_policy.as_str()) {
            bail!("scheduling_policy must be one of: {}", policies.join(", "));
        }
        ensure!(
            (1 << 10..=1 << 30).contains(&self.body_limit.0),
            "body_limit must be 1KiB to 1GiB"
        );
        ensure!(
            (16 << 20..=1 << 40).contains(&self.record_max_size.0),
            "record_max_size must be 16MiB to 1024GiB"
        );
        ensure!(
            (1..=4_096).contains(&self.coordinator_replicas),
            "coordinator_replicas must be 1 to 4096"
        );
        let braces = |name: &str| name.contains(['{', '}']);
        ensure!(!braces(&self.coordinator_prefix), "coordinator_prefix must have no braces");
        ensure!((1..=65_536).contains(&self.max_connections), "max_connections must be 1 to 65536");
        ensure!(
            self.api_key.iter().all(|key| !key.is_empty()),
            "api_key must not be empty; leave it out to run without keys"
        );
        self.scaling.check()?;
        tenants::check(&self.tenant, &self.api_key)?;
        self.class.check(self.max_num_seqs)?;
        for alias in self.model_alias.keys() {
            ensure!(
                !self.served_model_name.contains(alias),
                "model_alias.{alias:?} is also a served_model_name; a name has one meaning"
            );
        }
        Ok(())
    }
}

/// Reads and checks a file by itself, so that an unknown key is reported with its line.
fn read_table(path: &Path) -> anyhow::Result<toml::Table> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the configuration file {shown}"))?;
    toml::from_str::<Config>(&text).with_context(|| format!("{shown}"))?;
    toml::from_str(&text).with_context(|| format!("{shown}"))
}

/// Where the demo model lies once `make model` has fetched it.
///
/// # Errors
/// Without a home directory there is no cache.
pub fn demo_model() -> anyhow::Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .filter(|dir| !dir.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
        .context("no home directory: set XDG_CACHE_HOME, or name a model on the command line")?;
    Ok(cache.join("sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
}

#[cfg(test)]
mod tests;
