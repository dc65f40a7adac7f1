//! CPU kernels: packed weights, int8 and f32 matrix products, paged attention, a small thread pool,
//! and read-only file mappings. The only crate with `unsafe`; everything it exports is safe.

pub mod activations;
pub mod attention;
pub mod cpu;
pub mod elementwise;
pub mod kv;
pub mod mapped;
pub mod matrix;
pub mod pool;

pub use activations::{Activations, Form};
pub use cpu::Cpu;
pub use kv::{KvDtype, PagedKv};
pub use mapped::MappedFile;
pub use matrix::{Matrix, Product, Weights};
pub use pool::Pool;
