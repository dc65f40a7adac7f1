//! One sequence on the engine thread: its tokens, its sampler, its end.

use std::sync::Arc;

use scheduler::{BlockHash, FinishReason, Micros};

use crate::prefix::BlockHasher;
use crate::sampling::{Sampled, Sampler, SamplingParams, Scratch};

/// A sequence between its admission and its end. It does not know whether it was preempted: the
/// tokens stay here, and the scheduler asks for them again from position 0.
#[derive(Debug)]
pub(crate) struct Sequence {
    prompt: Arc<[u32]>,
    output: Vec<u32>,
    sampler: Sampler,
    params: Arc<SamplingParams>,
    eos: Arc<[u32]>,
    max_tokens: usize,
    /// `None` if it shares nothing.
    pub(crate) known: Option<Known>,
    /// When its latest token came.
    pub(crate) last_token: Option<Micros>,
    /// The client's stop token that ended it.
    pub(crate) stop_token: Option<u32>,
}

/// Full blocks whose hashes are known, and the hash of the last one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) blocks: u32,
    pub(crate) last: BlockHash,
}

/// What came of sampling.
#[derive(Debug)]
pub(crate) struct Advance {
    /// The token to deliver; none if it is an end token.
    pub(crate) shown: Option<Sampled>,
    /// Why the sequence is over, if it is.
    pub(crate) finish: Option<FinishReason>,
}

impl Sequence {
    /// Answer number `choice` to `prompt`, of at most `max_tokens` tokens.
    pub(crate) fn new(
        prompt: Arc<[u32]>,
        params: Arc<SamplingParams>,
        eos: Arc<[u32]>,
        choice: u32,
        max_tokens: u32,
    ) -> Sequence {
        let sampler = Sampler::new(Arc::clone(&params), Arc::clone(&eos), &prompt, choice);
        let max_tokens = max_tokens as usize;
        let (output, last_token, stop_token) = (Vec::new(), None, None);
        let known = None;
        Sequence { prompt, output, sampler, params, eos, max_tokens, known, last_token, stop_token }
    }

    /// Tokens generated, the end token included.
    pub(crate) fn generated(&self) -> u32 {
        self.output.len() as u32
    }

    /// Appends `len` tokens from position `start` to `tokens`.
    pub(crate) fn copy_tokens(&self, start: u32, len: u32, tokens: &mut Vec<u32>) {
        let (start, end) = (start as usize, (start + len) as usize);
        let prompt = self.prompt.len();
        tokens.extend_from_slice(&self.prompt[start.min(prompt)..end.min(prompt)]);
        tokens
            .extend_from_slice(&self.output[start.max(prompt) - prompt..end.max(prompt) - prompt]);
    }

    /// The hash of the next block that is full and not known yet, if its last token is among the
    /// first `computed` ones.
    pub(crate) fn know_block(&mut self, computed: u32, hasher: &BlockHasher) -> Option<BlockHash> {
        let block_size = hasher.block_size() as u32;
        let known = self.known.filter(|known| (known.blocks + 1) * block_size <= computed)?;
        let mut tokens = Vec::with_capacity(hasher.block_size());
        self.copy_tokens(known.blocks * block_size, block_size, &mut tokens);
        let last = hasher.next(known.last, &tokens);
        self.known = Some(Known { blocks: known.blocks + 1, last });
        Some(last)
    }

    /// Samples the next token. `None` if the logits are of no use.
    pub(crate) fn advance(&mut self, row: &mut [f32], scratch: &mut Scratch) -> Option<Advance> {
        let sampled = self.sampler.sample(row, scratch)?;
        let token = sampled.token;
        self.output.push(token);
        self.stop_token = self.params.stop_token_ids.contains(&token).then_some(token);
        let is_eos = !self.params.ignore_eos && self.eos.contains(&token);
        if is_eos || self.stop_token.is_some() {
            return Some(Advance { shown: None, finish: Some(FinishReason::Stop) });
        }
        let finish = (self.output.len() >= self.max_tokens).then_some(FinishReason::Length);
        Some(Advance { shown: Some(sampled), finish })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(max_tokens: u32) -> Sequence {
        let params = SamplingParams {
            temperature: 0.0,
            stop_token_ids: vec![3, 9],
            ..SamplingParams::default()
        };
        Sequence::new(Arc::from([10, 11, 12]), Arc::new(params), Arc::from([2, 3]), 0, max_tokens)
    }

    /// Lets the model say `token`.
    fn say(sequence: &mut Sequence, token: usize) -> Advance {
        let mut row = [0.0; 20];
        row[token] = 1.0;
        sequence.advance(&mut row, &mut Scratch::default()).expect("finite")
    }

    #[test]
    fn any_chunk_of_prompt_and_output_can_be_recomputed() {
        let mut sequence = sequence(10);
        for token in [5, 6, 7] {
            assert!(say(&mut sequence, token).finish.is_none());
        }
        let all = [10, 11, 12, 5, 6, 7];
        for start in 0..6 {
            for end in start..=6 {
                let mut tokens = vec![99];
                sequence.copy_tokens(start, end - start, &mut tokens);
                assert_eq!(tokens[1..], all[start as usize..end as usize]);
            }
        }
    }

    #[test]
    fn ends_are_told_apart() {
        for (token, shown, finish, stop_token) in [
            (2, None, Some(FinishReason::Stop), None),
            (3, None, Some(FinishReason::Stop), Some(3)),
            (9, None, Some(FinishReason::Stop), Some(9)),
            (5, Some(5), None, None),
        ] {
            let mut sequence = sequence(2);
            let advance = say(&mut sequence, token);
            assert_eq!(advance.shown.map(|sampled| sampled.token), shown);
            assert_eq!((advance.finish, sequence.stop_token), (finish, stop_token));
        }
        let mut sequence = sequence(2);
        say(&mut sequence, 5);
        let last = say(&mut sequence, 6);
        assert_eq!(last.finish, Some(FinishReason::Length));
        assert!(last.shown.is_some(), "the last token is delivered");
    }
}
