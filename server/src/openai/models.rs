//! `/v1/models`.

use serde::Serialize;

/// A list of models.
#[derive(Debug, Serialize)]
pub struct ModelList {
    /// Always `list`.
    pub object: &'static str,
    /// The models.
    pub data: Vec<ModelCard>,
}

/// One name under which the model is served.
#[derive(Clone, Debug, Serialize)]
pub struct ModelCard {
    /// The name.
    pub id: String,
    /// Always `model`.
    pub object: &'static str,
    /// When the server started, Unix seconds.
    pub created: u64,
    /// Always `sluice`.
    pub owned_by: &'static str,
    /// The name that this one stands for, if it is an alias.
    pub root: String,
    /// vLLM's extension: longest sequence in tokens.
    pub max_model_len: u32,
    /// Our extension: the class that this name selects.
    pub class: &'static str,
}
