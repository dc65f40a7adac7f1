//! The one error of the server: every refusal and failure that a client can see, and the only place
//! that knows HTTP status codes.

mod refusal;

use axum::http::header::{ALLOW, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use engine::Refusal;
use scheduler::{Micros, ShedReason};

use crate::openai::error::{ErrorBody, ErrorObject};

pub use refusal::Explanation;
pub(crate) use refusal::code as refusal_code;

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Types of errors: the request is wrong, there is no room, we are at fault.
const INVALID: &str = "invalid_request_error";
const OVERLOADED: &str = "overloaded_error";
const SERVER: &str = "server_error";

/// What a client is told when its request is shed: 429, or what the operator chose instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverloadStatus(StatusCode);

impl OverloadStatus {
    /// From the configuration, which allows 429, 503 and 529.
    #[must_use]
    pub fn new(status: u16) -> OverloadStatus {
        OverloadStatus(StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS))
    }
}

/// An error that ends a request.
#[derive(Clone, Debug)]
pub enum ApiError {
    /// The request is wrong; sending it again will not help.
    Invalid {
        /// What is wrong, and what would be right.
        message: String,
        /// The field at fault.
        param: Option<String>,
        /// A code beyond the type, if there is one.
        code: Option<&'static str>,
    },
    /// No key, or a wrong one.
    Unauthorized,
    /// Only the machine itself may ask this.
    NotLocal,
    /// There is no such model.
    ModelNotFound(String),
    /// There is no such path.
    PathNotFound(String),
    /// The path exists, the method does not.
    MethodNotAllowed(&'static str),
    /// The body is not JSON by its content type.
    NotJson,
    /// The body is larger than allowed.
    BodyTooLarge(usize),
    /// The body did not arrive in time.
    BodyTimeout,
    /// The gate did not take it.
    Refused(Refusal, OverloadStatus),
    /// It was admitted, and waited until its deadline had become impossible.
    Expired(Micros, OverloadStatus),
    /// The model is still being loaded.
    Loading,
    /// The server is about to end.
    Draining,
    /// The server ended before the answer did.
    ShutDown,
    /// A step failed, or the answer could not be produced.
    Failed(String),
}

/// When to come back.
#[derive(Clone, Copy, Debug)]
struct Retry {
    after: Micros,
    worth_it: bool,
}

impl ApiError {
    /// A wrong value in the field `param`.
    #[must_use]
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::Invalid { message: message.into(), param: Some(param.into()), code: None }
    }

    /// A field that is understood and cannot be honoured.
    #[must_use]
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::Invalid {
            message: message.into(),
            param: Some(param.into()),
            code: Some("unsupported"),
        }
    }

    /// The request is longer than the context.
    #[must_use]
    pub fn too_long(param: &str, message: String) -> ApiError {
        ApiError::Invalid {
            message,
            param: Some(param.to_owned()),
            code: Some("context_length_exceeded"),
        }
    }

    /// The error object, also for the error event of a stream.
    #[must_use]
    pub fn body(&self) -> ErrorBody {
        ErrorBody { error: self.object() }
    }

    fn object(&self) -> ErrorObject {
        let explanation = match self {
            ApiError::Refused(refusal, _) => Explanation::of(refusal),
            _ => Explanation::default(),
        };
        let Explanation { rule, quantity, predicted_ms, budget_ms, position } = explanation;
        ErrorObject {
            message: self.message(),
            r#type: self.kind(),
            param: self.param(),
            code: self.code(),
            rule,
            quantity,
            predicted_ms,
            budget_ms,
            position,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            ApiError::Failed(_) | ApiError::Refused(Refusal::EngineDead, _) => SERVER,
            ApiError::Refused(Refusal::Shed(_), _)
            | ApiError::Expired(..)
            | ApiError::Loading
            | ApiError::Draining
            | ApiError::ShutDown => OVERLOADED,
            _ => INVALID,
        }
    }

    fn param(&self) -> Option<String> {
        match self {
            ApiError::Invalid { param, .. } => param.clone(),
            ApiError::ModelNotFound(_) => Some("model".to_owned()),
            _ => None,
        }
    }

    fn code(&self) -> Option<&'static str> {
        Some(match self {
            ApiError::Invalid { code, .. } => return *code,
            ApiError::Refused(refusal, _) => return refusal::code(refusal),
            ApiError::Unauthorized => "invalid_api_key",
            ApiError::NotLocal => "not_local",
            ApiError::ModelNotFound(_) => "model_not_found",
            ApiError::PathNotFound(_) => "not_found",
            ApiError::MethodNotAllowed(_) => "method_not_allowed",
            ApiError::NotJson => "unsupported_media_type",
            ApiError::BodyTooLarge(_) => "request_too_large",
            ApiError::BodyTimeout => "request_timeout",
            ApiError::Expired(..) => "expired",
            ApiError::Loading => "loading",
            ApiError::Draining => "draining",
            ApiError::ShutDown => "shutting_down",
            ApiError::Failed(_) => "internal_error",
        })
    }

    fn message(&self) -> String {
        let fixed = match self {
            ApiError::Invalid { message, .. } | ApiError::Failed(message) => message,
            ApiError::Refused(refusal, _) => return refusal::message(refusal),
            ApiError::ModelNotFound(name) => {
                return format!("The model {name:?} does not exist here; see /v1/models.");
            }
            ApiError::PathNotFound(path) => return format!("There is nothing at {path}."),
            ApiError::MethodNotAllowed(allow) => {
                return format!("This path takes {allow} requests only.");
            }
            ApiError::BodyTooLarge(limit) => {
                return format!("The body is larger than the limit of {limit} bytes.");
            }
            ApiError::Unauthorized => {
                "Missing or wrong API key: send it as `Authorization: Bearer KEY`."
            }
            ApiError::NotLocal => {
                "Only the machine that the server runs on may do this, and not through a proxy."
            }
            ApiError::NotJson => "Send the body as `content-type: application/json`.",
            ApiError::BodyTimeout => "The body did not arrive in time.",
            ApiError::Expired(..) => {
                "The request waited until its deadline could not be met any more."
            }
            ApiError::Loading => "The model is still being loaded.",
            ApiError::Draining => "The server is shutting down.",
            ApiError::ShutDown => "The server shut down before the answer was complete.",
        };
        fixed.to_owned()
    }

    /// The status that it is answered with.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            ApiError::Invalid { .. } => StatusCode::BAD_REQUEST,
            ApiError::Unauthorized => StatusCode::UNAUTHORIZED,
            ApiError::NotLocal => StatusCode::FORBIDDEN,
            ApiError::ModelNotFound(_) | ApiError::PathNotFound(_) => StatusCode::NOT_FOUND,
            ApiError::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            ApiError::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ApiError::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            ApiError::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            ApiError::Refused(Refusal::Shed(shed), overload) => match shed.reason {
                ShedReason::Draining => StatusCode::SERVICE_UNAVAILABLE,
                _ => overload.0,
            },
            ApiError::Refused(
                Refusal::Unsatisfiable { .. } | Refusal::NeverFits { .. } | Refusal::Invalid(_),
                _,
            ) => StatusCode::BAD_REQUEST,
            ApiError::Refused(Refusal::EngineDead, _)
            | ApiError::Loading
            | ApiError::Draining
            | ApiError::ShutDown => StatusCode::SERVICE_UNAVAILABLE,
            ApiError::Expired(_, overload) => overload.0,
            ApiError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn retry(&self) -> Option<Retry> {
        let soon = Retry { after: Micros::from_millis(2_000), worth_it: true };
        match self {
            // Another replica, or the one that takes its place.
            ApiError::Refused(Refusal::Shed(shed), _) if shed.reason == ShedReason::Draining => {
                Some(soon)
            }
            ApiError::Refused(Refusal::Shed(shed), _) => {
                Some(Retry { after: shed.retry_after, worth_it: shed.should_retry })
            }
            ApiError::Expired(after, _) => Some(Retry { after: *after, worth_it: true }),
            ApiError::Refused(Refusal::EngineDead, _)
            | ApiError::Loading
            | ApiError::Draining
            | ApiError::ShutDown => Some(soon),
            _ => None,
        }
    }
}

/// Whole seconds, rounded up, within 1 and 60: what every official SDK honours.
fn whole_seconds(after: Micros) -> u64 {
    after.0.div_ceil(1_000_000).clamp(1, 60)
}

impl Retry {
    fn write(self, headers: &mut HeaderMap) {
        let millis = self.after.0.div_ceil(1_000).clamp(1, 60_000);
        headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(self.after)));
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis));
        let worth_it = if self.worth_it { "true" } else { "false" };
        headers.insert(SHOULD_RETRY, HeaderValue::from_static(worth_it));
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), axum::Json(self.body())).into_response();
        let headers = response.headers_mut();
        match &self {
            ApiError::Refused(refusal, _) => Explanation::of(refusal).write(self.code(), headers),
            ApiError::Expired(..) => Explanation::default().write(self.code(), headers),
            _ => {}
        }
        match &self {
            ApiError::MethodNotAllowed(allow) => {
                headers.insert(ALLOW, HeaderValue::from_static(allow));
            }
            ApiError::Refused(Refusal::Unsatisfiable { .. } | Refusal::NeverFits { .. }, _) => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            other => {
                if let Some(retry) = other.retry() {
                    retry.write(headers);
                }
            }
        }
        response
    }
}

#[cfg(test)]
mod tests;
