//! `POST /drain`: ends in order what is in flight, for a `preStop` hook.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, header};
use serde::Serialize;

use crate::error::ApiError;
use crate::net::Peer;
use crate::shutdown;
use crate::state::App;

/// Headers of requests that somebody else sent: a proxy's client, or a page in a browser.
const NOT_LOCAL: [HeaderName; 4] = [
    header::ORIGIN,
    header::FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-real-ip"),
];

/// What became of it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Drained {
    /// Nothing is in flight any more.
    drained: bool,
    /// Answers that are still being produced.
    in_flight: usize,
}

/// From now on the server is not ready, and soon refuses new work; answers when nothing is in
/// flight, or when the time for it is over. The server goes on until it gets its signal.
///
/// # Errors
/// 403 unless the request comes from this machine itself, and not through a proxy.
pub async fn drain(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Drained>, ApiError> {
    let peer = request.extensions().get::<Peer>();
    if !peer.is_some_and(|peer| peer.0.ip().to_canonical().is_loopback())
        || is_passed_on(request.headers())
    {
        return Err(ApiError::NotLocal);
    }
    // A task of its own: a caller that leaves does not stop it.
    let in_flight = tokio::spawn(async move { shutdown::quiesce(&app).await })
        .await
        .map_err(|error| ApiError::Failed(error.to_string()))?;
    Ok(Json(Drained { drained: in_flight == 0, in_flight }))
}

fn is_passed_on(headers: &HeaderMap) -> bool {
    NOT_LOCAL.iter().any(|name| headers.contains_key(name))
}
