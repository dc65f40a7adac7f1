//! A request for an answer as it came: its head understood, its body read.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use scheduler::{Micros, TenantId};

use crate::auth::KeyOwner;
use crate::body::JsonBytes;
use crate::deadline::Terms;
use crate::error::ApiError;
use crate::request_id::Name;
use crate::state::App;

/// The parts of a request for an answer.
#[derive(Clone, Debug)]
pub struct Call {
    /// When its head had been read, on the engine's clock; before its body.
    pub arrival: Micros,
    /// What its headers say about targets, class and retries.
    pub terms: Terms,
    /// Its `x-request-id`.
    pub name: Name,
    /// Its body.
    pub body: Bytes,
}

impl FromRequest<Arc<App>> for Call {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Call, ApiError> {
        let service = app.service().ok_or(ApiError::Loading)?;
        let arrival = service.engine.clock().now();
        let headers = request.headers().clone();
        let mut terms = Terms::from_headers(&headers)?;
        let owner = request.extensions().get::<KeyOwner>().map_or(TenantId::DEFAULT, |key| key.0);
        terms.tenant = service.tenants.caller(&headers, owner)?;
        let name = request.extensions().get::<Name>().cloned().unwrap_or_else(Name::made_up);
        let JsonBytes(body) = JsonBytes::from_request(request, app).await?;
        terms.origin = service.origins.of(&headers, &body);
        Ok(Call { arrival, terms, name, body })
    }
}
