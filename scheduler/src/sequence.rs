//! A sequence inside the scheduler: computed tokens chasing known ones.

use crate::class::Class;
use crate::cost::CostModel;
use crate::line::Line;
use crate::plan::Chunk;
use crate::planner::Place;
use crate::policy::{MAX_PASSES, Rank};
use crate::request::{Deadline, OutputLength, Request, SeqId};
use crate::segments::{Gap, Tempo};
use crate::tenants::TenantId;
use crate::time::{MaybeMicros, Micros};

/// After this many preemptions a sequence is never a victim again.
pub const MAX_PREEMPTIONS: u8 = 3;

/// The part of a promised gap that bulk work may fill, per mille: the gate adds a margin to it.
const PACE_PERMILLE: u64 = 800;

/// The part of the time until a last token is due that is left to decoding, per mille.
const DECODING_PERMILLE: u64 = 400;

/// One sequence that was admitted and has not ended. It *waits* while it holds no slot and no
/// blocks, and *runs* otherwise. Thousands wait, so it is small.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Sequence {
    /// Its id; siblings of one request have ids that follow each other.
    pub id: SeqId,
    /// Service class.
    pub class: Class,
    /// Who sent its request.
    pub tenant: TenantId,
    /// It is more than its tenant's reservation is for.
    pub borrows: bool,
    /// When its request reached the server.
    pub arrival: Micros,
    /// When its first token is due.
    pub first_due: MaybeMicros,
    /// When its last token is due.
    pub last_due: MaybeMicros,
    /// The mean gap between its tokens that was promised.
    pub(crate) tpot: Gap,
    /// It is the only sequence of its request.
    pub alone: bool,
    /// Which of its request's prompts it continues.
    pub prompt: u32,
    /// Tokens of that prompt.
    pub prompt_tokens: u32,
    /// What is known of its output length.
    pub output: OutputLength,
    /// Output tokens so far.
    pub generated: u32,
    /// Tokens in the KV cache, those of the step in flight included.
    pub computed: u32,
    /// Tokens in the KV cache without those of the step in flight: what others may share. While it
    /// waits, those that it found there when it was looked up last, and need not compute.
    pub settled: u32,
    /// When its first token came.
    pub first_token: MaybeMicros,
    /// How often it lost its blocks.
    pub preemptions: u8,
    /// How often others went before it, up to 255: while it waits, because it did not fit; while it
    /// decodes, in steps in a row in which it waited for its turn.
    pub bypassed: u8,
    /// Its place among those that wait, as of the last plan.
    pub rank: Rank,
}

impl Sequence {
    /// The waiting form of sequence `index` of `request`.
    #[must_use]
    pub fn new(request: &Request, index: usize) -> Sequence {
        let spec = &request.sequences[index];
        Sequence {
            id: SeqId { request: request.id, index: index as u32 },
            class: request.class,
            tenant: request.tenant,
            borrows: request.borrows,
            arrival: request.arrival,
            first_due: MaybeMicros::new(request.deadline.first_token),
            last_due: MaybeMicros::new(request.deadline.last_token),
            tpot: Gap::new(request.deadline.tpot),
            alone: request.sequences.len() == 1,
            prompt: spec.prompt,
            prompt_tokens: spec.prompt_tokens,
            output: spec.output,
            generated: 0,
            computed: 0,
            settled: 0,
            first_token: MaybeMicros::NONE,
            preemptions: 0,
            bypassed: 0,
            rank: Rank::LAST,
        }
    }

    /// With whom it queues.
    pub(crate) const fn line(&self) -> Line {
        Line { class: self.class, borrows: self.borrows }
    }

    /// Its place in the queue for prefill, by its rank of the last plan.
    pub(crate) const fn place(&self) -> Place {
        (self.rank, self.arrival, self.id)
    }

    /// When its tokens are due.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        Deadline {
            first_token: self.first_due.get(),
            last_token: self.last_due.get(),
            tpot: self.tpot.micros(),
        }
    }

    /// Prompt and output so far: the tokens that exist.
    #[must_use]
    pub const fn known(&self) -> u32 {
        self.prompt_tokens + self.generated
    }

    /// Known tokens that are not computed yet. One means that it decodes; zero that its next token
    /// is being sampled by the step in flight.
    #[must_use]
    pub const fn pending(&self) -> u32 {
        self.known() - self.computed
    }

    /// Known tokens that it must compute before its next one: not those that it finds in the cache.
    #[must_use]
    pub fn to_compute(&self) -> u32 {
        self.known() - self.computed.max(self.settled)
    }

    /// Output tokens that are expected still to come, at least one. The prediction of a sequence
    /// that runs is revised before it is outlived; only in a replay that follows the sequence
    /// further can it be, and then a quarter of what is written is expected besides.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        let left = self.output.max.saturating_sub(self.generated);
        match self.output.predicted.checked_sub(self.generated) {
            Some(expected @ 1..) => expected.min(left).max(1),
            _ => (self.generated / 4).max(8).min(left).max(1),
        }
    }

    /// Output tokens that must still come at the least: what an optimist would count on.
    #[must_use]
    pub fn remaining_at_least(&self) -> u32 {
        let total = if self.output.exact { self.output.max } else { self.output.min };
        total.saturating_sub(self.generated).max(1)
    }

    /// It has been preempted so often that it now keeps its blocks, and reserves for the longest
    /// output it may have.
    #[must_use]
    pub const fn is_protected(&self) -> bool {
        self.preemptions >= MAX_PREEMPTIONS
    }

    /// Tokens in the cache at its expected peak. The last token is never written.
    #[must_use]
    pub fn peak_tokens(&self) -> u32 {
        let more = if self.is_protected() {
            self.output.max.saturating_sub(self.generated)
        } else {
            self.remaining()
        };
        self.known() + more.max(1) - 1
    }

    /// Blocks that it may find in the cache. One token at least stays to be computed, for its
    /// logits.
    #[must_use]
    pub const fn cacheable_blocks(&self, block_size: u32) -> u32 {
        (self.known() - 1) / block_size
    }

    /// Full blocks of its prompt that siblings can share: all but one token at least, as above.
    #[must_use]
    pub const fn shared_blocks(&self, block_size: u32) -> u32 {
        (self.prompt_tokens - 1) / block_size
    }

    /// Plans the next `len` tokens.
    pub(crate) fn advance(&mut self, len: u32) -> Chunk {
        let start = self.computed;
        self.computed += len;
        self.bypassed = 0;
        Chunk { seq: self.id, start, len, sample: self.pending() == 0 }
    }

    /// As it will be after the step in flight, which ends at `end`: with the token that the step
    /// samples, if any. `None` if that is its last one.
    pub(crate) fn after_step(&self, end: Micros) -> Option<Sequence> {
        let mut after = *self;
        if self.pending() == 0 {
            after.generated += 1;
            after.first_token.get_or_insert(end);
        }
        (after.generated < after.output.max).then_some(after)
    }

    /// It is bulk work that was promised no gap: it may decode by turns.
    pub(crate) fn is_patient(&self) -> bool {
        self.class == Class::Throughput && self.tpot == Gap::default()
    }

    /// Whether it may be passed over in a step of at most `pace`: nobody has to wait longer than
    /// [`MAX_PASSES`] steps, nor so long that its last token, which can still come in time, would
    /// be late if every later step took as long.
    pub(crate) fn can_wait(&self, now: Micros, cost: &CostModel, pace: Micros) -> bool {
        if !self.is_patient() || self.bypassed >= MAX_PASSES {
            return false;
        }
        self.last_due.get().is_none_or(|due| {
            let left = self.remaining();
            let soonest = now.plus(cost.decode(1, u64::from(self.known()), left));
            let paced = now.plus(Micros(pace.0.saturating_mul(u64::from(left) + 1)));
            paced <= due || soonest > due
        })
    }

    /// What it asks of its steps, if it is latency work. Where only the last token is due, decoding
    /// has a part of the time until then, because it has to wait and to prefill as well.
    pub(crate) fn tempo(&self) -> Tempo {
        if self.class == Class::Throughput {
            return Tempo::default();
        }
        let pace = Gap::new(self.pace());
        let reserved = if self.borrows { Gap::default() } else { pace };
        Tempo { tpot: self.tpot, pace, reserved }
    }

    /// The gap that its targets leave.
    fn pace(&self) -> Option<Micros> {
        if let Some(gap) = self.tpot.micros() {
            return Some(Micros(gap.0.saturating_mul(PACE_PERMILLE) / 1_000));
        }
        let due = self.last_due.get()?;
        let tokens = u64::from(self.generated + self.remaining());
        let decoding = due.minus(self.arrival).0.saturating_mul(DECODING_PERMILLE) / 1_000;
        Some(Micros(decoding / tokens))
    }

    /// Its blocks are gone: everything known has to be computed again.
    pub(crate) fn reset(&mut self) {
        self.computed = 0;
        self.settled = 0;
        self.preemptions += 1;
    }

    /// The earliest time of its next token: alone on the device, from `now`.
    #[must_use]
    pub fn earliest_token(&self, now: Micros, cost: &CostModel, step_tokens: u32) -> Micros {
        let todo = self.to_compute();
        now.plus(cost.prefill(self.known() - todo, todo, step_tokens))
    }

    /// The latest time for its next token from which the rest can still be in time on an otherwise
    /// idle device; `None` without a deadline.
    #[must_use]
    pub fn latest_token(&self, cost: &CostModel) -> Option<Micros> {
        let first = self.first_due.get().filter(|_| self.generated == 0);
        let last = self.last_due.get().map(|due| {
            let more = self.remaining() - 1;
            due.minus(cost.decode(1, u64::from(self.known() + 1), more))
        });
        first.into_iter().chain(last).min()
    }
}
