//! What comes in: a submission, and the scheduler's view of it.

use std::num::NonZeroU32;
use std::sync::Arc;

use scheduler::{
    Class, ClassTable, Deadline, Micros, OutputLength, Quantity, Request, RequestId, SequenceSpec,
    Shed, Slo, TenantId, TenantTable,
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
    /// Who sends it.
    pub tenant: TenantId,
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
    /// KV blocks are shared only with requests that have the same salt, or none as well.
    pub cache_salt: Option<Arc<str>>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// What the client expects of the output.
    pub outlook: Outlook,
    /// What its client calls it; the engine only reports it back.
    pub name: Arc<str>,
}

/// What is known of the length of an output besides the sampling parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Tokens that the client expects in each choice.
    pub expected_tokens: Option<u32>,
    /// Strings may end the text at any token, which only whoever reads the text can see.
    pub stop_strings: bool,
}

/// What is known of a request before its prompts are tokenised.
#[derive(Clone, Copy, Debug)]
pub struct Outline<'a> {
    /// Service class.
    pub class: Class,
    /// Who sends it.
    pub tenant: TenantId,
    /// When it reached the server.
    pub arrival: Micros,
    /// Targets that came with it, as in [`Submission`].
    pub deadline: Deadline,
    /// How often the client retried already.
    pub retry: u32,
    /// The same for every attempt of one request; see [`Request::origin`].
    pub origin: u64,
    /// For each prompt, tokens that it has at least.
    pub prompts: &'a [u32],
    /// Choices of each prompt.
    pub n: u32,
}

impl Outline<'_> {
    /// The shortest request that this may turn out to be: each prompt once, one token of answer.
    pub(crate) fn least(&self, id: RequestId, bounds: &Bounds) -> Request {
        let output = OutputLength { min: 1, max: 1, predicted: 1, hint: None, exact: true };
        let specs = (0u32..).zip(self.prompts).map(|(prompt, tokens)| SequenceSpec {
            prompt,
            prompt_tokens: (*tokens).max(1),
            output,
        });
        Request {
            id,
            class: self.class,
            tenant: self.tenant,
            borrows: false,
            arrival: self.arrival,
            deadline: bounds.deadline((self.tenant, self.class), self.arrival, &self.deadline),
            retry: self.retry,
            origin: self.origin,
            prefixes: Vec::new(),
            sequences: specs.collect(),
        }
    }

    /// Sequences of all prompts.
    pub(crate) fn num_sequences(&self) -> u32 {
        u32::try_from(self.prompts.len()).unwrap_or(u32::MAX).saturating_mul(self.n)
    }
}

/// Why a submission was not taken.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// Too late or no room now.
    Shed(Shed),
    /// Would miss its explicit deadline even on an idle server.
    Unsatisfiable {
        /// What the two are times of.
        quantity: Quantity,
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
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) max_model_len: u32,
    pub(crate) vocab_size: u32,
    pub(crate) classes: ClassTable,
    pub(crate) tenants: TenantTable,
}

impl Bounds {
    /// What a request of `tenant` in `class` is promised.
    pub(crate) fn slo(&self, tenant: TenantId, class: Class) -> Slo {
        *self.tenants.slo(tenant, class).unwrap_or(&self.classes.get(class).slo)
    }

    /// `given`, and what it leaves open filled in from tenant and class.
    fn deadline(
        &self,
        (tenant, class): (TenantId, Class),
        arrival: Micros,
        given: &Deadline,
    ) -> Deadline {
        let slo = self.slo(tenant, class);
        let from_arrival = |target: Option<Micros>| target.map(|span| arrival.plus(span));
        Deadline {
            first_token: given.first_token.or_else(|| from_arrival(slo.ttft)),
            last_token: given.last_token.or_else(|| from_arrival(slo.e2e)),
            tpot: given.tpot.or(slo.tpot),
        }
    }
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
            tenant: self.tenant,
            borrows: false,
            arrival: self.arrival,
            deadline: bounds.deadline((self.tenant, self.class), self.arrival, &self.deadline),
            retry: self.retry,
            origin: self.origin,
            prefixes: Vec::new(),
            sequences: specs.collect(),
        })
    }

    fn validate(&self, bounds: &Bounds) -> Result<(), String> {
        let (max_model_len, vocab_size) = (bounds.max_model_len, bounds.vocab_size);
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
        let exact = (endless || min == max) && !self.outlook.stop_strings;
        let hint = self.outlook.expected_tokens.and_then(NonZeroU32::new);
        let output = OutputLength { min, max, predicted: max, hint, exact };
        SequenceSpec { prompt: index, prompt_tokens, output }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of one sequence that may have 20 tokens.
    fn output(outlook: Outlook, change: impl FnOnce(&mut SamplingParams)) -> OutputLength {
        let mut sampling = SamplingParams { max_tokens: 20, ..SamplingParams::default() };
        change(&mut sampling);
        let submission = Submission {
            class: Class::Latency,
            tenant: TenantId::DEFAULT,
            arrival: Micros(0),
            deadline: Deadline::default(),
            retry: 0,
            origin: 0,
            prompts: vec![Prompt { tokens: Arc::from([1, 2, 3]), n: 1 }],
            cache_salt: None,
            sampling,
            outlook,
            name: "".into(),
        };
        submission.spec(0, &submission.prompts[0], 100).output
    }

    #[test]
    fn a_length_is_exact_where_nothing_can_end_it_early() {
        let none = Outlook::default();
        let strings = Outlook { stop_strings: true, ..none };
        let endless = |sampling: &mut SamplingParams| sampling.ignore_eos = true;
        let full = |sampling: &mut SamplingParams| sampling.min_tokens = 20;
        let stopped = |sampling: &mut SamplingParams| {
            sampling.ignore_eos = true;
            sampling.stop_token_ids = vec![7];
        };
        // The sampler holds stop tokens back until `min_tokens`; nobody holds back a text.
        let held_back = |sampling: &mut SamplingParams| {
            sampling.stop_token_ids = vec![7];
            sampling.min_tokens = 20;
        };
        assert!(!output(none, |_| {}).exact);
        assert!(output(none, endless).exact && !output(strings, endless).exact);
        assert!(output(none, full).exact && !output(strings, full).exact);
        assert!(!output(none, stopped).exact && output(none, held_back).exact);
    }

    #[test]
    fn a_hint_is_passed_on() {
        let hinted = Outlook { expected_tokens: Some(9), ..Outlook::default() };
        assert_eq!(output(hinted, |_| {}).hint, NonZeroU32::new(9));
        assert_eq!(output(Outlook::default(), |_| {}).hint, None);
    }
}
