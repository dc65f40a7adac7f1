//! Log-probabilities in the two shapes of the wire.

use serde::Serialize;
use serde_json::{Map, Value};

/// The least log-probability that is written: JSON has no infinity.
const FLOOR: f32 = -9_999.0;

/// One generated token, with its alternatives, best first.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEntry {
    /// The token that was chosen.
    pub chosen: Candidate,
    /// The best ones.
    pub top: Vec<Candidate>,
    /// Where the token begins in the answer, in characters.
    pub offset: usize,
}

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its bytes; a token may be part of a character.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

impl Candidate {
    /// The token as text; what is not a whole character becomes U+FFFD.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn finite(&self) -> f32 {
        self.logprob.max(FLOOR)
    }
}

/// The shape of chat completions.
#[derive(Debug, Serialize)]
pub struct ChatLogprobs {
    content: Vec<ChatToken>,
    refusal: Option<()>,
}

#[derive(Debug, Serialize)]
struct ChatToken {
    #[serde(flatten)]
    token: ChatCandidate,
    top_logprobs: Vec<ChatCandidate>,
}

#[derive(Debug, Serialize)]
struct ChatCandidate {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl From<&Candidate> for ChatCandidate {
    fn from(candidate: &Candidate) -> ChatCandidate {
        let bytes = candidate.bytes.clone();
        ChatCandidate { token: candidate.text(), logprob: candidate.finite(), bytes }
    }
}

impl ChatLogprobs {
    /// From the tokens of an answer or of a chunk.
    #[must_use]
    pub fn new(entries: &[TokenEntry]) -> ChatLogprobs {
        let content = entries.iter().map(|entry| ChatToken {
            token: ChatCandidate::from(&entry.chosen),
            top_logprobs: entry.top.iter().map(ChatCandidate::from).collect(),
        });
        ChatLogprobs { content: content.collect(), refusal: None }
    }
}

/// The shape of completions: four lists side by side.
#[derive(Debug, Serialize)]
pub struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<Map<String, Value>>,
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// From the tokens of an answer or of a chunk.
    #[must_use]
    pub fn new(entries: &[TokenEntry]) -> CompletionLogprobs {
        CompletionLogprobs {
            tokens: entries.iter().map(|entry| entry.chosen.text()).collect(),
            token_logprobs: entries.iter().map(|entry| entry.chosen.finite()).collect(),
            top_logprobs: entries.iter().map(alternatives).collect(),
            text_offset: entries.iter().map(|entry| entry.offset).collect(),
        }
    }
}

/// The best candidates and the chosen one, by text. Of tokens with equal text the likeliest stays.
fn alternatives(entry: &TokenEntry) -> Map<String, Value> {
    let mut map = Map::new();
    for candidate in entry.top.iter().chain([&entry.chosen]) {
        map.entry(candidate.text()).or_insert_with(|| candidate.finite().into());
    }
    map
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry() -> TokenEntry {
        let candidate = |bytes: &[u8], logprob| Candidate { bytes: bytes.to_vec(), logprob };
        let top = vec![candidate(b"a", -0.5), candidate(b"\xf0\x9f", f32::NEG_INFINITY)];
        TokenEntry { chosen: candidate(b"b", -1.0), top, offset: 3 }
    }

    #[test]
    fn both_shapes_carry_the_same_numbers_and_no_infinity() {
        let chat = serde_json::to_value(ChatLogprobs::new(&[entry()])).expect("JSON");
        let token = &chat["content"][0];
        assert_eq!(token["token"], "b");
        assert_eq!(token["bytes"], json!([98]));
        assert_eq!(token["top_logprobs"][1]["logprob"], json!(FLOOR));
        let completion = serde_json::to_value(CompletionLogprobs::new(&[entry()])).expect("JSON");
        assert_eq!(completion["text_offset"], json!([3]));
        assert_eq!(
            completion["top_logprobs"][0],
            json!({"a": -0.5, "\u{fffd}": -9999.0, "b": -1.0})
        );
    }
}
