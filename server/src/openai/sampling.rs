//! Fields that say how tokens are chosen; the same for both endpoints.

use std::collections::BTreeMap;

use engine::SamplingParams;
use serde::Deserialize;

use crate::error::ApiError;

/// Most stop strings, and the length of each in bytes: they are searched in every piece of text.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 512;
/// Most entries of the lists of token ids.
const MAX_TOKEN_LIST: usize = 1_024;

/// Sampling fields, as sent.
#[derive(Debug, Default, Deserialize)]
pub struct SamplingFields {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<BTreeMap<u32, f32>>,
    seed: Option<i64>,
    stop: Option<Stop>,
    stop_token_ids: Option<Vec<u32>>,
    include_stop_str_in_output: Option<bool>,
    skip_special_tokens: Option<bool>,
    ignore_eos: Option<bool>,
    min_tokens: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum Stop {
    One(String),
    Several(Vec<String>),
}

/// How text is made of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// Strings that end the text.
    pub stops: Vec<String>,
    /// The stop string stays in the text.
    pub include_stop: bool,
    /// Special tokens are not shown.
    pub skip_special: bool,
}

impl SamplingFields {
    /// Checked parameters. `vocab_size` bounds token ids, `max_tokens` is at least 1; `logprobs`
    /// as checked by the endpoint.
    ///
    /// # Errors
    /// The first value out of its range, by name.
    pub fn params(
        &self,
        vocab_size: usize,
        max_tokens: u32,
        logprobs: Option<u32>,
    ) -> Result<SamplingParams, ApiError> {
        let min_tokens = self.min_tokens.unwrap_or(0);
        if min_tokens > max_tokens {
            let message = format!("min_tokens ({min_tokens}) is above max_tokens ({max_tokens}).");
            return Err(ApiError::invalid("min_tokens", message));
        }
        Ok(SamplingParams {
            temperature: ranged("temperature", self.temperature, 1.0, 0.0, 2.0)?,
            top_p: above_zero("top_p", self.top_p, 1.0)?,
            top_k: top_k(self.top_k)?,
            min_p: ranged("min_p", self.min_p, 0.0, 0.0, 1.0)?,
            repetition_penalty: above_zero("repetition_penalty", self.repetition_penalty, 10.0)?,
            presence_penalty: ranged("presence_penalty", self.presence_penalty, 0.0, -2.0, 2.0)?,
            frequency_penalty: ranged("frequency_penalty", self.frequency_penalty, 0.0, -2.0, 2.0)?,
            logit_bias: self.biases(vocab_size)?,
            seed: self.seed.map_or_else(rand::random, i64::cast_unsigned),
            stop_token_ids: self.stop_tokens(vocab_size)?,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            min_tokens,
            max_tokens,
            logprobs,
        })
    }

    /// Checked text options.
    ///
    /// # Errors
    /// Too many, too long or empty stop strings.
    pub fn text_options(&self) -> Result<TextOptions, ApiError> {
        let stops = match &self.stop {
            None => Vec::new(),
            Some(Stop::One(stop)) => vec![stop.clone()],
            Some(Stop::Several(stops)) => stops.clone(),
        };
        let well_sized = stops.iter().all(|stop| (1..=MAX_STOP_BYTES).contains(&stop.len()));
        if stops.len() > MAX_STOPS || !well_sized {
            let message = format!(
                "`stop` takes at most {MAX_STOPS} strings of 1 to {MAX_STOP_BYTES} bytes each."
            );
            return Err(ApiError::invalid("stop", message));
        }
        Ok(TextOptions {
            stops,
            include_stop: self.include_stop_str_in_output.unwrap_or(false),
            skip_special: self.skip_special_tokens.unwrap_or(true),
        })
    }

    fn biases(&self, vocab_size: usize) -> Result<Vec<(u32, f32)>, ApiError> {
        let biases = self.logit_bias.iter().flatten();
        let biases: Vec<(u32, f32)> = biases.map(|(token, bias)| (*token, *bias)).collect();
        if biases.iter().any(|(_, bias)| !(-100.0..=100.0).contains(bias)) {
            return Err(ApiError::invalid("logit_bias", "A bias must be between -100 and 100."));
        }
        check_tokens("logit_bias", biases.iter().map(|(token, _)| *token), vocab_size)?;
        Ok(biases)
    }

    fn stop_tokens(&self, vocab_size: usize) -> Result<Vec<u32>, ApiError> {
        let tokens = self.stop_token_ids.clone().unwrap_or_default();
        check_tokens("stop_token_ids", tokens.iter().copied(), vocab_size)?;
        Ok(tokens)
    }
}

fn check_tokens(
    name: &str,
    tokens: impl ExactSizeIterator<Item = u32>,
    vocab_size: usize,
) -> Result<(), ApiError> {
    if tokens.len() > MAX_TOKEN_LIST {
        let message = format!("`{name}` takes at most {MAX_TOKEN_LIST} entries.");
        return Err(ApiError::invalid(name, message));
    }
    match { tokens }.find(|token| *token as usize >= vocab_size) {
        None => Ok(()),
        Some(token) => Err(unknown_token(name, token, vocab_size)),
    }
}

/// A token id that the vocabulary does not have.
#[must_use]
pub fn unknown_token(param: &str, token: u32, vocab_size: usize) -> ApiError {
    let message = format!("Token id {token} is not in the vocabulary of {vocab_size} tokens.");
    ApiError::invalid(param, message)
}

fn ranged(
    name: &str,
    value: Option<f32>,
    default: f32,
    min: f32,
    max: f32,
) -> Result<f32, ApiError> {
    match value.unwrap_or(default) {
        value if (min..=max).contains(&value) => Ok(value),
        value => {
            let message = format!("`{name}` must be between {min} and {max}, not {value}.");
            Err(ApiError::invalid(name, message))
        }
    }
}

/// In (0, `max`]; 1 if absent.
fn above_zero(name: &str, value: Option<f32>, max: f32) -> Result<f32, ApiError> {
    match value.unwrap_or(1.0) {
        value if value > 0.0 && value <= max => Ok(value),
        value => {
            let message = format!("`{name}` must be above 0 and at most {max}, not {value}.");
            Err(ApiError::invalid(name, message))
        }
    }
}

/// -1 and 0 both mean all candidates.
fn top_k(value: Option<i64>) -> Result<u32, ApiError> {
    match value.unwrap_or(0) {
        -1 => Ok(0),
        value => u32::try_from(value)
            .map_err(|_| ApiError::invalid("top_k", "`top_k` must be -1, 0 or positive.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> SamplingFields {
        serde_json::from_str(json).expect("well-formed")
    }

    fn params(json: &str) -> Result<SamplingParams, ApiError> {
        fields(json).params(1_000, 16, None)
    }

    #[test]
    fn bounds_are_inclusive_and_the_field_is_named() {
        for good in [
            r#"{"temperature": 0}"#,
            r#"{"temperature": 2}"#,
            r#"{"top_p": 0.000001}"#,
            r#"{"top_k": -1}"#,
            r#"{"presence_penalty": -2}"#,
            r#"{"logit_bias": {"999": -100}}"#,
            r#"{"seed": -1}"#,
            r#"{"min_tokens": 16}"#,
        ] {
            assert!(params(good).is_ok(), "{good}");
        }
        for (bad, param) in [
            (r#"{"temperature": -0.1}"#, "temperature"),
            (r#"{"temperature": 1e300}"#, "temperature"),
            (r#"{"top_p": 0}"#, "top_p"),
            (r#"{"top_k": -2}"#, "top_k"),
            (r#"{"min_p": 1.5}"#, "min_p"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
            (r#"{"frequency_penalty": 2.1}"#, "frequency_penalty"),
            (r#"{"logit_bias": {"5": 500}}"#, "logit_bias"),
            (r#"{"logit_bias": {"1000": 1}}"#, "logit_bias"),
            (r#"{"stop_token_ids": [1000]}"#, "stop_token_ids"),
            (r#"{"min_tokens": 17}"#, "min_tokens"),
        ] {
            assert_eq!(
                params(bad).unwrap_err().body().error.param.as_deref(),
                Some(param),
                "{bad}"
            );
        }
    }

    #[test]
    fn without_a_seed_no_two_requests_are_alike() {
        let seed = |json| params(json).expect("valid").seed;
        assert_ne!(seed("{}"), seed("{}"));
        assert_eq!(seed(r#"{"seed": 7}"#), 7);
    }

    #[test]
    fn stops_are_bounded() {
        assert_eq!(fields(r#"{"stop": "x"}"#).text_options().expect("valid").stops, ["x"]);
        let many = format!(r#"{{"stop": [{}]}}"#, vec!["\"x\""; MAX_STOPS + 1].join(","));
        let long = format!(r#"{{"stop": "{}"}}"#, "x".repeat(MAX_STOP_BYTES + 1));
        for bad in [r#"{"stop": ""}"#, &many, &long] {
            assert!(fields(bad).text_options().is_err());
        }
    }
}
