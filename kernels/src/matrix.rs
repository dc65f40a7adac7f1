//! Weight matrices packed for the product `out[rows x n] = x[rows x k] * W[n x k]^T`.

use crate::activations::Activations;
use crate::pool::Pool;

/// A packed weight matrix of `n` output rows and `k` columns.
#[derive(Debug)]
pub struct Matrix {}

impl Matrix {
    /// Packs f32 rows.
    #[must_use]
    pub fn from_f32(n: usize, k: usize, values: &[f32]) -> Matrix {
        todo!()
    }
    /// Quantises f32 rows to int8 blocks (Q8_0).
    #[must_use]
    pub fn quantize_q8_0(n: usize, k: usize, values: &[f32]) -> Matrix {
        todo!()
    }
    /// Repacks GGUF Q4_0 blocks (18 bytes for 32 weights).
    #[must_use]
    pub fn from_q4_0(n: usize, k: usize, blocks: &[u8]) -> Matrix {
        todo!()
    }
    /// Repacks GGUF Q4_1 blocks (20 bytes for 32 weights).
    #[must_use]
    pub fn from_q4_1(n: usize, k: usize, blocks: &[u8]) -> Matrix {
        todo!()
    }
    /// Repacks GGUF Q8_0 blocks (34 bytes for 32 weights).
    #[must_use]
    pub fn from_q8_0(n: usize, k: usize, blocks: &[u8]) -> Matrix {
        todo!()
    }
    /// Output rows.
    #[must_use]
    pub fn n(&self) -> usize {
        todo!()
    }
    /// Columns.
    #[must_use]
    pub fn k(&self) -> usize {
        todo!()
    }
    /// Bytes that a product reads.
    #[must_use]
    pub fn bytes(&self) -> usize {
        todo!()
    }
    /// Row `row` as f32 (the embedding of a token, for tied embeddings).
    pub fn row(&self, row: usize, out: &mut [f32]) {
        todo!()
    }
    /// `out[r * n ..][..n] = x[r] * W^T` for `rows` rows.
    pub fn multiply(&self, pool: &Pool, x: &Activations, rows: usize, out: &mut [f32]) {
        todo!()
    }
    /// Like [`Matrix::multiply`], added to what `out` holds (the residual).
    pub fn multiply_add(&self, pool: &Pool, x: &Activations, rows: usize, out: &mut [f32]) {
        todo!()
    }
}
