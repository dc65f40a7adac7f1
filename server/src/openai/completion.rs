//! `/v1/completions`: what only it takes, and what it answers.

use serde::{Deserialize, Serialize};

use super::common::{Head, Usage};
use super::logprobs::{CompletionLogprobs, TokenEntry};
use super::prompt::PromptInput;
use crate::error::ApiError;

/// Most alternatives that a token is reported with.
const MAX_LOGPROBS: u32 = 5;
/// OpenAI's default.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Fields of a completion.
#[derive(Debug, Deserialize)]
pub struct CompletionFields {
    /// Text or tokens to continue.
    pub prompt: PromptInput,
    /// Begin-of-sequence token and the like before a text.
    pub add_special_tokens: Option<bool>,
    max_tokens: Option<u32>,
    echo: Option<bool>,
    logprobs: Option<u32>,
}

impl CompletionFields {
    /// The limit on generated tokens, if the client gave one.
    #[must_use]
    pub fn max_tokens(&self) -> Option<(&'static str, u32)> {
        self.max_tokens.map(|max| ("max_tokens", max))
    }

    /// The limit for a client that gave none, when `room` tokens are left of the context.
    #[must_use]
    pub fn default_max_tokens(room: u32) -> u32 {
        room.min(DEFAULT_MAX_TOKENS)
    }

    /// Whether the answer begins with the prompt.
    ///
    /// # Errors
    /// Together with log-probabilities: those of the prompt are not computed.
    pub fn echo(&self) -> Result<bool, ApiError> {
        let echo = self.echo.unwrap_or(false);
        if echo && self.logprobs.is_some() {
            let message = "`echo` together with `logprobs` is not supported by this server.";
            return Err(ApiError::unsupported("echo", message));
        }
        Ok(echo)
    }

    /// How many alternatives to report with each token, if log-probabilities are wanted.
    ///
    /// # Errors
    /// Too many.
    pub fn logprobs(&self) -> Result<Option<u32>, ApiError> {
        match self.logprobs {
            Some(top) if top > MAX_LOGPROBS => {
                let message = format!("`logprobs` must be 0 to {MAX_LOGPROBS}, not {top}.");
                Err(ApiError::invalid("logprobs", message))
            }
            logprobs => Ok(logprobs),
        }
    }
}

/// A whole answer.
#[derive(Debug, Serialize)]
pub struct CompletionResponse {
    /// Id, model and the like.
    #[serde(flatten)]
    pub head: Head,
    /// One for each choice of each prompt, in order.
    pub choices: Vec<CompletionChoice>,
    /// Tokens.
    pub usage: Usage,
}

/// One event of a stream.
#[derive(Debug, Serialize)]
pub struct CompletionChunk<'a> {
    /// Id, model and the like.
    #[serde(flatten)]
    pub head: &'a Head,
    /// One choice, or none in the usage chunk.
    pub choices: &'a [CompletionChoice],
    /// In the last chunk if it was asked for, in all of them if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A choice, whole or what a chunk adds to it.
#[derive(Debug, Serialize)]
pub struct CompletionChoice {
    index: u32,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<u32>,
}

impl CompletionChoice {
    /// Text without an end.
    #[must_use]
    pub fn text(index: u32, text: String, logprobs: Option<&[TokenEntry]>) -> CompletionChoice {
        let logprobs = logprobs.map(CompletionLogprobs::new);
        CompletionChoice { index, text, logprobs, finish_reason: None, stop_reason: None }
    }

    /// The end of it.
    #[must_use]
    pub fn finish(self, reason: &'static str, stop_reason: Option<u32>) -> CompletionChoice {
        CompletionChoice { finish_reason: Some(reason), stop_reason, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echo_goes_without_logprobs() {
        let fields = |extra| -> CompletionFields {
            serde_json::from_str(&format!(r#"{{"prompt": "a"{extra}}}"#)).expect("well-formed")
        };
        assert_eq!(fields("").echo().ok(), Some(false));
        assert_eq!(fields(r#", "echo": true"#).echo().ok(), Some(true));
        assert!(fields(r#", "echo": true, "logprobs": 1"#).echo().is_err());
        assert_eq!(fields(r#", "logprobs": 5"#).logprobs().ok(), Some(Some(5)));
        assert!(fields(r#", "logprobs": 6"#).logprobs().is_err());
    }
}
