//! `x-request-id`: echoed on every answer and written to every log line of the request, if the
//! client sent a sane one; made up otherwise.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

const NAME: HeaderName = HeaderName::from_static("x-request-id");
/// Longer ids are replaced: they go into every log line.
const MAX_LEN: usize = 128;

/// What a request is called: printable ASCII, at most 128 characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(HeaderValue);

impl Name {
    fn sane(id: &HeaderValue) -> Option<Name> {
        let bytes = id.as_bytes();
        let sane = (1..=MAX_LEN).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic);
        sane.then(|| Name(id.clone()))
    }

    /// A name that no other request has.
    #[must_use]
    pub fn made_up() -> Name {
        let name = format!("req-{:032x}", rand::random::<u128>());
        Name(HeaderValue::from_str(&name).expect("hex is ASCII"))
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.to_str().expect("checked to be printable ASCII")
    }
}

/// Tells the handlers the name, and puts it on the answer.
pub async fn attach(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(&NAME).and_then(Name::sane);
    let name = given.unwrap_or_else(Name::made_up);
    request.extensions_mut().insert(name.clone());
    let mut response = next.run(request).await;
    response.headers_mut().insert(NAME, name.0);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_printable() {
        let sane = |bytes: &[u8]| Name::sane(&HeaderValue::from_bytes(bytes).expect("a value"));
        assert_eq!(sane(b"kit-123").expect("sane").as_str(), "kit-123");
        assert!(sane(&[b'a'; MAX_LEN]).is_some());
        for other in [&b""[..], &[b'a'; MAX_LEN + 1], b"a b", b"a\tb", b"\xc3\xa4"] {
            assert!(sane(other).is_none());
        }
        assert!(Name::sane(&Name::made_up().0).is_some());
    }
}
