//! The handle that the server holds: submit, watch, drain.

use std::sync::Arc;

use models::ModelRunner;
use scheduler::{
    AdmissionMode, Class, ClassTable, Counts, Deadline, FinishReason, Forecast, Micros, RequestId,
    Shed,
};

use crate::clock::Clock;
use crate::observer::Observer;
use crate::sampling::{SamplingParams, TokenLogprobs};

/// Settings of the engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most sequences in a step.
    pub max_num_seqs: u32,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u32,
    /// Class settings. A `tpot` target of `Some(Micros::MAX)` stands for `auto`: four times the
    /// unloaded gap, measured at start.
    pub classes: ClassTable,
    /// How the gate decides.
    pub admission: AdmissionMode,
    /// The scheduling policy's name, one of [`scheduler::policy::NAMES`].
    pub policy: String,
    /// The model's end tokens.
    pub eos: Vec<u32>,
}

/// Why the engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no such policy.
    #[error("unknown scheduling policy {0:?}")]
    UnknownPolicy(String),
    /// The runner failed while it was measured.
    #[error("calibration failed: {0}")]
    Calibration(String),
    /// The thread could not be started.
    #[error("cannot start the engine thread: {0}")]
    Thread(String),
}

/// One prompt and how many answers it gets.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Token ids, at least one.
    pub tokens: Arc<[u32]>,
    /// Choices.
    pub n: u32,
}

/// A request as the server hands it in.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Service class.
    pub class: Class,
    /// When it reached the server.
    pub arrival: Micros,
    /// Targets that came with the request, absolute. A target that is absent here is filled in from
    /// the class's SLO.
    pub deadline: Deadline,
    /// How often the client retried already.
    pub retry: u32,
    /// The prompts, at least one. Choices are numbered prompt by prompt.
    pub prompts: Vec<Prompt>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
}

/// Why a submission was not taken.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// Too late or no room now.
    Shed(Shed),
    /// Would miss its explicit deadline even on an idle server.
    Unsatisfiable {
        /// Predicted time from arrival.
        predicted: Micros,
        /// Time from arrival that it may take at most.
        budget: Micros,
    },
    /// Needs more KV blocks than there are.
    NeverFits {
        /// Blocks needed.
        needed: u32,
        /// Blocks there are.
        available: u32,
    },
    /// The submission makes no sense (no prompt, a token outside the vocabulary); says what is wrong.
    Invalid(String),
    /// The engine has stopped.
    EngineDead,
}

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
    /// The request waited until its deadline had become impossible.
    Expired,
    /// The request failed.
    Failed(String),
}

/// The answer to one admitted request. Dropping it cancels what is left of it.
#[allow(missing_debug_implementations)]
pub struct TokenStream {}

impl TokenStream {
    /// The request's id.
    #[must_use]
    pub fn id(&self) -> RequestId {
        todo!()
    }
    /// What was predicted at admission.
    #[must_use]
    pub fn forecast(&self) -> Forecast {
        todo!()
    }
    /// The next update; `None` after the last.
    pub async fn recv(&mut self) -> Option<Update> {
        todo!()
    }
    /// A stop string was found in the text of `choice`: it is complete. No more updates of it come.
    pub fn stop(&mut self, choice: u32) {
        todo!()
    }
}

/// A view of the engine for `/health`, `/metrics` and the start line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Sequences and blocks, as of the last step.
    pub counts: Counts,
    /// Outstanding work by class.
    pub outstanding: [Micros; 2],
    /// Age of the last completed step while there is work; zero when idle.
    pub step_age: Micros,
    /// The thread lives and the device is there.
    pub alive: bool,
    /// Draining has begun.
    pub draining: bool,
}

/// Submits work to the engine. Cheap to clone.
#[derive(Clone)]
#[allow(missing_debug_implementations)]
pub struct Handle {}

impl Handle {
    /// The engine's clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        todo!()
    }
    /// Admission and hand-over: microseconds, never blocks on the engine.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn submit(&self, submission: Submission) -> Result<TokenStream, Refusal> {
        todo!()
    }
    /// The state now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        todo!()
    }
    /// The class settings in force (with `auto` targets filled in).
    #[must_use]
    pub fn classes(&self) -> ClassTable {
        todo!()
    }
    /// The cost model in force.
    #[must_use]
    pub fn cost(&self) -> scheduler::CostModel {
        todo!()
    }
    /// Sheds everything new; what was admitted goes on.
    pub fn drain(&self) {
        todo!()
    }
    /// Ends the thread: what is still running fails. Returns when the thread has ended.
    pub fn shutdown(&self) {
        todo!()
    }
}

/// Measures the runner and starts the engine thread. `progress` gets one line for each stage of the
/// measurement.
///
/// # Errors
/// See [`EngineError`].
pub fn start(
    runner: Box<dyn ModelRunner>,
    config: Config,
    observer: Arc<dyn Observer>,
    progress: &mut dyn FnMut(&str),
) -> Result<Handle, EngineError> {
    todo!()
}
