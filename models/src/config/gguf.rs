//! The configuration from GGUF metadata.

use super::{Architecture, ModelConfig, Rope, RopeScaling};
use crate::checkpoint::gguf::Gguf;
use crate::error::LoadError;
use crate::quant;

/// Keys of one architecture are `{architecture}.{key}`.
struct Keys<'a> {
    gguf: &'a Gguf,
    prefix: &'static str,
}

impl Keys<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn size_or(&self, key: &str, default: Option<usize>) -> Result<usize, LoadError> {
        let key = self.key(key);
        match (self.gguf.uint(&key)?, default) {
            (Some(value), _) => usize::try_from(value)
                .map_err(|_| self.gguf.invalid(&key, format_args!("{value} is too large"))),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.gguf.invalid(&key, "is missing")),
        }
    }

    fn size(&self, key: &str) -> Result<usize, LoadError> {
        self.size_or(key, None)
    }

    fn float(&self, key: &str) -> Result<Option<f32>, LoadError> {
        Ok(self.gguf.float(&self.key(key))?.map(|value| value as f32))
    }

    fn refuse(&self, key: &str, problem: impl std::fmt::Display) -> LoadError {
        LoadError::unsupported(self.gguf.path(), &self.key(key), problem)
    }
}

/// Reads and validates the configuration.
pub(super) fn read(gguf: &Gguf) -> Result<ModelConfig, LoadError> {
    let (architecture, prefix) = architecture(gguf)?;
    let keys = Keys { gguf, prefix };
    refuse_what_we_cannot_do(&keys)?;
    let hidden_size = keys.size("embedding_length")?;
    let num_heads = keys.size("attention.head_count")?;
    let derived = hidden_size.checked_div(num_heads).unwrap_or(0);
    let head_dim = keys.size_or("attention.key_length", Some(derived))?;
    let Some(norm_eps) = keys.float("attention.layer_norm_rms_epsilon")? else {
        let key = keys.key("attention.layer_norm_rms_epsilon");
        return Err(gguf.invalid(&key, "is missing"));
    };
    let config = ModelConfig {
        architecture,
        hidden_size,
        intermediate_size: keys.size("feed_forward_length")?,
        num_layers: keys.size("block_count")?,
        num_heads,
        num_kv_heads: keys.size_or("attention.head_count_kv", Some(num_heads))?,
        head_dim,
        vocab_size: vocab_size(&keys)?,
        max_position: keys.size("context_length")?,
        norm_eps,
        rope: rope(&keys, architecture, head_dim)?,
        qkv_bias: gguf.has("blk.0.attn_q.bias"),
        qk_norm: architecture == Architecture::Qwen3,
        tied_head: !gguf.has("output.weight"),
    };
    config.validate(gguf.path())
}

fn architecture(gguf: &Gguf) -> Result<(Architecture, &'static str), LoadError> {
    const KEY: &str = "general.architecture";
    match gguf.text(KEY)? {
        // llama.cpp calls Mistral "llama" too.
        Some("llama") => Ok((Architecture::Llama, "llama")),
        Some("qwen2") => Ok((Architecture::Qwen2, "qwen2")),
        Some("qwen3") => Ok((Architecture::Qwen3, "qwen3")),
        Some(other) => {
            let problem = format!("{other:?} is not supported (llama, qwen2 and qwen3 are)");
            Err(LoadError::unsupported(gguf.path(), KEY, problem))
        }
        None => Err(gguf.invalid(KEY, "is missing")),
    }
}

fn refuse_what_we_cannot_do(keys: &Keys<'_>) -> Result<(), LoadError> {
    let gguf = keys.gguf;
    if gguf.uint("split.count")?.is_some_and(|count| count > 1) {
        let problem = "this is one part of a split model; join them with llama-gguf-split --merge";
        return Err(LoadError::unsupported(gguf.path(), "split.count", problem));
    }
    if keys.size_or("expert_count", Some(0))? > 0 {
        return Err(keys.refuse("expert_count", "mixtures of experts are not supported"));
    }
    let context = keys.size("context_length")?;
    let window = keys.size_or("attention.sliding_window", Some(0))?;
    if window > 0 && window < context {
        let problem = format!("a sliding window of {window} in {context} is not supported");
        return Err(keys.refuse("attention.sliding_window", problem));
    }
    for part in ["attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
        let name = format!("blk.0.{part}.bias");
        if gguf.has(&name) {
            return Err(LoadError::unsupported(gguf.path(), &name, "this bias is not supported"));
        }
    }
    Ok(())
}

fn vocab_size(keys: &Keys<'_>) -> Result<usize, LoadError> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let Some(tokens) = keys.gguf.array_len(TOKENS)? else {
        return Err(keys.gguf.invalid(TOKENS, "is missing"));
    };
    let declared = keys.size_or("vocab_size", Some(tokens))?;
    if declared != tokens {
        let problem = format!("is {declared}, but {TOKENS} has {tokens} entries");
        return Err(keys.gguf.invalid(&keys.key("vocab_size"), problem));
    }
    Ok(tokens)
}

fn rope(keys: &Keys<'_>, arch: Architecture, head_dim: usize) -> Result<Rope, LoadError> {
    let rotated = keys.size_or("rope.dimension_count", Some(head_dim))?;
    let value_dim = keys.size_or("attention.value_length", Some(head_dim))?;
    for (key, size) in [("rope.dimension_count", rotated), ("attention.value_length", value_dim)] {
        if size != head_dim {
            let problem = format!("{size} with heads of {head_dim} is not supported");
            return Err(keys.refuse(key, problem));
        }
    }
    Ok(Rope {
        theta: keys.float("rope.freq_base")?.unwrap_or(10_000.0),
        scaling: scaling(keys)?,
        factors: factors(keys.gguf, head_dim)?,
        interleaved: arch == Architecture::Llama,
    })
}

fn scaling(keys: &Keys<'_>) -> Result<RopeScaling, LoadError> {
    // Files from before the key `rope.scaling.*` have `rope.scale_linear`.
    let old = keys.float("rope.scale_linear")?;
    match keys.gguf.text(&keys.key("rope.scaling.type"))? {
        Some("linear") => match keys.float("rope.scaling.factor")? {
            Some(factor) => Ok(RopeScaling::Linear { factor }),
            None => Err(keys.gguf.invalid(&keys.key("rope.scaling.factor"), "is missing")),
        },
        None | Some("none") => Ok(match old {
            Some(factor) if factor != 1.0 => RopeScaling::Linear { factor },
            _ => RopeScaling::None,
        }),
        Some(other) => {
            let problem = format!("{other:?} is not supported (none and linear are)");
            Err(keys.refuse("rope.scaling.type", problem))
        }
    }
}

/// Llama 3's scaling comes as a tensor of divisors, one per frequency.
fn factors(gguf: &Gguf, head_dim: usize) -> Result<Option<Vec<f32>>, LoadError> {
    const NAME: &str = "rope_freqs.weight";
    if !gguf.has(NAME) {
        return Ok(None);
    }
    let found = gguf.find(NAME)?;
    let tensor = found.judge(1, head_dim / 2)?;
    let mut factors = vec![0.0; tensor.cols];
    quant::decode(tensor.dtype, tensor.data, &mut factors);
    Ok(Some(factors))
}
