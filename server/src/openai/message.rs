//! Messages of a conversation: read strictly, handed to the chat template as plain JSON.

use std::fmt;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::error::ApiError;

/// One message.
#[derive(Debug, Deserialize)]
pub struct Message {
    role: Role,
    content: Option<Content>,
    name: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
    tool_call_id: Option<String>,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

/// A call that the assistant made earlier in the conversation.
#[derive(Debug, Deserialize)]
struct ToolCall {
    #[serde(default)]
    id: String,
    function: FunctionCall,
}

#[derive(Debug, Deserialize)]
struct FunctionCall {
    name: String,
    arguments: String,
}

/// Text, or parts of it.
#[derive(Debug)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part {
    Text { text: String },
    Refusal { refusal: String },
    ImageUrl,
    InputAudio,
    File,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of content parts")
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
        Ok(Content::Text(text.to_owned()))
    }
    fn visit_string<E: de::Error>(self, text: String) -> Result<Content, E> {
        Ok(Content::Text(text))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
        let mut all = Vec::new();
        while let Some(part) = parts.next_element()? {
            all.push(part);
        }
        Ok(Content::Parts(all))
    }
}

impl Content {
    /// The text; parts are joined by line breaks, as vLLM does for templates that take strings.
    fn text(&self, path: &str) -> Result<String, ApiError> {
        let parts = match self {
            Content::Text(text) => return Ok(text.clone()),
            Content::Parts(parts) => parts,
        };
        let mut texts = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            match part {
                Part::Text { text } | Part::Refusal { refusal: text } => texts.push(text.as_str()),
                Part::ImageUrl | Part::InputAudio | Part::File => {
                    let message = "This model reads text only: no images, audio or files.";
                    return Err(ApiError::unsupported(format!("{path}[{index}]"), message));
                }
            }
        }
        Ok(texts.join("\n"))
    }
}

impl Message {
    /// The message as a template sees it, `index` being its place in the conversation.
    ///
    /// # Errors
    /// Content that is missing, or that is not text.
    pub fn to_template(&self, index: usize) -> Result<Value, ApiError> {
        let path = format!("messages[{index}].content");
        let calls = self.tool_calls.as_deref().unwrap_or_default();
        let content = match &self.content {
            Some(content) => content.text(&path)?,
            None if self.role == Role::Assistant && !calls.is_empty() => String::new(),
            None => return Err(ApiError::invalid(path, "This message needs `content`.")),
        };
        let mut message = Map::new();
        message.insert("role".into(), self.role.for_template().into());
        message.insert("content".into(), content.into());
        let optional = [
            ("name", &self.name),
            ("reasoning_content", &self.reasoning_content),
            ("tool_call_id", &self.tool_call_id),
        ];
        for (key, value) in optional {
            if let Some(value) = value {
                message.insert(key.into(), value.as_str().into());
            }
        }
        if !calls.is_empty() {
            message.insert("tool_calls".into(), calls.iter().map(ToolCall::to_template).collect());
        }
        Ok(message.into())
    }
}

impl Role {
    /// Templates know `system` only: OpenAI renamed it to `developer` for newer models.
    fn for_template(self) -> &'static str {
        match self {
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

impl ToolCall {
    /// As on the wire; the template parses the arguments.
    fn to_template(&self) -> Value {
        let FunctionCall { name, arguments } = &self.function;
        let function = json!({"name": name, "arguments": arguments});
        json!({"id": self.id, "type": "function", "function": function})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(message: Value) -> Result<Value, ApiError> {
        let message: Message = serde_json::from_value(message).expect("well-formed");
        message.to_template(3)
    }

    #[test]
    fn parts_read_as_one_text() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let got = template(json!({"role": "user", "content": parts})).expect("text");
        assert_eq!(got, json!({"role": "user", "content": "a\nb"}));
    }

    #[test]
    fn an_earlier_call_needs_no_content() {
        let got = template(json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]}))
        .expect("a call");
        assert_eq!(got["content"], "");
        assert_eq!(got["tool_calls"][0]["function"]["name"], "f");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let image = json!([{"type": "image_url", "image_url": {"url": "data:"}}]);
        for (message, param) in [
            (json!({"role": "user"}), "messages[3].content"),
            (json!({"role": "user", "content": image}), "messages[3].content[0]"),
        ] {
            assert_eq!(template(message).unwrap_err().body().error.param.as_deref(), Some(param));
        }
    }
}
