//! vLLM's `/tokenize` and `/detokenize`.

use serde::{Deserialize, Serialize};

/// Fields of `/tokenize` besides those of a conversation.
#[derive(Debug, Deserialize)]
pub struct TokenizeFields {
    /// The model's name.
    pub model: Option<String>,
    /// Text; instead of `messages`.
    pub prompt: Option<String>,
    /// Begin-of-sequence token and the like: by default with a prompt, not with messages.
    pub add_special_tokens: Option<bool>,
    /// The text of each token too.
    pub return_token_strs: Option<bool>,
}

/// The answer of `/tokenize`.
#[derive(Debug, Serialize)]
pub struct TokenizeResponse {
    /// How many.
    pub count: usize,
    /// Longest sequence in tokens.
    pub max_model_len: u32,
    /// The ids.
    pub tokens: Vec<u32>,
    /// The text of each, if asked for.
    pub token_strs: Option<Vec<String>>,
}

/// Fields of `/detokenize`.
#[derive(Debug, Deserialize)]
pub struct DetokenizeFields {
    /// The model's name.
    pub model: Option<String>,
    /// The ids.
    pub tokens: Vec<u32>,
}

/// The answer of `/detokenize`.
#[derive(Debug, Serialize)]
pub struct DetokenizeResponse {
    /// The text, special tokens included.
    pub prompt: String,
}
