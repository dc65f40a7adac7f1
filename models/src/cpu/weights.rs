//! The weights of a model, packed for the kernels.

use kernels::Pool;
use kernels::activations::Form;
use kernels::matrix::Matrix;

use super::WeightType;
use crate::checkpoint::{Checkpoint, Tensor, TensorType};
use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::quant;

/// Everything that a forward pass reads.
pub(super) struct Weights {
    pub(super) embedding: Embedding,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Vec<f32>,
    /// `[vocab, hidden]`.
    pub(super) head: Matrix,
}

/// One transformer layer. Projections without a bias, and heads without norms, have `None`.
pub(super) struct Layer {
    pub(super) attention_norm: Vec<f32>,
    pub(super) q: Matrix,
    pub(super) k: Matrix,
    pub(super) v: Matrix,
    pub(super) biases: Option<[Vec<f32>; 3]>,
    /// Norms of the query heads and of the key heads.
    pub(super) head_norms: Option<[Vec<f32>; 2]>,
    pub(super) o: Matrix,
    pub(super) mlp_norm: Vec<f32>,
    pub(super) gate: Matrix,
    pub(super) up: Matrix,
    pub(super) down: Matrix,
}

/// Where the vectors of tokens come from.
pub(super) enum Embedding {
    /// The rows of the output head.
    Tied,
    /// A table of its own, as stored: only a few rows of it are read in a step.
    Table { dtype: TensorType, data: Vec<u8> },
}

impl Weights {
    /// Packs all tensors, as many layers at a time as `pool` has threads, so that little more than
    /// the result is in memory at any time.
    pub(super) fn load(
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        weights: WeightType,
        pool: &Pool,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Weights, LoadError> {
        let source = Source { config, checkpoint, weights };
        let all = config.num_layers;
        let mut layers = Vec::with_capacity(all);
        while layers.len() < all {
            let first = layers.len();
            let count = pool.threads().min(all - first);
            for layer in in_parallel(pool, count, |i| source.layer(first + i)) {
                layers.push(layer?);
            }
            progress(layers.len(), all);
        }
        let hidden = config.hidden_size;
        Ok(Weights {
            embedding: source.embedding()?,
            layers,
            norm: source.vector("model.norm.weight", hidden)?,
            head: source.head()?,
        })
    }
}

impl Layer {
    /// The form in which queries, keys and values want their input.
    pub(super) fn qkv_form(&self) -> Form {
        Form::of(&[&self.q, &self.k, &self.v])
    }

    /// The form in which the gated feed-forward layer wants its input.
    pub(super) fn mlp_form(&self) -> Form {
        Form::of(&[&self.gate, &self.up])
    }
}

impl Weights {
    /// Writes the vector of a token.
    pub(super) fn embed(&self, token: u32, out: &mut [f32]) {
        match &self.embedding {
            Embedding::Tied => self.head.row(token as usize, out),
            Embedding::Table { dtype, data } => {
                let row = data.len() / self.head.n();
                quant::decode(*dtype, &data[token as usize * row..][..row], out);
            }
        }
    }
}

/// Where the tensors come from and how they are kept.
struct Source<'a> {
    config: &'a ModelConfig,
    checkpoint: &'a Checkpoint,
    weights: WeightType,
}

impl Source<'_> {
    fn layer(&self, index: usize) -> Result<Layer, LoadError> {
        let c = self.config;
        let (hidden, width) = (c.hidden_size, c.intermediate_size);
        let (q, kv) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let matrix = |part: &str, rows, cols| self.matrix(&name(part), rows, cols);
        let vector = |part: &str, len| self.vector(&name(part), len);
        let biases = || -> Result<_, LoadError> {
            let q = vector("self_attn.q_proj.bias", q)?;
            Ok([q, vector("self_attn.k_proj.bias", kv)?, vector("self_attn.v_proj.bias", kv)?])
        };
        let head_norms = || -> Result<_, LoadError> {
            let q = vector("self_attn.q_norm.weight", c.head_dim)?;
            Ok([q, vector("self_attn.k_norm.weight", c.head_dim)?])
        };
        Ok(Layer {
            attention_norm: vector("input_layernorm.weight", hidden)?,
            q: matrix("self_attn.q_proj.weight", q, hidden)?,
            k: matrix("self_attn.k_proj.weight", kv, hidden)?,
            v: matrix("self_attn.v_proj.weight", kv, hidden)?,
            biases: c.qkv_bias.then(biases).transpose()?,
            head_norms: c.qk_norm.then(head_norms).transpose()?,
            o: matrix("self_attn.o_proj.weight", hidden, q)?,
            mlp_norm: vector("post_attention_layernorm.weight", hidden)?,
            gate: matrix("mlp.gate_proj.weight", width, hidden)?,
            up: matrix("mlp.up_proj.weight", width, hidden)?,
            down: matrix("mlp.down_proj.weight", hidden, width)?,
        })
    }

    fn head(&self) -> Result<Matrix, LoadError> {
        let tied = self.config.tied_head;
        let name = if tied { "model.embed_tokens.weight" } else { "lm_head.weight" };
        self.matrix(name, self.config.vocab_size, self.config.hidden_size)
    }

    fn embedding(&self) -> Result<Embedding, LoadError> {
        if self.config.tied_head {
            return Ok(Embedding::Tied);
        }
        let (rows, cols) = (self.config.vocab_size, self.config.hidden_size);
        let tensor = self.checkpoint.tensor("model.embed_tokens.weight", rows, cols)?;
        Ok(Embedding::Table { dtype: tensor.dtype, data: tensor.data.to_vec() })
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        Ok(self.checkpoint.tensor(name, 1, len)?.to_f32())
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix, LoadError> {
        Ok(pack(self.checkpoint.tensor(name, rows, cols)?, self.weights))
    }
}

/// Packs a tensor. int8 blocks are of 32 columns: other widths become f32.
fn pack(tensor: Tensor<'_>, weights: WeightType) -> Matrix {
    let Tensor { dtype, rows, cols, data } = tensor;
    let quantize = match weights {
        WeightType::F32 => false,
        WeightType::Auto => matches!(dtype, TensorType::Q4_K | TensorType::Q6_K),
        WeightType::Q8_0 => cols.is_multiple_of(32),
    };
    match (weights, dtype) {
        (WeightType::Auto, TensorType::Q4_0) => Matrix::from_q4_0(rows, cols, data),
        (WeightType::Auto, TensorType::Q4_1) => Matrix::from_q4_1(rows, cols, data),
        (WeightType::Auto | WeightType::Q8_0, TensorType::Q8_0) => {
            Matrix::from_q8_0(rows, cols, data)
        }
        _ if quantize => Matrix::quantize_q8_0(rows, cols, &tensor.to_f32()),
        _ => Matrix::from_f32(rows, cols, &tensor.to_f32()),
    }
}

/// The results of `task(0)` to `task(count - 1)`, computed by all threads.
fn in_parallel<T: Send>(pool: &Pool, count: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let mut results: Vec<Option<T>> = (0..count).map(|_| None).collect();
    pool.for_rows(&mut results, 1, |i, result| result[0] = Some(task(i)));
    results.into_iter().map(|result| result.expect("each item is computed")).collect()
}
