//! The recorder: every input of gate and scheduler, and every decision, written down so that it can
//! be replayed. Counts and times only, never text or token ids.
//!
//! Both are state machines without clock or chance, so their inputs in order are enough to repeat
//! them. That order is the one in which they are called: the gate under its lock, the scheduler on
//! the engine thread. `recorded` stands between them and their callers and leaves no other way to
//! change them; each call goes onto the `tape`, a buffer that a thread of its own writes to disk
//! (`segments`). A caller never waits for the disk: when the buffer is full, a gap is noted, and
//! the record goes on with the next segment, which begins with the whole state.
//!
//! A forecast that the engine thread installs is not written down: the scheduler's state at that
//! point of the order is what it was built from, and [`replay`] builds it again.

pub mod event;
pub mod reader;
mod recorded;
pub mod replay;
mod segments;
mod tape;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

pub use event::{Event, Opening, PlanNote};
pub use reader::{ReadError, Reader};
pub use replay::{Difference, Replay};
pub use segments::prepare;
pub use tape::RecordStatus;

pub(crate) use recorded::{RecordedGate, RecordedScheduler};
pub(crate) use tape::Tape;

/// Where to record, and how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The current segment; older ones have `.1`, `.2` and so on behind this name.
    pub path: PathBuf,
    /// Most bytes in all segments together.
    pub max_bytes: u64,
    /// The model's name, for the reader's information.
    pub model: String,
}
