//! Which attempts belong to one request.
//!
//! No client says so, but the attempts of one request have the same key and the same body. A hash
//! of both, with a seed that is new at each start, tells retries apart and says nothing else.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

/// Of a long body only so many bytes at its beginning and at its end are looked at: conversations
/// differ at their end.
const HEAD: usize = 1 << 10;
const TAIL: usize = 3 << 10;

/// Hashes requests.
#[derive(Debug, Default)]
pub struct Origins(RandomState);

impl Origins {
    /// The same number for each attempt of a request.
    #[must_use]
    pub fn of(&self, headers: &HeaderMap, body: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        headers.get(AUTHORIZATION).map(|key| key.as_bytes()).hash(&mut hasher);
        body.len().hash(&mut hasher);
        hasher.write(&body[..body.len().min(HEAD)]);
        hasher.write(&body[body.len().saturating_sub(TAIL)..]);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn requests_differ_by_key_by_beginning_and_by_end() {
        let origins = Origins::default();
        let key = |key| HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(key))]);
        let body = vec![b'x'; 10_000];
        let of = |at: Option<usize>, name| {
            let mut body = body.clone();
            if let Some(at) = at {
                body[at] = b'y';
            }
            origins.of(&key(name), &body)
        };
        let one = of(None, "Bearer a");
        assert_eq!(of(None, "Bearer a"), one);
        for other in [of(None, "Bearer b"), of(Some(0), "Bearer a"), of(Some(9_999), "Bearer a")] {
            assert_ne!(other, one);
        }
        assert_ne!(origins.of(&HeaderMap::new(), b""), origins.of(&HeaderMap::new(), b"x"));
    }
}
