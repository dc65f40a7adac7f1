//! The engine: one thread that plans, runs and completes steps; the handle that submits work to it;
//! sampling, text assembly, calibration and the simulated runner.
//!
//! [`start()`] measures the runner and gives a [`Handle`]; [`Handle::submit`] asks the gate and
//! gives a [`TokenStream`]. Every admitted request ends in exactly one terminal state, whatever
//! happens to clients, steps or the thread.

mod active;
mod batch;
pub mod calibrate;
pub mod clock;
pub mod handle;
pub mod observer;
mod prefix;
pub mod profile;
pub mod record;
pub mod sampling;
mod sequence;
mod shared;
pub mod simulated;
pub mod start;
pub mod stream;
pub mod submission;
#[cfg(test)]
mod tests;
pub mod text;
mod thread;

pub use clock::Clock;
pub use handle::{Handle, Snapshot, TenantUse};
pub use observer::{FirstToken, Observer, RequestReport, StepReport};
pub use profile::{Profile, ProfileError};
pub use sampling::{SamplingParams, TokenLogprobs};
pub use start::{Config, EngineError, start};
pub use stream::{Room, TokenStream, Update};
pub use submission::{Outline, Outlook, Prompt, Refusal, Submission};
