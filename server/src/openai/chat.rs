//! `/v1/chat/completions`: what only it takes, and what it answers.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::common::{Head, Usage};
use super::logprobs::{ChatLogprobs, TokenEntry};
use super::message::Message;
use crate::error::ApiError;

/// Most alternatives that a token is reported with.
const MAX_TOP_LOGPROBS: u32 = 20;

/// The conversation and how it is rendered; also part of `/tokenize`.
#[derive(Debug, Deserialize)]
pub struct ConversationFields {
    /// What was said.
    pub messages: Option<Vec<Message>>,
    tools: Option<Vec<Value>>,
    /// Ends the prompt where the assistant begins to speak.
    pub add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    /// Variables for the template.
    #[serde(default)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

/// Everything else.
#[derive(Debug, Deserialize)]
pub struct ChatFields {
    tool_choice: Option<ToolChoice>,
    response_format: Option<ResponseFormat>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected none, auto, required, or a function by name")]
enum ToolChoice {
    Mode(ToolMode),
    Named { function: NamedFunction },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ToolMode {
    None,
    Auto,
    Required,
}

#[derive(Debug, Deserialize)]
struct NamedFunction {
    name: String,
}

#[derive(Debug, Deserialize)]
struct ResponseFormat {
    r#type: FormatType,
    json_schema: Option<JsonSchema>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FormatType {
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(Debug, Deserialize)]
struct JsonSchema {
    #[serde(rename = "name")]
    _name: String,
}

impl ConversationFields {
    /// The messages as the template sees them.
    ///
    /// # Errors
    /// None at all, a message that is not text, or a request to continue the last one.
    pub fn template_messages(&self) -> Result<Vec<Value>, ApiError> {
        let messages = self.messages.as_deref().unwrap_or_default();
        if messages.is_empty() {
            return Err(ApiError::invalid("messages", "`messages` must not be empty."));
        }
        if self.continue_final_message == Some(true) {
            let message = "`continue_final_message` is not supported by this server.";
            return Err(ApiError::unsupported("continue_final_message", message));
        }
        messages.iter().enumerate().map(|(index, message)| message.to_template(index)).collect()
    }

    /// The tools, each checked to be a function with a name.
    ///
    /// # Errors
    /// The first that is not, by its place.
    pub fn tools(&self) -> Result<&[Value], ApiError> {
        let tools = self.tools.as_deref().unwrap_or_default();
        match tools.iter().position(|tool| function_name(tool).is_none()) {
            None => Ok(tools),
            Some(index) => {
                let message = "A tool is {\"type\": \"function\", \"function\": {\"name\": ...}}.";
                Err(ApiError::invalid(format!("tools[{index}]"), message))
            }
        }
    }
}

fn function_name(tool: &Value) -> Option<&str> {
    let is_function = tool.get("type")?.as_str()? == "function";
    let name = tool.get("function")?.get("name")?.as_str()?;
    (is_function && !name.is_empty()).then_some(name)
}

impl ChatFields {
    /// The tools that the template is shown. The model's text comes back as content: there is no
    /// parser for calls yet, so a call cannot be promised.
    ///
    /// # Errors
    /// A choice without tools, of a tool that is not there, or that promises a call.
    pub fn shown_tools<'a>(&self, tools: &'a [Value]) -> Result<Option<&'a [Value]>, ApiError> {
        let refuse = |message: &str| Err(ApiError::invalid("tool_choice", message));
        match &self.tool_choice {
            Some(ToolChoice::Mode(ToolMode::None)) => Ok(None),
            None | Some(ToolChoice::Mode(ToolMode::Auto)) => {
                Ok((!tools.is_empty()).then_some(tools))
            }
            Some(_) if tools.is_empty() => refuse("`tool_choice` needs `tools`."),
            Some(ToolChoice::Named { function })
                if !tools.iter().any(|tool| function_name(tool) == Some(&function.name)) =>
            {
                refuse("`tool_choice` names a function that is not among `tools`.")
            }
            Some(_) => Err(ApiError::unsupported(
                "tool_choice",
                "A tool call cannot be forced by this server; use `auto` or `none`.",
            )),
        }
    }

    /// Checks that plain text is what is wanted.
    ///
    /// # Errors
    /// Any other format: output is not constrained to a grammar.
    pub fn check_format(&self) -> Result<(), ApiError> {
        let Some(format) = &self.response_format else { return Ok(()) };
        match (format.r#type, &format.json_schema) {
            (FormatType::Text, _) => Ok(()),
            (FormatType::JsonSchema, None) => {
                let message = "`response_format` of type json_schema needs `json_schema`.";
                Err(ApiError::invalid("response_format.json_schema", message))
            }
            (FormatType::JsonObject | FormatType::JsonSchema, _) => Err(ApiError::unsupported(
                "response_format",
                "Output cannot be constrained to JSON by this server; use the type `text`.",
            )),
        }
    }

    /// The limit on generated tokens, by its new name or its old one.
    #[must_use]
    pub fn max_tokens(&self) -> Option<(&'static str, u32)> {
        let new = self.max_completion_tokens.map(|max| ("max_completion_tokens", max));
        new.or(self.max_tokens.map(|max| ("max_tokens", max)))
    }

    /// How many alternatives to report with each token, if log-probabilities are wanted.
    ///
    /// # Errors
    /// Too many, or alternatives without log-probabilities.
    pub fn logprobs(&self) -> Result<Option<u32>, ApiError> {
        let wanted = self.logprobs.unwrap_or(false);
        match self.top_logprobs {
            Some(top) if top > MAX_TOP_LOGPROBS => {
                let message = format!("`top_logprobs` must be 0 to {MAX_TOP_LOGPROBS}, not {top}.");
                Err(ApiError::invalid("top_logprobs", message))
            }
            Some(top) if top > 0 && !wanted => {
                Err(ApiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs: true`."))
            }
            top => Ok(wanted.then_some(top.unwrap_or(0))),
        }
    }
}

/// A whole answer.
#[derive(Debug, Serialize)]
pub struct ChatResponse {
    /// Id, model and the like.
    #[serde(flatten)]
    pub head: Head,
    /// One for each choice, in order.
    pub choices: Vec<ChatChoice>,
    /// Tokens.
    pub usage: Usage,
}

/// One choice of a whole answer.
#[derive(Debug, Serialize)]
pub struct ChatChoice {
    /// Which.
    pub index: u32,
    message: AssistantMessage,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
    stop_reason: Option<u32>,
}

#[derive(Debug, Serialize)]
struct AssistantMessage {
    role: &'static str,
    content: String,
    refusal: Option<()>,
}

impl ChatChoice {
    /// A complete choice.
    #[must_use]
    pub fn new(
        index: u32,
        content: String,
        logprobs: Option<&[TokenEntry]>,
        finish_reason: &'static str,
        stop_reason: Option<u32>,
    ) -> ChatChoice {
        let message = AssistantMessage { role: "assistant", content, refusal: None };
        let logprobs = logprobs.map(ChatLogprobs::new);
        ChatChoice { index, message, logprobs, finish_reason, stop_reason }
    }
}

/// One event of a stream.
#[derive(Debug, Serialize)]
pub struct ChatChunk<'a> {
    /// Id, model and the like.
    #[serde(flatten)]
    pub head: &'a Head,
    /// One choice, or none in the usage chunk.
    pub choices: &'a [ChatChunkChoice],
    /// In the last chunk if it was asked for, in all of them if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// What a chunk adds to a choice.
#[derive(Debug, Serialize)]
pub struct ChatChunkChoice {
    index: u32,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<u32>,
}

#[derive(Debug, Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

impl ChatChunkChoice {
    fn with(index: u32, delta: Delta) -> ChatChunkChoice {
        ChatChunkChoice { index, delta, logprobs: None, finish_reason: None, stop_reason: None }
    }

    /// The first chunk of a choice: who speaks.
    #[must_use]
    pub fn role(index: u32) -> ChatChunkChoice {
        let delta = Delta { role: Some("assistant"), content: Some(String::new()) };
        ChatChunkChoice::with(index, delta)
    }

    /// More text.
    #[must_use]
    pub fn text(index: u32, text: String, logprobs: Option<&[TokenEntry]>) -> ChatChunkChoice {
        let delta = Delta { role: None, content: Some(text) };
        let logprobs = logprobs.map(ChatLogprobs::new);
        ChatChunkChoice { logprobs, ..ChatChunkChoice::with(index, delta) }
    }

    /// The last chunk of a choice.
    #[must_use]
    pub fn finish(index: u32, reason: &'static str, stop_reason: Option<u32>) -> ChatChunkChoice {
        let delta = Delta::default();
        let finish_reason = Some(reason);
        ChatChunkChoice { finish_reason, stop_reason, ..ChatChunkChoice::with(index, delta) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(tools: &str, choice: &str) -> Result<bool, ApiError> {
        let conversation: ConversationFields =
            serde_json::from_str(&format!(r#"{{"tools": {tools}}}"#)).expect("well-formed");
        let chat: ChatFields =
            serde_json::from_str(&format!(r#"{{"tool_choice": {choice}}}"#)).expect("well-formed");
        let tools = conversation.tools()?.to_vec();
        chat.shown_tools(&tools).map(|tools| tools.is_some())
    }

    #[test]
    fn tools_are_shown_but_never_promised() {
        let tool = r#"[{"type": "function", "function": {"name": "f"}}]"#;
        let named = |name| format!(r#"{{"type": "function", "function": {{"name": "{name}"}}}}"#);
        assert_eq!(shown(tool, "null").ok(), Some(true));
        assert_eq!(shown(tool, "\"auto\"").ok(), Some(true));
        assert_eq!(shown(tool, "\"none\"").ok(), Some(false));
        assert_eq!(shown("null", "\"auto\"").ok(), Some(false));
        for (tools, choice) in [
            (tool, "\"required\""),
            (tool, &named("f")),
            (tool, &named("g")),
            ("null", &named("f")),
            (r#"[{"type": "function"}]"#, "\"auto\""),
        ] {
            assert_eq!(shown(tools, choice).unwrap_err().status().as_u16(), 400);
        }
    }

    #[test]
    fn logprobs_need_the_switch() {
        let logprobs = |json| {
            let fields: ChatFields = serde_json::from_str(json).expect("well-formed");
            fields.logprobs().ok()
        };
        assert_eq!(logprobs("{}"), Some(None));
        assert_eq!(logprobs(r#"{"logprobs": true}"#), Some(Some(0)));
        assert_eq!(logprobs(r#"{"logprobs": true, "top_logprobs": 20}"#), Some(Some(20)));
        assert_eq!(logprobs(r#"{"logprobs": true, "top_logprobs": 21}"#), None);
        assert_eq!(logprobs(r#"{"top_logprobs": 5}"#), None);
    }
}
