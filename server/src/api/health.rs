//! Health, readiness, version and load. Open to all: probes and routers have no key.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use engine::Refusal;
use serde_json::{Value, json};

use crate::error::{ApiError, OverloadStatus};
use crate::state::{App, Ready};

/// The process answers: nothing else is asked.
pub async fn live() -> &'static str {
    "ok"
}

/// The model is loaded and the engine lives. Being full or draining is no illness.
///
/// # Errors
/// 503 while loading and when the engine is dead.
pub async fn health(Ready(service): Ready) -> Result<&'static str, ApiError> {
    if service.engine.snapshot().alive {
        return Ok("ok");
    }
    Err(ApiError::Refused(Refusal::EngineDead, OverloadStatus::new(503)))
}

/// New work should come here. Being full is no reason to say no: that would take away the capacity
/// that is missing.
///
/// # Errors
/// 503 while loading, while draining and when the engine is dead.
pub async fn ready(State(app): State<Arc<App>>) -> Result<&'static str, ApiError> {
    if app.is_ready() {
        return Ok("ok");
    }
    Err(if app.service().is_none() { ApiError::Loading } else { ApiError::Draining })
}

/// The version of the server.
pub async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// Sequences in the server, as vLLM reports its load.
pub async fn load(Ready(service): Ready) -> Json<Value> {
    let counts = service.engine.snapshot().counts;
    Json(json!({"server_load": counts.running + counts.waiting}))
}

/// All series, in Prometheus' text format.
///
/// # Errors
/// 503 while loading: no series is better than series that say nothing.
pub async fn metrics(Ready(service): Ready) -> Result<Response, ApiError> {
    service.metrics.tenant_uses(&service.engine.tenants());
    let text = service.metrics.render(&service.engine.snapshot());
    Ok(([(CONTENT_TYPE, crate::metrics::CONTENT_TYPE)], text).into_response())
}
