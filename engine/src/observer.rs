//! What the engine tells the world: one call a step, one for a request's first token, one for its
//! end. The server turns it into metrics and log lines.

use std::sync::Arc;

use scheduler::{
    Class, Counts, Deadline, Micros, RequestId, Settled, StepLoad, TenantId, Terminal,
};

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
    /// Tokens generated.
    pub generated: u32,
    /// State after it.
    pub counts: Counts,
}

/// The first token of a request.
#[derive(Clone, Copy, Debug)]
pub struct FirstToken {
    /// Arrival of the request.
    pub arrival: Micros,
    /// First chunk planned.
    pub scheduled: Micros,
    /// Now.
    pub at: Micros,
    /// Prompt tokens over all its sequences' prompts (each prompt counted once).
    pub prompt_tokens: u32,
    /// Those of them that were found in the cache.
    pub cached_tokens: u32,
}

/// One admitted request that ended.
#[derive(Clone, Debug)]
pub struct RequestReport {
    /// Which.
    pub id: RequestId,
    /// What its client calls it.
    pub name: Arc<str>,
    /// Its class.
    pub class: Class,
    /// Who sent it.
    pub tenant: TenantId,
    /// How it ended.
    pub terminal: Terminal,
    /// Why, if it failed.
    pub failure: Option<String>,
    /// What it was promised.
    pub deadline: Deadline,
    /// How it was forecast; `None` if the gate has lost it, which only a panic there can do.
    pub settled: Option<Settled>,
    /// Its arrival.
    pub arrival: Micros,
    /// First chunk planned.
    pub scheduled: Option<Micros>,
    /// First token of its first sequence to have one.
    pub first_token: Option<Micros>,
    /// Last token of its last sequence to have one.
    pub last_token: Option<Micros>,
    /// Now.
    pub ended: Micros,
    /// Prompt tokens over all its sequences' prompts (each prompt counted once).
    pub prompt_tokens: u32,
    /// Those of them that were found in the cache.
    pub cached_tokens: u32,
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
    /// A request has its first token; called at most once for each.
    fn first_token(&self, report: &FirstToken);
    /// A request ended; called exactly once for each admitted request.
    fn request(&self, report: &RequestReport);
}
