//! From tokens to text: incremental detokenising that never splits a character, and stop strings
//! that are found across token boundaries and never leak.

use models::Tokenizer;

/// What came of pushing a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// Text that may be shown now (may be empty: held back).
    Text(String),
    /// A stop string was found: the last text to show; the sequence is over.
    Stopped(String),
}

/// Assembles the text of one sequence.
#[derive(Debug)]
pub struct TextAssembler {}

impl TextAssembler {
    /// For a new sequence. `stops` are at most a few short strings.
    #[must_use]
    pub fn new(
        tokenizer: Tokenizer,
        stops: Vec<String>,
        include_stop: bool,
        skip_special: bool,
    ) -> TextAssembler {
        todo!()
    }
    /// Takes the next token.
    pub fn push(&mut self, token: u32) -> Pushed {
        todo!()
    }
    /// The sequence is over: whatever was held back (incomplete characters become U+FFFD).
    pub fn finish(&mut self) -> String {
        todo!()
    }
}
