//! `x-request-id`: echoed on every answer if the client sent a sane one, made up otherwise.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

const NAME: HeaderName = HeaderName::from_static("x-request-id");
/// Longer ids are replaced: they go into every log line.
const MAX_LEN: usize = 128;

/// Puts the id on the answer.
pub async fn attach(request: Request, next: Next) -> Response {
    let id = request.headers().get(&NAME).filter(|id| is_sane(id)).cloned();
    let mut response = next.run(request).await;
    response.headers_mut().insert(NAME, id.unwrap_or_else(made_up));
    response
}

fn is_sane(id: &HeaderValue) -> bool {
    let bytes = id.as_bytes();
    (1..=MAX_LEN).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}

fn made_up() -> HeaderValue {
    HeaderValue::from_str(&format!("req-{:032x}", rand::random::<u128>())).expect("hex is ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_bounded_and_printable() {
        let sane = |bytes: &[u8]| is_sane(&HeaderValue::from_bytes(bytes).expect("a header value"));
        assert!(sane(b"kit-123"));
        assert!(sane(&[b'a'; MAX_LEN]));
        for other in [&b""[..], &[b'a'; MAX_LEN + 1], b"a b", b"a\tb", b"\xc3\xa4"] {
            assert!(!sane(other));
        }
        assert!(is_sane(&made_up()));
    }
}
