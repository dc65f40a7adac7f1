//! What a request says about sampling, and what it gets back.

/// How tokens are chosen. Validated by the server; the same for every choice but the seed.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// Nucleus, in (0, 1].
    pub top_p: f32,
    /// Candidates kept; 0 keeps all.
    pub top_k: u32,
    /// Least probability relative to the best, in [0, 1].
    pub min_p: f32,
    /// Multiplicative penalty on tokens of prompt and output; 1 is none.
    pub repetition_penalty: f32,
    /// Subtracted once for each token that occurred in the output.
    pub presence_penalty: f32,
    /// Subtracted for each occurrence in the output.
    pub frequency_penalty: f32,
    /// Added to logits, by token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of choice 0; choice i uses a seed derived from it. Always set (random if the client did
    /// not say), so that a sequence's tokens depend on nothing else.
    pub seed: u64,
    /// Tokens that end the sequence besides the model's own.
    pub stop_token_ids: Vec<u32>,
    /// The model's end tokens do not end the sequence.
    pub ignore_eos: bool,
    /// No end before this many tokens.
    pub min_tokens: u32,
    /// At most this many tokens, at least 1.
    pub max_tokens: u32,
    /// Report the chosen token's log-probability and this many alternatives.
    pub logprobs: Option<u32>,
}

impl Default for SamplingParams {
    /// OpenAI's defaults: temperature 1 and everything else neutral; 16 tokens, seed 0.
    fn default() -> SamplingParams {
        SamplingParams {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            min_tokens: 0,
            max_tokens: 16,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Below this temperature the softmax is a step function in f32: greedy.
    const GREEDY_BELOW: f32 = 1e-5;

    /// The best token is taken, without a draw.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature < Self::GREEDY_BELOW || self.top_k == 1
    }

    /// Some penalty is not neutral, so that occurrences have to be counted.
    #[must_use]
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

/// Log-probabilities of one generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The best alternatives, best first (the chosen one among them if it is one of the best).
    pub top: Vec<(u32, f32)>,
}
