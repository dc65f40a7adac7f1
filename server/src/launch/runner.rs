//! The three runners, each built from what the configuration says.

use std::thread;

use anyhow::{Context, ensure};
use engine::simulated::{SimulatedOptions, SimulatedRunner};
use kernels::KvDtype;
use models::cpu::{CpuOptions, CpuRunner, WeightType};
use models::{ChatTemplate, LoadedModel, ModelConfig, ModelRunner, RunnerLimits, Tokenizer};

use super::kv::{self, BLOCK, KvPlan, KvRequest};
use super::progress::Progress;
use super::{Loaded, memory};
use crate::config::{self, Config, KvCacheDtype, RunnerKind, Weights};

/// Longest sequence of the simulated runner unless the configuration says otherwise.
const SIMULATED_MODEL_LEN: u32 = 4_096;
/// The byte tokenizer's end of a sequence.
const SIMULATED_EOS: u32 = 256;
/// What the simulated runner's conversations look like.
const SIMULATED_TEMPLATE: &str = "{% for message in messages %}<|{{ message.role }}|>\n\
    {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}";

/// Threads that compute.
pub(super) fn threads(config: &Config) -> usize {
    config.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
}

/// Loads what the configuration names.
pub(super) fn load(config: &Config, progress: &mut Progress) -> anyhow::Result<Loaded> {
    if config.runner == RunnerKind::Simulated {
        return simulated(config);
    }
    let path = match &config.model {
        Some(model) => model.clone(),
        None => demo()?,
    };
    progress.stage(&format!("opening {path}"));
    let model = models::open(&path).context("cannot open the model")?;
    let (runner, kv_bytes) = real(config, &model, progress)?;
    let limits = runner.limits();
    let LoadedModel { name, tokenizer, template, eos, .. } = model;
    Ok(Loaded { runner, name, tokenizer, template, eos, limits, kv_bytes })
}

fn demo() -> anyhow::Result<String> {
    let path = config::demo_model()?;
    ensure!(
        path.is_file(),
        "there is no model: `make model` fetches the demo model to {}; or name one, as in \
         `sluice serve model.gguf`",
        path.display()
    );
    Ok(path.display().to_string())
}

fn real(
    config: &Config,
    model: &LoadedModel,
    progress: &mut Progress,
) -> anyhow::Result<(Box<dyn ModelRunner>, u64)> {
    let dtype = match config.kv_cache_dtype {
        KvCacheDtype::F16 => KvDtype::F16,
        KvCacheDtype::F32 => KvDtype::F32,
    };
    // The candle runner keeps f32 whatever is asked for.
    let candle = config.runner == RunnerKind::Candle;
    let dtype = if candle { KvDtype::F32 } else { dtype };
    let weights = if candle { Weights::F32 } else { config.weights };
    let block_bytes = CpuRunner::block_bytes(&model.config, dtype);
    let plan = kv::plan(&KvRequest {
        block_bytes,
        asked_bytes: config.kv_cache_memory.map(|size| size.0),
        available: memory::available(),
        weights: weight_bytes(weights, model),
        asked_len: config.max_model_len,
        model_len: u32::try_from(model.config.max_position).unwrap_or(u32::MAX),
        max_num_seqs: config.max_num_seqs,
    })?;
    progress.stage("loading weights");
    let mut part = |done, all| progress.part(done, all);
    let runner = if candle {
        self::candle(config, model, plan, &mut part)?
    } else {
        let options = CpuOptions {
            threads: threads(config),
            weights: match weights {
                Weights::Auto => WeightType::Auto,
                Weights::F32 => WeightType::F32,
                Weights::Q8_0 => WeightType::Q8_0,
            },
            kv_dtype: dtype,
            num_blocks: plan.num_blocks,
            max_model_len: plan.max_model_len,
            max_batched_tokens: config.max_num_batched_tokens,
            max_chunks: config.max_num_seqs,
        };
        Box::new(CpuRunner::load(&model.config, &model.checkpoint, options, &mut part)?)
    };
    Ok((runner, u64::from(plan.num_blocks) * block_bytes))
}

#[cfg(feature = "candle")]
fn candle(
    config: &Config,
    model: &LoadedModel,
    plan: KvPlan,
    part: &mut dyn FnMut(usize, usize),
) -> anyhow::Result<Box<dyn ModelRunner>> {
    use models::candle::CandleRunner;
    let vocab_size = u32::try_from(model.config.vocab_size).unwrap_or(u32::MAX);
    let limits = limits(config, vocab_size, plan);
    Ok(Box::new(CandleRunner::load(&model.config, &model.checkpoint, limits, part)?))
}

#[cfg(not(feature = "candle"))]
fn candle(
    _: &Config,
    _: &LoadedModel,
    _: KvPlan,
    _: &mut dyn FnMut(usize, usize),
) -> anyhow::Result<Box<dyn ModelRunner>> {
    anyhow::bail!("this build has no candle runner; build with --features candle")
}

fn limits(config: &Config, vocab_size: u32, plan: KvPlan) -> RunnerLimits {
    RunnerLimits {
        vocab_size,
        max_model_len: plan.max_model_len,
        block_size: BLOCK,
        num_blocks: plan.num_blocks,
        max_batched_tokens: config.max_num_batched_tokens,
        max_chunks: config.max_num_seqs,
    }
}

/// About what the weights take in memory.
fn weight_bytes(weights: Weights, model: &LoadedModel) -> u64 {
    let parameters = parameters(&model.config);
    match weights {
        Weights::Auto => model.checkpoint.bytes(),
        Weights::F32 => parameters.saturating_mul(4),
        // 34 bytes for 32 values.
        Weights::Q8_0 => parameters.saturating_mul(34) / 32,
    }
}

fn parameters(config: &ModelConfig) -> u64 {
    let embedding = config.vocab_size * config.hidden_size;
    let embeddings = if config.tied_head { embedding } else { 2 * embedding };
    let heads = 2 * config.num_heads + 2 * config.num_kv_heads;
    let attention = config.hidden_size * config.head_dim * heads;
    let mlp = 3 * config.hidden_size * config.intermediate_size;
    (embeddings + config.num_layers * (attention + mlp)) as u64
}

fn simulated(config: &Config) -> anyhow::Result<Loaded> {
    let tokenizer = Tokenizer::bytes();
    let vocab_size = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    let max_model_len = config.max_model_len.unwrap_or(SIMULATED_MODEL_LEN);
    let plan = KvPlan { num_blocks: config.simulated.num_blocks, max_model_len };
    ensure!(
        u64::from(plan.num_blocks) * u64::from(config.simulated.block_size)
            >= u64::from(max_model_len),
        "simulated.num_blocks is too small for one sequence of {max_model_len} tokens"
    );
    let block_size = config.simulated.block_size;
    let limits = RunnerLimits { block_size, ..limits(config, vocab_size, plan) };
    let options = SimulatedOptions {
        cost: config.simulated.cost.into(),
        noise_permille: config.simulated.noise_permille,
        seed: config.simulated.seed,
        limits,
    };
    Ok(Loaded {
        runner: Box::new(SimulatedRunner::new(options)),
        name: config.model.clone().unwrap_or_else(|| "simulated".to_owned()),
        tokenizer,
        template: Some(ChatTemplate::from_source(SIMULATED_TEMPLATE)?),
        eos: vec![SIMULATED_EOS],
        limits,
        kv_bytes: 0,
    })
}
