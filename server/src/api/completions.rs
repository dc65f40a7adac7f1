//! `POST /v1/completions`.

use axum::response::Response;

use super::answer;
use super::call::Call;
use super::early;
use super::prepare::{self, Encoded, Prepared, SharedFields, off_thread};
use crate::endpoint::Endpoint;
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
    let asking = call.clone();
    let work = move |service: &Service, body: &[u8]| prepare(service, &asking, body);
    let prepared = off_thread(&service, call.body.clone(), work).await?;
    answer::create(service, Endpoint::Completion, call, prepared).await
}

fn prepare(service: &Service, call: &Call, body: &[u8]) -> Result<Prepared, ApiError> {
    let model = &service.model;
    let own = [fields::names::<CompletionFields>()];
    let shared = SharedFields::read(service, call, Endpoint::Completion, body, &own)?;
    let completion: CompletionFields = fields::read(body)?;
    early::check(service, call, &shared, &least_tokens(model, &completion.prompt)?)?;

    let prompts = encode_all(model, &completion)?;
    let longest = prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
    let asked = completion.max_tokens();
    let default = CompletionFields::default_max_tokens;
    let max_tokens = prepare::max_tokens(model, "prompt", longest, asked, default)?;
    shared.prepared(model, max_tokens, completion.logprobs()?, prompts)
}

/// Tokens that each prompt has at least.
fn least_tokens(model: &Model, prompt: &PromptInput) -> Result<Vec<u32>, ApiError> {
    let known = |tokens: &Vec<u32>| u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    match prompt {
        PromptInput::Tokens(prompts) => Ok(prompts.iter().map(known).collect()),
        PromptInput::Texts(texts) => {
            let least = |text: &String| {
                prepare::check_length(model, "prompt", text.len())?;
                Ok(model.least_tokens(text.len()))
            };
            texts.iter().map(least).collect()
        }
    }
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
