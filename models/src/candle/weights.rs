//! The weights as f32 tensors on a device.

use candle_core::{Device, Result, Tensor};
use candle_nn::ops::rms_norm;

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::error::LoadError;

/// All weights of a model.
#[derive(Debug)]
pub(super) struct Weights {
    /// `[vocab_size, hidden_size]`
    pub(super) embedding: Tensor,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Norm,
    /// The embedding itself where the head is tied.
    pub(super) head: Linear,
}

/// One transformer layer.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) input_norm: Norm,
    pub(super) q: Linear,
    pub(super) k: Linear,
    pub(super) v: Linear,
    pub(super) o: Linear,
    /// Norms over the heads of q and of k (Qwen3).
    pub(super) qk_norm: Option<(Norm, Norm)>,
    pub(super) post_attention_norm: Norm,
    pub(super) gate: Linear,
    pub(super) up: Linear,
    pub(super) down: Linear,
}

/// `y = x W^T + b`
#[derive(Debug)]
pub(super) struct Linear {
    /// `[outputs, inputs]`
    weight: Tensor,
    /// `[outputs]`
    bias: Option<Tensor>,
}

impl Linear {
    /// `[rows, inputs]` to `[rows, outputs]`.
    pub(super) fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        let product = rows.matmul(&self.weight.t()?)?;
        match &self.bias {
            Some(bias) => product.broadcast_add(bias),
            None => Ok(product),
        }
    }
}

/// A root-mean-square norm over the last dimension.
#[derive(Debug)]
pub(super) struct Norm {
    weight: Tensor,
    eps: f32,
}

impl Norm {
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        rms_norm(x, &self.weight, self.eps)
    }
}

impl Weights {
    /// Reads every tensor that `config` calls for.
    pub(super) fn load(
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        device: &Device,
        progress: &mut dyn FnMut(usize, usize),
    ) -> std::result::Result<Weights, LoadError> {
        let source = Source { config, checkpoint, device };
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embedding = source.matrix("model.embed_tokens.weight", vocab, hidden)?;
        let head = match config.tied_head {
            true => embedding.clone(),
            false => source.matrix("lm_head.weight", vocab, hidden)?,
        };
        let mut layers = Vec::with_capacity(config.num_layers);
        for index in 0..config.num_layers {
            layers.push(source.layer(index)?);
            progress(index + 1, config.num_layers);
        }
        Ok(Weights {
            embedding,
            layers,
            norm: source.norm("model.norm", hidden)?,
            head: Linear { weight: head, bias: None },
        })
    }
}

/// Where tensors come from and where they go.
struct Source<'a> {
    config: &'a ModelConfig,
    checkpoint: &'a Checkpoint,
    device: &'a Device,
}

type Loaded<T> = std::result::Result<T, LoadError>;

impl Source<'_> {
    fn layer(&self, index: usize) -> Loaded<Layer> {
        let config = self.config;
        let (hidden, mlp) = (config.hidden_size, config.intermediate_size);
        let q_width = config.num_heads * config.head_dim;
        let kv_width = config.num_kv_heads * config.head_dim;
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let qk_norm = match config.qk_norm {
            true => Some((
                self.norm(&name("self_attn.q_norm"), config.head_dim)?,
                self.norm(&name("self_attn.k_norm"), config.head_dim)?,
            )),
            false => None,
        };
        let bias = config.qkv_bias;
        Ok(Layer {
            input_norm: self.norm(&name("input_layernorm"), hidden)?,
            q: self.linear(&name("self_attn.q_proj"), q_width, hidden, bias)?,
            k: self.linear(&name("self_attn.k_proj"), kv_width, hidden, bias)?,
            v: self.linear(&name("self_attn.v_proj"), kv_width, hidden, bias)?,
            o: self.linear(&name("self_attn.o_proj"), hidden, q_width, false)?,
            qk_norm,
            post_attention_norm: self.norm(&name("post_attention_layernorm"), hidden)?,
            gate: self.linear(&name("mlp.gate_proj"), mlp, hidden, false)?,
            up: self.linear(&name("mlp.up_proj"), mlp, hidden, false)?,
            down: self.linear(&name("mlp.down_proj"), hidden, mlp, false)?,
        })
    }

    fn linear(&self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Loaded<Linear> {
        let weight = self.matrix(&format!("{name}.weight"), outputs, inputs)?;
        let bias = match bias {
            true => Some(self.vector(&format!("{name}.bias"), outputs)?),
            false => None,
        };
        Ok(Linear { weight, bias })
    }

    fn norm(&self, name: &str, width: usize) -> Loaded<Norm> {
        let weight = self.vector(&format!("{name}.weight"), width)?;
        Ok(Norm { weight, eps: self.config.norm_eps })
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Loaded<Tensor> {
        let values = self.checkpoint.tensor(name, rows, cols)?.to_f32();
        Ok(Tensor::from_vec(values, (rows, cols), self.device)?)
    }

    fn vector(&self, name: &str, len: usize) -> Loaded<Tensor> {
        let values = self.checkpoint.tensor(name, 1, len)?.to_f32();
        Ok(Tensor::from_vec(values, len, self.device)?)
    }
}
