//! What a model looks like: sizes, norms, rotary embedding. Read from config.json or GGUF metadata.
//!
//! Whatever would change the result and is not implemented (sliding windows, other activations,
//! other rotary scalings, mixtures of experts) is refused here, so that a forward pass never
//! computes something else than the file asks for.

mod gguf;
mod hf;

use std::path::Path;

use crate::checkpoint::Checkpoint;
use crate::error::LoadError;

/// Families that share one forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, SmolLM2, Mistral.
    Llama,
    /// Qwen2 and 2.5: biases on q, k and v.
    Qwen2,
    /// Qwen3: norms on q and k, explicit `head_dim`.
    Qwen3,
}

/// How rotary frequencies are stretched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// Divisor.
        factor: f32,
    },
    /// Llama 3's scheme: long waves are stretched, short ones kept, those between blended.
    Llama3 {
        /// Divisor of long waves.
        factor: f32,
        /// Waves longer than `original / low` are stretched.
        low_freq_factor: f32,
        /// Waves shorter than `original / high` are kept.
        high_freq_factor: f32,
        /// The context length the model was trained with.
        original_max_position: u32,
    },
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f32,
    /// How they are stretched.
    pub scaling: RopeScaling,
    /// Explicit per-frequency divisors (GGUF `rope_freqs.weight`), if the file brings them.
    pub factors: Option<Vec<f32>>,
    /// Pairs are neighbours (2i, 2i+1), as GGUF "llama" files store q and k; otherwise halves
    /// (i, i + head_dim/2), as safetensors and all Qwen files do.
    pub interleaved: bool,
}

/// A model's configuration, validated: sizes are non-zero, within bounds, and divide each other.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Entries of the vocabulary (rows of the embedding).
    pub vocab_size: usize,
    /// Longest context the model was made for.
    pub max_position: usize,
    /// Epsilon of the RMS norms.
    pub norm_eps: f32,
    /// Rotary embedding.
    pub rope: Rope,
    /// q, k and v projections have a bias.
    pub qkv_bias: bool,
    /// Norms on the heads of q and k.
    pub qk_norm: bool,
    /// The output head is the embedding.
    pub tied_head: bool,
}

/// Bounds far above any public model of these families: sizes from a broken file stay harmless and
/// products of any three of them fit 64 bits.
const MAX_WIDTH: usize = 1 << 20;
const MAX_LAYERS: usize = 1 << 10;
const MAX_HEADS: usize = 1 << 10;
const MAX_HEAD_DIM: usize = 1 << 10;
const MAX_VOCAB: usize = 1 << 22;
const MAX_POSITION: usize = 1 << 24;

impl ModelConfig {
    /// Reads `config.json` in the directory `dir`.
    ///
    /// # Errors
    /// A missing or malformed file or field, an impossible size, or a model that we cannot serve.
    pub fn from_dir(dir: &Path) -> Result<ModelConfig, LoadError> {
        hf::read(&dir.join("config.json"))
    }

    /// Reads the metadata of the GGUF file that `checkpoint` has open.
    ///
    /// # Errors
    /// As [`ModelConfig::from_dir`].
    pub fn from_gguf(checkpoint: &Checkpoint) -> Result<ModelConfig, LoadError> {
        match checkpoint.gguf() {
            Some(gguf) => gguf::read(gguf),
            None => Err(LoadError::Unsupported("only GGUF files hold a configuration".into())),
        }
    }

    /// Checks every size; `path` and the fields' canonical names go into the error.
    fn validate(self, path: &Path) -> Result<ModelConfig, LoadError> {
        for (field, value, max) in [
            ("hidden_size", self.hidden_size, MAX_WIDTH),
            ("intermediate_size", self.intermediate_size, MAX_WIDTH),
            ("num_hidden_layers", self.num_layers, MAX_LAYERS),
            ("num_attention_heads", self.num_heads, MAX_HEADS),
            ("num_key_value_heads", self.num_kv_heads, MAX_HEADS),
            ("head_dim", self.head_dim, MAX_HEAD_DIM),
            ("vocab_size", self.vocab_size, MAX_VOCAB),
            ("max_position_embeddings", self.max_position, MAX_POSITION),
        ] {
            if value == 0 || value > max {
                let problem = format!("is {value}, not between 1 and {max}");
                return Err(LoadError::invalid(path, field, problem));
            }
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            let problem = format!("{} does not divide {} heads", self.num_kv_heads, self.num_heads);
            return Err(LoadError::invalid(path, "num_key_value_heads", problem));
        }
        if !self.head_dim.is_multiple_of(2) {
            let problem = format!("is {}, an odd number", self.head_dim);
            return Err(LoadError::invalid(path, "head_dim", problem));
        }
        self.validate_numbers(path)?;
        Ok(self)
    }

    fn validate_numbers(&self, path: &Path) -> Result<(), LoadError> {
        let mut numbers = vec![("rms_norm_eps", self.norm_eps), ("rope_theta", self.rope.theta)];
        match self.rope.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => numbers.push(("rope_scaling.factor", factor)),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, .. } => {
                // The blend between the two divides by their difference.
                let spread = high_freq_factor - low_freq_factor;
                numbers.extend([
                    ("rope_scaling.factor", factor),
                    ("rope_scaling.low_freq_factor", low_freq_factor),
                    ("rope_scaling.high_freq_factor - low_freq_factor", spread),
                ]);
            }
        }
        for factor in self.rope.factors.iter().flatten() {
            numbers.push(("rope_freqs.weight", *factor));
        }
        match numbers.iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
            None => Ok(()),
            Some((field, value)) => {
                let problem = format!("is {value}, not a positive number");
                Err(LoadError::invalid(path, field, problem))
            }
        }
    }
}
