//! Small seeded models for tests, as GGUF files and as directories in Hugging Face layout. Compiled
//! for this crate's own tests and with the feature `testing`.
//!
//! [`Tiny`] describes a model; [`Gguf`] is a file under construction that a test can spoil.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

mod gguf;
mod tiny;

pub use gguf::Gguf;
pub use tiny::Tiny;

use crate::checkpoint::TensorType;

/// A stream of pseudo-random numbers (SplitMix64), the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// `rows * cols` values of `dtype` with a magnitude of about `scale`, as a file stores them.
    /// Quantised blocks get random bytes and sane scales.
    ///
    /// # Panics
    /// If `cols` is not a whole number of blocks.
    pub fn weights(&mut self, dtype: TensorType, rows: usize, cols: usize, scale: f32) -> Vec<u8> {
        let blocks = rows * dtype.row_bytes(cols).unwrap() / dtype.block_bytes();
        let mut data: Vec<u8> =
            (0..blocks * dtype.block_bytes()).map(|_| self.bits() as u8).collect();
        for block in data.chunks_exact_mut(dtype.block_bytes()) {
            let value = scale * self.uniform();
            let half = |value: f32| half::f16::from_f32(value).to_le_bytes();
            match dtype {
                TensorType::F32 => block.copy_from_slice(&value.to_le_bytes()),
                TensorType::F16 => block.copy_from_slice(&half(value)),
                TensorType::BF16 => {
                    block.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes());
                }
                TensorType::Q4_0 => block[..2].copy_from_slice(&half(value / 8.0)),
                TensorType::Q8_0 => block[..2].copy_from_slice(&half(value / 128.0)),
                TensorType::Q4_1 => {
                    block[..2].copy_from_slice(&half(value / 8.0));
                    block[2..4].copy_from_slice(&half(-value));
                }
                TensorType::Q4_K => {
                    block[..2].copy_from_slice(&half(value / 512.0));
                    block[2..4].copy_from_slice(&half(value / 64.0));
                }
                TensorType::Q6_K => block[208..].copy_from_slice(&half(value / 4096.0)),
            }
        }
        data
    }
}
