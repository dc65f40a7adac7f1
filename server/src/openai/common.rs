//! Fields and parts that both endpoints share.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::error::ApiError;

/// Most choices of a prompt, most prompts of a request, most sequences in all.
const MAX_N: u32 = 16;
const MAX_PROMPTS: usize = 64;
const MAX_SEQUENCES: usize = 128;

/// Fields about the request as a whole.
#[derive(Debug, Default, Deserialize)]
pub struct CommonFields {
    /// The model's name or an alias; absent means the only model.
    pub model: Option<String>,
    n: Option<u32>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// Our extension: targets of this request.
    pub slo: Option<SloFields>,
    nvext: Option<Extension>,
    cache_salt: Option<String>,
}

/// NVIDIA Dynamo's extension, as far as it is understood here.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Extension {
    agent_hints: Option<AgentHints>,
}

/// What an agent says of its request.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentHints {
    /// The output length that it expects, in tokens.
    osl: Option<NonZeroU32>,
}

/// What a stream carries besides text.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct StreamOptions {
    /// A last chunk with the usage of the whole request.
    #[serde(default)]
    pub include_usage: bool,
    /// vLLM's extension: every chunk carries the usage so far.
    #[serde(default)]
    pub continuous_usage_stats: bool,
}

/// Targets in the body, milliseconds from arrival.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SloFields {
    /// First token.
    pub ttft_ms: Option<f64>,
    /// Mean gap between tokens.
    pub tpot_ms: Option<f64>,
    /// Last token.
    pub e2e_ms: Option<f64>,
}

impl CommonFields {
    /// Choices of each of `prompts` prompts.
    ///
    /// # Errors
    /// None, or too many of anything.
    pub fn choices(&self, prompts: usize) -> Result<u32, ApiError> {
        let n = self.n.unwrap_or(1);
        if !(1..=MAX_N).contains(&n) {
            return Err(ApiError::invalid("n", format!("`n` must be 1 to {MAX_N}, not {n}.")));
        }
        if prompts > MAX_PROMPTS {
            let message = format!("At most {MAX_PROMPTS} prompts fit a request, not {prompts}.");
            return Err(ApiError::invalid("prompt", message));
        }
        if prompts * n as usize > MAX_SEQUENCES {
            let message = format!("Prompts times `n` must be at most {MAX_SEQUENCES}.");
            return Err(ApiError::invalid("n", message));
        }
        Ok(n)
    }

    /// Tokens that the client expects in each choice.
    #[must_use]
    pub fn expected_tokens(&self) -> Option<u32> {
        self.nvext?.agent_hints?.osl.map(NonZeroU32::get)
    }

    /// The salt of the prefix cache, if the client gave one.
    ///
    /// # Errors
    /// An empty one: it would look as if it isolated.
    pub fn cache_salt(&self) -> Result<Option<&str>, ApiError> {
        match self.cache_salt.as_deref() {
            Some("") => {
                let message = "`cache_salt` must be a non-empty string if it is given.";
                Err(ApiError::invalid("cache_salt", message))
            }
            salt => Ok(salt),
        }
    }

    /// How to stream, if the client asked for it.
    ///
    /// # Errors
    /// Stream options without a stream.
    pub fn streaming(&self) -> Result<Option<StreamOptions>, ApiError> {
        match (self.stream.unwrap_or(false), self.stream_options) {
            (true, options) => Ok(Some(options.unwrap_or_default())),
            (false, None) => Ok(None),
            (false, Some(_)) => {
                let message = "`stream_options` needs `stream: true`.";
                Err(ApiError::invalid("stream_options", message))
            }
        }
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Of the prompts, each counted once.
    pub prompt_tokens: u32,
    /// Of both.
    pub total_tokens: u32,
    /// Of all choices.
    pub completion_tokens: u32,
    /// More on the first.
    pub prompt_tokens_details: PromptTokens,
}

/// Tokens of the prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptTokens {
    /// Those that were found in the prefix cache and not computed again.
    pub cached_tokens: u32,
}

impl Usage {
    /// From its two parts.
    #[must_use]
    pub fn new(prompt_tokens: u32, completion_tokens: u32) -> Usage {
        let total_tokens = prompt_tokens.saturating_add(completion_tokens);
        let prompt_tokens_details = PromptTokens::default();
        Usage { prompt_tokens, total_tokens, completion_tokens, prompt_tokens_details }
    }

    /// With so many more generated tokens.
    #[must_use]
    pub fn plus(self, generated: u32) -> Usage {
        Usage::new(self.prompt_tokens, self.completion_tokens.saturating_add(generated))
    }
}

/// What every answer and every chunk begins with; the same in all chunks of a stream.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    /// Unique.
    pub id: String,
    /// The type of the object.
    pub object: &'static str,
    /// Unix time, seconds.
    pub created: u64,
    /// The name that the client used.
    pub model: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::fields;

    #[test]
    fn sequences_are_bounded() {
        let choices = |n, prompts| CommonFields { n, ..Default::default() }.choices(prompts).ok();
        assert_eq!(choices(None, 1), Some(1));
        assert_eq!(choices(Some(MAX_N), 1), Some(MAX_N));
        assert_eq!(choices(Some(0), 1), None);
        assert_eq!(choices(Some(MAX_N + 1), 1), None);
        assert_eq!(choices(Some(1), MAX_PROMPTS + 1), None);
        assert_eq!(choices(Some(MAX_N), MAX_PROMPTS), None);
    }

    #[test]
    fn a_hint_is_a_positive_number_of_tokens() {
        let hint = |hints: &str| {
            let body = format!(r#"{{"nvext": {{"agent_hints": {hints}}}}}"#);
            let read: Result<CommonFields, ApiError> = fields::read(body.as_bytes());
            read.map(|fields| fields.expected_tokens()).map_err(|e| e.body().error.param)
        };
        assert_eq!(hint(r#"{"osl": 42}"#), Ok(Some(42)));
        assert_eq!(hint("null"), Ok(None));
        for bad in ["0", "-1", "1.5", "\"many\"", "5000000000"] {
            let param = Some("nvext.agent_hints.osl".to_owned());
            assert_eq!(hint(&format!(r#"{{"osl": {bad}}}"#)), Err(param), "{bad}");
        }
        let param = hint(r#"{"priority": 9}"#).expect_err("it cannot be honoured");
        assert_eq!(param.as_deref(), Some("nvext.agent_hints.priority"));
    }
}
