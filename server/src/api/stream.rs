//! The answer as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;

use super::answer::Answer;
use crate::endpoint::Endpoint;
use crate::generation::Piece;
use crate::openai::chat::{ChatChunk, ChatChunkChoice};
use crate::openai::common::{StreamOptions, Usage};
use crate::openai::completion::{CompletionChoice, CompletionChunk};
use crate::openai::logprobs::TokenEntry;

/// A comment is sent when nothing was for this long, so that proxies keep the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Tells nginx not to collect the stream before it passes it on.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Answers with a stream; the request is admitted already.
#[must_use]
pub fn respond(answer: Answer, options: StreamOptions) -> Response {
    let spoken = vec![false; answer.generation.num_choices()];
    let events = Events { answer, options, spoken, ready: VecDeque::new(), ended: false };
    let events = stream::unfold(events, |mut events| async {
        let event = events.next().await?;
        Some((Ok::<Event, Infallible>(event), events))
    });
    let mut response =
        Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.headers_mut().insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// Turns pieces into events: the role first, one finish chunk for each choice, usage if asked for,
/// `[DONE]`. An answer that ends early ends in an error event instead.
struct Events {
    answer: Answer,
    options: StreamOptions,
    /// Choices whose first chunk is out.
    spoken: Vec<bool>,
    ready: VecDeque<Event>,
    ended: bool,
}

impl Events {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            match self.answer.generation.next().await {
                Some(Ok(piece)) => self.piece(piece),
                Some(Err(interruption)) => {
                    self.ended = true;
                    let error = self.answer.error(interruption);
                    self.ready.push_back(json(&error.body()));
                }
                None => self.end(),
            }
        }
    }

    fn piece(&mut self, piece: Piece) {
        match (self.answer.endpoint, piece) {
            (Endpoint::Chat, Piece::Text { choice, text, entries }) => {
                self.speak(choice);
                let entries = self.wanted(&entries);
                let choice = ChatChunkChoice::text(choice, text, entries);
                self.push_chat(choice);
            }
            (Endpoint::Chat, Piece::Finish { choice, reason, stop_token }) => {
                self.speak(choice);
                self.push_chat(ChatChunkChoice::finish(choice, reason, stop_token));
            }
            (Endpoint::Completion, Piece::Text { choice, text, entries }) => {
                let choice = CompletionChoice::text(choice, text, self.wanted(&entries));
                self.push_completion(choice);
            }
            (Endpoint::Completion, Piece::Finish { choice, reason, stop_token }) => {
                let choice = CompletionChoice::text(choice, String::new(), None);
                self.push_completion(choice.finish(reason, stop_token));
            }
        }
    }

    fn wanted<'a>(&self, entries: &'a [TokenEntry]) -> Option<&'a [TokenEntry]> {
        self.answer.logprobs.then_some(entries)
    }

    /// The role comes just before a choice's first text, not earlier: clients take the first chunk
    /// for the first token when they measure.
    fn speak(&mut self, choice: u32) {
        if !std::mem::replace(&mut self.spoken[choice as usize], true) {
            self.push_chat(ChatChunkChoice::role(choice));
        }
    }

    fn push_chat(&mut self, choice: ChatChunkChoice) {
        let usage = self.running_usage();
        let head = &self.answer.head;
        self.ready.push_back(json(&ChatChunk { head, choices: &[choice], usage }));
    }

    fn push_completion(&mut self, choice: CompletionChoice) {
        let usage = self.running_usage();
        let head = &self.answer.head;
        self.ready.push_back(json(&CompletionChunk { head, choices: &[choice], usage }));
    }

    /// The usage so far, if every chunk is to carry it.
    fn running_usage(&self) -> Option<Usage> {
        let wanted = self.options.include_usage && self.options.continuous_usage_stats;
        wanted.then(|| self.answer.generation.usage())
    }

    fn end(&mut self) {
        self.ended = true;
        if self.options.include_usage {
            let (head, usage) = (&self.answer.head, Some(self.answer.generation.usage()));
            self.ready.push_back(match self.answer.endpoint {
                Endpoint::Chat => json(&ChatChunk { head, choices: &[], usage }),
                Endpoint::Completion => json(&CompletionChunk { head, choices: &[], usage }),
            });
        }
        self.ready.push_back(Event::default().data("[DONE]"));
    }
}

fn json(value: &impl Serialize) -> Event {
    // Our own types: maps have text keys and numbers are finite.
    Event::default().data(serde_json::to_string(value).expect("wire types serialise"))
}
