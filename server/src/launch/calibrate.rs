//! Measuring a runner for a profile.

use std::fs;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use engine::Profile;
use engine::calibrate::{Measurement, measure_thoroughly};
use engine::profile::{Limits, Provenance};

use super::progress::Progress;
use super::{Loaded, runner};
use crate::config::{Config, RunnerKind};

/// Loads the model and measures it for about `budget`.
///
/// # Errors
/// One line that says what is wrong with the model or the memory, or that a step failed.
pub fn calibrate(
    config: &Config,
    name: Option<&str>,
    budget: Duration,
) -> anyhow::Result<(Profile, Measurement)> {
    let mut progress = Progress::start();
    let Loaded { mut runner, name: model, limits, .. } = runner::load(config, &mut progress)?;
    let measurement = measure_thoroughly(&mut *runner, budget, &mut |line| progress.stage(line))
        .context("the measurement failed")?;
    progress.finish();
    let (mean, largest) = measurement.errors_percent();
    let device = device(config);
    let provenance = Provenance {
        model: Some(model.clone()),
        device: Some(device.clone()),
        runner: Some(runner.name().to_owned()),
        threads: (config.runner != RunnerKind::Simulated).then(|| runner::threads(config)),
        measured_at: Some(humantime::format_rfc3339_seconds(SystemTime::now()).to_string()),
        sluice: Some(env!("CARGO_PKG_VERSION").to_owned()),
        command: Some(command()),
        points: Some(measurement.points.len()),
        steps: Some(measurement.steps),
        mean_error_percent: Some(tenths(mean)),
        max_error_percent: Some(tenths(largest)),
        source: None,
    };
    let limits = Limits {
        num_blocks: limits.num_blocks,
        block_size: limits.block_size,
        max_model_len: limits.max_model_len,
        max_num_seqs: limits.max_chunks,
        max_num_batched_tokens: limits.max_batched_tokens,
    };
    let name = name.map_or_else(|| format!("{model} on {device}"), ToOwned::to_owned);
    Ok((Profile::new(name, measurement.cost, limits, provenance), measurement))
}

/// What was typed, without the path of the program.
fn command() -> String {
    let arguments = std::env::args().skip(1);
    ["sluice".to_owned()].into_iter().chain(arguments).collect::<Vec<String>>().join(" ")
}

fn tenths(percent: f64) -> f64 {
    (percent * 10.0).round() / 10.0
}

/// The processor's name, where the system tells it, and its cores.
fn device(config: &Config) -> String {
    if config.runner == RunnerKind::Simulated {
        return "simulated".to_owned();
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.trim_start().strip_prefix(':'))
        .map_or(std::env::consts::ARCH, str::trim);
    format!("{name}, {cores} cores")
}
