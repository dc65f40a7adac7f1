//! API keys: a bearer token on every path that reaches the model. A key says whose it is.

use std::hint::black_box;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;
use scheduler::TenantId;

use crate::error::ApiError;
use crate::state::App;

/// Lets a request pass if the server is open or the request brings one of its keys.
///
/// # Errors
/// [`ApiError::Unauthorized`].
pub async fn require_key(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let tenant = if app.api_keys.is_empty() {
        TenantId::DEFAULT
    } else {
        let owner = bearer(request.headers()).and_then(|key| owner(&app.api_keys, key));
        owner.ok_or(ApiError::Unauthorized)?
    };
    request.extensions_mut().insert(KeyOwner(tenant));
    Ok(next.run(request).await)
}

/// Whose key a request has brought; the default tenant's if the server is open.
#[derive(Clone, Copy, Debug)]
pub struct KeyOwner(pub TenantId);

/// The token of `Authorization: Bearer TOKEN`; the scheme's case does not matter.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Compares with every key, so that time tells nothing about which one it was. No key is listed
/// twice.
fn owner(keys: &[(String, TenantId)], key: &[u8]) -> Option<TenantId> {
    let (mut found, mut owner) = (false, 0);
    for (known, tenant) in keys {
        let is_it = equal(known.as_bytes(), key);
        found |= is_it;
        owner |= black_box(u8::from(is_it) * tenant.0);
    }
    found.then_some(TenantId(owner))
}

/// Equality whose time depends on the lengths only.
fn equal(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |seen, (a, b)| black_box(seen | (a ^ b)));
    a.len() == b.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn token(value: &'static str) -> Option<Vec<u8>> {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
        bearer(&headers).map(<[u8]>::to_vec)
    }

    #[test]
    fn only_bearer_tokens_are_read() {
        assert_eq!(token("Bearer secret").as_deref(), Some(&b"secret"[..]));
        assert_eq!(token("bearer  secret").as_deref(), Some(&b"secret"[..]));
        for other in ["secret", "Basic secret", "Bearer", "Bearersecret"] {
            assert_eq!(token(other), None, "{other}");
        }
    }

    #[test]
    fn a_key_says_whose_it_is() {
        let keys = [("a", 0), ("bb", 3), ("cc", 1)];
        let keys = keys.map(|(key, tenant)| (key.to_owned(), TenantId(tenant)));
        let of = |key: &str| owner(&keys, key.as_bytes()).map(|tenant| tenant.0);
        assert_eq!(["a", "bb", "cc", "b", ""].map(of), [Some(0), Some(3), Some(1), None, None]);
    }

    #[test]
    fn keys_must_match_in_full() {
        assert!(equal(b"secret", b"secret"));
        for other in [&b""[..], b"secre", b"secretx", b"sEcret"] {
            assert!(!equal(b"secret", other));
        }
    }
}
