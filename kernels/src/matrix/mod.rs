//! Weight matrices packed for the product `out[rows x n] = x[rows x k] * W[n x k]^T`.
//!
//! Weights are kept in panels of 8 or 16 output rows, interleaved so that one vector holds the same
//! columns of all rows of a panel (see `pack`). A product walks over strips of 16 output columns;
//! for each strip, tiles of up to 8 activation rows stay in registers while the strip's weights
//! stream by once (see `product`).
//!
//! The result of a row never depends on the other rows of the batch, nor on the number of threads:
//! each output is one chain of additions over the columns in ascending order, the same chain in
//! every tile size.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod pack;
mod portable;
mod product;
mod storage;
#[cfg(test)]
mod tests;

pub use product::Product;

use crate::activations::{BLOCK, Form};
use crate::cpu::Cpu;
use pack::Layout;
use storage::Storage;

/// How the weights of a matrix are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Single precision.
    F32,
    /// 4 bits with an f16 scale and an f16 minimum for 32 columns: Q4_0 and Q4_1.
    Q4,
    /// 8 bits with an f16 scale for 32 columns: Q8_0.
    Q8,
}

/// Weights of `n` rows and `k` columns, row-major, before they are packed. Blocks are GGUF's.
#[derive(Clone, Copy, Debug)]
pub enum Weights<'a> {
    /// `n * k` floats, kept as they are.
    F32(&'a [f32]),
    /// `n * k` floats, to be quantised to Q8_0.
    QuantizeQ8_0(&'a [f32]),
    /// 18 bytes for 32 weights: f16 scale, 32 nibbles with offset 8.
    Q4_0(&'a [u8]),
    /// 20 bytes for 32 weights: f16 scale, f16 minimum, 32 nibbles.
    Q4_1(&'a [u8]),
    /// 34 bytes for 32 weights: f16 scale, 32 signed bytes.
    Q8_0(&'a [u8]),
}

/// A packed weight matrix of `n` output rows and `k` columns.
#[derive(Debug)]
pub struct Matrix {
    cpu: Cpu,
    n: usize,
    k: usize,
    layout: Layout,
    data: Storage,
}

impl Matrix {
    /// Packs `weights` for the code path `cpu`. The length must be that of `n` rows of `k` columns,
    /// and `k` a multiple of 32 for all but [`Weights::F32`]: the caller has checked both.
    #[must_use]
    pub fn pack(cpu: Cpu, n: usize, k: usize, weights: Weights<'_>) -> Matrix {
        let layout = Layout::new(cpu, weights.kind(), k);
        let data = pack::pack(layout, n, k, weights);
        Matrix { cpu, n, k, layout, data }
    }

    /// Packs f32 rows.
    #[must_use]
    pub fn from_f32(n: usize, k: usize, values: &[f32]) -> Matrix {
        Matrix::pack(Cpu::detect(), n, k, Weights::F32(values))
    }

    /// Quantises f32 rows to int8 blocks (Q8_0).
    #[must_use]
    pub fn quantize_q8_0(n: usize, k: usize, values: &[f32]) -> Matrix {
        Matrix::pack(Cpu::detect(), n, k, Weights::QuantizeQ8_0(values))
    }

    /// Repacks GGUF Q4_0 blocks (18 bytes for 32 weights).
    #[must_use]
    pub fn from_q4_0(n: usize, k: usize, blocks: &[u8]) -> Matrix {
        Matrix::pack(Cpu::detect(), n, k, Weights::Q4_0(blocks))
    }

    /// Repacks GGUF Q4_1 blocks (20 bytes for 32 weights).
    #[must_use]
    pub fn from_q4_1(n: usize, k: usize, blocks: &[u8]) -> Matrix {
        Matrix::pack(Cpu::detect(), n, k, Weights::Q4_1(blocks))
    }

    /// Repacks GGUF Q8_0 blocks (34 bytes for 32 weights).
    #[must_use]
    pub fn from_q8_0(n: usize, k: usize, blocks: &[u8]) -> Matrix {
        Matrix::pack(Cpu::detect(), n, k, Weights::Q8_0(blocks))
    }

    /// Output rows.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// How the weights are kept.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.layout.kind
    }

    /// The form of activations that this matrix reads: [`Form::F32`] or [`Form::Int8`].
    #[must_use]
    pub fn form(&self) -> Form {
        if self.kind() == Kind::F32 { Form::F32 } else { Form::Int8 }
    }

    /// Bytes that a product reads, which is also what the matrix takes in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.data.bytes().len()
    }

    /// Row `row` as f32 (the embedding of a token, for tied embeddings). `out` has `k` values.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n && out.len() == self.k, "no row {row} of {} values", out.len());
        pack::unpack_row(self.layout, self.data.bytes(), row, out);
    }
}

impl Weights<'_> {
    fn kind(&self) -> Kind {
        match self {
            Weights::F32(_) => Kind::F32,
            Weights::Q4_0(_) | Weights::Q4_1(_) => Kind::Q4,
            Weights::QuantizeQ8_0(_) | Weights::Q8_0(_) => Kind::Q8,
        }
    }
}
