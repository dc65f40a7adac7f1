//! `POST /v1/completions`.

use axum::http::HeaderMap;
use axum::response::Response;

use super::answer::{self, Arrival, Endpoint};
use super::prepare::{self, Encoded, Prepared, off_thread};
use crate::body::JsonBytes;
use crate::deadline::Terms;
use crate::error::ApiError;
use crate::openai::common::CommonFields;
use crate::openai::completion::CompletionFields;
use crate::openai::fields;
use crate::openai::prompt::PromptInput;
use crate::openai::sampling::{SamplingFields, unknown_token};
use crate::state::{Model, Ready, Service};

/// Continues prompts.
///
/// # Errors
/// See [`ApiError`].
pub async fn create(
    Ready(service): Ready,
    Arrival(arrival): Arrival,
    headers: HeaderMap,
    JsonBytes(body): JsonBytes,
) -> Result<Response, ApiError> {
    let mut terms = Terms::from_headers(&headers)?;
    terms.origin = service.origins.of(&headers, &body);
    let prepared = off_thread(&service, body, prepare).await?;
    answer::create(service, Endpoint::Completion, terms, arrival, prepared).await
}

fn prepare(service: &Service, body: &[u8]) -> Result<Prepared, ApiError> {
    let known = [
        fields::names::<CommonFields>(),
        fields::names::<SamplingFields>(),
        fields::names::<CompletionFields>(),
    ];
    fields::check(body, &known)?;
    let model = &service.model;
    let common: CommonFields = fields::read(body)?;
    let served = model.resolve(common.model.as_deref())?;
    let sampling: SamplingFields = fields::read(body)?;
    let completion: CompletionFields = fields::read(body)?;
    common.choices(completion.prompt.len())?;

    let prompts = encode_all(model, &completion)?;
    let longest = prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
    let asked = completion.max_tokens();
    let default = CompletionFields::default_max_tokens;
    let max_tokens = prepare::max_tokens(model, "prompt", longest, asked, default)?;
    let sampling = prepare::sampling(model, &sampling, max_tokens, completion.logprobs()?)?;
    Prepared::new(served, &common, sampling, prompts)
}

/// Every prompt as tokens.
fn encode_all(model: &Model, completion: &CompletionFields) -> Result<Vec<Encoded>, ApiError> {
    let echo = completion.echo()?;
    let add_special = completion.add_special_tokens.unwrap_or(true);
    let text = |text: &String| {
        let tokens = prepare::encode(model, "prompt", text, add_special)?;
        let prefix = if echo { text.clone() } else { String::new() };
        Ok(Encoded { tokens: tokens.into(), prefix })
    };
    let tokens = |tokens: &Vec<u32>| {
        check_tokens(model, tokens)?;
        let prefix = if echo { model.tokenizer.decode(tokens, false) } else { String::new() };
        Ok(Encoded { tokens: tokens.as_slice().into(), prefix })
    };
    match &completion.prompt {
        PromptInput::Texts(texts) => texts.iter().map(text).collect(),
        PromptInput::Tokens(prompts) => prompts.iter().map(tokens).collect(),
    }
}

fn check_tokens(model: &Model, tokens: &[u32]) -> Result<(), ApiError> {
    match tokens.iter().find(|token| **token as usize >= model.vocab_size) {
        None => Ok(()),
        Some(token) => Err(unknown_token("prompt", *token, model.vocab_size)),
    }
}
