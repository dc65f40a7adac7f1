//! Which tokens end a sequence.

use std::path::Path;

use serde::Deserialize;

use crate::checkpoint::gguf::Gguf;
use crate::error::LoadError;
use crate::tokenizer::Tokenizer;

/// Control tokens that end a turn or a text in the vocabularies of our models. A GGUF file names
/// only one of them, and a model that writes another one would otherwise never stop.
const KNOWN: [&str; 6] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>"];

/// `eos_token_id`: one token or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Ids {
    /// One.
    One(u32),
    /// Several.
    Many(Vec<u32>),
}

/// The ids of `file`'s `eos_token_id`, checked against the vocabulary.
pub(super) fn declared(
    file: &Path,
    ids: Option<Ids>,
    vocab_size: usize,
) -> Result<Vec<u32>, LoadError> {
    let ids = match ids {
        None => Vec::new(),
        Some(Ids::One(id)) => vec![id],
        Some(Ids::Many(ids)) => ids,
    };
    match ids.iter().find(|id| **id as usize >= vocab_size) {
        None => Ok(ids),
        Some(id) => {
            let problem = format!("is {id}, the vocabulary has {vocab_size} entries");
            Err(LoadError::invalid(file, "eos_token_id", problem))
        }
    }
}

/// The token that the metadata `key` names, checked against the vocabulary.
pub(super) fn token(
    gguf: &Gguf,
    key: &str,
    tokenizer: &Tokenizer,
) -> Result<Option<u32>, LoadError> {
    match gguf.uint(key)? {
        Some(id) if id >= tokenizer.vocab_size() as u64 => {
            let problem = format!("is {id}, the vocabulary has {}", tokenizer.vocab_size());
            Err(gguf.invalid(key, problem))
        }
        id => Ok(id.map(|id| id as u32)),
    }
}

/// The ends of a GGUF file: those it names, first its `eos_token_id`, then the known ones.
pub(super) fn gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Vec<u32>, LoadError> {
    let mut ends = Vec::new();
    for which in ["eos", "eot", "eom"] {
        ends.extend(token(gguf, &format!("tokenizer.ggml.{which}_token_id"), tokenizer)?);
    }
    ends.extend(KNOWN.iter().filter_map(|text| tokenizer.special_token(text)));
    Ok(distinct(ends))
}

/// Without repetitions, in order.
pub(super) fn distinct(ends: Vec<u32>) -> Vec<u32> {
    let mut seen = Vec::new();
    for end in ends {
        if !seen.contains(&end) {
            seen.push(end);
        }
    }
    seen
}
