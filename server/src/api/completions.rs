//! `POST /v1/completions`.

use axum::response::Response;

use super::answer::{self, Endpoint};
use super::call::Call;
use super::prepare::{self, Encoded, Prepared, SharedFields, off_thread};
use crate::error::ApiError;
use crate::openai::completion::CompletionFields;
use crate::openai::fields;
use crate::openai::prompt::PromptInput;
use crate::openai::sampling::unknown_token;
use crate::state::{Model, Ready, Service};

/// Continues prompts.
///
/// # Errors
/// See [`ApiError`].
pub async fn create(Ready(service): Ready, call: Call) -> Result<Response, ApiError> {
    let prepared = off_thread(&service, call.body.clone(), prepare).await?;
    answer::create(service, Endpoint::Completion, call, prepared).await
}

fn prepare(service: &Service, body: &[u8]) -> Result<Prepared, ApiError> {
    let model = &service.model;
    let shared = SharedFields::read(model, body, &[fields::names::<CompletionFields>()])?;
    let completion: CompletionFields = fields::read(body)?;
    shared.common.choices(completion.prompt.len())?;

    let prompts = encode_all(model, &completion)?;
    let longest = prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
    let asked = completion.max_tokens();
    let default = CompletionFields::default_max_tokens;
    let max_tokens = prepare::max_tokens(model, "prompt", longest, asked, default)?;
    shared.prepared(model, max_tokens, completion.logprobs()?, prompts)
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
