//! The forward pass: embedding, layers, head.

use candle_core::{Device, Result, Tensor};
use candle_nn::ops::{silu, softmax_last_dim};
use candle_nn::rotary_emb::{rope_i, rope_thd};

use super::batch::{Batch, Span};
use super::kv::KvPool;
use super::weights::Layer;
use super::{CandleRunner, Rotary};
use crate::config::ModelConfig;

/// Query rows whose scores are held at once, so that a long prefill does not need the square of its
/// length in memory.
const QUERY_TILE: usize = 128;

impl CandleRunner {
    /// Runs a step; returns the wanted rows of logits, one after the other.
    pub(super) fn forward(&self, batch: &Batch) -> Result<Vec<f32>> {
        let rope = Rotary {
            cos: self.rope.cos.index_select(&batch.positions, 0)?,
            sin: self.rope.sin.index_select(&batch.positions, 0)?,
        };
        let mut hidden = self.weights.embedding.index_select(&batch.tokens, 0)?;
        for (layer, pool) in self.weights.layers.iter().zip(&self.pools) {
            let attended = self.attention(layer, pool, &rope, batch, &hidden)?;
            hidden = (hidden + attended)?;
            let transformed = mlp(layer, &hidden)?;
            hidden = (hidden + transformed)?;
        }
        let Some(wanted) = &batch.wanted else {
            return Ok(Vec::new());
        };
        let last = self.weights.norm.forward(&hidden.index_select(wanted, 0)?)?;
        self.weights.head.forward(&last)?.flatten_all()?.to_vec1()
    }

    /// `[rows, hidden]` to `[rows, hidden]`; writes the new keys and values to the pool first, so
    /// that each sequence then reads all it needs from there.
    fn attention(
        &self,
        layer: &Layer,
        pool: &KvPool,
        rope: &Rotary,
        batch: &Batch,
        hidden: &Tensor,
    ) -> Result<Tensor> {
        let config = &self.config;
        let normed = layer.input_norm.forward(hidden)?;
        let rows = normed.dim(0)?;
        let mut q = layer.q.forward(&normed)?.reshape((rows, config.num_heads, ()))?;
        let mut k = layer.k.forward(&normed)?.reshape((rows, config.num_kv_heads, ()))?;
        if let Some((q_norm, k_norm)) = &layer.qk_norm {
            q = q_norm.forward(&q)?;
            k = k_norm.forward(&k)?;
        }
        let (q, k) = (rope.rotate(&q, config)?, rope.rotate(&k, config)?);
        pool.write(&batch.slots, &k.flatten_from(1)?, &layer.v.forward(&normed)?)?;

        let mut outputs = Vec::with_capacity(batch.spans.len());
        for span in &batch.spans {
            outputs.extend(attend(&q.narrow(0, span.row, span.len)?, pool, span)?);
        }
        layer.o.forward(&Tensor::cat(&outputs, 0)?)
    }
}

impl Rotary {
    /// Rotates `[rows, heads, head_dim]` by the angles of its rows.
    fn rotate(&self, x: &Tensor, config: &ModelConfig) -> Result<Tensor> {
        let sequence = x.unsqueeze(0)?;
        let rotated = if config.rope.interleaved {
            let by_head = sequence.transpose(1, 2)?.contiguous()?;
            rope_i(&by_head, &self.cos, &self.sin)?.transpose(1, 2)?
        } else {
            rope_thd(&sequence, &self.cos, &self.sin)?
        };
        rotated.squeeze(0)
    }
}

/// Causal attention of one sequence's queries, `[len, num_heads, head_dim]`, over its context;
/// tiles of `[rows, num_heads * head_dim]`, in order.
fn attend(queries: &Tensor, pool: &KvPool, span: &Span) -> Result<Vec<Tensor>> {
    let (keys, values) = pool.read(span)?;
    let first_position = span.context - span.len;
    (0..span.len)
        .step_by(QUERY_TILE)
        .map(|row| {
            let rows = QUERY_TILE.min(span.len - row);
            attend_tile(&queries.narrow(0, row, rows)?, &keys, &values, first_position + row)
        })
        .collect()
}

/// Attention of consecutive queries from position `first` on over keys and values of shape
/// `[num_kv_heads, context, head_dim]`.
fn attend_tile(queries: &Tensor, keys: &Tensor, values: &Tensor, first: usize) -> Result<Tensor> {
    let (rows, num_heads, head_dim) = queries.dims3()?;
    let (num_kv_heads, context, _) = keys.dims3()?;
    let group = num_heads / num_kv_heads;
    // The query heads of a group share a KV head: they are more rows of the same product.
    let grouped = queries
        .reshape((rows, num_kv_heads, group, head_dim))?
        .permute((1, 2, 0, 3))?
        .reshape((num_kv_heads, group * rows, head_dim))?;
    let scores = (grouped.matmul(&keys.t()?)? / (head_dim as f64).sqrt())?
        .reshape((num_kv_heads, group, rows, context))?
        .broadcast_add(&causal_mask(rows, context, first, queries.device())?)?;
    softmax_last_dim(&scores)?
        .reshape((num_kv_heads, group * rows, context))?
        .matmul(values)?
        .reshape((num_kv_heads, group, rows, head_dim))?
        .permute((2, 0, 1, 3))?
        .reshape((rows, num_heads * head_dim))
}

/// `[rows, context]`: 0 where the query at position `first + row` may look, minus infinity after
/// it.
fn causal_mask(rows: usize, context: usize, first: usize, device: &Device) -> Result<Tensor> {
    let visible = |row, key| if key <= first + row { 0.0 } else { f32::NEG_INFINITY };
    let mask: Vec<f32> =
        (0..rows).flat_map(|row| (0..context).map(move |key| visible(row, key))).collect();
    Tensor::from_vec(mask, (rows, context), device)
}

/// The gated MLP, `[rows, hidden]` to `[rows, hidden]`.
fn mlp(layer: &Layer, hidden: &Tensor) -> Result<Tensor> {
    let normed = layer.post_attention_norm.forward(hidden)?;
    let gate = silu(&layer.gate.forward(&normed)?)?;
    layer.down.forward(&(gate * layer.up.forward(&normed)?)?)
}
