//! The paged KV pool of one layer as two tensors.

use candle_core::{DType, Device, Result, Tensor};

use super::batch::Span;
use crate::config::ModelConfig;
use crate::runner::RunnerLimits;

/// Keys and values of one layer. A slot is one position of one block.
#[derive(Debug)]
pub(super) struct KvPool {
    /// `[slots, kv_width]`
    keys: Tensor,
    /// `[slots, kv_width]`
    values: Tensor,
    num_kv_heads: usize,
    block_size: usize,
}

impl KvPool {
    /// A pool of zeros.
    pub(super) fn new(
        config: &ModelConfig,
        limits: &RunnerLimits,
        device: &Device,
    ) -> Result<KvPool> {
        let slots = limits.num_blocks as usize * limits.block_size as usize;
        let shape = (slots, config.num_kv_heads * config.head_dim);
        Ok(KvPool {
            keys: Tensor::zeros(shape, DType::F32, device)?,
            values: Tensor::zeros(shape, DType::F32, device)?,
            num_kv_heads: config.num_kv_heads,
            block_size: limits.block_size as usize,
        })
    }

    /// Writes `[rows, kv_width]` keys and values into `slots` (`[rows]`), in place.
    pub(super) fn write(&self, slots: &Tensor, keys: &Tensor, values: &Tensor) -> Result<()> {
        // Scattering along the slots wants a slot for each element of a row: all the same.
        let index = slots.unsqueeze(1)?.broadcast_as(keys.shape())?.contiguous()?;
        self.keys.scatter_set(&index, keys, 0)?;
        self.values.scatter_set(&index, values, 0)
    }

    /// Gathers keys and values of a sequence's whole context, each
    /// `[num_kv_heads, context, head_dim]`.
    pub(super) fn read(&self, span: &Span) -> Result<(Tensor, Tensor)> {
        Ok((self.gather(&self.keys, span)?, self.gather(&self.values, span)?))
    }

    fn gather(&self, pool: &Tensor, span: &Span) -> Result<Tensor> {
        let width = pool.dim(1)?;
        let slots = span.blocks.dim(0)? * self.block_size;
        pool.reshape(((), self.block_size, width))?
            .index_select(&span.blocks, 0)?
            .reshape((slots, self.num_kv_heads, width / self.num_kv_heads))?
            .narrow(0, 0, span.context)?
            .transpose(0, 1)?
            .contiguous()
    }
}
