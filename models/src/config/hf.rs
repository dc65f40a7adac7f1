//! The configuration from Hugging Face's config.json. Defaults are those of transformers' classes.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{Architecture, ModelConfig, Rope, RopeScaling};
use crate::error::LoadError;
use crate::json;

/// The fields that matter here.
#[derive(Deserialize)]
struct File {
    model_type: Option<String>,
    hidden_size: Option<u64>,
    intermediate_size: Option<u64>,
    num_hidden_layers: Option<u64>,
    num_attention_heads: Option<u64>,
    num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    vocab_size: Option<u64>,
    max_position_embeddings: Option<u64>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<RopeFields>,
    rope_parameters: Option<RopeFields>,
    partial_rotary_factor: Option<f64>,
    hidden_act: Option<String>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    /// Absent and null mean different things (see [`window`]), hence the double option.
    #[serde(default, deserialize_with = "present")]
    sliding_window: Option<Option<u64>>,
    use_sliding_window: Option<bool>,
    layer_types: Option<Vec<String>>,
    quantization_config: Option<Value>,
}

/// `rope_scaling` (with `type` or `rope_type`), or transformers 5's `rope_parameters`, which also
/// holds the base.
#[derive(Deserialize)]
struct RopeFields {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<u32>,
}

fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// Reads and validates `path`.
pub(super) fn read(path: &Path) -> Result<ModelConfig, LoadError> {
    let Some(file) = json::read_optional::<File>(path)? else {
        let problem = format!("{}: not there; it describes the model", path.display());
        return Err(LoadError::NotFound(problem));
    };
    let architecture = architecture(path, &file)?;
    refuse_what_we_cannot_do(path, &file, architecture)?;
    let size = |field: &str, value: Option<u64>| match value {
        Some(value) => usize::try_from(value)
            .map_err(|_| LoadError::invalid(path, field, format_args!("{value} is too large"))),
        None => Err(LoadError::invalid(path, field, "is missing")),
    };
    let hidden_size = size("hidden_size", file.hidden_size)?;
    let num_heads = size("num_attention_heads", file.num_attention_heads)?;
    let head_dim = match (file.head_dim, architecture) {
        (Some(_), _) => size("head_dim", file.head_dim)?,
        (None, Architecture::Qwen3) => 128,
        (None, _) => derived_head_dim(path, hidden_size, num_heads)?,
    };
    // Llama 1 files have no such field: as many as query heads. Others must say it.
    let num_kv_heads = match (file.num_key_value_heads, architecture) {
        (None, Architecture::Llama) => num_heads,
        (value, _) => size("num_key_value_heads", value)?,
    };
    let config = ModelConfig {
        architecture,
        hidden_size,
        intermediate_size: size("intermediate_size", file.intermediate_size)?,
        num_layers: size("num_hidden_layers", file.num_hidden_layers)?,
        num_heads,
        num_kv_heads,
        head_dim,
        vocab_size: size("vocab_size", file.vocab_size)?,
        max_position: size("max_position_embeddings", file.max_position_embeddings)?,
        norm_eps: file.rms_norm_eps.unwrap_or(1e-6) as f32,
        rope: rope(path, &file)?,
        qkv_bias: architecture == Architecture::Qwen2,
        qk_norm: architecture == Architecture::Qwen3,
        tied_head: file.tie_word_embeddings.unwrap_or(false),
    };
    config.validate(path)
}

fn architecture(path: &Path, file: &File) -> Result<Architecture, LoadError> {
    match file.model_type.as_deref() {
        Some("llama" | "mistral") => Ok(Architecture::Llama),
        Some("qwen2") => Ok(Architecture::Qwen2),
        Some("qwen3") => Ok(Architecture::Qwen3),
        Some(other) => {
            let known = "llama, mistral, qwen2 and qwen3 are";
            let problem = format!("{other:?} is not supported ({known})");
            Err(LoadError::unsupported(path, "model_type", problem))
        }
        None => Err(LoadError::invalid(path, "model_type", "is missing")),
    }
}

fn derived_head_dim(path: &Path, hidden: usize, heads: usize) -> Result<usize, LoadError> {
    match hidden.checked_rem(heads) {
        Some(0) => Ok(hidden / heads),
        _ => {
            let problem = format!("is missing, and {heads} heads do not divide {hidden}");
            Err(LoadError::invalid(path, "head_dim", problem))
        }
    }
}

fn refuse_what_we_cannot_do(path: &Path, f: &File, arch: Architecture) -> Result<(), LoadError> {
    let refuse = |field: &str, problem: String| Err(LoadError::unsupported(path, field, problem));
    if let Some(act) = f.hidden_act.as_deref().filter(|act| *act != "silu") {
        return refuse("hidden_act", format!("{act:?} is not supported (silu is)"));
    }
    if f.mlp_bias == Some(true) {
        return refuse("mlp_bias", "biases in the MLP are not supported".into());
    }
    // In Llama and Qwen3 this puts a bias on the output projection too, which we do not add.
    if f.attention_bias == Some(true) && arch != Architecture::Qwen2 {
        return refuse("attention_bias", "a bias on the output projection is not supported".into());
    }
    if f.partial_rotary_factor.is_some_and(|factor| factor != 1.0) {
        return refuse("partial_rotary_factor", "rotating a part of a head is unsupported".into());
    }
    if let Some(quantization) = &f.quantization_config {
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
        let fix = "use the unquantised safetensors or a GGUF file";
        return refuse("quantization_config", format!("{method} is not supported; {fix}"));
    }
    refuse_window(path, f, arch)
}

/// A window at least as long as the context is no window.
fn refuse_window(path: &Path, f: &File, arch: Architecture) -> Result<(), LoadError> {
    let mistral = f.model_type.as_deref() == Some("mistral");
    let used = match arch {
        Architecture::Llama => mistral,
        Architecture::Qwen2 | Architecture::Qwen3 => f.use_sliding_window.unwrap_or(false),
    };
    // What transformers assumes where the field is absent.
    let window = f.sliding_window.unwrap_or(Some(4096)).filter(|_| used);
    let layers = f.layer_types.iter().flatten().any(|kind| kind != "full_attention");
    let context = f.max_position_embeddings.unwrap_or(u64::MAX);
    match window.filter(|window| *window < context) {
        Some(window) => {
            let fix = format!(
                "a window of {window} in a context of {context} is not supported; to serve \
                 contexts up to {window}, set max_position_embeddings to {window}"
            );
            Err(LoadError::unsupported(path, "sliding_window", fix))
        }
        None if layers && window.is_none() => {
            let problem = "layers other than full_attention are not supported";
            Err(LoadError::unsupported(path, "layer_types", problem))
        }
        None => Ok(()),
    }
}

fn rope(path: &Path, file: &File) -> Result<Rope, LoadError> {
    let fields = file.rope_parameters.as_ref().or(file.rope_scaling.as_ref());
    let inner = fields.and_then(|fields| fields.rope_theta);
    Ok(Rope {
        theta: inner.or(file.rope_theta).unwrap_or(10_000.0) as f32,
        scaling: fields.map_or(Ok(RopeScaling::None), |fields| scaling(path, fields))?,
        factors: None,
        interleaved: false,
    })
}

fn scaling(path: &Path, fields: &RopeFields) -> Result<RopeScaling, LoadError> {
    let need = |field: &str, value: Option<f64>| {
        let missing = || LoadError::invalid(path, &format!("rope_scaling.{field}"), "is missing");
        value.map(|value| value as f32).ok_or_else(missing)
    };
    match fields.rope_type.as_deref() {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: need("factor", fields.factor)? }),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: need("factor", fields.factor)?,
            low_freq_factor: need("low_freq_factor", fields.low_freq_factor)?,
            high_freq_factor: need("high_freq_factor", fields.high_freq_factor)?,
            original_max_position: fields.original_max_position_embeddings.ok_or_else(|| {
                let field = "rope_scaling.original_max_position_embeddings";
                LoadError::invalid(path, field, "is missing")
            })?,
        }),
        Some(other) => {
            let problem = format!("{other:?} is not supported (default, linear, llama3 are)");
            Err(LoadError::unsupported(path, "rope_scaling.rope_type", problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A small Llama with `fields` set.
    fn parse(fields: &Value) -> Result<ModelConfig, String> {
        let mut file = json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
            "max_position_embeddings": 256,
        });
        for (field, value) in fields.as_object().into_iter().flatten() {
            file[field] = value.clone();
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, file.to_string()).unwrap();
        read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_absent_is_as_in_transformers() {
        let config = parse(&json!({"torch_dtype": "bfloat16", "unheard_of": {}})).unwrap();
        assert_eq!((config.num_kv_heads, config.head_dim), (4, 16));
        assert_eq!((config.norm_eps, config.rope.theta), (1e-6, 10_000.0));
        assert_eq!(config.rope.scaling, RopeScaling::None);
        assert!(!config.tied_head && !config.qkv_bias && !config.qk_norm);
        let qwen3 = json!({"model_type": "qwen3", "num_key_value_heads": 2});
        assert_eq!(parse(&qwen3).unwrap().head_dim, 128);
        assert!(parse(&json!({"num_attention_heads": 5})).unwrap_err().contains("head_dim"));
    }

    #[test]
    fn rotary_fields_may_be_old_or_new() {
        let linear = RopeScaling::Linear { factor: 4.0 };
        let llama3 = RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 8192,
        };
        let long = json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
                          "rope_theta": 5e5});
        for (fields, theta, scaling) in [
            (json!({"rope_theta": 5e5, "rope_scaling": null}), 5e5, RopeScaling::None),
            (json!({"rope_scaling": {"type": "linear", "factor": 4.0}}), 1e4, linear),
            (json!({"rope_scaling": long, "rope_theta": 5e5}), 5e5, llama3),
            (json!({"rope_parameters": long}), 5e5, llama3),
            (
                json!({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}),
                1e6,
                RopeScaling::None,
            ),
        ] {
            let rope = parse(&fields).unwrap().rope;
            assert_eq!((rope.theta, rope.scaling, rope.interleaved), (theta, scaling, false));
        }
    }
}
