//! A tokenizer from Hugging Face's tokenizer.json.
//!
//! The `tokenizers` crate does the encoding. Its file format can describe much more than our models
//! use; what is not byte-pair encoding is refused, and what would silently change a prompt
//! (truncation, padding, dropout) is switched off or refused. The file's post-processor is reduced
//! to the tokens that it puts before and after the text.

use std::path::Path;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::Parts;
use super::table::{Spelling, Table};
use crate::error::LoadError;
use crate::json;

/// What we look at ourselves.
#[derive(serde::Deserialize)]
struct Outline {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: Model,
}

#[derive(serde::Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(serde::Deserialize)]
struct Model {
    r#type: Option<String>,
    dropout: Option<f64>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    vocab: LongestKey,
    #[serde(default)]
    merges: Vec<MergeLength>,
}

/// Reads and checks `path`.
pub(super) fn read(path: &Path, vocab_size: usize) -> Result<Parts, LoadError> {
    let Some(bytes) = json::bytes_optional(path)? else {
        let problem = format!("{}: not there; it turns text into tokens", path.display());
        return Err(LoadError::NotFound(problem));
    };
    let outline: Outline = json::parse(path, &bytes)?;
    check_model(path, &outline.model)?;
    let mut encoder = tokenizers::Tokenizer::from_bytes(&bytes)
        .map_err(|error| LoadError::invalid(path, "tokenizer", error))?;
    if let Some(unknown) = &outline.model.unk_token
        && encoder.token_to_id(unknown).is_none()
    {
        let problem = format!("{unknown:?} is not in the vocabulary");
        return Err(LoadError::invalid(path, "model.unk_token", problem));
    }
    encoder.with_padding(None);
    encoder.with_truncation(None).map_err(|e| LoadError::invalid(path, "truncation", e))?;
    encoder.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
    for token in &outline.added_tokens {
        check_added(path, &encoder, token)?;
    }
    let spelling = spelling(path, &outline)?;
    let table = table(path, &encoder, &outline.added_tokens, spelling, vocab_size)?;
    let (prefix, suffix) = affixes(path, outline.post_processor.as_ref())?;
    for id in prefix.iter().chain(&suffix) {
        if table.bytes(*id).is_none() {
            let problem = format!("adds the token {id}, which is not in the vocabulary");
            return Err(LoadError::invalid(path, "post_processor", problem));
        }
    }
    let space_prefix = spelling == Spelling::SentencePiece && adds_space(&outline);
    Ok(Parts { encoder: Some(encoder), table, prefix, suffix, space_prefix })
}

fn check_model(path: &Path, model: &Model) -> Result<(), LoadError> {
    let refuse = |field: &str, problem: String| Err(LoadError::unsupported(path, field, problem));
    if let Some(kind) = model.r#type.as_deref().filter(|kind| *kind != "BPE") {
        return refuse("model.type", format!("{kind:?} is not supported (BPE is)"));
    }
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return refuse("model.dropout", "random tokens are not supported".into());
    }
    for (field, affix) in [
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if affix.as_ref().is_some_and(|affix| !affix.is_empty()) {
            return refuse(field, "is not supported".into());
        }
    }
    // The crate joins both parts of a merge in a buffer as long as the longest token.
    if model.merges.iter().any(|merge| merge.0 > model.vocab.0) {
        let problem = "has an entry that is longer than any token";
        return Err(LoadError::invalid(path, "model.merges", problem));
    }
    Ok(())
}

/// The crate numbers added tokens itself and only warns where the file says another number.
fn check_added(
    path: &Path,
    encoder: &tokenizers::Tokenizer,
    token: &Added,
) -> Result<(), LoadError> {
    let Added { id, content, .. } = token;
    let is = match encoder.token_to_id(content) {
        Some(is) if is == *id => return Ok(()),
        Some(is) => format!("token {is}"),
        None => "not in the vocabulary".to_owned(),
    };
    let problem = format!("{content:?} has the id {id}, but is {is}");
    Err(LoadError::invalid(path, "added_tokens", problem))
}

/// How the vocabulary spells bytes: as its decoder says, or else its other parts.
fn spelling(path: &Path, outline: &Outline) -> Result<Spelling, LoadError> {
    let parts = [&outline.decoder, &outline.pre_tokenizer, &outline.normalizer];
    for part in parts.into_iter().flatten() {
        if part_of(part, &["ByteLevel"]).is_some() {
            return Ok(Spelling::ByteLevel);
        }
        if part_of(part, &["ByteFallback", "Metaspace"]).is_some() {
            return Ok(Spelling::SentencePiece);
        }
    }
    let problem = "is neither byte-level nor SentencePiece's";
    Err(LoadError::unsupported(path, "decoder", problem))
}

/// The first part of a (nested) sequence that has one of these types.
fn part_of<'a>(part: &'a Value, types: &[&str]) -> Option<&'a Value> {
    if part["type"].as_str().is_some_and(|kind| types.contains(&kind)) {
        return Some(part);
    }
    let lists = ["decoders", "pretokenizers", "normalizers", "processors"];
    let inner = lists.iter().filter_map(|list| part[*list].as_array()).flatten();
    inner.into_iter().find_map(|part| part_of(part, types))
}

/// Whether a space is put before the text.
fn adds_space(outline: &Outline) -> bool {
    let metaspace = outline.pre_tokenizer.as_ref().and_then(|part| part_of(part, &["Metaspace"]));
    let prepend = outline.normalizer.as_ref().and_then(|part| part_of(part, &["Prepend"]));
    let never = |part: &Value| {
        part["prepend_scheme"] == "never" || part["add_prefix_space"] == Value::Bool(false)
    };
    prepend.is_some() || metaspace.is_some_and(|part| !never(part))
}

fn table(
    path: &Path,
    encoder: &tokenizers::Tokenizer,
    added: &[Added],
    spelling: Spelling,
    vocab_size: usize,
) -> Result<Table, LoadError> {
    let mut by_id = vec![None; vocab_size];
    for (piece, id) in encoder.get_vocab(true) {
        match by_id.get_mut(id as usize) {
            Some(slot) => *slot = Some(piece),
            None => {
                let problem = format!("{piece:?} has the id {id}, the model has {vocab_size} rows");
                return Err(LoadError::invalid(path, "vocabulary", problem));
            }
        }
    }
    while by_id.last().is_some_and(Option::is_none) {
        by_id.pop();
    }
    let mut added: Vec<&Added> = added.iter().collect();
    added.sort_unstable_by_key(|token| token.id);
    let mut table = Table::default();
    let mut bytes = Vec::new();
    for (id, piece) in by_id.iter().enumerate() {
        let piece = piece.as_deref().unwrap_or("");
        let found = added.binary_search_by_key(&(id as u32), |token| token.id);
        match found.ok().map(|index| added[index]).filter(|token| token.content == piece) {
            Some(token) => table.push(piece.as_bytes(), token.special),
            None => {
                spelling.bytes(piece, &mut bytes);
                table.push(&bytes, false);
            }
        }
    }
    Ok(table)
}

/// The ids that the post-processor puts before and after a single text.
fn affixes(path: &Path, part: Option<&Value>) -> Result<(Vec<u32>, Vec<u32>), LoadError> {
    let Some(part) = part else { return Ok((Vec::new(), Vec::new())) };
    match part["type"].as_str() {
        // Only moves offsets, which we do not use.
        Some("ByteLevel") => Ok((Vec::new(), Vec::new())),
        Some("Sequence") => {
            let mut all = (Vec::new(), Vec::new());
            for inner in part["processors"].as_array().into_iter().flatten() {
                let (prefix, suffix) = affixes(path, Some(inner))?;
                all.0.splice(0..0, prefix);
                all.1.extend(suffix);
            }
            Ok(all)
        }
        Some("TemplateProcessing") => template_affixes(part).ok_or_else(|| {
            LoadError::invalid(path, "post_processor", "is not a template of known tokens")
        }),
        other => {
            let problem = format!("{} is not supported", other.unwrap_or("without a type"));
            Err(LoadError::unsupported(path, "post_processor", problem))
        }
    }
}

fn template_affixes(part: &Value) -> Option<(Vec<u32>, Vec<u32>)> {
    let (mut prefix, mut suffix) = (Vec::new(), Vec::new());
    let mut after = false;
    for piece in part["single"].as_array()? {
        match piece["SpecialToken"]["id"].as_str() {
            None => after = true,
            Some(name) => {
                let side = if after { &mut suffix } else { &mut prefix };
                for id in part["special_tokens"][name]["ids"].as_array()? {
                    side.push(u32::try_from(id.as_u64()?).ok()?);
                }
            }
        }
    }
    after.then_some((prefix, suffix))
}

/// Bytes of the longest key of a map (a vocabulary), without keeping the map.
#[derive(Default)]
struct LongestKey(usize);

impl<'de> Deserialize<'de> for LongestKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<LongestKey, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = LongestKey;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a vocabulary")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LongestKey, A::Error> {
                let mut longest = 0;
                while let Some((key, _)) = map.next_entry::<String, IgnoredAny>()? {
                    longest = longest.max(key.len());
                }
                Ok(LongestKey(longest))
            }
            // Other models than BPE have lists; they are refused by their type.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<LongestKey, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(LongestKey(0))
            }
        }
        from.deserialize_any(Keys)
    }
}

/// Bytes of both parts of a merge, written `"a b"` or `["a", "b"]`.
struct MergeLength(usize);

impl<'de> Deserialize<'de> for MergeLength {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<MergeLength, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Merge {
            Line(String),
            Pair(String, String),
        }
        Ok(MergeLength(match Merge::deserialize(from)? {
            Merge::Line(line) => line.len().saturating_sub(1),
            Merge::Pair(left, right) => left.len() + right.len(),
        }))
    }
}
