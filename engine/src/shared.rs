//! What the handle, the streams and the engine thread share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scheduler::{BlockHash, CostModel, Counts, Micros, Request};
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::record::RecordedGate;
use crate::sampling::SamplingParams;
use crate::stream::{Mailbox, Update};
use crate::submission::Prompt;

/// A message to the engine thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// A request was admitted.
    Start(Box<Start>),
    /// There is mail.
    Wake,
}

/// An admitted request on its way to the engine thread.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) request: Request,
    pub(crate) name: Arc<str>,
    pub(crate) prompts: Vec<Prompt>,
    /// Where the hashes of its blocks begin, if they may be shared.
    pub(crate) root: Option<BlockHash>,
    pub(crate) sampling: Arc<SamplingParams>,
    pub(crate) updates: mpsc::Sender<Update>,
}

/// The gate, and whether there is an engine behind it. One lock, so that nothing is handed over to
/// an engine that has looked for the last time.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) gate: RecordedGate,
    pub(crate) alive: bool,
    pub(crate) draining: bool,
}

/// The engine as of the last step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    pub(crate) counts: Counts,
    pub(crate) cost: CostModel,
    /// When the last step ended, or the first one began; `None` when idle.
    pub(crate) progress: Option<Micros>,
}

/// Shared by everybody. The two locks are held for microseconds and never both at once.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) mailbox: Mailbox,
    front: Mutex<Front>,
    live: Mutex<Live>,
}

impl Shared {
    pub(crate) fn new(clock: Clock, gate: RecordedGate, live: Live) -> Shared {
        let front = Mutex::new(Front { gate, alive: true, draining: false });
        Shared { clock, mailbox: Mailbox::default(), front, live: Mutex::new(live) }
    }

    /// The gate. A panic while it was locked (a bug) must not take the rest of the server down: the
    /// engine thread ends, and what it holds is failed.
    pub(crate) fn front(&self) -> MutexGuard<'_, Front> {
        self.front.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
