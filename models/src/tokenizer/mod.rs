//! Text to tokens and back, incrementally too.
//!
//! Encoding is the `tokenizers` crate's; what we add is how its parts are put together for a GGUF
//! file, and a table of each token's raw bytes, from which text is decoded without the crate: a
//! token may end inside a UTF-8 character, and only bytes can be joined across tokens.
//!
//! Encoding takes time about proportional to the text (some megabytes a second on one core) and
//! bounds nothing: whoever takes text from outside limits its bytes first. Each thread that encodes
//! keeps a cache of up to 10,000 words, so it should be a few threads that do.

mod gguf;
mod hf;
mod spm;
mod table;

use std::path::Path;
use std::sync::Arc;

use crate::checkpoint::Checkpoint;
use crate::error::LoadError;
use table::Table;

/// A tokenizer, from tokenizer.json or rebuilt from GGUF metadata. Cheap to clone, thread-safe.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    parts: Arc<Parts>,
}

#[derive(Debug)]
struct Parts {
    /// `None`: bytes are tokens.
    encoder: Option<tokenizers::Tokenizer>,
    table: Table,
    /// What `add_special` puts before and after.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// Encoding puts a space before the text (SentencePiece), which decoding takes away.
    space_prefix: bool,
}

impl Tokenizer {
    /// A tokenizer of bytes for the simulated runner without a model: token `b` is byte `b`, 256
    /// ends a sequence.
    #[must_use]
    pub fn bytes() -> Tokenizer {
        let mut table = Table::default();
        for byte in 0..=u8::MAX {
            table.push(&[byte], false);
        }
        table.push(b"<|end|>", true);
        let (prefix, suffix) = (Vec::new(), Vec::new());
        Parts { encoder: None, table, prefix, suffix, space_prefix: false }.into()
    }

    /// Reads a `tokenizer.json`. `vocab_size` is the number of rows of the model's embedding: the
    /// tokenizer may have fewer entries (rows are padded), not more.
    ///
    /// # Errors
    /// A missing or malformed file, a kind of tokenizer that none of our models uses, or one that
    /// does not fit the model.
    pub fn from_file(path: &Path, vocab_size: usize) -> Result<Tokenizer, LoadError> {
        hf::read(path, vocab_size).map(Tokenizer::from)
    }

    /// Rebuilds the tokenizer of the GGUF file that `checkpoint` has open.
    ///
    /// # Errors
    /// As [`Tokenizer::from_file`].
    pub fn from_gguf(checkpoint: &Checkpoint) -> Result<Tokenizer, LoadError> {
        match checkpoint.gguf() {
            Some(file) => gguf::read(file).map(Tokenizer::from),
            None => Err(LoadError::Unsupported("only GGUF files hold a tokenizer".into())),
        }
    }

    /// Encodes text. `add_special` adds BOS and the like where the model wants them (false after a
    /// chat template, which writes them itself); special tokens in the text are recognised.
    #[must_use]
    pub fn encode(&self, text: &str, add_special: bool) -> Vec<u32> {
        let parts = &*self.parts;
        let mut ids = Vec::new();
        if add_special {
            ids.extend_from_slice(&parts.prefix);
        }
        match &parts.encoder {
            None => ids.extend(text.bytes().map(u32::from)),
            Some(encoder) => {
                let encoding = encoder.encode_fast(text, false);
                let checked = "byte-pair encoding fails only without its unknown token, \
                               which loading has checked";
                ids.extend_from_slice(encoding.expect(checked).get_ids());
            }
        }
        if add_special {
            ids.extend_from_slice(&parts.suffix);
        }
        ids
    }

    /// Decodes all at once; invalid UTF-8 becomes U+FFFD.
    #[must_use]
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        let visible = tokens.iter().filter(|token| !(skip_special && self.is_special(**token)));
        let bytes: Vec<u8> =
            visible.filter_map(|token| self.token_bytes(*token)).flatten().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let space = if self.parts.space_prefix { text.strip_prefix(' ') } else { None };
        space.unwrap_or(&text).to_owned()
    }

    /// The raw bytes of one token as the model sees them (special tokens: their text). Joining the
    /// bytes of a sequence and decoding them as UTF-8 gives its text.
    #[must_use]
    pub fn token_bytes(&self, token: u32) -> Option<&[u8]> {
        self.parts.table.bytes(token)
    }

    /// Whether a token is special (not part of the visible text).
    #[must_use]
    pub fn is_special(&self, token: u32) -> bool {
        self.parts.table.is_special(token)
    }

    /// The special token with exactly this text.
    #[must_use]
    pub fn special_token(&self, text: &str) -> Option<u32> {
        self.parts.table.special_token(text)
    }

    /// Entries of the vocabulary.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.parts.table.len()
    }
}

impl From<Parts> for Tokenizer {
    fn from(parts: Parts) -> Tokenizer {
        Tokenizer { parts: Arc::new(parts) }
    }
}
