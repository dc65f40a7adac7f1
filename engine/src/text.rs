//! From tokens to text: incremental detokenising that never splits a character, and stop strings
//! that are found across token boundaries and never leak.
//!
//! The text that is shown does not depend on where tokens begin and end: it is the decoding of the
//! whole answer, cut at the stop string that is complete first (of two that are complete at the
//! same character, the longer one). An answer continues its prompt, so a space at its beginning is
//! kept, also by models whose tokenizers drop it from texts that stand alone.

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
pub struct TextAssembler {
    tokenizer: Tokenizer,
    skip_special: bool,
    decoder: Utf8Decoder,
    stops: StopFinder,
    chars: usize,
}

impl TextAssembler {
    /// For a new sequence. `stops` are at most a few short strings; empty ones are ignored.
    #[must_use]
    pub fn new(
        tokenizer: Tokenizer,
        stops: Vec<String>,
        include_stop: bool,
        skip_special: bool,
    ) -> TextAssembler {
        let stops = StopFinder::new(stops, include_stop);
        TextAssembler { tokenizer, skip_special, decoder: Utf8Decoder::default(), stops, chars: 0 }
    }

    /// Takes the next token. After a stop string was found, and for tokens outside the vocabulary,
    /// there is no text.
    pub fn push(&mut self, token: u32) -> Pushed {
        if self.skip_special && self.tokenizer.is_special(token) {
            return Pushed::Text(String::new());
        }
        let text = self.decoder.push(self.tokenizer.token_bytes(token).unwrap_or_default());
        self.chars += text.chars().count();
        self.stops.push(&text)
    }

    /// The sequence is over: whatever was held back (incomplete characters become U+FFFD).
    pub fn finish(&mut self) -> String {
        let rest = self.decoder.finish();
        self.chars += rest.chars().count();
        match self.stops.push(&rest) {
            Pushed::Text(text) => text + &self.stops.finish(),
            Pushed::Stopped(text) => text,
        }
    }

    /// Characters assembled so far, those held back included: before a push, the offset in the text
    /// at which that token's text begins.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.chars
    }
}

/// Turns bytes into characters as they complete.
#[derive(Debug, Default)]
struct Utf8Decoder {
    /// The beginning of a character; at most 3 bytes between pushes.
    incomplete: Vec<u8>,
}

impl Utf8Decoder {
    /// The characters that are complete with these bytes. Bytes that cannot become a character any
    /// more are U+FFFD, one for each maximal run, as in [`String::from_utf8_lossy`].
    fn push(&mut self, bytes: &[u8]) -> String {
        self.incomplete.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.incomplete.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    let Some(invalid) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[invalid..];
                }
            }
        }
        let consumed = self.incomplete.len() - rest.len();
        self.incomplete.drain(..consumed);
        text
    }

    /// The bytes that still wait will not complete.
    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.incomplete)).into_owned()
    }
}

/// Finds stop strings in a growing text, and holds back what may be the beginning of one.
#[derive(Debug)]
struct StopFinder {
    stops: Vec<String>,
    include_stop: bool,
    /// The longest end of the text that begins a stop string; shorter than the longest of them.
    held: String,
    stopped: bool,
}

impl StopFinder {
    fn new(mut stops: Vec<String>, include_stop: bool) -> StopFinder {
        stops.retain(|stop| !stop.is_empty());
        StopFinder { stops, include_stop, held: String::new(), stopped: false }
    }

    fn push(&mut self, text: &str) -> Pushed {
        if self.stopped {
            return Pushed::Text(String::new());
        }
        self.held.push_str(text);
        if let Some((start, end)) = self.find() {
            self.stopped = true;
            let mut shown = std::mem::take(&mut self.held);
            shown.truncate(if self.include_stop { end } else { start });
            return Pushed::Stopped(shown);
        }
        let held = self.held.split_off(self.held.len() - self.longest_beginning());
        Pushed::Text(std::mem::replace(&mut self.held, held))
    }

    /// No more text comes: what was held back begins no stop string after all.
    fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the stop string lies that is complete first; the longest of those that end there.
    fn find(&self) -> Option<(usize, usize)> {
        let found =
            |stop: &String| self.held.find(stop.as_str()).map(|start| (start, start + stop.len()));
        self.stops.iter().filter_map(found).min_by_key(|&(start, end)| (end, start))
    }

    /// Length of the longest end of the text that is the beginning of a stop string. Both are whole
    /// characters, so bytes that match are whole characters too.
    fn longest_beginning(&self) -> usize {
        let text = self.held.as_bytes();
        let longest = |stop: &String| {
            let most = text.len().min(stop.len() - 1);
            (1..=most).rev().find(|&len| text.ends_with(&stop.as_bytes()[..len])).unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The whole text, cut where the first stop string is complete: character by character.
    fn cut(text: &str, stops: &[String], include_stop: bool) -> String {
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
        for end in ends {
            let stop = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            if let Some(longest) = stop.max_by_key(|stop| stop.len()) {
                return text[..if include_stop { end } else { end - longest.len() }].to_owned();
            }
        }
        text.to_owned()
    }

    /// Few different bytes, so that stop strings, their beginnings, whole and broken characters are
    /// all common.
    fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let byte = prop::sample::select(&b"aab\xe2\x82\xac\xf0\x9f\xff"[..]);
        let fragment = prop_oneof![
            Just("\u{20ac}".as_bytes().to_vec()),
            Just("ab".as_bytes().to_vec()),
            prop::collection::vec(byte, 0..4),
        ];
        prop::collection::vec(fragment, 0..30)
    }

    fn stop_strings() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec("[ab\u{20ac}\u{fffd}]{1,4}", 0..4)
    }

    proptest! {
        #[test]
        fn shown_text_is_the_whole_decoding_cut_at_the_first_stop(
            pieces in pieces(), stops in stop_strings(), include_stop: bool,
        ) {
            let whole = String::from_utf8_lossy(&pieces.concat()).into_owned();
            let expected = cut(&whole, &stops, include_stop);
            let mut decoder = Utf8Decoder::default();
            let mut finder = StopFinder::new(stops, include_stop);
            let mut shown = String::new();
            let mut stopped = false;
            for piece in &pieces {
                match finder.push(&decoder.push(piece)) {
                    Pushed::Text(text) => {
                        prop_assert!(!stopped || text.is_empty());
                        shown.push_str(&text);
                    }
                    Pushed::Stopped(text) => {
                        shown.push_str(&text);
                        stopped = true;
                    }
                }
                prop_assert!(expected.starts_with(&shown), "{:?} leaks past {:?}", shown, expected);
                prop_assert!(decoder.incomplete.len() < 4);
            }
            let (Pushed::Text(text) | Pushed::Stopped(text)) = finder.push(&decoder.finish());
            shown.push_str(&text);
            shown.push_str(&finder.finish());
            prop_assert_eq!(shown, expected);
        }

        #[test]
        fn tokens_become_the_text_that_the_tokenizer_decodes(
            tokens in prop::collection::vec(prop_oneof![97u32..100, 190u32..=257], 0..60),
            stops in prop::collection::vec("[ab<]{1,2}", 0..2),
            skip_special: bool,
        ) {
            let tokenizer = Tokenizer::bytes();
            let whole = tokenizer.decode(&tokens, skip_special);
            let expected = cut(&whole, &stops, false);
            let mut text = TextAssembler::new(tokenizer, stops, false, skip_special);
            let mut shown = String::new();
            for &token in &tokens {
                let offset = text.offset();
                match text.push(token) {
                    Pushed::Text(part) => shown.push_str(&part),
                    Pushed::Stopped(part) => {
                        shown.push_str(&part);
                        break;
                    }
                }
                prop_assert!(offset <= text.offset() && shown.chars().count() <= text.offset());
            }
            shown.push_str(&text.finish());
            prop_assert_eq!(&shown, &expected);
            if expected == whole {
                prop_assert_eq!(text.offset(), whole.chars().count());
            }
        }

        #[test]
        fn nothing_is_held_back_without_need(pieces in pieces()) {
            let mut decoder = Utf8Decoder::default();
            let stop = "ab\u{20ac}";
            let mut finder = StopFinder::new(vec![stop.to_owned()], false);
            for piece in &pieces {
                if let Pushed::Text(_) = finder.push(&decoder.push(piece)) {
                    prop_assert!(stop.starts_with(&finder.held));
                }
            }
        }
    }
}
