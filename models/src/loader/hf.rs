//! A directory in Hugging Face layout.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::LoadedModel;
use super::end::{self, Ids};
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::json;
use crate::template::{ChatTemplate, Source};
use crate::tokenizer::Tokenizer;

/// Of config.json and generation_config.json.
#[derive(Deserialize)]
struct Generation {
    eos_token_id: Option<Ids>,
}

/// Of tokenizer_config.json.
#[derive(Default, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    bos_token: Option<Value>,
    eos_token: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

/// Opens `dir`.
pub(super) fn open(name: String, dir: &Path) -> Result<LoadedModel, LoadError> {
    let config = ModelConfig::from_dir(dir)?;
    let checkpoint = Checkpoint::open_safetensors(dir)?;
    let tokenizer = Tokenizer::from_file(&dir.join("tokenizer.json"), config.vocab_size)?;
    let path = dir.join("tokenizer_config.json");
    let texts: TokenizerConfig = json::read_optional(&path)?.unwrap_or_default();
    let template = template(dir, &texts)?;
    let eos = ends(dir, &texts, &tokenizer, config.vocab_size)?;
    Ok(LoadedModel { name, config, checkpoint, tokenizer, template, eos })
}

/// generation_config.json says it best; config.json may name fewer; the tokenizer's own EOS is
/// the last resort.
fn ends(
    dir: &Path,
    texts: &TokenizerConfig,
    tokenizer: &Tokenizer,
    vocab_size: usize,
) -> Result<Vec<u32>, LoadError> {
    let mut ends = Vec::new();
    for file in ["generation_config.json", "config.json"] {
        let path = dir.join(file);
        let ids = json::read_optional::<Generation>(&path)?.and_then(|file| file.eos_token_id);
        ends.extend(end::declared(&path, ids, vocab_size)?);
    }
    if ends.is_empty() {
        ends.extend(token_text(texts.eos_token.as_ref()).and_then(|t| tokenizer.special_token(t)));
    }
    Ok(end::distinct(ends))
}

/// A token is written as text or as an object with `content`.
fn token_text(token: Option<&Value>) -> Option<&str> {
    let token = token?;
    token.as_str().or_else(|| token["content"].as_str())
}

/// `chat_template.jinja` goes before the field `chat_template`.
fn template(dir: &Path, texts: &TokenizerConfig) -> Result<Option<ChatTemplate>, LoadError> {
    let bos_token = token_text(texts.bos_token.as_ref()).unwrap_or_default();
    let eos_token = token_text(texts.eos_token.as_ref()).unwrap_or_default();
    let compile = |path: &Path, field, text, tool_use| {
        ChatTemplate::compile(Source { path, field, text, tool_use, bos_token, eos_token })
            .map(Some)
    };
    let path = dir.join("chat_template.jinja");
    if let Some(bytes) = json::bytes_optional(&path)? {
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| LoadError::invalid(&path, "template", "is not UTF-8"))?;
        return compile(&path, "template", text, None);
    }
    let (path, field) = (dir.join("tokenizer_config.json"), "chat_template");
    match &texts.chat_template {
        None => Ok(None),
        Some(Templates::One(text)) => compile(&path, field, text, None),
        Some(Templates::Named(all)) => {
            let named = |name: &str| {
                all.iter().find(|template| template.name == name).map(|t| t.template.as_str())
            };
            match named("default") {
                Some(text) => compile(&path, field, text, named("tool_use")),
                None => Err(LoadError::invalid(&path, field, "has no template named default")),
            }
        }
    }
}
