//! A request as the forecast sees it before it is admitted: what it would demand of the device.
//!
//! It is one thing, however many sequences it has: its prefill is theirs together, its steps are
//! those of the longest, and each of its steps costs what all of them add. Its forecasts are those
//! of its slowest sequence then.

use crate::class::Class;
use crate::cost::CostModel;
use crate::policy::Rank;
use crate::prefix::CachedPrefixes;
use crate::promise::{Kind, Promise};
use crate::request::{Request, RequestId, SequenceSpec};
use crate::rules::{Next, Rules};
use crate::segments::{Gap, State, StepCost, Tempo};
use crate::sequence::Sequence;
use crate::time::Micros;

/// A request that asks for admission.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Candidate {
    pub(crate) id: RequestId,
    pub(crate) kind: Kind,
    /// Its place in the queue for prefill.
    pub(crate) rank: Rank,
    pub(crate) promise: Promise,
    /// Slots that it takes at once.
    pub(crate) slots: u32,
    /// Prompt tokens to compute, and what they cost without the steps that carry them.
    pub(crate) todo: u32,
    pub(crate) prefill: Micros,
    /// Decode steps, and what each costs on top of a step that runs anyway, in nanoseconds.
    pub(crate) steps: u32,
    pub(crate) step_ns: u64,
    /// Context that it adds to a step.
    pub(crate) context_tokens: u64,
    /// Blocks at its peak.
    pub(crate) blocks: u32,
    /// What it asks of its steps, if it is latency work.
    pub(crate) tempo: Tempo,
}

impl Candidate {
    /// The demand of `request`, whose predicted lengths are filled in. What lies in the cache need
    /// not be computed; its blocks are counted all the same, because nobody may be using them.
    pub(crate) fn new(rules: &Rules<'_>, cache: &CachedPrefixes, request: &Request) -> Candidate {
        Candidate::with_lengths(rules, cache, request, |spec| spec.output.predicted)
    }

    /// The least demand of `request`: the shortest answer that is known to be possible.
    pub(crate) fn shortest(
        rules: &Rules<'_>,
        cache: &CachedPrefixes,
        request: &Request,
    ) -> Candidate {
        let least = |spec: &SequenceSpec| if spec.output.exact { spec.output.max } else { 1 };
        Candidate::with_lengths(rules, cache, request, least)
    }

    fn with_lengths(
        rules: &Rules<'_>,
        cache: &CachedPrefixes,
        request: &Request,
        length: impl Fn(&SequenceSpec) -> u32,
    ) -> Candidate {
        let block_size = rules.view.config.block_size;
        let sequence = |index: usize| {
            let spec = &request.sequences[index];
            let mut seq = Sequence::new(request, index);
            seq.output.predicted = length(spec);
            let before = index.checked_sub(1).map(|before| &request.sequences[before]);
            seq.settled = match before {
                Some(before) if before.prompt == spec.prompt => 0,
                _ => cache.tokens(request, spec, block_size),
            };
            seq
        };
        Candidate::of_sequences(rules, request, sequence)
    }

    /// The demand of `request`, whose sequences are `sequence`, with what is cached of them.
    fn of_sequences(
        rules: &Rules<'_>,
        request: &Request,
        sequence: impl Fn(usize) -> Sequence,
    ) -> Candidate {
        let (config, cost) = (rules.view.config, rules.view.cost);
        let exact = request.sequences.iter().all(|spec| spec.output.exact);
        let rank = rules.policy.rank(&rules.view, &sequence(0)).unwrap_or(Rank::LAST);
        let sequences = request.sequences.len() as u32;
        let slots = sequences.min(config.slots());
        let tempo = sequence(0).tempo();
        let mut candidate = Candidate {
            id: request.id,
            kind: Kind::new(sequence(0).line(), request.tenant, exact),
            rank,
            promise: Promise { deadline: request.deadline, first_token: None, gaps: 0 },
            slots,
            todo: 0,
            prefill: Micros(0),
            steps: 0,
            step_ns: 0,
            context_tokens: 0,
            blocks: 0,
            tempo,
        };
        let mut prompt = None;
        for index in 0..request.sequences.len() {
            let seq = sequence(index);
            let shares = prompt.replace(seq.prompt) == Some(seq.prompt);
            candidate.add(cost, config.block_size, &seq, shares);
        }
        // More sequences than slots run in waves.
        candidate.promise.gaps = candidate.steps;
        candidate.steps = candidate.steps.saturating_mul(sequences.div_ceil(slots));
        candidate.step_ns = candidate.step_ns / u64::from(sequences) * u64::from(slots);
        candidate
    }

    /// The demand of `least`, a request of `sequences` sequences with the fewest tokens that it may
    /// turn out to have, each prompt once: no request that it stands for would stand before it. As
    /// much of each prompt is taken for cached as could be.
    pub(crate) fn least(
        rules: &Rules<'_>,
        cache: &CachedPrefixes,
        least: &Request,
        sequences: u32,
    ) -> Candidate {
        let sequence = |index: usize| {
            let mut seq = Sequence::new(least, index);
            seq.settled = cache.most_tokens(seq.prompt_tokens, rules.view.config.block_size);
            seq
        };
        Candidate {
            rank: rules.policy.best_rank(&rules.view, &sequence(0)),
            slots: sequences.min(rules.view.config.slots()),
            ..Candidate::of_sequences(rules, least, sequence)
        }
    }

    /// When it would have its first and its last token on an idle device.
    pub(crate) fn alone(&self, rules: &Rules<'_>) -> (Micros, Micros) {
        let (now, cost) = (rules.view.now, rules.view.cost);
        let (_, budget) = rules.shape_with(now, &State::default(), &self.next());
        let steps = u64::from(self.todo.div_ceil(budget));
        let step = cost.decode(0, 0, 1);
        let first = now.plus(Micros(step.0.saturating_mul(steps))).plus(self.prefill);
        let decode = cost.decode(0, 0, self.steps).plus(self.shared(self.steps));
        (first, first.plus(decode))
    }

    /// It turns out to be more than its tenant's reservation is for.
    pub(crate) fn borrow(&mut self) {
        self.kind = self.kind.borrowing();
        self.tempo.reserved = Gap::default();
    }

    /// It would decode by turns if the policy rations.
    pub(crate) fn is_patient(&self) -> bool {
        self.kind.class == Class::Throughput && self.promise.deadline.tpot.is_none()
    }

    /// Its prefill as the policy is told of it.
    pub(crate) fn next(&self) -> Next {
        Next { line: self.kind.line(), tempo: self.tempo, todo: self.todo, start: 0 }
    }

    /// What it adds to the steps that it decodes in.
    pub(crate) fn step_cost(&self) -> StepCost {
        StepCost::new(self.step_ns, self.steps)
    }

    fn add(&mut self, cost: &CostModel, block_size: u32, seq: &Sequence, shares: bool) {
        let shared = if shares { seq.shared_blocks(block_size) } else { 0 };
        let (done, steps) = ((shared * block_size).max(seq.settled), seq.remaining() - 1);
        let context = u64::from(seq.prompt_tokens) + u64::from(steps / 2);
        self.todo = self.todo.saturating_add(seq.prompt_tokens - done);
        self.prefill = self.prefill.plus(cost.prefill_work(done, seq.prompt_tokens - done));
        self.steps = self.steps.max(steps);
        self.step_ns = self.step_ns.saturating_add(cost.decode_work_ns(context));
        self.context_tokens = self.context_tokens.saturating_add(context);
        self.blocks = self.blocks.saturating_add(seq.peak_tokens().div_ceil(block_size) - shared);
    }

    /// What `steps` shared decode steps cost those who share them.
    pub(crate) const fn shared(&self, steps: u32) -> Micros {
        Micros(self.step_ns.saturating_mul(steps as u64) / 1_000)
    }

    /// Device time that it adds to a busy device.
    pub(crate) const fn work(&self) -> Micros {
        self.prefill.plus(self.shared(self.steps))
    }
}
