//! The error object.

use serde::Serialize;

/// `{"error": {...}}`.
#[derive(Clone, Debug, Serialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorObject,
}

/// What went wrong; the members beyond OpenAI's four say why a request was shed.
#[derive(Clone, Debug, Serialize)]
pub struct ErrorObject {
    /// For people: what happened and what to do.
    pub message: String,
    /// The kind of error.
    pub r#type: &'static str,
    /// The field at fault.
    pub param: Option<String>,
    /// For programs; stable.
    pub code: Option<&'static str>,
    /// The rule for forecasts that refused it: `own`, `harm`, `kind` or `expected`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<&'static str>,
    /// What `predicted_ms` and `budget_ms` are times of: `ttft`, `tpot` or `e2e`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantity: Option<&'static str>,
    /// Predicted time from arrival (gaps: from the first token), milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_ms: Option<u64>,
    /// Time from arrival that it may take at most, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_ms: Option<u64>,
    /// Sequences that would be ahead of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
}
