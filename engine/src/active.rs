//! A request on the engine thread, from its admission to its one terminal state.

use std::sync::Arc;

use scheduler::{
    BlockHash, Chunk, FinishReason, Micros, Request, SeqId, SeqOutcome, Settled, Terminal,
};
use tokio::sync::mpsc;

use crate::observer::{FirstToken, Observer, RequestReport};
use crate::prefix::BlockHasher;
use crate::sampling::Scratch;
use crate::sequence::{Known, Sequence};
use crate::shared::Start;
use crate::stream::Update;

/// Updates that wait for the end of the step's bookkeeping: whoever reads the last one finds the
/// request gone from gate, gauges and blocks.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Vec<(mpsc::Sender<Update>, Update)>);

impl Outbox {
    /// Delivers everything. There is room for all updates of a request in its channel, and a client
    /// that has left reads none: nothing here can wait or fail.
    pub(crate) fn flush(&mut self) {
        for (updates, update) in self.0.drain(..) {
            let _ = updates.try_send(update);
        }
    }
}

/// An admitted request that has not ended.
#[derive(Debug)]
pub(crate) struct ActiveRequest {
    request: Request,
    name: Arc<str>,
    updates: mpsc::Sender<Update>,
    sequences: Vec<Sequence>,
    prompt_tokens: u32,
    /// Of each prompt, how many tokens were found in the cache when it was begun.
    cached: Vec<Option<u32>>,
    max_tokens: u32,
    scheduled: Option<Micros>,
    /// When its first and its latest token came.
    pub(crate) first_token: Option<Micros>,
    pub(crate) last_token: Option<Micros>,
    /// Sequences that ended by a stop and by length.
    finished: [u32; 2],
    preemptions: u32,
}

impl ActiveRequest {
    pub(crate) fn new(start: Start, eos: &Arc<[u32]>) -> ActiveRequest {
        let Start { request, name, prompts, root, sampling, updates } = start;
        // Choices are numbered anew for each prompt: its answers do not depend on which other
        // prompts came with it.
        let choices = prompts
            .iter()
            .flat_map(|prompt| (0..prompt.n).map(|choice| (Arc::clone(&prompt.tokens), choice)));
        let sequences = choices
            .zip(&request.sequences)
            .map(|((tokens, choice), spec)| {
                let (sampling, eos) = (Arc::clone(&sampling), Arc::clone(eos));
                let mut sequence = Sequence::new(tokens, sampling, eos, choice, spec.output.max);
                sequence.known = root.map(|root| {
                    let prefix = request.prefixes.get(spec.prompt as usize);
                    let prefix = prefix.map_or(&[][..], |prefix| prefix);
                    let last = prefix.last().copied().unwrap_or(root);
                    Known { blocks: prefix.len() as u32, last }
                });
                sequence
            })
            .collect();
        ActiveRequest {
            prompt_tokens: prompts.iter().map(|prompt| prompt.tokens.len() as u32).sum(),
            cached: vec![None; prompts.len()],
            max_tokens: sampling.max_tokens,
            request,
            name,
            updates,
            sequences,
            scheduled: None,
            first_token: None,
            last_token: None,
            finished: [0; 2],
            preemptions: 0,
        }
    }

    /// One of its sequences.
    pub(crate) fn sequence(&self, index: u32) -> &Sequence {
        &self.sequences[index as usize]
    }

    /// A chunk of it was planned. Where the first chunk of a prompt does not begin at its
    /// beginning, what lies before was found in the cache.
    pub(crate) fn schedule(&mut self, now: Micros, chunk: &Chunk, outbox: &mut Outbox) {
        self.scheduled.get_or_insert(now);
        let prompt = self.request.sequences.get(chunk.seq.index as usize).map(|spec| spec.prompt);
        let cached = prompt.and_then(|prompt| self.cached.get_mut(prompt as usize));
        let Some(cached) = cached.filter(|cached| cached.is_none()) else { return };
        *cached = Some(chunk.start);
        if chunk.start > 0 {
            self.post(outbox, Update::Cached(chunk.start));
        }
    }

    /// Prompt tokens that were found in the cache so far.
    fn cached_tokens(&self) -> u32 {
        self.cached.iter().flatten().sum()
    }

    /// The hash of the next block that `chunk` has filled, if there is one that is not known yet.
    pub(crate) fn know_block(&mut self, chunk: &Chunk, hasher: &BlockHasher) -> Option<BlockHash> {
        let sequence = self.sequences.get_mut(chunk.seq.index as usize)?;
        sequence.know_block(chunk.start + chunk.len, hasher)
    }

    /// One of its sequences was preempted.
    pub(crate) fn preempt(&mut self) {
        self.preemptions += 1;
    }

    /// Samples the next token of a sequence.
    pub(crate) fn sample(
        &mut self,
        seq: SeqId,
        now: Micros,
        row: &mut [f32],
        scratch: &mut Scratch,
        observer: &dyn Observer,
        outbox: &mut Outbox,
    ) -> SeqOutcome {
        let sequence = &mut self.sequences[seq.index as usize];
        let Some(advance) = sequence.advance(row, scratch) else { return SeqOutcome::Fail(seq) };
        if let Some(before) = sequence.last_token.replace(now) {
            observer.token_gap(now.minus(before));
        }
        if self.last_token.replace(now).is_none() {
            self.begin(now, observer);
        }
        if let Some(sampled) = advance.shown {
            self.post(
                outbox,
                Update::Token {
                    choice: seq.index,
                    token: sampled.token,
                    logprobs: sampled.logprobs,
                },
            );
        }
        match advance.finish {
            None => SeqOutcome::Continue(seq),
            Some(reason) => SeqOutcome::Finish(seq, reason),
        }
    }

    /// The first token of any of its sequences came.
    fn begin(&mut self, now: Micros, observer: &dyn Observer) {
        self.first_token = Some(now);
        observer.first_token(&FirstToken {
            arrival: self.request.arrival,
            scheduled: self.scheduled.unwrap_or(now),
            at: now,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens(),
        });
    }

    /// A sequence is complete.
    pub(crate) fn finish(&mut self, index: u32, reason: FinishReason, outbox: &mut Outbox) {
        let kind = match reason {
            FinishReason::Stop => 0,
            FinishReason::Length => 1,
        };
        self.finished[kind] += 1;
        let sequence = self.sequence(index);
        let (stop_token, output_tokens) = (sequence.stop_token, sequence.generated());
        self.post(outbox, Update::Finished { choice: index, reason, stop_token, output_tokens });
    }

    /// Puts an update into the outbox.
    pub(crate) fn post(&self, outbox: &mut Outbox, update: Update) {
        outbox.0.push((self.updates.clone(), update));
    }

    /// The generated lengths of its sequences.
    pub(crate) fn outputs(&self) -> Vec<u32> {
        self.sequences.iter().map(Sequence::generated).collect()
    }

    /// What the observer is told at its end.
    pub(crate) fn report(
        &self,
        ended: Micros,
        terminal: Terminal,
        failure: &str,
        settled: Option<Settled>,
    ) -> RequestReport {
        let failed = terminal == Terminal::Failed;
        RequestReport {
            id: self.request.id,
            name: Arc::clone(&self.name),
            class: self.request.class,
            tenant: self.request.tenant,
            terminal,
            failure: failed.then(|| failure.to_owned()),
            deadline: self.request.deadline,
            settled,
            arrival: self.request.arrival,
            scheduled: self.scheduled,
            first_token: self.first_token,
            last_token: self.last_token,
            ended,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens(),
            output_tokens: self.sequences.iter().map(Sequence::generated).sum(),
            max_tokens: self.max_tokens,
            num_sequences: self.sequences.len() as u32,
            finished: self.finished,
            preemptions: self.preemptions,
        }
    }
}
