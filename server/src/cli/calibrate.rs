//! `sluice calibrate`: the flags that matter to what a step costs.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::ModelFlags;
use crate::config::{Config, RunnerKind, duration};

const EXAMPLES: &str = "\
Examples:
  sluice calibrate --output here.toml            the demo model on this machine
  sluice calibrate model.gguf --threads 4 --max-num-seqs 64 --budget 2m > here.toml
  sluice serve --profile here.toml               start without measuring

It runs decode and prefill steps of many sizes, fits the five coefficients of the cost model to the
median time of each, and shows what the fit says of each point beside what was measured. Let it run
on a machine that does nothing else, with the flags that you will serve with: threads, weights and
the type of the KV cache change the costs. The server refits them from every step in any case; a
profile only spares it the measurement at start, which takes about two seconds and is less thorough.
With --runner simulated --profile FILE it measures the machine that FILE describes.";

/// `sluice calibrate`.
#[derive(Debug, Default, Args, Serialize)]
#[command(after_help = EXAMPLES)]
pub struct Calibrate {
    /// Directory in Hugging Face layout, .gguf file, or hub id in the local cache [default: the
    /// demo model]
    #[arg(env = "SLUICE_MODEL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,

    /// File to write the profile to [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    #[serde(skip)]
    pub output: Option<PathBuf>,

    /// Name of the profile [default: model and device]
    #[arg(long, value_name = "TEXT")]
    #[serde(skip)]
    pub name: Option<String>,

    /// About how long to measure
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    #[serde(skip)]
    pub budget: Duration,

    /// The model and its memory.
    #[command(flatten)]
    #[serde(flatten)]
    model_flags: ModelFlags,

    /// Most sequences in a step [default: 32]
    #[arg(long, value_name = "N", env = "SLUICE_MAX_NUM_SEQS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_num_seqs: Option<u32>,

    /// Most tokens in a step [default: 512]
    #[arg(long, value_name = "N", env = "SLUICE_MAX_NUM_BATCHED_TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_num_batched_tokens: Option<u32>,

    /// TOML file with the settings of `sluice serve`
    #[arg(long, value_name = "FILE", env = "SLUICE_CONFIG")]
    #[serde(skip)]
    config: Option<PathBuf>,
}

impl Calibrate {
    /// The effective configuration.
    ///
    /// # Errors
    /// See [`Config::resolve`]; and a profile is of use to the simulated runner only.
    pub fn resolve(&self) -> anyhow::Result<Config> {
        let config = Config::resolve(self.config.as_deref(), toml::Table::try_from(self)?)?;
        anyhow::ensure!(
            config.profile.is_none() || config.runner == RunnerKind::Simulated,
            "--profile is what calibrate makes; it reads one only with --runner simulated"
        );
        Ok(config)
    }
}
