//! A plain HTTP/1.1 client: one connection for each request, closed as soon as the caller drops it.
//!
//! One connection each is what a crowd of separate clients looks like to a server, and giving up
//! is then what it is in life: the socket closes.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Upper bound for answers that are read as a whole (model lists, errors).
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// For questions that no load depends on (which model, how many tokens).
const QUESTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Where requests go, and what each of them carries.
#[derive(Debug, Clone)]
pub struct Client {
    authority: String,
    prefix: String,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Client {
    /// A client for `url` (`http://host:port`, with or without `/v1` at its end); `headers` are
    /// `Name: value` lines sent with each request.
    ///
    /// # Errors
    /// If the URL is not plain http with a host, or a header is malformed.
    pub fn new(url: &str, api_key: Option<&str>, headers: &[String]) -> Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("`{url}` is not a URL"))?;
        ensure!(uri.scheme_str() == Some("http"), "`{url}`: only http:// URLs are supported");
        let authority = uri.authority().with_context(|| format!("`{url}` has no host"))?;
        let port = authority.port_u16().unwrap_or(80);
        let mut lines: Vec<(HeaderName, HeaderValue)> = Vec::new();
        for line in headers {
            let (name, value) =
                line.split_once(':').with_context(|| format!("header `{line}` has no colon"))?;
            lines.push((name.trim().parse()?, value.trim().parse()?));
        }
        if let Some(key) = api_key {
            lines.push((AUTHORIZATION, format!("Bearer {key}").parse()?));
        }
        let path = uri.path().trim_end_matches('/');
        Ok(Self {
            authority: format!("{}:{port}", authority.host()),
            prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
            headers: lines,
        })
    }

    /// Opens a connection and sends one request; returns once the head of the answer is there.
    ///
    /// # Errors
    /// If no connection can be made or it ends before the head of an answer.
    pub async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Exchange> {
        let stream = TcpStream::connect(&self.authority).await?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let driver = Driver(tokio::spawn(async move {
            // An error here reaches the caller through the answer or its body.
            drop(connection.await);
        }));
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let response = sender.send_request(request.body(Full::new(body))?).await?;
        Ok(Exchange { response, _driver: driver })
    }

    /// Asks a question whose whole answer is JSON.
    ///
    /// # Errors
    /// As [`Client::send`], after a minute, or if the answer is not a success or not JSON.
    pub async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Value> {
        let answer = async {
            let exchange = self.send(method, path, body).await?;
            let status = exchange.response.status();
            let bytes = exchange.whole_body().await?;
            if !status.is_success() {
                bail!("{status}: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(300)]));
            }
            Ok(serde_json::from_slice(&bytes)?)
        };
        tokio::time::timeout(QUESTION_TIMEOUT, answer)
            .await
            .context("no answer within a minute")
            .and_then(|result| result)
            .with_context(|| format!("asking http://{}{}{path}", self.authority, self.prefix))
    }
}

/// An answer under way. Dropping it closes the connection.
#[derive(Debug)]
pub struct Exchange {
    /// Head and body of the answer.
    pub response: Response<Incoming>,
    _driver: Driver,
}

impl Exchange {
    /// Reads the rest of the body, bounded to 4 MiB.
    ///
    /// # Errors
    /// If the connection breaks or the body is longer.
    pub async fn whole_body(self) -> Result<Bytes> {
        let collected = Limited::new(self.response.into_body(), MAX_ANSWER_BYTES)
            .collect()
            .await
            .map_err(anyhow::Error::from_boxed)?;
        Ok(collected.to_bytes())
    }
}

/// The task that moves the bytes of one connection; it dies with its owner.
#[derive(Debug)]
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_with_and_without_v1_mean_the_same_server() {
        for url in ["http://localhost:8000", "http://localhost:8000/", "http://localhost:8000/v1/"]
        {
            let client = Client::new(url, None, &[]).unwrap();
            assert_eq!((client.authority.as_str(), client.prefix.as_str()), ("localhost:8000", ""));
        }
        let behind = Client::new("http://gateway/team/v1", Some("k"), &[]).unwrap();
        assert_eq!((behind.authority.as_str(), behind.prefix.as_str()), ("gateway:80", "/team"));
        assert_eq!(behind.headers[0].1, "Bearer k");
    }

    #[test]
    fn bad_urls_and_headers_are_refused_with_their_text() {
        for url in ["https://localhost", "localhost:8000", "http://", "::"] {
            assert!(Client::new(url, None, &[]).is_err(), "{url}");
        }
        let error = Client::new("http://h", None, &["no colon".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("no colon"));
    }
}
