//! SentencePiece vocabularies (`llama`), as in Llama 2 and early Mistral.
//!
//! SentencePiece's byte-pair mode merges, again and again, the pair whose joined piece has the best
//! score. Listing all pairs that make a piece, best score first, turns that into ordinary ranked
//! merges (transformers converts such models in the same way). Bytes outside the vocabulary fall
//! back to `<0xNN>` tokens; spaces are written U+2581, and one is put before the text.

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::{Prepend, Replace, Sequence};

use super::Parts;
use super::gguf::{NORMAL, Vocabulary};
use super::table::Spelling;
use crate::error::LoadError;

const SCORES: &str = "tokenizer.ggml.scores";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";

/// Longest piece, in characters, that is taken apart: SentencePiece's own bound is 16 by default.
const MAX_PIECE_CHARS: usize = 256;

/// Rebuilds the tokenizer.
pub(super) fn build(vocabulary: &Vocabulary<'_>) -> Result<Parts, LoadError> {
    let gguf = vocabulary.gguf;
    let ids = vocabulary.ids();
    let merges = merges(vocabulary, &ids)?;
    let unknown = vocabulary.token(UNKNOWN)?.unwrap_or(0) as usize;
    let Some(unknown) = vocabulary.pieces.get(unknown) else {
        return Err(gguf.invalid(UNKNOWN, "is not in the vocabulary"));
    };
    let model = BPE::builder()
        .vocab_and_merges(ids, merges)
        .unk_token((*unknown).to_owned())
        .fuse_unk(true)
        .byte_fallback(true)
        .build()
        .map_err(|error| gguf.invalid(SCORES, error))?;
    let space_prefix = gguf.boolean("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let mut encoder = tokenizers::Tokenizer::new(model);
    encoder.with_normalizer(Some(spaces(space_prefix))).map_err(|e| gguf.invalid(SCORES, e))?;
    vocabulary.finish(encoder, Spelling::SentencePiece, true, space_prefix)
}

fn spaces(prefix: bool) -> Sequence {
    let replace = Replace::new(" ", "\u{2581}").expect("a constant pattern");
    let prepend = prefix.then(|| Prepend::new("\u{2581}".to_owned()).into());
    Sequence::new(prepend.into_iter().chain([replace.into()]).collect())
}

/// A way to make a piece; sorts best first.
struct Split<'a> {
    score: f64,
    left: &'a str,
    right: &'a str,
    left_chars: usize,
    chars: usize,
}

fn merges(vocabulary: &Vocabulary<'_>, ids: &Vocab) -> Result<Merges, LoadError> {
    let gguf = vocabulary.gguf;
    let scores = gguf.floats(SCORES)?.ok_or_else(|| gguf.invalid(SCORES, "is missing"))?;
    if scores.len() != vocabulary.pieces.len() {
        let problem =
            format!("has {} entries for {} tokens", scores.len(), vocabulary.pieces.len());
        return Err(gguf.invalid(SCORES, problem));
    }
    if scores.iter().any(|score| score.is_nan()) {
        return Err(gguf.invalid(SCORES, "has an entry that is not a number"));
    }
    let is_normal =
        |piece: &str| ids.get(piece).is_some_and(|id| vocabulary.types[*id as usize] == NORMAL);
    let mut splits = Vec::new();
    for (piece, score) in vocabulary.pieces.iter().zip(&scores).filter(|(p, _)| is_normal(p)) {
        let chars = piece.chars().count();
        if chars > MAX_PIECE_CHARS {
            continue;
        }
        for (left_chars, (at, _)) in piece.char_indices().enumerate().skip(1) {
            let (left, right) = piece.split_at(at);
            if is_normal(left) && is_normal(right) {
                splits.push(Split { score: *score, left, right, left_chars, chars });
            }
        }
    }
    // Best score first; for one piece (or equal scores) the longest left part first. The sort is
    // stable, so what is still equal stays in the order of the vocabulary.
    splits.sort_by(|a, b| {
        let length = |s: &Split<'_>| (s.left_chars, s.chars - s.left_chars);
        b.score.total_cmp(&a.score).then_with(|| length(b).cmp(&length(a)))
    });
    Ok(splits.iter().map(|s| (s.left.to_owned(), s.right.to_owned())).collect())
}
