//! `POST /v1/chat/completions`.

use axum::response::Response;

use super::answer;
use super::call::Call;
use super::early;
use super::prepare::{self, Encoded, Prepared, SharedFields, off_thread};
use crate::endpoint::Endpoint;
use crate::error::ApiError;
use crate::openai::chat::{ChatFields, ConversationFields};
use crate::openai::fields;
use crate::state::{Ready, Service};

/// Answers a conversation.
///
/// # Errors
/// See [`ApiError`].
pub async fn create(Ready(service): Ready, call: Call) -> Result<Response, ApiError> {
    let asking = call.clone();
    let work = move |service: &Service, body: &[u8]| prepare(service, &asking, body);
    let prepared = off_thread(&service, call.body.clone(), work).await?;
    answer::create(service, Endpoint::Chat, call, prepared).await
}

fn prepare(service: &Service, call: &Call, body: &[u8]) -> Result<Prepared, ApiError> {
    let own = [fields::names::<ConversationFields>(), fields::names::<ChatFields>()];
    let model = &service.model;
    let shared = SharedFields::read(service, call, Endpoint::Chat, body, &own)?;
    // A template may leave out whatever it likes: it is not known yet how much will be said.
    early::check(service, call, &shared, &[1])?;
    let conversation: ConversationFields = fields::read(body)?;
    let chat: ChatFields = fields::read(body)?;
    chat.check_format()?;
    let tools = chat.shown_tools(conversation.tools()?)?;

    let text = prepare::render(model, &conversation, tools)?;
    prepare::check_length(model, "messages", text.len())?;
    early::check(service, call, &shared, &[model.least_tokens(text.len())])?;
    let tokens = prepare::encode(model, "messages", &text, false)?;
    let asked = chat.max_tokens();
    let max_tokens = prepare::max_tokens(model, "messages", tokens.len(), asked, |room| room)?;
    let prompt = Encoded { tokens: tokens.into(), prefix: String::new() };
    shared.prepared(model, max_tokens, chat.logprobs()?, vec![prompt])
}
