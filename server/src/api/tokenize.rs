//! `POST /tokenize` and `POST /detokenize`, as vLLM has them.

use axum::Json;

use super::prepare::{self, off_thread};
use crate::body::JsonBytes;
use crate::error::ApiError;
use crate::openai::chat::ConversationFields;
use crate::openai::fields;
use crate::openai::sampling::unknown_token;
use crate::openai::tokenize::{
    DetokenizeFields, DetokenizeResponse, TokenizeFields, TokenizeResponse,
};
use crate::state::{Ready, Service};

/// Text or a conversation to tokens.
///
/// # Errors
/// See [`ApiError`].
pub async fn tokenize(
    Ready(service): Ready,
    JsonBytes(body): JsonBytes,
) -> Result<Json<TokenizeResponse>, ApiError> {
    off_thread(&service, body, encode).await.map(Json)
}

/// Tokens to text.
///
/// # Errors
/// See [`ApiError`].
pub async fn detokenize(
    Ready(service): Ready,
    JsonBytes(body): JsonBytes,
) -> Result<Json<DetokenizeResponse>, ApiError> {
    off_thread(&service, body, decode).await.map(Json)
}

fn encode(service: &Service, body: &[u8]) -> Result<TokenizeResponse, ApiError> {
    // llama.cpp calls the prompt `content`; clients that speak to both send both.
    let alias: &[&str] = &["content"];
    let known = [fields::names::<TokenizeFields>(), fields::names::<ConversationFields>(), alias];
    fields::check(body, &known)?;
    let model = &service.model;
    let request: TokenizeFields = fields::read(body)?;
    model.resolve(request.model.as_deref())?;
    let conversation: ConversationFields = fields::read(body)?;
    let (text, add_special) = match &request.prompt {
        Some(prompt) if conversation.messages.is_none() => {
            (prompt.clone(), request.add_special_tokens.unwrap_or(true))
        }
        Some(_) => {
            return Err(ApiError::invalid("prompt", "Give `prompt` or `messages`, not both."));
        }
        None => {
            let tools = conversation.tools()?;
            let tools = (!tools.is_empty()).then_some(tools);
            let text = prepare::render(model, &conversation, tools)?;
            (text, request.add_special_tokens.unwrap_or(false))
        }
    };
    let tokens = model.tokenizer.encode(&text, add_special);
    let strs = request
        .return_token_strs
        .unwrap_or(false)
        .then(|| tokens.iter().map(|token| model.tokenizer.decode(&[*token], false)).collect());
    let max_model_len = model.max_model_len;
    Ok(TokenizeResponse { count: tokens.len(), max_model_len, tokens, token_strs: strs })
}

fn decode(service: &Service, body: &[u8]) -> Result<DetokenizeResponse, ApiError> {
    fields::check(body, &[fields::names::<DetokenizeFields>()])?;
    let model = &service.model;
    let request: DetokenizeFields = fields::read(body)?;
    model.resolve(request.model.as_deref())?;
    let known = |token: &&u32| (**token as usize) < model.vocab_size;
    if let Some(token) = request.tokens.iter().find(|token| !known(token)) {
        return Err(unknown_token("tokens", *token, model.vocab_size));
    }
    Ok(DetokenizeResponse { prompt: model.tokenizer.decode(&request.tokens, false) })
}
