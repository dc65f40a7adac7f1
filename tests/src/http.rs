//! Requests to a [`Server`] and their answers, over the load generator's client.

use http_body_util::BodyExt;
use hyper::body::Bytes;
use hyper::{HeaderMap, Method};
use load::client::{Client, Exchange};
use load::sse::SseParser;
use serde_json::Value;

use crate::process::Server;

/// A whole answer.
#[derive(Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl Reply {
    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is not.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {} {}", self.status, self.text()))
    }

    /// The error object of an answer that has to have one.
    ///
    /// # Panics
    /// If it has none in OpenAI's form.
    #[must_use]
    pub fn error(&self) -> Value {
        let error = self.json()["error"].take();
        for member in ["message", "type", "param", "code"] {
            assert!(error.get(member).is_some(), "no `{member}` in {}", self.text());
        }
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
        error
    }

    /// The header `name`, or an empty string.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// The data of each server-sent event.
    ///
    /// # Panics
    /// If the body is not a stream of events.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{}", self.text());
        assert!(self.header("content-type").starts_with("text/event-stream"));
        let mut events = Vec::new();
        SseParser::default()
            .push(&self.body, |event| events.push(String::from_utf8_lossy(event).into_owned()))
            .unwrap();
        events
    }

    /// The chunks of a stream that ended well: all events but the closing `[DONE]`.
    ///
    /// # Panics
    /// If the last event is not `[DONE]`, or another is not JSON.
    #[must_use]
    pub fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", self.text());
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

impl Server {
    /// Sends a request with further headers; the answer's body is still to come.
    ///
    /// # Panics
    /// If no answer begins.
    pub async fn begin(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
        headers: &[&str],
    ) -> Exchange {
        let headers: Vec<String> = headers.iter().map(|line| (*line).to_owned()).collect();
        let client = Client::new(self.url(), None, &headers).unwrap();
        client
            .send(method, path, body.into())
            .await
            .unwrap_or_else(|error| panic!("{path}: {error:#}\n{}", self.log()))
    }

    /// Sends a request with further headers and reads the whole answer.
    ///
    /// # Panics
    /// If there is none.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
        headers: &[&str],
    ) -> Reply {
        let exchange = self.begin(method, path, body, headers).await;
        let (parts, body) = exchange.response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, "", &[]).await
    }

    /// POST of a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_with(path, body, &[]).await
    }

    /// POST of a JSON body with further headers.
    pub async fn post_with(&self, path: &str, body: &Value, headers: &[&str]) -> Reply {
        self.send(Method::POST, path, body.to_string(), headers).await
    }
}
