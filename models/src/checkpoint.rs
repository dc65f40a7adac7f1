//! Weights on disk, by canonical name, whatever the container: safetensors (single, or sharded with
//! an index) or GGUF. Mapped, never read whole; every offset checked before use.
//!
//! Canonical names are those of Hugging Face's Llama: `model.embed_tokens.weight`,
//! `model.layers.{i}.self_attn.q_proj.weight` (`.bias`), `.k_proj`, `.v_proj`, `.o_proj`,
//! `.self_attn.q_norm.weight`, `.k_norm.weight`, `model.layers.{i}.mlp.{gate,up,down}_proj.weight`,
//! `model.layers.{i}.input_layernorm.weight`, `.post_attention_layernorm.weight`,
//! `model.norm.weight`, `lm_head.weight`.

use crate::error::LoadError;

/// Storage type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[allow(non_camel_case_types)]
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q8_0,
    Q4_K,
    Q6_K,
}

/// One tensor, still in the mapped file.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Storage type.
    pub dtype: TensorType,
    /// Output rows (1 for vectors).
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Raw bytes, exactly as many as `rows * cols` of `dtype` need.
    pub data: &'a [u8],
}

impl Tensor<'_> {
    /// All values as f32, row by row.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        todo!()
    }
}

/// An open model file or set of files.
#[derive(Debug)]
pub struct Checkpoint {}

impl Checkpoint {
    /// The tensor with this canonical name, checked to have the shape `rows x cols` (vectors: rows
    /// 1).
    ///
    /// # Errors
    /// Missing tensor, other shape, storage type that we cannot read: one line with file and name.
    pub fn tensor(&self, name: &str, rows: usize, cols: usize) -> Result<Tensor<'_>, LoadError> {
        todo!()
    }
    /// Whether a tensor of this name exists.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        todo!()
    }
    /// Bytes of all weights files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        todo!()
    }
}
