//! What the engine tells the world: one call a step, one a request. The server turns it into
//! metrics and log lines.

use scheduler::{Class, Counts, Deadline, Forecast, Micros, RequestId, StepLoad, Terminal};

/// One step that ran.
#[derive(Clone, Copy, Debug)]
pub struct StepReport {
    /// Measured duration of the whole step.
    pub duration: Micros,
    /// What the cost model had predicted.
    pub predicted: Micros,
    /// What was computed.
    pub load: StepLoad,
    /// Tokens computed (prefill and decode).
    pub tokens: u32,
    /// State after it.
    pub counts: Counts,
}

/// One admitted request that ended.
#[derive(Clone, Debug)]
pub struct RequestReport {
    /// Which.
    pub id: RequestId,
    /// Its class.
    pub class: Class,
    /// How it ended.
    pub terminal: Terminal,
    /// What it was promised.
    pub deadline: Deadline,
    /// What was predicted at admission.
    pub forecast: Forecast,
    /// Its arrival.
    pub arrival: Micros,
    /// First chunk planned.
    pub scheduled: Option<Micros>,
    /// First token of its first sequence to have one.
    pub first_token: Option<Micros>,
    /// Now.
    pub ended: Micros,
    /// Prompt tokens over all its sequences' prompts (each prompt counted once).
    pub prompt_tokens: u32,
    /// Generated tokens over all sequences.
    pub output_tokens: u32,
    /// `max_tokens` of the request.
    pub max_tokens: u32,
    /// Sequences.
    pub num_sequences: u32,
    /// How many sequences ended by a stop and how many by length.
    pub finished: [u32; 2],
    /// Preemptions of its sequences.
    pub preemptions: u32,
}

/// Receives reports on the engine thread; must be quick and never block.
pub trait Observer: Send + Sync {
    /// A step ran.
    fn step(&self, report: &StepReport);
    /// A token came after this gap (not the first one).
    fn token_gap(&self, gap: Micros);
    /// A request ended; called exactly once for each admitted request.
    fn request(&self, report: &RequestReport);
}
