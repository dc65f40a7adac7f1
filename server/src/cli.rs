//! The command line. What is typed here becomes a TOML table that [`crate::config`] lays over the
//! file; nothing is interpreted twice.

mod calibrate;
mod coordinator;
mod drain;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use serde::Serialize;

pub use calibrate::Calibrate;
pub use coordinator::CoordinatorFlags;
pub use drain::Drain;

use crate::class::ClassName;
use crate::config::{
    Admission, ByteSize, Config, KvCacheDtype, LogFormat, RunnerKind, Safety, Target, Weights,
    duration, seconds,
};
use crate::replay::Replay;

/// An OpenAI-compatible LLM server that says no in time.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model over HTTP
    Serve(Box<Serve>),
    /// Replay what `serve --record` has written
    Replay(Replay),
    /// Measure the cost of a step and write it to a profile
    Calibrate(Box<Calibrate>),
    /// End in order what a server on this machine has in flight; for a preStop hook
    Drain(Drain),
    /// Print the version
    Version,
}

const EXAMPLES: &str = "\
Examples:
  sluice serve                                   the demo model on 127.0.0.1:8000
  sluice serve ./Qwen3-0.6B --port 9000          a directory in Hugging Face layout
  sluice serve model.gguf --slo-ttft 800ms       promise the first token within 800 ms
  sluice serve --runner simulated                no model at all: try admission out
  sluice serve --runner simulated --profile profiles/h100-llama-3.1-8b.toml
                                                 the same with the costs of an H100
  sluice serve --admission none --scheduling-policy fcfs
                                                 the FIFO baseline, for comparison
  sluice serve --config sluice.toml --print-config
  sluice serve --record sluice.rec               then: sluice replay sluice.rec

Ask it something:
  curl -N http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Name a colour.\"}],\"stream\":true}'

A request that would miss its target is refused at once with 429 and Retry-After. Targets per
request: the headers x-slo-ttft-ms, x-slo-tpot-ms and x-request-deadline-ms.
Settings come from flags, then SLUICE_* variables, then --config, then defaults.";

/// `sluice serve`.
#[derive(Debug, Default, Args, Serialize)]
#[command(after_help = EXAMPLES)]
pub struct Serve {
    /// Directory in Hugging Face layout, .gguf file, or hub id in the local cache [default: the
    /// demo model]
    #[arg(env = "SLUICE_MODEL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,

    /// Where to listen, what to listen for.
    #[command(flatten)]
    #[serde(flatten)]
    pub network: NetworkFlags,

    /// The model and its memory.
    #[command(flatten)]
    #[serde(flatten)]
    pub model_flags: ModelFlags,

    /// Admission and scheduling.
    #[command(flatten)]
    #[serde(flatten)]
    pub scheduling: SchedulingFlags,

    /// TOML file with the same settings and more (classes, aliases, the simulated runner)
    #[arg(long, value_name = "FILE", env = "SLUICE_CONFIG")]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// The record of scheduling decisions.
    #[command(flatten)]
    #[serde(flatten)]
    pub record: RecordFlags,

    /// Other replicas of the same model.
    #[command(flatten)]
    #[serde(flatten)]
    pub coordinator: CoordinatorFlags,

    /// Print the effective configuration as TOML and exit
    #[arg(long)]
    #[serde(skip)]
    pub print_config: bool,

    /// Shape of log lines [default: text]
    #[arg(long, value_name = "FORMAT", env = "SLUICE_LOG_FORMAT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,
}

/// Where to listen, what to listen for.
#[derive(Debug, Default, Args, Serialize)]
#[command(next_help_heading = "Network")]
pub struct NetworkFlags {
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", env = "SLUICE_HOST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,

    /// Port to listen on; 0 takes a free one [default: 8000]
    #[arg(long, env = "SLUICE_PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,

    /// Key that clients must send as a bearer token; may be repeated [default: open]
    #[arg(long, value_name = "KEY", env = "SLUICE_API_KEY", hide_env_values = true)]
    #[arg(value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    api_key: Vec<String>,

    /// A tenant with its reserved share of the device and its key, as acme:0.25=KEY; may be
    /// repeated. More can be said in the configuration file
    #[arg(long, value_name = "NAME:SHARE=KEY", env = "SLUICE_TENANT", hide_env_values = true)]
    #[arg(value_delimiter = ',', value_parser = tenant)]
    #[serde(skip)]
    tenant: Vec<TenantFlag>,

    /// Let x-sluice-tenant, x-llm-d-inference-fairness-id or x-gateway-inference-fairness-id name
    /// the tenant: only behind a gateway that sets them itself
    #[arg(long, env = "SLUICE_TRUST_TENANT_HEADER")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    trust_tenant_header: bool,

    /// Names under which the model is served [default: the model's own]
    #[arg(long, value_name = "NAME", num_args = 1.., env = "SLUICE_SERVED_MODEL_NAME")]
    #[arg(value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    served_model_name: Vec<String>,

    /// Largest request body [default: 4MiB]
    #[arg(long, value_name = "SIZE", env = "SLUICE_BODY_LIMIT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    body_limit: Option<ByteSize>,

    /// Most connections at a time [default: 1024]
    #[arg(long, value_name = "N", env = "SLUICE_MAX_CONNECTIONS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_connections: Option<usize>,

    /// Origins that browsers may call from; `*` means all [default: *]
    #[arg(long, value_name = "ORIGIN", env = "SLUICE_ALLOWED_ORIGINS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allowed_origins: Vec<String>,

    /// After SIGTERM: go on accepting for this long while load balancers notice [default: 1s]
    #[arg(long, value_name = "DURATION", env = "SLUICE_SHUTDOWN_DELAY", value_parser = duration)]
    #[serde(skip_serializing_if = "Option::is_none", with = "humantime_serde")]
    shutdown_delay: Option<Duration>,

    /// After SIGTERM: let running answers finish for this long; a bare number is seconds, as in
    /// vLLM's --shutdown-timeout [default: 30s]
    #[arg(long, value_name = "DURATION", env = "SLUICE_GRACE", value_parser = seconds)]
    #[arg(visible_alias = "shutdown-timeout")]
    #[serde(skip_serializing_if = "Option::is_none", with = "humantime_serde")]
    grace: Option<Duration>,
}

/// The model and its memory.
#[derive(Debug, Default, Args, Serialize)]
#[command(next_help_heading = "Model")]
pub struct ModelFlags {
    /// What computes [default: cpu]
    #[arg(long, env = "SLUICE_RUNNER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    runner: Option<RunnerKind>,

    /// Take the cost of a step from this file, written by `sluice calibrate`, instead of measuring
    /// it at start; the simulated runner takes its sizes from it as well
    #[arg(long, value_name = "FILE", env = "SLUICE_PROFILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<PathBuf>,

    /// Threads that compute [default: one per core]
    #[arg(long, value_name = "N", env = "SLUICE_THREADS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<usize>,

    /// How weights are kept in memory [default: auto, as stored]
    #[arg(long, value_name = "TYPE", env = "SLUICE_WEIGHTS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    weights: Option<Weights>,

    /// Longest sequence in tokens, prompt and answer [default: what model and memory allow]
    #[arg(long, value_name = "TOKENS", env = "SLUICE_MAX_MODEL_LEN")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<u32>,

    /// Size of the KV cache, such as 512MiB [default: a quarter of the free memory]
    #[arg(long, value_name = "SIZE", env = "SLUICE_KV_CACHE_MEMORY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_cache_memory: Option<ByteSize>,

    /// Element type of the KV cache [default: f16]
    #[arg(long, value_name = "TYPE", env = "SLUICE_KV_CACHE_DTYPE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_cache_dtype: Option<KvCacheDtype>,
}

/// Admission and scheduling.
#[derive(Debug, Default, Args, Serialize)]
#[command(next_help_heading = "Admission and scheduling")]
pub struct SchedulingFlags {
    /// Who is refused: deadline (by forecast), none, queue-cap=REQUESTS, token-bucket=RATE:BURST,
    /// saturation=QUEUE:KV or article=FACTOR [default: deadline]
    #[arg(long, value_name = "POLICY", env = "SLUICE_ADMISSION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    admission: Option<Admission>,

    /// Who runs next [default: deadline]
    #[arg(long, value_name = "POLICY", value_parser = scheduler::policy::NAMES)]
    #[arg(env = "SLUICE_SCHEDULING_POLICY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduling_policy: Option<String>,

    /// Class latency: arrival to first token [default: 1500ms]
    #[arg(long, value_name = "DURATION", env = "SLUICE_SLO_TTFT")]
    #[serde(skip)]
    slo_ttft: Option<Target>,

    /// Class latency: mean gap between tokens; auto is four times the unloaded gap [default: auto]
    #[arg(long, value_name = "DURATION", env = "SLUICE_SLO_TPOT")]
    #[serde(skip)]
    slo_tpot: Option<Target>,

    /// Class latency: arrival to last token [default: none]
    #[arg(long, value_name = "DURATION", env = "SLUICE_SLO_E2E")]
    #[serde(skip)]
    slo_e2e: Option<Target>,

    /// Share of a deadline that a forecast may use, both classes: auto, or such as 0.8
    /// [default: auto]
    #[arg(long, value_name = "FACTOR", env = "SLUICE_SAFETY_FACTOR")]
    #[serde(skip)]
    safety_factor: Option<Safety>,

    /// Class of requests for which nothing else says it [default: latency]
    #[arg(long, value_name = "CLASS", env = "SLUICE_DEFAULT_CLASS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    default_class: Option<ClassName>,

    /// Status of shed requests: 429, 503 or 529 [default: 429]
    #[arg(long, value_name = "STATUS", env = "SLUICE_OVERLOAD_STATUS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    overload_status: Option<u16>,

    /// How much those with the least room in their deadlines are refused first: 0 favours tokens,
    /// 0.8 the number of requests in time [default: 0.8]
    #[arg(long, value_name = "SHARE", env = "SLUICE_KIND_STRENGTH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    kind_strength: Option<f64>,

    /// How much the refusals that prompts of one size met count in their favour [default: 0]
    #[arg(long, value_name = "SHARE", env = "SLUICE_KIND_FAIRNESS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    kind_fairness: Option<f64>,

    /// The most of the device that promises to class throughput leave to latency work that is
    /// expected, as much of which came lately [default: 0.9]
    #[arg(long, value_name = "SHARE", env = "SLUICE_LATENCY_SHARE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_share: Option<f64>,

    /// How many of the promises to class throughput latency work may break; of those to class
    /// latency small requests may break as many, but at most 0.018 [default: 0.05]
    #[arg(long, value_name = "SHARE", env = "SLUICE_DISPLACEMENT_BUDGET")]
    #[serde(skip_serializing_if = "Option::is_none")]
    displacement_budget: Option<f64>,

    /// How far apart retries are told to come, against what the forecast says: below 1 sooner
    /// [default: 1.0]
    #[arg(long, value_name = "FACTOR", env = "SLUICE_RETRY_AFTER_SCALE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_scale: Option<f64>,

    /// Retries for each first attempt above which bulk work is told not to retry [default: 0.1]
    #[arg(long, value_name = "SHARE", env = "SLUICE_RETRY_BUDGET")]
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_budget: Option<f64>,

    /// Compute prompts that begin alike once: KV blocks are kept and found by their content
    /// [default: true]
    #[arg(long, value_name = "BOOL", env = "SLUICE_ENABLE_PREFIX_CACHING")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_prefix_caching: Option<bool>,

    /// The same as --enable-prefix-caching=false
    #[arg(long, overrides_with = "enable_prefix_caching")]
    #[serde(skip)]
    no_enable_prefix_caching: bool,

    /// Most sequences in a step [default: 32]
    #[arg(long, value_name = "N", env = "SLUICE_MAX_NUM_SEQS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_num_seqs: Option<u32>,

    /// Most tokens in a step [default: 512]
    #[arg(long, value_name = "N", env = "SLUICE_MAX_NUM_BATCHED_TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_num_batched_tokens: Option<u32>,
}

/// The record of scheduling decisions.
#[derive(Debug, Default, Args, Serialize)]
#[command(next_help_heading = "Record")]
pub struct RecordFlags {
    /// Record what admission and scheduler are asked and decide (counts and times, no text), for
    /// `sluice replay`; older segments are FILE.1, FILE.2 and so on [default: no record]
    #[arg(long, value_name = "FILE", env = "SLUICE_RECORD")]
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<PathBuf>,

    /// Most bytes of all segments together, at least 16MiB [default: 256MiB]
    #[arg(long, value_name = "SIZE", env = "SLUICE_RECORD_MAX_SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    record_max_size: Option<ByteSize>,
}

/// `--tenant NAME:SHARE=KEY`.
#[derive(Clone, Debug)]
struct TenantFlag {
    name: String,
    reserved: f64,
    key: String,
}

fn tenant(text: &str) -> Result<TenantFlag, String> {
    let parts = text.split_once('=').and_then(|(tenant, key)| Some((tenant.split_once(':')?, key)));
    let problem = || "expected NAME:SHARE=KEY, such as acme:0.25=KEY".to_owned();
    let ((name, share), key) = parts.ok_or_else(problem)?;
    let reserved = share.parse().map_err(|_| problem())?;
    Ok(TenantFlag { name: name.into(), reserved, key: key.into() })
}

fn tenant_table(tenants: &[TenantFlag]) -> toml::Table {
    let table = |tenant: &TenantFlag| {
        let keys = toml::Value::Array(vec![tenant.key.as_str().into()]);
        let settings = [("reserved".to_owned(), tenant.reserved.into()), ("api_keys".into(), keys)];
        (tenant.name.clone(), toml::Value::Table(toml::Table::from_iter(settings)))
    };
    tenants.iter().map(table).collect()
}

impl Serve {
    /// What was said, as the table that a configuration file would hold.
    ///
    /// # Errors
    /// Never for values that were parsed.
    pub fn table(&self) -> anyhow::Result<toml::Table> {
        let mut table = toml::Table::try_from(self)?;
        let flags = &self.scheduling;
        let mut latency = toml::Table::new();
        let mut throughput = toml::Table::new();
        let targets = [
            ("slo_ttft", flags.slo_ttft),
            ("slo_tpot", flags.slo_tpot),
            ("slo_e2e", flags.slo_e2e),
        ];
        for (key, target) in targets {
            if let Some(target) = target {
                latency.insert(key.into(), target.to_string().into());
            }
        }
        if flags.no_enable_prefix_caching {
            table.insert("enable_prefix_caching".into(), false.into());
        }
        if let Some(safety) = flags.safety_factor {
            for class in [&mut latency, &mut throughput] {
                class.insert("safety_factor".into(), safety.to_string().into());
            }
        }
        let classes = toml::Table::from_iter([
            ("latency".to_owned(), toml::Value::Table(latency)),
            ("throughput".to_owned(), toml::Value::Table(throughput)),
        ]);
        table.insert("class".into(), classes.into());
        if !self.network.tenant.is_empty() {
            table.insert("tenant".into(), tenant_table(&self.network.tenant).into());
        }
        Ok(table)
    }

    /// The effective configuration.
    ///
    /// # Errors
    /// See [`Config::resolve`].
    pub fn resolve(&self) -> anyhow::Result<Config> {
        Config::resolve(self.config.as_deref(), self.table()?)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory;

    use super::*;

    fn serve(args: &[&str]) -> Serve {
        let args = ["sluice", "serve"].iter().chain(args);
        match Cli::try_parse_from(args).expect("valid arguments").command {
            Command::Serve(serve) => *serve,
            _ => panic!("not a serve command"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_flags_give_the_defaults() {
        assert_eq!(serve(&[]).resolve().expect("valid"), Config::default());
    }

    #[test]
    fn flags_reach_their_settings() {
        let config = serve(&[
            "model.gguf",
            "--served-model-name",
            "a",
            "b",
            "--kv-cache-memory=1GiB",
            "--slo-ttft=800ms",
            "--safety-factor=0.8",
            "--weights=q8_0",
            "--grace=5s",
            "--default-class=throughput",
            "--record=log/sluice.rec",
            "--record-max-size=1GiB",
        ])
        .resolve()
        .expect("valid");
        assert_eq!(config.model.as_deref(), Some("model.gguf"));
        assert_eq!(config.served_model_name, ["a", "b"]);
        assert_eq!(config.kv_cache_memory, Some(ByteSize(1 << 30)));
        assert_eq!(config.class.latency.slo_ttft.to_string(), "800ms");
        assert_eq!(config.class.throughput.slo_ttft.to_string(), "1m");
        assert_eq!(config.class.throughput.safety_factor, Safety::Permille(800));
        assert_eq!(config.weights, Weights::Q8_0);
        assert_eq!(config.grace, Duration::from_secs(5));
        assert_eq!(config.default_class, ClassName::Throughput);
        assert_eq!(config.record.as_deref(), Some(Path::new("log/sluice.rec")));
        assert_eq!(config.record_max_size, ByteSize(1 << 30));
    }

    /// Every flag is in the user guide, and the guide names no flag that is not there.
    #[test]
    fn the_guide_lists_exactly_the_flags() {
        let guide = include_str!("../docs/configuration.md");
        let command = Cli::command();
        let serve = command.find_subcommand("serve").expect("serve exists");
        let mut flags: Vec<&str> = serve.get_arguments().filter_map(clap::Arg::get_long).collect();
        let mut listed: Vec<&str> = guide
            .lines()
            .filter_map(|line| line.strip_prefix("| `--")?.split(['`', ' ']).next())
            .collect();
        flags.sort_unstable();
        listed.sort_unstable();
        assert_eq!(flags, listed);
    }
}
