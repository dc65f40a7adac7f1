//! The scheduler's state replayed forward, from event to event.
//!
//! The same rules as in `planner.rs` (decodes first, then chunks in order, a head that waits for a
//! slot and for the blocks of its peak), but time comes from the cost model and lengths from their
//! predictions. Between two events (a prefill ends, a sequence finishes) steps differ only in the
//! growing context, so they are one closed form: n sequences take at most about 2n events.
//! Left out: preemption, bypass of the head, and the step that a sibling waits for a shared prompt.

use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::class::Class;
use crate::cost::StepLoad;
use crate::policy::{SchedulerPolicy, StepState, View};
use crate::time::Micros;

/// What decides the shape of steps: the scheduler's limits, cost model and policy.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) view: View<'a>,
    pub(crate) policy: &'a dyn SchedulerPolicy,
}

impl Rules<'_> {
    /// The tokens that the policy leaves for prefill in a step like those of `segment`, whose first
    /// chunk begins at position `start`; at least one.
    pub(crate) fn prefill_budget(&self, segment: &Segment, start: u32) -> u32 {
        let state = StepState {
            decode_seqs: segment.decode_seqs,
            context_tokens: segment.context_tokens,
            tightest_tpot: segment.tightest_tpot,
            prefill_start: start,
        };
        let view = View { now: segment.time, ..self.view };
        let budget = self.policy.token_budget(&view, &state);
        budget.min(view.config.max_num_batched_tokens).saturating_sub(state.decode_seqs).max(1)
    }

    /// A sequence with a peak of `blocks` finds room in `segment`. One that runs alone always does.
    pub(crate) fn has_blocks(&self, segment: &Segment, blocks: u32) -> bool {
        let config = self.view.config;
        let kept = config.num_blocks - config.watermark();
        segment.running == 0 || segment.used_blocks.saturating_add(blocks) <= kept
    }
}

/// A sequence as the replay sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) class: Class,
    pub(crate) tpot: Option<Micros>,
    /// Tokens in the cache.
    pub(crate) done: u32,
    /// Tokens still to compute before the next one is sampled; zero if it decodes.
    pub(crate) todo: u32,
    /// Output tokens still to come, at least one.
    pub(crate) remaining: u32,
    /// Blocks at its peak, without those it shares.
    pub(crate) blocks: u32,
}

impl Item {
    /// Context read by its first decode step after `done` and `todo` are computed.
    const fn decode_context(&self) -> u64 {
        self.done as u64 + self.todo as u64 + 1
    }

    /// Decode steps that it takes part in.
    const fn decode_steps(&self) -> u32 {
        if self.todo == 0 { self.remaining } else { self.remaining - 1 }
    }
}

/// What becomes of an item.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fate {
    /// Its prefill starts: it has its slot.
    pub(crate) start: Micros,
    pub(crate) first: Micros,
    pub(crate) finish: Micros,
    /// Steps from the base until the first and the last token.
    pub(crate) first_step: u32,
    pub(crate) finish_step: u32,
    /// Prefill tokens to spare in the step that completes its prefill.
    pub(crate) leftover: u32,
}

/// The state at one event; it holds until the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Segment {
    pub(crate) step: u32,
    pub(crate) time: Micros,
    pub(crate) decode_seqs: u32,
    pub(crate) context_tokens: u64,
    pub(crate) running: u32,
    pub(crate) used_blocks: u32,
    /// The tightest gap promised to decoding latency work.
    pub(crate) tightest_tpot: Option<Micros>,
}

/// Items in order: first those that decode, then those that run but still prefill, then those that
/// wait, next one first.
pub(crate) struct Replay<'a> {
    rules: Rules<'a>,
    items: &'a [Item],
    /// Items that hold a slot are those before this one (less the finished ones).
    started: usize,
    /// The item whose prefill is next, and how much of it is done in the replay.
    head: usize,
    progress: u32,
    now: Segment,
    /// Finish steps of decoding items.
    finishing: BinaryHeap<Reverse<(u32, u32)>>,
    /// Promised gaps of decoding latency work, with their counts.
    tpots: BTreeMap<Micros, u32>,
    fates: Vec<Fate>,
    segments: Vec<Segment>,
}

impl<'a> Replay<'a> {
    /// `decoding` items decode and `running` (those included) hold a slot; `used_blocks` are what
    /// the running ones hold or are expected to take.
    pub(crate) fn new(
        rules: Rules<'a>,
        items: &'a [Item],
        decoding: usize,
        running: usize,
        used_blocks: u32,
    ) -> Replay<'a> {
        let time = rules.view.now;
        let now = Segment { time, running: running as u32, used_blocks, ..Segment::default() };
        let mut replay = Replay {
            rules,
            items,
            started: running,
            head: decoding,
            progress: 0,
            now,
            finishing: BinaryHeap::with_capacity(items.len()),
            tpots: BTreeMap::new(),
            fates: alloc::vec![Fate::default(); items.len()],
            segments: Vec::with_capacity(2 * items.len() + 1),
        };
        for i in 0..running {
            replay.fates[i].start = time;
        }
        for i in 0..decoding {
            replay.fates[i].first = time;
            replay.begin_decode(i);
        }
        replay
    }

    /// Runs until everybody has finished.
    pub(crate) fn run(mut self) -> (Vec<Fate>, Vec<Segment>) {
        loop {
            self.segments.push(self.now);
            if self.head_may_run() {
                self.prefill();
            } else if let Some(Reverse((finish, _))) = self.finishing.peek() {
                self.advance(finish - self.now.step, 0, 0);
            } else {
                break;
            }
            self.retire();
        }
        (self.fates, self.segments)
    }

    /// The head holds a slot, or takes one now.
    fn head_may_run(&mut self) -> bool {
        let Some(item) = self.items.get(self.head) else { return false };
        if self.head < self.started {
            return true;
        }
        let full = self.now.running >= self.rules.view.config.slots();
        if full || !self.rules.has_blocks(&self.now, item.blocks) {
            return false;
        }
        self.now.running += 1;
        self.now.used_blocks += item.blocks;
        self.fates[self.head].start = self.now.time;
        self.started = self.head + 1;
        true
    }

    /// Either several full chunks of the head, or one step that completes it and perhaps others.
    fn prefill(&mut self) {
        let item = self.items[self.head];
        let budget = self.rules.prefill_budget(&self.now, item.done + self.progress);
        let left = item.todo - self.progress;
        if left > budget {
            let mut steps = (left - 1) / budget;
            if let Some(Reverse((finish, _))) = self.finishing.peek() {
                steps = steps.min(finish - self.now.step);
            }
            let start = item.done + self.progress;
            self.progress += steps * budget;
            self.advance(steps, budget, span(start, start + steps * budget));
        } else {
            self.complete_prefills(budget);
        }
    }

    fn complete_prefills(&mut self, budget: u32) {
        let (mut left, mut spans) = (budget, 0);
        let first = self.head;
        while left > 0 && self.head_may_run() {
            let item = self.items[self.head];
            let len = (item.todo - self.progress).min(left);
            let start = item.done + self.progress;
            spans += span(start, start + len);
            left -= len;
            self.progress += len;
            if self.progress < item.todo {
                break;
            }
            self.fates[self.head].leftover = left;
            self.head += 1;
            self.progress = 0;
        }
        self.advance(1, budget - left, spans);
        for i in first..self.head {
            self.fates[i].first = self.now.time;
            self.fates[i].first_step = self.now.step;
            self.begin_decode(i);
        }
    }

    /// `steps` equal steps with `prefill_tokens` each.
    fn advance(&mut self, steps: u32, prefill_tokens: u32, prefill_span: u64) {
        let load = StepLoad {
            decode_seqs: self.now.decode_seqs,
            context_tokens: self.now.context_tokens,
            prefill_tokens,
            prefill_span,
        };
        self.now.time = self.now.time.plus(self.rules.view.cost.steps(steps, &load));
        self.now.step += steps;
        self.now.context_tokens += u64::from(self.now.decode_seqs) * u64::from(steps);
    }

    fn begin_decode(&mut self, i: usize) {
        let item = self.items[i];
        let finish = self.now.step + item.decode_steps();
        self.finishing.push(Reverse((finish, i as u32)));
        self.now.decode_seqs += 1;
        self.now.context_tokens += item.decode_context();
        if let (Class::Latency, Some(tpot)) = (item.class, item.tpot) {
            *self.tpots.entry(tpot).or_default() += 1;
            self.now.tightest_tpot = self.tpots.keys().next().copied();
        }
    }

    /// Ends the items whose last token has come.
    fn retire(&mut self) {
        while let Some(Reverse((finish, i))) = self.finishing.peek().copied() {
            if finish > self.now.step {
                break;
            }
            self.finishing.pop();
            let item = self.items[i as usize];
            let fate = &mut self.fates[i as usize];
            fate.finish = self.now.time;
            fate.finish_step = self.now.step;
            self.now.decode_seqs -= 1;
            self.now.running -= 1;
            self.now.used_blocks = self.now.used_blocks.saturating_sub(item.blocks);
            self.now.context_tokens -= item.decode_context() + u64::from(item.decode_steps());
            if let (Class::Latency, Some(tpot)) = (item.class, item.tpot) {
                let count = self.tpots.get_mut(&tpot).expect("counted when it began to decode");
                *count -= 1;
                if *count == 0 {
                    self.tpots.remove(&tpot);
                    self.now.tightest_tpot = self.tpots.keys().next().copied();
                }
            }
        }
    }
}

/// `end^2 - start^2`.
const fn span(start: u32, end: u32) -> u64 {
    (end as u64 + start as u64) * (end as u64 - start as u64)
}
