//! Text to tokens and back, incrementally too.

/// A tokenizer, from tokenizer.json or rebuilt from GGUF metadata. Cheap to clone, thread-safe.
#[derive(Clone, Debug)]
pub struct Tokenizer {}

impl Tokenizer {
    /// A tokenizer of bytes for the simulated runner without a model: token `b` is byte `b`, 256
    /// ends a sequence.
    #[must_use]
    pub fn bytes() -> Tokenizer {
        todo!()
    }
    /// Encodes text. `add_special` adds BOS and the like where the model wants them (false after a
    /// chat template, which writes them itself); special tokens in the text are recognised.
    #[must_use]
    pub fn encode(&self, text: &str, add_special: bool) -> Vec<u32> {
        todo!()
    }
    /// Decodes all at once; invalid UTF-8 becomes U+FFFD.
    #[must_use]
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        todo!()
    }
    /// The raw bytes of one token as the model sees them (special tokens: their text). Concatenating
    /// the bytes of a sequence and decoding them as UTF-8 gives its text.
    #[must_use]
    pub fn token_bytes(&self, token: u32) -> Option<&[u8]> {
        todo!()
    }
    /// Whether a token is special (not part of the visible text).
    #[must_use]
    pub fn is_special(&self, token: u32) -> bool {
        todo!()
    }
    /// Entries of the vocabulary.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        todo!()
    }
}
