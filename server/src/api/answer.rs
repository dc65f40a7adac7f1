//! Admission, and the whole answer: the part that both generating endpoints share.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use engine::{Outlook, Submission};
use scheduler::Class;

use super::admit::admit;
use super::call::Call;
use super::outlook;
use super::prepare::Prepared;
use super::stream;
use crate::endpoint::Endpoint;
use crate::error::ApiError;
use crate::generation::{Generation, Interruption, Piece, Setup};
use crate::openai::chat::{ChatChoice, ChatResponse};
use crate::openai::common::Head;
use crate::openai::completion::{CompletionChoice, CompletionResponse};
use crate::openai::logprobs::TokenEntry;
use crate::state::{Service, unix_now};

/// Asks for admission and answers, streamed or whole. The headers of a stream are sent only once
/// the request is in, so a refusal always has its real status.
///
/// # Errors
/// A refusal, or whatever ends a whole answer early.
pub async fn create(
    service: Arc<Service>,
    endpoint: Endpoint,
    call: Call,
    prepared: Prepared,
) -> Result<Response, ApiError> {
    let Call { arrival, terms, name, .. } = call;
    let class = prepared.class;
    let streaming = prepared.stream;
    let slo = service.engine.slo(call.terms.tenant, class);
    let submission = Submission {
        class,
        tenant: terms.tenant,
        arrival,
        deadline: terms.deadline(&prepared.slo, streaming.is_some(), arrival, &slo)?,
        retry: terms.retry,
        origin: terms.origin,
        prompts: prepared.prompts.clone(),
        cache_salt: prepared.cache_salt.clone(),
        sampling: prepared.sampling.clone(),
        outlook: Outlook {
            expected_tokens: prepared.expected_tokens,
            stop_strings: !prepared.text.stops.is_empty(),
        },
        name: name.as_str().into(),
    };
    let outlook = outlook::Terms::of(&submission, &slo);
    let tokens = admit(&service, submission)?;
    let outlook = outlook.admitted(&tokens);
    let head = endpoint.head(prepared.served.name.clone(), streaming.is_some());
    let answer = Answer {
        endpoint,
        head,
        logprobs: prepared.sampling.logprobs.is_some(),
        generation: Generation::new(tokens, setup(&service, prepared)),
        _in_flight: InFlight::enter(&service),
        service,
        class,
    };
    let mut response = match streaming {
        Some(options) => stream::respond(answer, options),
        None => answer.collect().await?,
    };
    outlook.write(response.headers_mut());
    Ok(response)
}

fn setup(service: &Service, prepared: Prepared) -> Setup {
    Setup {
        tokenizer: service.model.tokenizer.clone(),
        prompt_tokens: prepared.prompt_tokens(),
        text: prepared.text,
        prefixes: prepared.prefixes,
        closing: service.closing.subscribe(),
    }
}

impl Endpoint {
    fn head(self, model: String, streaming: bool) -> Head {
        let (prefix, object) = match (self, streaming) {
            (Endpoint::Chat, false) => ("chatcmpl", "chat.completion"),
            (Endpoint::Chat, true) => ("chatcmpl", "chat.completion.chunk"),
            (Endpoint::Completion, _) => ("cmpl", "text_completion"),
        };
        let id = format!("{prefix}-{:032x}", rand::random::<u128>());
        Head { id, object, created: unix_now(), model }
    }
}

/// An admitted request and what its answer looks like.
#[derive(Debug)]
pub struct Answer {
    /// Whose shape it has.
    pub endpoint: Endpoint,
    /// Id, model and the like.
    pub head: Head,
    /// Log-probabilities were asked for.
    pub logprobs: bool,
    /// The text in the making.
    pub generation: Generation,
    service: Arc<Service>,
    class: Class,
    _in_flight: InFlight,
}

/// Counts an answer for as long as it is produced.
#[derive(Debug)]
struct InFlight(Arc<Service>);

impl InFlight {
    fn enter(service: &Arc<Service>) -> InFlight {
        service.in_flight.send_modify(|count| *count += 1);
        InFlight(Arc::clone(service))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.send_modify(|count| *count -= 1);
    }
}

/// A choice of a whole answer.
#[derive(Debug, Default)]
struct Whole {
    text: String,
    entries: Vec<TokenEntry>,
    reason: &'static str,
    stop_token: Option<u32>,
}

impl Answer {
    /// The error that ends an admitted request early. A request that expired is worth a retry when
    /// the work that is ahead now will be done.
    #[must_use]
    pub fn error(&self, interruption: Interruption) -> ApiError {
        match interruption {
            Interruption::Expired => {
                let ahead = self.service.engine.snapshot().outstanding[self.class.index()];
                ApiError::Expired(ahead, self.service.overload)
            }
            Interruption::ShutDown => ApiError::ShutDown,
            Interruption::Failed(cause) => ApiError::Failed(format!("The request failed: {cause}")),
        }
    }

    async fn collect(mut self) -> Result<Response, ApiError> {
        let mut choices: Vec<Whole> = Vec::new();
        choices.resize_with(self.generation.num_choices(), Whole::default);
        while let Some(piece) = self.generation.next().await {
            match piece.map_err(|interruption| self.error(interruption))? {
                Piece::Text { choice, text, entries } => {
                    let whole = &mut choices[choice as usize];
                    whole.text.push_str(&text);
                    whole.entries.extend(entries);
                }
                Piece::Finish { choice, reason, stop_token } => {
                    let whole = &mut choices[choice as usize];
                    (whole.reason, whole.stop_token) = (reason, stop_token);
                }
            }
        }
        Ok(self.shape(choices))
    }

    fn shape(self, choices: Vec<Whole>) -> Response {
        let usage = self.generation.usage();
        let logprobs = self.logprobs;
        let numbered = choices.into_iter().zip(0..);
        match self.endpoint {
            Endpoint::Chat => {
                let choices = numbered.map(|(whole, index)| {
                    let entries = logprobs.then_some(whole.entries.as_slice());
                    ChatChoice::new(index, whole.text, entries, whole.reason, whole.stop_token)
                });
                let choices = choices.collect();
                Json(ChatResponse { head: self.head, choices, usage }).into_response()
            }
            Endpoint::Completion => {
                let choices = numbered.map(|(whole, index)| {
                    let entries = logprobs.then_some(whole.entries.as_slice());
                    CompletionChoice::text(index, whole.text, entries)
                        .finish(whole.reason, whole.stop_token)
                });
                let choices = choices.collect();
                Json(CompletionResponse { head: self.head, choices, usage }).into_response()
            }
        }
    }
}
