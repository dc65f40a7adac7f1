//! From what the user typed to an open model.

mod end;
mod find;
mod hf;

use std::path::Path;

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::template::{ChatTemplate, Source};
use crate::tokenizer::Tokenizer;
use find::Location;

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
    let found = find::find(model)?;
    match found.location {
        Location::Gguf(path) => open_gguf(found.name, &path),
        Location::Directory(dir) => hf::open(found.name, &dir),
    }
}

fn open_gguf(name: String, path: &Path) -> Result<LoadedModel, LoadError> {
    let checkpoint = Checkpoint::open_gguf(path)?;
    let config = ModelConfig::from_gguf(&checkpoint)?;
    let tokenizer = Tokenizer::from_gguf(&checkpoint)?;
    let gguf = checkpoint.gguf().expect("opened as GGUF above");
    let ends = end::gguf(gguf, &tokenizer)?;
    let text = |key: &str| -> Result<String, LoadError> {
        let token = end::token(gguf, key, &tokenizer)?;
        let bytes = token.and_then(|token| tokenizer.token_bytes(token)).unwrap_or_default();
        Ok(String::from_utf8_lossy(bytes).into_owned())
    };
    let (bos_token, eos_token) =
        (text("tokenizer.ggml.bos_token_id")?, text("tokenizer.ggml.eos_token_id")?);
    let field = "tokenizer.chat_template";
    let compile = |text| {
        ChatTemplate::compile(Source {
            path,
            field,
            text,
            tool_use: None,
            bos_token: &bos_token,
            eos_token: &eos_token,
        })
    };
    let template = gguf.text(field)?.map(compile).transpose()?;
    Ok(LoadedModel { name, config, tokenizer, template, eos: ends, checkpoint })
}
