//! Numerics against Hugging Face transformers, for every runner. `goldens/make_goldens.py` made the
//! references, once.

// The helpers of a test are test code too, which clippy's own exemption does not see.
#![allow(clippy::unwrap_used)]

mod demo;
mod tiny;

use std::path::{Path, PathBuf};

use kernels::KvDtype;
use serde::de::DeserializeOwned;
use sluice_models::candle::CandleRunner;
use sluice_models::cpu::{CpuOptions, CpuRunner, WeightType};
use sluice_models::{Chunk, LoadedModel, ModelConfig, ModelRunner, RunnerLimits};

/// How large a model's pool and steps are in these tests.
#[derive(Clone, Copy)]
struct Capacity {
    num_blocks: u32,
    max_model_len: u32,
}

type Load = fn(&LoadedModel, &ModelConfig, Capacity) -> Box<dyn ModelRunner>;

/// Every runner, computing in f32 with f32 weights and keys and values.
const RUNNERS: [(&str, Load); 2] = [("candle", candle), ("cpu", cpu)];

fn candle(model: &LoadedModel, config: &ModelConfig, capacity: Capacity) -> Box<dyn ModelRunner> {
    let limits = RunnerLimits {
        vocab_size: config.vocab_size as u32,
        max_model_len: capacity.max_model_len,
        block_size: 32,
        num_blocks: capacity.num_blocks,
        max_batched_tokens: 256,
        max_chunks: 8,
    };
    Box::new(CandleRunner::load(config, &model.checkpoint, limits, &mut |_, _| {}).unwrap())
}

fn cpu(model: &LoadedModel, config: &ModelConfig, capacity: Capacity) -> Box<dyn ModelRunner> {
    let options = CpuOptions {
        threads: 2,
        weights: WeightType::F32,
        kv_dtype: KvDtype::F32,
        num_blocks: capacity.num_blocks,
        max_model_len: capacity.max_model_len,
        max_batched_tokens: 256,
        max_chunks: 8,
    };
    Box::new(CpuRunner::load(config, &model.checkpoint, options, &mut |_, _| {}).unwrap())
}

/// One step; the wanted rows of logits.
fn step(runner: &mut dyn ModelRunner, chunks: &[Chunk<'_>]) -> Vec<f32> {
    let mut logits = Vec::new();
    runner.run(chunks, &mut logits).unwrap();
    logits
}

/// A file beside the script that made it.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(name)
}

fn golden_json<T: DeserializeOwned>(name: &str) -> T {
    let text = std::fs::read_to_string(golden(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}
