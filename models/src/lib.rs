//! Models: configuration, weights, tokenizers and chat templates, and forward passes over a paged
//! KV cache behind one port, [`ModelRunner`].

pub mod checkpoint;
pub mod config;
pub mod cpu;
pub mod error;
mod json;
pub mod loader;
pub mod quant;
pub mod rope;
pub mod runner;
pub mod template;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tokenizer;

#[cfg(feature = "candle")]
pub mod candle;

pub use checkpoint::{Checkpoint, Tensor, TensorType};
pub use config::{Architecture, ModelConfig, Rope, RopeScaling};
pub use error::LoadError;
pub use loader::{LoadedModel, open};
pub use rope::RopeTable;
pub use runner::{Chunk, Logits, ModelRunner, RunnerError, RunnerLimits, validate};
pub use template::{ChatTemplate, TemplateError};
pub use tokenizer::Tokenizer;
