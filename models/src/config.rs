//! What a model looks like: sizes, norms, rotary embedding. Read from config.json or GGUF metadata.

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
