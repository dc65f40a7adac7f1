//! `POST /v1/chat/completions`.

use axum::http::HeaderMap;
use axum::response::Response;

use super::answer::{self, Arrival, Endpoint};
use super::prepare::{self, Encoded, Prepared, off_thread};
use crate::body::JsonBytes;
use crate::deadline::Terms;
use crate::error::ApiError;
use crate::openai::chat::{ChatFields, ConversationFields};
use crate::openai::common::CommonFields;
use crate::openai::fields;
use crate::openai::sampling::SamplingFields;
use crate::state::{Ready, Service};

/// Answers a conversation.
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
    answer::create(service, Endpoint::Chat, terms, arrival, prepared).await
}

fn prepare(service: &Service, body: &[u8]) -> Result<Prepared, ApiError> {
    let known = [
        fields::names::<CommonFields>(),
        fields::names::<SamplingFields>(),
        fields::names::<ConversationFields>(),
        fields::names::<ChatFields>(),
    ];
    fields::check(body, &known)?;
    let model = &service.model;
    let common: CommonFields = fields::read(body)?;
    let served = model.resolve(common.model.as_deref())?;
    let sampling: SamplingFields = fields::read(body)?;
    let conversation: ConversationFields = fields::read(body)?;
    let chat: ChatFields = fields::read(body)?;
    chat.check_format()?;
    let tools = chat.shown_tools(conversation.tools()?)?;

    let text = prepare::render(model, &conversation, tools)?;
    let tokens = prepare::encode(model, "messages", &text, false)?;
    let asked = chat.max_tokens();
    let max_tokens = prepare::max_tokens(model, "messages", tokens.len(), asked, |room| room)?;
    let sampling = prepare::sampling(model, &sampling, max_tokens, chat.logprobs()?)?;
    let prompt = Encoded { tokens: tokens.into(), prefix: String::new() };
    Prepared::new(served, &common, sampling, vec![prompt])
}
