//! From logits to a token.

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

/// Log-probabilities of one generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The best alternatives, best first (the chosen one among them if it is one of the best).
    pub top: Vec<(u32, f32)>,
}
