//! Weights on disk, by canonical name, whatever the container: safetensors (single, or sharded with
//! an index) or GGUF. Mapped, never read whole; every offset checked before use.
//!
//! Canonical names are those of Hugging Face's Llama: `model.embed_tokens.weight`,
//! `model.layers.{i}.self_attn.q_proj.weight` (`.bias`), `.k_proj`, `.v_proj`, `.o_proj`,
//! `.self_attn.q_norm.weight`, `.k_norm.weight`, `model.layers.{i}.mlp.{gate,up,down}_proj.weight`,
//! `model.layers.{i}.input_layernorm.weight`, `.post_attention_layernorm.weight`,
//! `model.norm.weight`, `lm_head.weight`.

pub(crate) mod gguf;
mod metadata;
mod names;
mod safetensors;

use std::path::Path;

use crate::error::LoadError;
use crate::quant;
use gguf::Gguf;
#[cfg(any(test, feature = "testing"))]
pub(crate) use names::gguf_name;
use safetensors::Shards;

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

impl TensorType {
    /// Values in one block (1 for floats). A row is a whole number of blocks.
    #[must_use]
    pub const fn block_len(self) -> usize {
        match self {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => 1,
            TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q8_0 => 32,
            TensorType::Q4_K | TensorType::Q6_K => 256,
        }
    }

    /// Bytes of one block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            TensorType::F32 => 4,
            TensorType::F16 | TensorType::BF16 => 2,
            TensorType::Q4_0 => 18,
            TensorType::Q4_1 => 20,
            TensorType::Q8_0 => 34,
            TensorType::Q4_K => 144,
            TensorType::Q6_K => 210,
        }
    }

    /// Bytes of a row of `cols` values; `None` if they are not a whole number of blocks, or too
    /// many to count.
    #[must_use]
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }
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
        let mut out = vec![0.0; self.rows * self.cols];
        quant::decode(self.dtype, self.data, &mut out);
        out
    }

    /// Rows `first..` as f32 into `out`, as many as fit (`out.len()` is a multiple of `cols`): for
    /// converting a large tensor without a second copy of it in memory.
    ///
    /// # Panics
    /// If the rows go past the end.
    pub fn decode_rows(&self, first: usize, out: &mut [f32]) {
        let row_bytes = self.data.len() / self.rows;
        let rows = out.len() / self.cols;
        quant::decode(self.dtype, &self.data[first * row_bytes..][..rows * row_bytes], out);
    }
}

/// A tensor as its container describes it, not yet judged.
pub(crate) struct Found<'a> {
    /// The file that holds it.
    path: &'a Path,
    /// Its name there.
    name: String,
    /// Its type, or the name of one that we do not read.
    dtype: Result<TensorType, String>,
    /// Sizes, slowest first.
    shape: Vec<u64>,
    /// Its bytes: exactly those of `shape` where the type is known.
    data: &'a [u8],
}

/// An open model file or set of files.
#[derive(Debug)]
pub struct Checkpoint {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Gguf(Gguf),
    Safetensors(Shards),
}

impl Checkpoint {
    /// Opens `model.safetensors`, or the shards that `model.safetensors.index.json` lists, in the
    /// directory `dir`.
    ///
    /// # Errors
    /// Neither file, a missing shard, or a broken header.
    pub fn open_safetensors(dir: &Path) -> Result<Checkpoint, LoadError> {
        Ok(Checkpoint { source: Source::Safetensors(Shards::open(dir)?) })
    }

    /// Opens a `.gguf` file.
    ///
    /// # Errors
    /// A file that cannot be mapped, or whose header is broken or cut off.
    pub fn open_gguf(path: &Path) -> Result<Checkpoint, LoadError> {
        Ok(Checkpoint { source: Source::Gguf(Gguf::open(path)?) })
    }

    /// The GGUF file, whose metadata also holds the configuration and the tokenizer.
    pub(crate) fn gguf(&self) -> Option<&Gguf> {
        match &self.source {
            Source::Gguf(gguf) => Some(gguf),
            Source::Safetensors(_) => None,
        }
    }

    /// The tensor with this canonical name, checked to have the shape `rows x cols` (vectors: rows
    /// 1).
    ///
    /// # Errors
    /// Missing tensor, other shape, storage type that we cannot read: one line with file and name.
    pub fn tensor(&self, name: &str, rows: usize, cols: usize) -> Result<Tensor<'_>, LoadError> {
        let found = match &self.source {
            Source::Gguf(gguf) => gguf.find(&names::gguf_name(name)),
            Source::Safetensors(shards) => shards.find(name),
        }?;
        found.judge(rows, cols)
    }

    /// Whether a tensor of this name exists.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        match &self.source {
            Source::Gguf(gguf) => gguf.has(&names::gguf_name(name)),
            Source::Safetensors(shards) => shards.has(name),
        }
    }

    /// Bytes of all weights files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.source {
            Source::Gguf(gguf) => gguf.bytes(),
            Source::Safetensors(shards) => shards.bytes(),
        }
    }
}

impl<'a> Found<'a> {
    /// Compares what was found with what the configuration says must be there.
    pub(crate) fn judge(&self, rows: usize, cols: usize) -> Result<Tensor<'a>, LoadError> {
        let field = format!("tensor {}", self.name);
        let invalid = |problem: String| LoadError::invalid(self.path, &field, problem);
        let wanted = [rows as u64, cols as u64];
        let vector = rows == 1 && self.shape == wanted[1..];
        if !vector && self.shape != wanted {
            let want = if rows == 1 { format!("[{cols}]") } else { format!("[{rows}, {cols}]") };
            let problem =
                format!("has the shape {:?}, the configuration asks for {want}", self.shape);
            return Err(invalid(problem));
        }
        let dtype = self.dtype.as_ref().map_err(|name| {
            let readable = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K";
            let problem = format!("is stored as {name}, which we do not read (we read {readable})");
            LoadError::unsupported(self.path, &field, problem)
        })?;
        let bytes = dtype.row_bytes(cols).and_then(|row| row.checked_mul(rows));
        if bytes != Some(self.data.len()) {
            return Err(invalid(format!("has {} bytes, which is not its shape", self.data.len())));
        }
        Ok(Tensor { dtype: *dtype, rows, cols, data: self.data })
    }
}
