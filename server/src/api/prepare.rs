//! From the bytes of a body to a request that the engine understands: parsed, checked, rendered and
//! encoded. Pure computing, so that it can run off the serving threads.

use std::sync::Arc;

use engine::{Prompt, SamplingParams};
use models::TemplateError;
use scheduler::Class;
use serde_json::Value;

use super::call::Call;
use crate::endpoint::Endpoint;
use crate::error::ApiError;
use crate::openai::chat::ConversationFields;
use crate::openai::common::{CommonFields, SloFields, StreamOptions};
use crate::openai::fields;
use crate::openai::sampling::{SamplingFields, TextOptions};
use crate::state::{Model, Served, Service};

/// Bodies from this size on are worth the way to another thread.
const LARGE_BODY: usize = 8 << 10;

/// A request ready for admission.
#[derive(Debug)]
pub struct Prepared {
    /// The model's name as the client used it.
    pub served: Served,
    /// Its class.
    pub class: Class,
    /// What to generate from.
    pub prompts: Vec<Prompt>,
    /// Whom they may share KV blocks with.
    pub cache_salt: Option<Arc<str>>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// How text is made of them.
    pub text: TextOptions,
    /// What each choice's text begins with.
    pub prefixes: Vec<String>,
    /// How to stream, if at all.
    pub stream: Option<StreamOptions>,
    /// Targets that came in the body.
    pub slo: SloFields,
    /// Tokens that the client expects in each choice.
    pub expected_tokens: Option<u32>,
}

/// A prompt as tokens.
#[derive(Debug)]
pub struct Encoded {
    /// Token ids, at least one.
    pub tokens: Arc<[u32]>,
    /// What the text of its answers begins with: the prompt itself if it is echoed.
    pub prefix: String,
}

/// The fields that both generating endpoints have.
#[derive(Debug)]
pub struct SharedFields {
    /// The model's name as the client used it.
    pub served: Served,
    /// The request's class: decided here, for whatever becomes of it.
    pub class: Class,
    /// About the request as a whole.
    pub common: CommonFields,
    /// How tokens are chosen.
    pub sampling: SamplingFields,
}

impl SharedFields {
    /// Reads them, once all field names are known to be these or among `own`, the endpoint's.
    ///
    /// # Errors
    /// A field that cannot be accepted, a value that does not fit, or no such model.
    pub fn read(
        service: &Service,
        call: &Call,
        endpoint: Endpoint,
        body: &[u8],
        own: &[&[&str]],
    ) -> Result<SharedFields, ApiError> {
        let shared: [&[&str]; 2] =
            [fields::names::<CommonFields>(), fields::names::<SamplingFields>()];
        fields::check(body, &[&shared, own].concat())?;
        let common: CommonFields = fields::read(body)?;
        let served = service.model.resolve(common.model.as_deref())?;
        let class = service.class(&call.terms, &served, endpoint);
        Ok(SharedFields { served, class, common, sampling: fields::read(body)? })
    }

    /// Puts the parts together; `logprobs` as checked by the endpoint.
    ///
    /// # Errors
    /// See [`SamplingFields`] and [`CommonFields`].
    pub fn prepared(
        self,
        model: &Model,
        max_tokens: u32,
        logprobs: Option<u32>,
        prompts: Vec<Encoded>,
    ) -> Result<Prepared, ApiError> {
        let SharedFields { served, class, common, sampling } = self;
        let text = sampling.text_options()?;
        let sampling = sampling.params(model.vocab_size, max_tokens, logprobs)?;
        let n = common.choices(prompts.len())?;
        let mut prefixes = Vec::with_capacity(prompts.len() * n as usize);
        let mut tokens = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            prefixes.extend(std::iter::repeat_n(prompt.prefix, n as usize));
            tokens.push(Prompt { tokens: prompt.tokens, n });
        }
        Ok(Prepared {
            served,
            class,
            prompts: tokens,
            cache_salt: common.cache_salt()?.map(Arc::from),
            sampling,
            text,
            prefixes,
            stream: common.streaming()?,
            slo: common.slo.unwrap_or_default(),
            expected_tokens: common.expected_tokens(),
        })
    }
}

impl Prepared {
    /// Tokens of all prompts.
    #[must_use]
    pub fn prompt_tokens(&self) -> u32 {
        let tokens: usize = self.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }
}

/// Runs `work` on `body`: here if it is small, on a blocking thread if it is large, and then on a
/// few at a time only.
///
/// # Errors
/// What `work` says.
pub async fn off_thread<T, F>(
    service: &Arc<Service>,
    body: axum::body::Bytes,
    work: F,
) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: FnOnce(&Service, &[u8]) -> Result<T, ApiError> + Send + 'static,
{
    if body.len() < LARGE_BODY {
        return work(service, &body);
    }
    let shared = Arc::clone(service);
    let permit = service.encoders.acquire().await;
    let result = tokio::task::spawn_blocking(move || work(&shared, &body)).await;
    drop(permit);
    result.unwrap_or_else(|_| Err(ApiError::Failed("The request could not be read.".into())))
}

/// Refuses a text of so many bytes if it is too long to fit whatever its tokens are.
///
/// # Errors
/// By the name of the field.
pub fn check_length(model: &Model, param: &str, bytes: usize) -> Result<(), ApiError> {
    if model.cannot_fit(bytes) {
        let limit = model.max_model_len;
        let message = format!("{bytes} bytes of text exceed the context length of {limit} tokens.");
        return Err(ApiError::too_long(param, message));
    }
    Ok(())
}

/// Encodes text whose length is checked.
///
/// # Errors
/// A text that has no tokens.
pub fn encode(
    model: &Model,
    param: &str,
    text: &str,
    add_special: bool,
) -> Result<Vec<u32>, ApiError> {
    let tokens = model.tokenizer.encode(text, add_special);
    if tokens.is_empty() {
        return Err(ApiError::invalid(param, "The prompt has no tokens."));
    }
    Ok(tokens)
}

/// Tokens that may be generated after the longest of `prompts`: what the client said, checked, or
/// what `default` makes of the room that is left.
///
/// # Errors
/// The prompt alone, or together with what was asked for, is longer than the context.
pub fn max_tokens(
    model: &Model,
    param: &str,
    longest_prompt: usize,
    asked: Option<(&'static str, u32)>,
    default: impl FnOnce(u32) -> u32,
) -> Result<u32, ApiError> {
    let limit = model.max_model_len;
    let room = u32::try_from(longest_prompt).ok().and_then(|used| limit.checked_sub(used));
    let Some(room) = room.filter(|room| *room > 0) else {
        let message = format!(
            "The prompt of {longest_prompt} tokens leaves no room in the context length of {limit}."
        );
        return Err(ApiError::too_long(param, message));
    };
    match asked {
        None => Ok(default(room)),
        Some((name, 0)) => Err(ApiError::invalid(name, format!("`{name}` must be at least 1."))),
        Some((_, max)) if max <= room => Ok(max),
        Some((name, max)) => {
            let message = format!(
                "The prompt of {longest_prompt} tokens and {name} = {max} exceed the context \
                 length of {limit} tokens."
            );
            Err(ApiError::too_long(name, message))
        }
    }
}

/// Renders a conversation to text.
///
/// # Errors
/// A model that cannot chat, messages that cannot be rendered, or what the template itself raises.
pub fn render(
    model: &Model,
    conversation: &ConversationFields,
    tools: Option<&[Value]>,
) -> Result<String, ApiError> {
    let Some(template) = &model.template else {
        let message = "This model has no chat template; use /v1/completions.";
        return Err(ApiError::unsupported("messages", message));
    };
    let messages = conversation.template_messages()?;
    let extra = conversation.chat_template_kwargs.clone().unwrap_or_default();
    let generation_prompt = conversation.add_generation_prompt.unwrap_or(true);
    template.render(&messages, tools, generation_prompt, &extra).map_err(|error| match error {
        TemplateError::Raised(message) => ApiError::invalid("messages", message),
        failed @ TemplateError::Failed(_) => ApiError::invalid("messages", failed.to_string()),
    })
}
