//! Chat templates (Jinja), as Hugging Face's tokenizers render them.

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {}

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
    /// Renders a conversation. `messages` and `tools` are in OpenAI's JSON shape; `extra` is
    /// `chat_template_kwargs`.
    ///
    /// # Errors
    /// See [`TemplateError`].
    pub fn render(
        &self,
        messages: &[serde_json::Value],
        tools: Option<&[serde_json::Value]>,
        add_generation_prompt: bool,
        extra: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, TemplateError> {
        todo!()
    }
}
