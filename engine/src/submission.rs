//! What comes in: a submission, and the scheduler's view of it.

use std::sync::Arc;

use scheduler::{
    Class, ClassTable, Deadline, Micros, OutputLength, Request, RequestId, SequenceSpec, Shed,
};

use crate::sampling::SamplingParams;

/// Most sequences of one request. The server's own bounds are lower; this one keeps a mistake there
/// from becoming a huge allocation here.
const MAX_SEQUENCES: u64 = 16_384;

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
    /// The same for every attempt of one request; see [`Request::origin`].
    pub origin: u64,
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
    /// It makes no sense (no prompt, a token outside the vocabulary); says what is wrong.
    Invalid(String),
    /// The engine has stopped.
    EngineDead,
}

/// What a submission is checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) max_model_len: u32,
    pub(crate) vocab_size: u32,
    pub(crate) classes: ClassTable,
}

impl Submission {
    /// The scheduler's view: deadlines filled in from the class, outputs cut to the context length.
    pub(crate) fn request(&self, id: RequestId, bounds: &Bounds) -> Result<Request, Refusal> {
        self.validate(bounds).map_err(Refusal::Invalid)?;
        let specs = (0u32..).zip(&self.prompts).flat_map(|(index, prompt)| {
            let spec = self.spec(index, prompt, bounds.max_model_len);
            std::iter::repeat_n(spec, prompt.n as usize)
        });
        Ok(Request {
            id,
            class: self.class,
            arrival: self.arrival,
            deadline: self.deadline(bounds),
            retry: self.retry,
            origin: self.origin,
            sequences: specs.collect(),
        })
    }

    fn validate(&self, bounds: &Bounds) -> Result<(), String> {
        let Bounds { max_model_len, vocab_size, .. } = *bounds;
        let sequences: u64 = self.prompts.iter().map(|prompt| u64::from(prompt.n)).sum();
        if self.prompts.iter().any(|prompt| prompt.n == 0) || sequences == 0 {
            return Err("at least one prompt, and at least one choice of each, is needed".into());
        }
        if sequences > MAX_SEQUENCES {
            return Err(format!(
                "{sequences} choices are asked for, at most {MAX_SEQUENCES} can be"
            ));
        }
        for prompt in &self.prompts {
            let len = prompt.tokens.len();
            if len == 0 {
                return Err("the prompt is empty".into());
            }
            if len >= max_model_len as usize {
                return Err(format!(
                    "the prompt has {len} tokens; with room for an answer, at most {} fit",
                    max_model_len - 1
                ));
            }
            if let Some(token) = prompt.tokens.iter().find(|&&token| token >= vocab_size) {
                return Err(format!("token {token} is outside the vocabulary of {vocab_size}"));
            }
        }
        Ok(())
    }

    fn spec(&self, index: u32, prompt: &Prompt, max_model_len: u32) -> SequenceSpec {
        let prompt_tokens = prompt.tokens.len() as u32;
        let max = self.sampling.max_tokens.clamp(1, max_model_len - prompt_tokens);
        let min = self.sampling.min_tokens.clamp(1, max);
        let endless = self.sampling.ignore_eos && self.sampling.stop_token_ids.is_empty();
        let exact = endless || min == max;
        let output = OutputLength { min, max, predicted: max, hint: None, exact };
        SequenceSpec { prompt: index, prompt_tokens, output }
    }

    fn deadline(&self, bounds: &Bounds) -> Deadline {
        let slo = bounds.classes.get(self.class).slo;
        let from_arrival = |target: Option<Micros>| target.map(|span| self.arrival.plus(span));
        Deadline {
            first_token: self.deadline.first_token.or_else(|| from_arrival(slo.ttft)),
            last_token: self.deadline.last_token.or_else(|| from_arrival(slo.e2e)),
            tpot: self.deadline.tpot.or(slo.tpot),
        }
    }
}
