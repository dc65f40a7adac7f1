//! From what the user typed to an open model.

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// Everything about a model but its runner.
#[derive(Debug)]
pub struct LoadedModel {
    /// A name for `--served-model-name`'s default: the directory's or the file's.
    pub name: String,
    /// Sizes.
    pub config: ModelConfig,
    /// Weights, mapped.
    pub checkpoint: Checkpoint,
    /// Tokenizer.
    pub tokenizer: Tokenizer,
    /// Chat template, if the model has one.
    pub template: Option<ChatTemplate>,
    /// Tokens that end a sequence, from generation_config.json, config.json or GGUF.
    pub eos: Vec<u32>,
}

/// Opens a directory in Hugging Face layout, a `.gguf` file, or a hub id that is in the local
/// Hugging Face cache.
///
/// # Errors
/// One clear line that names file and field and, for what is missing, how to get it.
pub fn open(model: &str) -> Result<LoadedModel, LoadError> {
    todo!()
}
