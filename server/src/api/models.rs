//! `GET /v1/models` and `GET /v1/models/{id}`.

use axum::Json;
use axum::extract::Path;

use crate::error::ApiError;
use crate::openai::models::{ModelCard, ModelList};
use crate::state::Ready;

/// All names of the model.
pub async fn list(Ready(service): Ready) -> Json<ModelList> {
    let data = service.model.cards(service.default_class).collect();
    Json(ModelList { object: "list", data })
}

/// One of them.
///
/// # Errors
/// No such model.
pub async fn retrieve(
    Ready(service): Ready,
    Path(id): Path<String>,
) -> Result<Json<ModelCard>, ApiError> {
    let card = service.model.cards(service.default_class).find(|card| card.id == id);
    card.map(Json).ok_or(ApiError::ModelNotFound(id.chars().take(100).collect()))
}
