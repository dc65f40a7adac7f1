//! One measured request: what is sent, and what is kept of the answer.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt;
use hyper::body::Bytes;
use hyper::header::RETRY_AFTER;
use hyper::{Method, StatusCode};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};

use crate::arrivals::Arrival;
use crate::client::{Client, Exchange};
use crate::outcome::{End, Record};
use crate::prompt::{self, Calibration, Form};
use crate::sse::{SseParser, has_object, has_text};

/// How much of an unexpected error is kept, to be shown.
const MAX_COMPLAINT_BYTES: usize = 300;

/// Which endpoint is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Api {
    /// `/v1/completions`
    Completions,
    /// `/v1/chat/completions`
    Chat,
}

impl Api {
    fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }

    /// The member of a chunk that carries text.
    fn text_key(self) -> &'static str {
        match self {
            Self::Completions => "text",
            Self::Chat => "content",
        }
    }
}

/// What every request of a run has in common.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where it goes.
    pub client: Client,
    /// Which endpoint.
    pub api: Api,
    /// The model's name as the server knows it.
    pub model: String,
    /// Text or token ids.
    pub form: Form,
    /// Members added to the body, or replacing ours.
    pub extra: Map<String, Value>,
    /// Every answer may have this many tokens, and ends where the model ends it.
    pub open_ended: Option<u32>,
    /// After this long a client gives up.
    pub timeout: Duration,
}

impl Target {
    /// The name of the first model that the server offers.
    ///
    /// # Errors
    /// If the server cannot be asked or offers none.
    pub async fn first_model(client: &Client) -> Result<String> {
        let models = client.ask(Method::GET, "/v1/models", Bytes::new()).await?;
        let name = models["data"][0]["id"].as_str().context("the server names no model")?;
        Ok(name.to_owned())
    }

    /// Measures how many tokens the server makes of our words, with two short calls. A server that
    /// does not count prompt tokens leaves the default of one token a word.
    ///
    /// # Errors
    /// If the server does not answer a short request.
    pub async fn calibrate(&mut self, seed: u64) -> Result<()> {
        let short = (32, self.prompt_tokens_of(32, seed).await?);
        let long = (96, self.prompt_tokens_of(96, seed.wrapping_add(1)).await?);
        self.form = Form::Text(match (short.1, long.1) {
            (Some(few), Some(many)) => Calibration::fit((short.0, few), (long.0, many)),
            _ => Calibration::default(),
        });
        Ok(())
    }

    async fn prompt_tokens_of(&self, words: u32, seed: u64) -> Result<Option<u32>> {
        let text = Value::String(prompt::text(words, seed));
        let body = self.body(text, 1, false);
        let answer = self.client.ask(Method::POST, self.api.path(), body).await?;
        Ok(answer["usage"]["prompt_tokens"].as_u64().and_then(|n| u32::try_from(n).ok()))
    }

    fn body(&self, prompt: Value, max_tokens: u32, stream: bool) -> Bytes {
        let mut body = json!({
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": self.open_ended.is_none(),
            "stream": stream,
        });
        match self.api {
            Api::Completions => body["prompt"] = prompt,
            Api::Chat => body["messages"] = json!([{"role": "user", "content": prompt}]),
        }
        if stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        for (name, value) in &self.extra {
            body[name] = value.clone();
        }
        Bytes::from(body.to_string())
    }

    /// Sends one request and follows it to its end. Times count from `scheduled`, and so does the
    /// client's patience.
    pub async fn measure(&self, scheduled: Instant, arrival: Arrival, seed: u64) -> Record {
        let prompt = match self.form {
            Form::Ids => json!(prompt::ids(arrival.prompt_tokens, seed)),
            Form::Text(calibration) => {
                Value::String(prompt::text(calibration.words(arrival.prompt_tokens), seed))
            }
        };
        let body = self.body(prompt, self.open_ended.unwrap_or(arrival.max_tokens), true);
        let mut record = Record::new(arrival);
        let answer = self.follow(scheduled, body, &mut record);
        let end = timeout_at(scheduled + self.timeout, answer).await;
        record.end = match end {
            Err(_) => End::TimedOut,
            Ok(Ok(end)) => end,
            // What went wrong is told by how far it came.
            Ok(Err(_)) if record.status.is_some() => End::Broken,
            Ok(Err(_)) => End::Unreachable,
        };
        record.ended = scheduled.elapsed();
        record
    }

    async fn follow(&self, scheduled: Instant, body: Bytes, record: &mut Record) -> Result<End> {
        let exchange = self.client.send(Method::POST, self.api.path(), body).await?;
        let status = exchange.response.status();
        record.status = Some(status.as_u16());
        if status.is_success() {
            self.follow_stream(scheduled, exchange, record).await
        } else {
            refusal(status, exchange, record).await
        }
    }

    async fn follow_stream(
        &self,
        scheduled: Instant,
        mut exchange: Exchange,
        record: &mut Record,
    ) -> Result<End> {
        let mut parser = SseParser::default();
        let mut end = None;
        while end.is_none() {
            let Some(frame) = exchange.response.frame().await else { break };
            let Ok(bytes) = frame?.into_data() else { continue };
            let now = scheduled.elapsed();
            parser.push(&bytes, |event| {
                end = end.or_else(|| self.on_event(event, now, record));
            })?;
        }
        Ok(end.unwrap_or(End::Broken))
    }

    /// Notes what one event carries; gives the end if it is one.
    fn on_event(&self, event: &[u8], now: Duration, record: &mut Record) -> Option<End> {
        if event == b"[DONE]" {
            return Some(End::Completed);
        }
        if has_object(event, "error") {
            return Some(if is_expired(event) { End::Expired } else { End::Broken });
        }
        if has_text(event, self.api.text_key()) {
            record.text_at(now);
        }
        if has_object(event, "usage") {
            read_usage(event, record);
        }
        None
    }
}

/// Keeps the server's own counts; servers that repeat them in each chunk end with the full ones.
fn read_usage(event: &[u8], record: &mut Record) {
    let Ok(chunk) = serde_json::from_slice::<Value>(event) else { return };
    let count = |name| chunk["usage"][name].as_u64().and_then(|n| u32::try_from(n).ok());
    record.usage_tokens = count("completion_tokens").or(record.usage_tokens);
    record.prompt_tokens = count("prompt_tokens").or(record.prompt_tokens);
}

/// Reads an answer that is not a success to its end and tells which kind it is.
async fn refusal(status: StatusCode, exchange: Exchange, record: &mut Record) -> Result<End> {
    let header = exchange.response.headers().get(RETRY_AFTER);
    record.retry_after = header.and_then(|value| value.to_str().ok()?.parse().ok());
    let body = exchange.whole_body().await?;
    let is_load = matches!(status.as_u16(), 429 | 503 | 529);
    if !is_load {
        let text = String::from_utf8_lossy(&body[..body.len().min(MAX_COMPLAINT_BYTES)]);
        record.complaint = Some(format!("{status}: {text}"));
    }
    Ok(match (is_load, is_expired(&body)) {
        (true, true) => End::Expired,
        (true, false) => End::Shed,
        (false, _) => End::Refused,
    })
}

/// The error is that of a request which was let in and could not make its deadline any more.
fn is_expired(error: &[u8]) -> bool {
    serde_json::from_slice::<Value>(error).is_ok_and(|error| error["error"]["code"] == "expired")
}

/// Reads `--extra-body`.
///
/// # Errors
/// If the text is not a JSON object.
pub fn parse_extra(text: Option<&str>) -> Result<Map<String, Value>> {
    let Some(text) = text else { return Ok(Map::new()) };
    let value: Value = serde_json::from_str(text).context("--extra-body is not JSON")?;
    ensure!(value.is_object(), "--extra-body must be a JSON object");
    Ok(value.as_object().cloned().unwrap_or_default())
}
