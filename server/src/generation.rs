//! From the engine's updates to pieces of text: the one path that whole answers and streams share,
//! so that both say the same.

use std::collections::VecDeque;

use engine::text::{Pushed, TextAssembler};
use engine::{TokenLogprobs, TokenStream, Update};
use models::Tokenizer;
use scheduler::FinishReason;
use tokio::sync::watch;

use crate::openai::common::{PromptTokens, Usage};
use crate::openai::logprobs::{Candidate, TokenEntry};
use crate::openai::sampling::TextOptions;

/// What a generation yields.
#[derive(Debug)]
pub enum Piece {
    /// More of a choice.
    Text {
        /// Which choice.
        choice: u32,
        /// May be empty if only log-probabilities came.
        text: String,
        /// The tokens that it is made of, if they were asked for.
        entries: Vec<TokenEntry>,
    },
    /// A choice is complete.
    Finish {
        /// Which choice.
        choice: u32,
        /// `stop` or `length`.
        reason: &'static str,
        /// The client's stop token that ended it.
        stop_token: Option<u32>,
    },
}

/// Why a generation ended before its end.
#[derive(Debug)]
pub enum Interruption {
    /// It waited until its deadline had become impossible.
    Expired,
    /// The server shuts down.
    ShutDown,
    /// A step failed.
    Failed(String),
}

/// What a generation needs besides the engine's updates.
#[derive(Debug)]
pub struct Setup {
    /// Turns tokens into text.
    pub tokenizer: Tokenizer,
    /// Stops and special tokens.
    pub text: TextOptions,
    /// What each choice's text begins with (the echoed prompt); one entry for each choice.
    pub prefixes: Vec<String>,
    /// Tokens of all prompts.
    pub prompt_tokens: u32,
    /// Turns true when what is still running must end.
    pub closing: watch::Receiver<bool>,
}

/// One answer in the making. Dropping it cancels it.
pub struct Generation {
    stream: TokenStream,
    tokenizer: Tokenizer,
    closing: watch::Receiver<bool>,
    choices: Vec<Choice>,
    ready: VecDeque<Piece>,
    open: usize,
    usage: Usage,
}

impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation").field("open", &self.open).finish_non_exhaustive()
    }
}

struct Choice {
    assembler: TextAssembler,
    prefix: Option<String>,
    /// Tokens whose text is still held back.
    entries: Vec<TokenEntry>,
    /// Characters before the next token.
    offset: usize,
    /// Tokens delivered.
    tokens: u32,
    open: bool,
}

impl Generation {
    /// Follows `stream`.
    #[must_use]
    pub fn new(stream: TokenStream, setup: Setup) -> Generation {
        let Setup { tokenizer, text, prefixes, prompt_tokens, closing } = setup;
        let choice = |prefix: String| Choice {
            assembler: TextAssembler::new(
                tokenizer.clone(),
                text.stops.clone(),
                text.include_stop,
                text.skip_special,
            ),
            offset: prefix.chars().count(),
            prefix: (!prefix.is_empty()).then_some(prefix),
            entries: Vec::new(),
            tokens: 0,
            open: true,
        };
        let choices: Vec<Choice> = prefixes.into_iter().map(choice).collect();
        Generation {
            stream,
            closing,
            open: choices.len(),
            choices,
            ready: VecDeque::new(),
            usage: Usage::new(prompt_tokens, 0),
            tokenizer,
        }
    }

    /// Tokens so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let cached_tokens = self.stream.cached_tokens();
        Usage { prompt_tokens_details: PromptTokens { cached_tokens }, ..self.usage }
    }

    /// How many choices there are.
    #[must_use]
    pub fn num_choices(&self) -> usize {
        self.choices.len()
    }

    /// The next piece; `None` after the last choice is complete.
    ///
    /// # Errors
    /// The whole request ended early; nothing follows.
    pub async fn next(&mut self) -> Option<Result<Piece, Interruption>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(Ok(piece));
            }
            if self.open == 0 {
                return None;
            }
            let update = tokio::select! {
                update = self.stream.recv() => Some(update),
                () = closed(&mut self.closing) => None,
            };
            let cause = match update {
                Some(Some(Update::Token { choice, token, logprobs })) => {
                    self.token(choice, token, logprobs);
                    continue;
                }
                Some(Some(Update::Finished { choice, reason, stop_token, output_tokens })) => {
                    self.finished(choice, reason, stop_token, output_tokens);
                    continue;
                }
                Some(Some(Update::Cached(_))) => continue,
                Some(Some(Update::Expired)) => Interruption::Expired,
                Some(Some(Update::Failed(cause))) => Interruption::Failed(cause),
                Some(None) => Interruption::Failed("The engine stopped.".to_owned()),
                None => Interruption::ShutDown,
            };
            return Some(Err(self.interrupt(cause)));
        }
    }

    fn interrupt(&mut self, cause: Interruption) -> Interruption {
        self.open = 0;
        self.ready.clear();
        cause
    }

    fn token(&mut self, index: u32, token: u32, logprobs: Option<TokenLogprobs>) {
        let Some(choice) = self.choices.get_mut(index as usize).filter(|choice| choice.open) else {
            return;
        };
        choice.tokens += 1;
        self.usage = self.usage.plus(1);
        if let Some(logprobs) = logprobs {
            let entry = entry(&self.tokenizer, token, &logprobs, choice.offset);
            choice.offset += entry.chosen.text().chars().count();
            choice.entries.push(entry);
        }
        match choice.assembler.push(token) {
            Pushed::Text(text) => {
                if let Some(piece) = choice.piece(index, text) {
                    self.ready.push_back(piece);
                }
            }
            Pushed::Stopped(text) => {
                self.stream.stop(index);
                self.close(index, text, "stop", None);
            }
        }
    }

    fn finished(&mut self, index: u32, reason: FinishReason, stop: Option<u32>, tokens: u32) {
        let Some(choice) = self.choices.get_mut(index as usize).filter(|choice| choice.open) else {
            return;
        };
        // An end token counts, but is not delivered.
        self.usage = self.usage.plus(tokens.saturating_sub(choice.tokens));
        let rest = choice.assembler.finish();
        let reason = match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        };
        self.close(index, rest, reason, stop);
    }

    fn close(&mut self, index: u32, rest: String, reason: &'static str, stop_token: Option<u32>) {
        let choice = &mut self.choices[index as usize];
        choice.open = false;
        self.ready.extend(choice.piece(index, rest));
        self.ready.push_back(Piece::Finish { choice: index, reason, stop_token });
        self.open -= 1;
    }
}

impl Choice {
    /// `text` with what belongs to it, or nothing if there is nothing to say yet. Tokens wait for
    /// the text that they are part of.
    fn piece(&mut self, index: u32, text: String) -> Option<Piece> {
        let text = match self.prefix.take() {
            Some(prefix) => prefix + &text,
            None => text,
        };
        let nothing = text.is_empty() && (self.open || self.entries.is_empty());
        if nothing {
            return None;
        }
        let entries = std::mem::take(&mut self.entries);
        Some(Piece::Text { choice: index, text, entries })
    }
}

/// Returns when answers must end; never if nobody is left to say so.
async fn closed(closing: &mut watch::Receiver<bool>) {
    if closing.wait_for(|closing| *closing).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn entry(tokenizer: &Tokenizer, token: u32, logprobs: &TokenLogprobs, offset: usize) -> TokenEntry {
    let candidate = |token, logprob| Candidate {
        bytes: tokenizer.token_bytes(token).unwrap_or_default().to_vec(),
        logprob,
    };
    let top = logprobs.top.iter().map(|(token, logprob)| candidate(*token, *logprob)).collect();
    TokenEntry { chosen: candidate(token, logprobs.chosen), top, offset }
}
