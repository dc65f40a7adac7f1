//! Prompts of a wanted length that share nothing with each other.
//!
//! A prefix cache would make a repeated prompt look free, so every prompt is drawn from its own
//! seed. Text is made of common English words, nearly one token each in any vocabulary; the exact
//! rate is measured on the server with two small calls (see [`Calibration::fit`]).

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Short words that byte-pair vocabularies hold as one token with their leading space.
const WORDS: [&str; 64] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work", "number", "night", "point",
    "home", "water", "room", "mother", "area", "money", "story", "fact", "month", "lot", "right",
    "study", "book", "eye", "job", "word", "business", "issue", "side", "kind", "head", "house",
    "service", "friend", "father", "power", "hour", "game", "line", "end", "member", "law", "car",
];

/// Token ids that exist in every vocabulary of 32,000 and are not special in any we know.
const IDS: std::ops::Range<u32> = 1_000..30_000;

/// How a prompt is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As text; its length in tokens is what the server's tokenizer makes of it.
    Text(Calibration),
    /// As a list of token ids; its length is exact (completions only).
    Ids,
}

/// How many words make how many tokens: `tokens = fixed + tokens_per_word * words`, where `fixed`
/// is what a chat template adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calibration {
    fixed_milli: i64,
    per_word_milli: i64,
}

impl Default for Calibration {
    /// One word, one token.
    fn default() -> Self {
        Self { fixed_milli: 0, per_word_milli: 1_000 }
    }
}

impl Calibration {
    /// The line through two measured points `(words, tokens)`. Points that cannot be right (as
    /// many tokens for more words) give the default.
    #[must_use]
    pub fn fit(short: (u32, u32), long: (u32, u32)) -> Self {
        let words = i64::from(long.0) - i64::from(short.0);
        let tokens = i64::from(long.1) - i64::from(short.1);
        if words <= 0 || tokens <= 0 {
            return Self::default();
        }
        let per_word_milli = (tokens * 1_000 / words).max(1);
        let fixed_milli = i64::from(short.1) * 1_000 - i64::from(short.0) * per_word_milli;
        Self { fixed_milli, per_word_milli }
    }

    /// How many words to send for `tokens` tokens, at least one.
    #[must_use]
    pub fn words(&self, tokens: u32) -> u32 {
        let milli = i64::from(tokens) * 1_000 - self.fixed_milli;
        let words = (milli + self.per_word_milli / 2) / self.per_word_milli;
        u32::try_from(words.max(1)).unwrap_or(u32::MAX)
    }
}

/// `words` random words; the same seed gives the same text.
#[must_use]
pub fn text(words: u32, seed: u64) -> String {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let words: Vec<&str> = (0..words).map(|_| WORDS[rng.random_range(0..WORDS.len())]).collect();
    words.join(" ")
}

/// `tokens` random token ids; the same seed gives the same ids.
#[must_use]
pub fn ids(tokens: u32, seed: u64) -> Vec<u32> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    (0..tokens).map(|_| rng.random_range(IDS)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_inverts_what_the_tokenizer_does() {
        // A template of 12 tokens and 1.25 tokens a word.
        let tokens_of = |words: u32| 12 + words * 5 / 4;
        let fitted = Calibration::fit((32, tokens_of(32)), (96, tokens_of(96)));
        for tokens in [20, 128, 1_000] {
            let got = tokens_of(fitted.words(tokens));
            assert!(got.abs_diff(tokens) <= 1, "wanted {tokens}, got {got}");
        }
    }

    #[test]
    fn points_that_cannot_be_right_fall_back_to_one_token_a_word() {
        assert_eq!(Calibration::fit((32, 9), (96, 9)), Calibration::default());
        assert_eq!(Calibration::default().words(128), 128);
        assert_eq!(Calibration::default().words(0), 1);
    }

    #[test]
    fn prompts_differ_by_seed_from_their_first_words() {
        assert_eq!(text(20, 7), text(20, 7));
        assert_ne!(text(5, 7), text(5, 8));
        assert_eq!(ids(20, 7), ids(20, 7));
        assert_ne!(ids(5, 7), ids(5, 8));
    }
}
