//! Routes and the layers around them.

use std::sync::Arc;

use axum::extract::{OriginalUri, Request};
use axum::handler::Handler;
use axum::http::{HeaderValue, Method};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{MethodRouter, get, post};
use axum::{Router, response::IntoResponse};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer, ExposeHeaders};

use crate::api::{chat, completions, drain, health, models, tokenize};
use crate::endpoint::Endpoint;
use crate::error::ApiError;
use crate::metrics::http;
use crate::state::App;
use crate::{auth, request_id, shutdown};

/// The whole application.
pub fn router(app: Arc<App>) -> Router {
    let protected = Router::new()
        .route(Endpoint::Chat.route(), only_post(chat::create))
        .route(Endpoint::Completion.route(), only_post(completions::create))
        .route("/v1/models", only_get(models::list))
        .route("/v1/models/{*id}", only_get(models::retrieve))
        .route("/tokenize", only_post(tokenize::tokenize))
        .route("/detokenize", only_post(tokenize::detokenize))
        .fallback(not_found)
        .layer(from_fn_with_state(Arc::clone(&app), auth::require_key));
    let open = Router::new()
        .route("/health", only_get(health::health))
        .route("/livez", only_get(health::live))
        .route("/readyz", only_get(health::ready))
        .route("/ping", get(health::health).post(health::health))
        .route("/version", only_get(health::version))
        .route("/load", only_get(health::load))
        .route("/metrics", only_get(health::metrics))
        .route("/drain", only_post(drain::drain));
    // The last layer is the outermost: every answer gets its id and its CORS headers.
    open.merge(protected)
        .layer(from_fn_with_state(Arc::clone(&app), http::count))
        .layer(from_fn(request_id::attach))
        .layer(from_fn_with_state(Arc::clone(&app), shutdown::part))
        .layer(cors(&app.allowed_origins))
        .with_state(app)
}

fn only_post<H, T>(handler: H) -> MethodRouter<Arc<App>>
where
    H: Handler<T, Arc<App>>,
    T: 'static,
{
    post(handler).fallback(async || ApiError::MethodNotAllowed("POST"))
}

fn only_get<H, T>(handler: H) -> MethodRouter<Arc<App>>
where
    H: Handler<T, Arc<App>>,
    T: 'static,
{
    get(handler).fallback(async || ApiError::MethodNotAllowed("GET, HEAD"))
}

async fn not_found(OriginalUri(uri): OriginalUri, _: Request) -> impl IntoResponse {
    ApiError::PathNotFound(uri.path().chars().take(200).collect())
}

fn cors(origins: &[String]) -> CorsLayer {
    let origin = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST, Method::HEAD, Method::OPTIONS])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(ExposeHeaders::any())
}

#[cfg(test)]
pub(crate) mod tests;
