//! Request bodies: JSON by content type, bounded in size and time. Reading them into types is
//! [`crate::openai`]'s part.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};

use crate::error::ApiError;
use crate::state::App;

/// How long a body may take to arrive.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The bytes of a body that says it is JSON.
#[derive(Debug)]
pub struct JsonBytes(pub Bytes);

impl FromRequest<Arc<App>> for JsonBytes {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<JsonBytes, ApiError> {
        let limit = app.body_limit;
        if !is_json(request.headers()) {
            return Err(ApiError::NotJson);
        }
        if declared_length(request.headers()).is_some_and(|length| length > limit as u64) {
            return Err(ApiError::BodyTooLarge(limit));
        }
        let body = read(request.into_body(), limit);
        tokio::time::timeout(TIMEOUT, body).await.map_err(|_| ApiError::BodyTimeout)?.map(JsonBytes)
    }
}

async fn read(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    // The limit is the only failure that somebody is still there to read about.
    axum::body::to_bytes(body, limit).await.map_err(|_| ApiError::BodyTooLarge(limit))
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// `application/json`, with or without parameters, or a type that ends in `+json`.
fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = value.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn json_is_told_by_its_essence() {
        let json = |text| is_json(&HeaderMap::from_iter([(CONTENT_TYPE, text)]));
        let value = HeaderValue::from_static;
        assert!(json(value("application/json")));
        assert!(json(value("Application/JSON; charset=utf-8")));
        assert!(json(value("application/problem+json")));
        assert!(!json(value("text/plain")));
        assert!(!json(value("application/jsonp")));
        assert!(!is_json(&HeaderMap::new()));
    }
}
