//! The engine: one thread that plans, runs and completes steps; the handle that submits work to it;
//! sampling, text assembly, calibration and the simulated runner.

pub mod calibrate;
pub mod clock;
pub mod handle;
pub mod observer;
pub mod sampling;
pub mod simulated;
pub mod text;

pub use clock::Clock;
pub use handle::{
    Config, EngineError, Handle, Prompt, Refusal, Snapshot, Submission, TokenStream, Update, start,
};
pub use observer::{Observer, RequestReport, StepReport};
pub use sampling::{SamplingParams, TokenLogprobs};
