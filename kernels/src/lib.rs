//! CPU kernels: packed weights, int8 and f32 matrix products, paged attention, a small thread pool,
//! and read-only file mappings. The only crate with `unsafe`; everything it exports is safe.

pub mod activations;
pub mod attention;
pub mod batch;
pub mod cpu;
pub mod elementwise;
pub mod heads;
pub mod kv;
mod lanes;
pub mod mapped;
pub mod matrix;
pub mod pool;

pub use activations::{Activations, Form};
pub use attention::Attention;
pub use batch::{Batch, Heads};
pub use cpu::Cpu;
pub use kv::{KvDtype, KvShape, PagedKv};
pub use mapped::MappedFile;
pub use matrix::{Matrix, Product, Weights};
pub use pool::Pool;
