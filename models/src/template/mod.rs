//! Chat templates (Jinja), as Hugging Face's tokenizers render them.
//!
//! transformers renders with Jinja2, `trim_blocks` and `lstrip_blocks` on, the loop controls, and
//! three additions: `raise_exception`, `strftime_now`, and a `tojson` that is Python's
//! `json.dumps`. minijinja with Python's string and map methods comes out the same for the
//! templates of our models. Work is bounded: a template may be long, recurse and loop only so much.

mod functions;
mod tojson;

use std::path::Path;

use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, context};
use serde_json::Value as Json;

use crate::error::LoadError;
use functions::Raised;

/// Longest template in bytes; the longest public ones have about 20 KB.
const MAX_TEMPLATE: usize = 1 << 20;
/// Most instructions of one rendering: about half a second, thousands of messages.
const FUEL: u64 = 10_000_000;
/// Deepest recursion of macros and includes.
const MAX_DEPTH: usize = 64;
/// The names inside the environment.
const CHAT: &str = "chat";
const TOOL_USE: &str = "tool_use";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

/// Where a template comes from and the two texts that it may write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    /// The file, for errors.
    pub(crate) path: &'a Path,
    /// The field in it.
    pub(crate) field: &'a str,
    /// The template.
    pub(crate) text: &'a str,
    /// Another one for conversations with tools.
    pub(crate) tool_use: Option<&'a str>,
    /// Text of the BOS token, empty if none.
    pub(crate) bos_token: &'a str,
    /// Text of the EOS token, empty if none.
    pub(crate) eos_token: &'a str,
}

/// Why a conversation could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template called `raise_exception`: the conversation is not one it can render.
    #[error("{0}")]
    Raised(String),
    /// The template itself failed.
    #[error("chat template failed: {0}")]
    Failed(String),
}

impl ChatTemplate {
    /// A template without a model around it: there are no BOS and EOS tokens to write.
    ///
    /// # Errors
    /// One that is not valid Jinja: names the line.
    pub fn from_source(text: &str) -> Result<ChatTemplate, LoadError> {
        let path = Path::new("chat template");
        let (bos_token, eos_token) = ("", "");
        let field = "source";
        ChatTemplate::compile(Source { path, field, text, tool_use: None, bos_token, eos_token })
    }

    /// Compiles a template.
    ///
    /// # Errors
    /// One that is too long or not valid Jinja: names the file, the field and the line.
    pub(crate) fn compile(source: Source<'_>) -> Result<ChatTemplate, LoadError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_formatter(functions::format);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MAX_DEPTH);
        environment.add_function("raise_exception", functions::raise_exception);
        environment.add_function("strftime_now", functions::strftime_now);
        environment.add_filter("tojson", tojson::tojson);
        add(&mut environment, source, CHAT, source.text)?;
        if let Some(text) = source.tool_use {
            add(&mut environment, source, TOOL_USE, text)?;
        }
        let (bos_token, eos_token) = (source.bos_token.to_owned(), source.eos_token.to_owned());
        Ok(ChatTemplate { environment, bos_token, eos_token })
    }

    /// Renders a conversation. `messages` and `tools` are in OpenAI's JSON shape; `extra` is
    /// `chat_template_kwargs`.
    ///
    /// # Errors
    /// See [`TemplateError`].
    pub fn render(
        &self,
        messages: &[Json],
        tools: Option<&[Json]>,
        add_generation_prompt: bool,
        extra: &serde_json::Map<String, Json>,
    ) -> Result<String, TemplateError> {
        let messages: Vec<Json> = messages.iter().map(with_parsed_arguments).collect();
        let known = context! {
            messages => Value::from_serialize(messages),
            tools => Value::from_serialize(tools),
            documents => (),
            add_generation_prompt,
            bos_token => self.bos_token,
            eos_token => self.eos_token,
        };
        // What comes first wins: `extra` may add variables, not replace the conversation.
        let context = context! { ..known, ..Value::from_serialize(extra) };
        let name = if tools.is_some() { TOOL_USE } else { CHAT };
        let template =
            self.environment.get_template(name).or_else(|_| self.environment.get_template(CHAT));
        template.and_then(|template| template.render(context)).map_err(|error| failure(&error))
    }
}

fn add(
    environment: &mut Environment<'static>,
    source: Source<'_>,
    name: &'static str,
    text: &str,
) -> Result<(), LoadError> {
    if text.len() > MAX_TEMPLATE {
        let problem = format!("has {} bytes, more than {MAX_TEMPLATE}", text.len());
        return Err(LoadError::invalid(source.path, source.field, problem));
    }
    environment.add_template_owned(name, text.to_owned()).map_err(|error| {
        let line = error.line().unwrap_or(0);
        let problem = format!("line {line}: {}", describe(&error));
        LoadError::invalid(source.path, source.field, problem)
    })
}

fn describe(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn failure(error: &minijinja::Error) -> TemplateError {
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(cause) = next {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return TemplateError::Raised(message.clone());
        }
        next = cause.source();
    }
    let place = error.line().map_or(String::new(), |line| format!(" (line {line})"));
    TemplateError::Failed(format!("{}{place}", describe(error)))
}

/// The arguments of a tool call are JSON in a string in OpenAI's shape; templates expect the value.
fn with_parsed_arguments(message: &Json) -> Json {
    let mut message = message.clone();
    let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut);
    for call in calls.into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        let parsed = arguments.as_str().and_then(|text| serde_json::from_str::<Json>(text).ok());
        if let Some(parsed) = parsed.filter(Json::is_object) {
            *arguments = parsed;
        }
    }
    message
}
