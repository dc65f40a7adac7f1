//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::exchange::Api;
use crate::outcome::Slo;

/// Load generator for OpenAI-compatible servers.
///
/// Latencies count from the scheduled arrival. Goodput is the output tokens per second of requests
/// that met the SLO. Results are printed as Markdown and, with --json, appended to a file.
#[derive(Debug, Parser)]
#[command(name = "sluice-load", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// A fixed number of requests under way: throughput and unloaded latency. Who is refused waits
    /// for as long as the server says before the next one.
    ///
    /// Example: sluice-load closed --url http://127.0.0.1:8000 -c 1,8,32 -n 4
    Closed(Closed),
    /// Random arrivals that wait for nobody: what overload does.
    ///
    /// Example: sluice-load open --url http://127.0.0.1:8000 --rate 3.5 --duration 60s --slo-e2e 3s
    Open(Open),
    /// Replay a recorded trace (CSV: arrival_ms or arrival_s, prompt_tokens, output_tokens; or the
    /// Azure LLM trace's TIMESTAMP, ContextTokens, GeneratedTokens).
    Trace(Trace),
    /// A whole curve: unloaded latency, throughput, then Poisson load at multiples of capacity.
    ///
    /// Example: sluice-load sweep --url http://127.0.0.1:8000 --json results.jsonl
    Sweep(Sweep),
    /// Print result files as one table, servers side by side.
    Table {
        /// Files written by --json.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Draw goodput against offered load from result files, as SVG.
    Plot {
        /// Files written by --json.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Where to write the picture.
        #[arg(short, long, default_value = "goodput.svg")]
        output: PathBuf,
    },
}

/// Which server, what requests, how to judge and where to write.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// The server, with or without /v1.
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub url: String,
    /// Model name; by default the first that the server lists.
    #[arg(long)]
    pub model: Option<String>,
    /// Endpoint to measure.
    #[arg(long, value_enum, default_value = "completions")]
    pub api: Api,
    /// Sent as a bearer token.
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// A further header, `Name: value`; may be repeated.
    #[arg(long = "header", value_name = "LINE")]
    pub headers: Vec<String>,
    /// JSON object whose members are added to each request body.
    #[arg(long, value_name = "JSON")]
    pub extra_body: Option<String>,
    /// Length of each prompt, in tokens. Prompts share nothing, so no cache can help.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: u32,
    /// Send prompts as token ids, for servers that take them: exact lengths.
    #[arg(long)]
    pub prompt_ids: bool,
    /// Length of each answer, in tokens (ignore_eos is sent as well).
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// Ask every request for this many tokens and let the model end the answer before: the server
    /// does not know its length then.
    #[arg(long, value_name = "MAX_TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub open_ended: Option<u32>,
    /// After this long a client gives up and disconnects.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// Seed of arrivals and prompts: the same seed offers the same load.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Name of the server in tables and plots.
    #[arg(long, default_value = "server")]
    pub label: String,
    /// Append each run to this file, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Append each request to this file, one JSON object a line in order of arrival: two runs with
    /// the same seed can be compared request by request.
    #[arg(long, value_name = "FILE")]
    pub requests: Option<PathBuf>,
    /// Limits that a request must keep.
    #[command(flatten)]
    pub slo: SloArgs,
}

/// Limits that a request must keep to count as met.
#[derive(Debug, Clone, Copy, Args)]
pub struct SloArgs {
    /// Limit of the end-to-end time.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub slo_e2e: Option<Duration>,
    /// Limit of the time to the first token.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub slo_ttft: Option<Duration>,
    /// Limit of the mean time per output token after the first.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub slo_tpot: Option<Duration>,
}

impl SloArgs {
    /// The limits as results keep them.
    #[must_use]
    pub fn slo(&self) -> Slo {
        let us = |limit: Option<Duration>| {
            limit.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
        };
        Slo { e2e_us: us(self.slo_e2e), ttft_us: us(self.slo_ttft), tpot_us: us(self.slo_tpot) }
    }
}

/// Arguments of `closed`.
#[derive(Debug, Args)]
pub struct Closed {
    /// Server and requests.
    #[command(flatten)]
    pub common: Common,
    /// Requests under way at any time; several values make several runs.
    #[arg(short, long, value_delimiter = ',', default_value = "1")]
    pub concurrency: Vec<u32>,
    /// Requests that each slot sends, one after the other.
    #[arg(short = 'n', long, default_value_t = 4)]
    pub per_slot: u32,
}

/// Arguments of `open`.
#[derive(Debug, Args)]
pub struct Open {
    /// Server and requests.
    #[command(flatten)]
    pub common: Common,
    /// Mean arrival rates, in requests a second, or multiples of --capacity; one run each.
    #[arg(long, value_delimiter = ',', required = true)]
    pub rate: Vec<f64>,
    /// Requests a second that count as load 1.
    #[arg(long)]
    pub capacity: Option<f64>,
    /// For how long requests arrive; the run ends when the last has its answer.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// Deviation of the gaps between arrivals over their mean: 1 is a Poisson process, 3 is bursty.
    #[arg(long, default_value_t = 1.0)]
    pub burstiness: f64,
    /// Deviation of the logarithms of both lengths: 0 makes all requests equal, 0.7 mixes them.
    #[arg(long, default_value_t = 0.0)]
    pub spread: f64,
}

/// Arguments of `trace`.
#[derive(Debug, Args)]
pub struct Trace {
    /// Server and requests.
    #[command(flatten)]
    pub common: Common,
    /// The trace.
    pub file: PathBuf,
    /// Play the trace this many times faster.
    #[arg(long, default_value_t = 1.0)]
    pub speed_up: f64,
    /// Stop after this much playing time.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,
    /// Longest prompt to send; longer ones in the trace are cut to it.
    #[arg(long, default_value_t = u32::MAX, hide_default_value = true)]
    pub prompt_cap: u32,
    /// Longest answer to ask for; longer ones in the trace are cut to it.
    #[arg(long, default_value_t = u32::MAX, hide_default_value = true)]
    pub output_cap: u32,
}

/// Arguments of `sweep`.
#[derive(Debug, Args)]
pub struct Sweep {
    /// Server and requests.
    #[command(flatten)]
    pub common: Common,
    /// Closed loops to run first: the first gives the unloaded latency, the last the capacity.
    #[arg(short, long, value_delimiter = ',', default_value = "1,8,32")]
    pub concurrency: Vec<u32>,
    /// Requests that each slot of a closed loop sends.
    #[arg(short = 'n', long, default_value_t = 4)]
    pub per_slot: u32,
    /// Offered loads, as multiples of the capacity.
    #[arg(long, value_delimiter = ',', default_value = "0.5,1,2,4")]
    pub loads: Vec<f64>,
    /// Requests a second that count as load 1, instead of what the last closed loop reached.
    #[arg(long)]
    pub capacity: Option<f64>,
    /// The end-to-end limit as a multiple of the unloaded latency, where no --slo-* is given.
    #[arg(long, default_value_t = 4.0)]
    pub slo_multiple: f64,
    /// For how long requests arrive at each load.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
}
