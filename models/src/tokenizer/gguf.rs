//! A tokenizer rebuilt from the vocabulary in a GGUF file.
//!
//! The file has pieces, their types and either merges (`gpt2`: byte-level byte-pair encoding) or
//! scores (`llama`: SentencePiece, see [`super::spm`]). How text is split before merging is only
//! named, by `tokenizer.ggml.pre`; the names and their patterns are llama.cpp's.

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::Parts;
use super::spm;
use super::table::{Spelling, Table};
use crate::checkpoint::gguf::Gguf;
use crate::error::LoadError;

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";

/// llama.cpp's token types.
pub(super) const NORMAL: u64 = 1;
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// What the patterns of Qwen2 and Llama 3 have in common before and after digits.
macro_rules! words {
    ($digits:literal) => {
        concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}
const QWEN2: &str = words!(r"\p{N}");
const LLAMA3: &str = words!(r"\p{N}{1,3}");
/// Mistral's: words part where lower case turns to upper case.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The vocabulary as the file has it.
pub(super) struct Vocabulary<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) pieces: Vec<&'a str>,
    pub(super) types: Vec<u64>,
}

/// Rebuilds the tokenizer.
pub(super) fn read(gguf: &Gguf) -> Result<Parts, LoadError> {
    let vocabulary = Vocabulary::read(gguf)?;
    match gguf.text(MODEL)? {
        Some("gpt2") => byte_level(&vocabulary),
        Some("llama") => spm::build(&vocabulary),
        Some(other) => {
            let problem = format!("{other:?} is not supported (gpt2 and llama are)");
            Err(LoadError::unsupported(gguf.path(), MODEL, problem))
        }
        None => Err(gguf.invalid(MODEL, "is missing")),
    }
}

impl<'a> Vocabulary<'a> {
    fn read(gguf: &'a Gguf) -> Result<Vocabulary<'a>, LoadError> {
        let missing = |key: &str| gguf.invalid(key, "is missing");
        let pieces = gguf.texts(TOKENS)?.ok_or_else(|| missing(TOKENS))?;
        let types = gguf.uints(TYPES)?.ok_or_else(|| missing(TYPES))?;
        if types.len() != pieces.len() {
            let problem = format!("has {} entries, {TOKENS} has {}", types.len(), pieces.len());
            return Err(gguf.invalid(TYPES, problem));
        }
        Ok(Vocabulary { gguf, pieces, types })
    }

    /// Each token's bytes.
    pub(super) fn table(&self, spelling: Spelling) -> Table {
        let mut table = Table::default();
        let mut bytes = Vec::new();
        for (piece, kind) in self.pieces.iter().zip(&self.types) {
            match *kind {
                UNKNOWN | CONTROL => table.push(piece.as_bytes(), true),
                USER_DEFINED => table.push(piece.as_bytes(), false),
                _ => {
                    spelling.bytes(piece, &mut bytes);
                    table.push(&bytes, false);
                }
            }
        }
        table
    }

    /// Ids by text. Where two tokens have the same text the first counts.
    pub(super) fn ids(&self) -> Vocab {
        let all = self.pieces.iter().enumerate().rev();
        all.map(|(id, piece)| ((*piece).to_owned(), id as u32)).collect()
    }

    /// Tokens that are recognised in the text before it is split.
    pub(super) fn added_tokens(&self) -> Vec<AddedToken> {
        let all = self.pieces.iter().zip(&self.types);
        let added = all.filter(|(_, kind)| matches!(**kind, CONTROL | USER_DEFINED));
        added
            .map(|(piece, kind)| AddedToken::from(*piece, *kind == CONTROL).normalized(false))
            .collect()
    }

    /// The token that `key` names, if it does; checked against the vocabulary.
    pub(super) fn token(&self, key: &str) -> Result<Option<u32>, LoadError> {
        match self.gguf.uint(key)? {
            None => Ok(None),
            Some(id) if id < self.pieces.len() as u64 => Ok(Some(id as u32)),
            Some(id) => {
                let problem = format!("is {id}, the vocabulary has {}", self.pieces.len());
                Err(self.gguf.invalid(key, problem))
            }
        }
    }

    /// What `add_special` adds: the token `tokenizer.ggml.{which}_token_id` if
    /// `tokenizer.ggml.add_{which}_token`, or by `default`.
    pub(super) fn affix(&self, which: &str, default: bool) -> Result<Vec<u32>, LoadError> {
        let wanted = self.gguf.boolean(&format!("tokenizer.ggml.add_{which}_token"))?;
        if !wanted.unwrap_or(default) {
            return Ok(Vec::new());
        }
        let key = format!("tokenizer.ggml.{which}_token_id");
        match (self.token(&key)?, wanted) {
            (None, Some(true)) => Err(self.gguf.invalid(&key, "is missing")),
            (token, _) => Ok(token.into_iter().collect()),
        }
    }

    /// Puts the parts together; fails as the `tokenizers` crate does.
    pub(super) fn finish(
        &self,
        mut encoder: tokenizers::Tokenizer,
        spelling: Spelling,
        bos_by_default: bool,
        space_prefix: bool,
    ) -> Result<Parts, LoadError> {
        encoder
            .add_tokens(self.added_tokens())
            .map_err(|error| self.gguf.invalid(TOKENS, error))?;
        Ok(Parts {
            encoder: Some(encoder),
            table: self.table(spelling),
            prefix: self.affix("bos", bos_by_default)?,
            suffix: self.affix("eos", false)?,
            space_prefix,
        })
    }
}

/// How a named pre-tokenizer works.
struct Pre {
    split: tokenizers::PreTokenizerWrapper,
    /// Whole words that are tokens are taken without merging.
    ignore_merges: bool,
    /// BOS is added unless the file says otherwise.
    bos: bool,
    nfc: bool,
}

fn pre_tokenizer(gguf: &Gguf) -> Result<Pre, LoadError> {
    let simple = |split| Pre { split, ignore_merges: false, bos: false, nfc: false };
    let gpt2 = ByteLevel::new(false, true, true);
    match gguf.text(PRE)? {
        Some("gpt-2") => Ok(simple(gpt2.into())),
        Some("smollm") => {
            Ok(simple(Sequence::new(vec![Digits::new(true).into(), gpt2.into()]).into()))
        }
        Some("qwen2" | "deepseek-r1-qwen") => Ok(Pre { nfc: true, ..simple(split_by(QWEN2)) }),
        Some("llama-bpe" | "llama3" | "llama-v3") => {
            Ok(Pre { ignore_merges: true, bos: true, ..simple(split_by(LLAMA3)) })
        }
        Some("tekken") => Ok(Pre { ignore_merges: true, bos: true, ..simple(split_by(TEKKEN)) }),
        Some(other) => {
            let known = "gpt-2, smollm, qwen2, llama-bpe and tekken are";
            let fix = "use the model's safetensors directory with its tokenizer.json";
            let problem = format!("{other:?} is not supported ({known}); {fix}");
            Err(LoadError::unsupported(gguf.path(), PRE, problem))
        }
        None => {
            let problem = "is missing, so how text was split is unknown; convert the model again";
            Err(gguf.invalid(PRE, problem))
        }
    }
}

fn split_by(pattern: &str) -> tokenizers::PreTokenizerWrapper {
    let pattern = SplitPattern::Regex(pattern.to_owned());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
        .expect("the pattern is one of our constants");
    Sequence::new(vec![split.into(), ByteLevel::new(false, true, false).into()]).into()
}

fn byte_level(vocabulary: &Vocabulary<'_>) -> Result<Parts, LoadError> {
    let gguf = vocabulary.gguf;
    let pre = pre_tokenizer(gguf)?;
    let model = BPE::builder()
        .vocab_and_merges(vocabulary.ids(), merges(vocabulary)?)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(|error| gguf.invalid(MERGES, error))?;
    let mut encoder = tokenizers::Tokenizer::new(model);
    encoder.with_pre_tokenizer(Some(pre.split));
    if pre.nfc {
        encoder.with_normalizer(Some(NFC)).map_err(|error| gguf.invalid(TOKENS, error))?;
    }
    vocabulary.finish(encoder, Spelling::ByteLevel, pre.bos, false)
}

/// The merges. The crate's builder checks that each makes a token of the vocabulary, but joins both
/// parts in a buffer as long as the longest token.
fn merges(vocabulary: &Vocabulary<'_>) -> Result<Merges, LoadError> {
    let gguf = vocabulary.gguf;
    let lines = gguf.texts(MERGES)?.ok_or_else(|| gguf.invalid(MERGES, "is missing"))?;
    let longest = vocabulary.pieces.iter().map(|piece| piece.len()).max().unwrap_or(0);
    let pair = |line: &&str| {
        let (left, right) = line.split_once(' ')?;
        let fits = left.len() + right.len() <= longest;
        fits.then(|| (left.to_owned(), right.to_owned()))
    };
    let pairs: Option<Merges> = lines.iter().map(pair).collect();
    let broken = "has an entry that is not two tokens which make a third";
    pairs.ok_or_else(|| gguf.invalid(MERGES, broken))
}
