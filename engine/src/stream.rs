//! What goes out: updates of one request, and the way back for clients that leave or have enough.

use std::sync::{Arc, Mutex, PoisonError};

use scheduler::{FinishReason, Forecast, Micros, RequestId, SeqId};
use tokio::sync::mpsc;

use crate::handle::Inner;
use crate::sampling::TokenLogprobs;

/// What a stream yields. Each choice ends in exactly one `Finished`; or the whole request ends with
/// one `Expired` or `Failed`.
#[derive(Clone, Debug)]
pub enum Update {
    /// A token of a choice.
    Token {
        /// Which choice.
        choice: u32,
        /// Token id. The last token of a choice is delivered too, unless it is an end token.
        token: u32,
        /// Log-probabilities, if asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// A choice is complete.
    Finished {
        /// Which choice.
        choice: u32,
        /// Why.
        reason: FinishReason,
        /// The stop token that ended it, if a client's stop token did.
        stop_token: Option<u32>,
        /// Tokens generated, the end token included.
        output_tokens: u32,
    },
    /// So many tokens of a prompt were found in the prefix cache. [`TokenStream`] adds them up and
    /// does not yield this.
    Cached(u32),
    /// The request waited until its deadline had become impossible.
    Expired,
    /// The request failed.
    Failed(String),
}

/// What was left of the queue of a class once a request had been admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Sequences that may wait.
    pub places: u32,
    /// How many more may.
    pub free: u32,
    /// Device time of everything of the class that was admitted and had not ended.
    pub outstanding: Micros,
}

/// The answer to one admitted request. Dropping it cancels what is left of it.
#[derive(Debug)]
pub struct TokenStream {
    id: RequestId,
    forecast: Forecast,
    room: Room,
    cached_tokens: u32,
    updates: mpsc::Receiver<Update>,
    engine: Arc<Inner>,
    /// Whether each choice goes on.
    open: Vec<bool>,
    /// How many do.
    left: usize,
}

impl TokenStream {
    pub(crate) fn new(
        id: RequestId,
        (forecast, room): (Forecast, Room),
        updates: mpsc::Receiver<Update>,
        engine: Arc<Inner>,
        choices: usize,
    ) -> TokenStream {
        TokenStream {
            id,
            forecast,
            room,
            cached_tokens: 0,
            updates,
            engine,
            open: vec![true; choices],
            left: choices,
        }
    }

    /// The request's id.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// What was predicted at admission.
    #[must_use]
    pub fn forecast(&self) -> Forecast {
        self.forecast
    }

    /// What was left for others.
    #[must_use]
    pub fn room(&self) -> Room {
        self.room
    }

    /// Prompt tokens that were found in the prefix cache, of those prompts that have begun. Known
    /// before the first token is yielded.
    #[must_use]
    pub const fn cached_tokens(&self) -> u32 {
        self.cached_tokens
    }

    /// The next update; `None` after the last. Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<Update> {
        while self.left > 0 {
            let update = self.updates.recv().await;
            let update = update.unwrap_or_else(|| Update::Failed("the engine has stopped".into()));
            let news = match update {
                Update::Token { choice, .. } => self.open[choice as usize],
                Update::Finished { choice, .. } => self.close(choice),
                Update::Cached(tokens) => {
                    self.cached_tokens += tokens;
                    false
                }
                Update::Expired | Update::Failed(_) => {
                    self.left = 0;
                    true
                }
            };
            if news {
                return Some(update);
            }
        }
        None
    }

    /// A stop string was found in the text of `choice`: it is complete. No more updates of it come.
    pub fn stop(&mut self, choice: u32) {
        if self.close(choice) {
            self.engine.leave(Departure::Stop(SeqId { request: self.id, index: choice }));
        }
    }

    /// Returns whether the choice was open.
    fn close(&mut self, choice: u32) -> bool {
        let was_open = self.open.get_mut(choice as usize).is_some_and(std::mem::take);
        self.left -= usize::from(was_open);
        was_open
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if self.left > 0 {
            self.engine.leave(Departure::Cancel(self.id));
        }
    }
}

/// Something that a client does not want any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// The rest of a request.
    Cancel(RequestId),
    /// The rest of a sequence.
    Stop(SeqId),
}

/// What the engine thread finds when it looks between two steps.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    pub(crate) departures: Vec<Departure>,
    pub(crate) shutdown: bool,
}

impl Mail {
    fn is_empty(&self) -> bool {
        self.departures.is_empty() && !self.shutdown
    }
}

/// Where departures wait for the engine thread. Unlike a bounded channel it always has room, and
/// still it is bounded: a live request leaves at most once, and each of its choices stops at most
/// once.
#[derive(Debug, Default)]
pub(crate) struct Mailbox(Mutex<Mail>);

impl Mailbox {
    /// Changes the mail. Returns whether the engine thread has to be woken: there was none before.
    pub(crate) fn put(&self, change: impl FnOnce(&mut Mail)) -> bool {
        let mut mail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = mail.is_empty();
        change(&mut mail);
        was_empty
    }

    /// Everything that has arrived.
    pub(crate) fn take(&self) -> Mail {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
