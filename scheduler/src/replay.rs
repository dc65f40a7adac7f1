//! The scheduler's state replayed forward, from event to event.
//!
//! The same rules as in `planner.rs` (decodes first, then chunks in order, a head that waits for a
//! slot and for the blocks of its peak), but time comes from the cost model and lengths from their
//! predictions. Between two events (a prefill ends, a sequence finishes) steps differ only in the
//! growing context, so they are one closed form: n sequences take at most about 2n events.
//! Left out: preemption, and that who starts after all siblings have ended finds no prompt to
//! share.

use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::columns::within_horizon;
use crate::cost::StepLoad;
use crate::delays::steps;
use crate::planner::BYPASS_WINDOW;
use crate::policy::{SchedulerPolicy, StepState, View};
use crate::segments::{Gap, Segment, Segments, State};
use crate::time::Micros;

/// What decides the shape of steps: the scheduler's limits, cost model and policy.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) view: View<'a>,
    pub(crate) policy: &'a dyn SchedulerPolicy,
}

impl Rules<'_> {
    /// The tokens that the policy leaves for prefill in a step like those from `time` on, whose
    /// first chunk begins at position `start`; at least one.
    pub(crate) fn prefill_budget(&self, time: Micros, state: &State, start: u32) -> u32 {
        let step = StepState {
            decode_seqs: state.decode_seqs,
            context_tokens: state.context_tokens,
            tightest_tpot: state.tightest_tpot.micros(),
            prefill_start: start,
        };
        let view = View { now: time, ..self.view };
        let budget = self.policy.token_budget(&view, &step);
        budget.min(view.config.max_num_batched_tokens).saturating_sub(state.decode_seqs).max(1)
    }

    /// A sequence with a peak of `blocks` finds room in `state`. One that runs alone always does.
    pub(crate) fn has_blocks(&self, state: &State, blocks: u32) -> bool {
        let config = self.view.config;
        let kept = config.num_blocks - config.watermark();
        state.running == 0 || state.used_blocks.saturating_add(blocks) <= kept
    }
}

/// A sequence as the replay sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// The gap promised to it, if it is latency work.
    pub(crate) gap: Gap,
    /// Tokens in the cache.
    pub(crate) done: u32,
    /// Tokens still to compute before the next one is sampled; zero if it decodes.
    pub(crate) todo: u32,
    /// Output tokens still to come, at least one.
    pub(crate) remaining: u32,
    /// Blocks at its peak, without those it shares.
    pub(crate) blocks: u32,
    /// The item that computes the prompt which it shares, and which it waits for.
    pub(crate) leader: Option<u32>,
    /// It decodes, and yet has no token: one token of its prompt is left.
    pub(crate) begins: bool,
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

/// What becomes of an item. Times and steps are counted from the base.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fate {
    /// Its prefill starts: it has its slot.
    pub(crate) start: i32,
    pub(crate) first: i32,
    pub(crate) last: i32,
    /// Steps until the first and the last token.
    pub(crate) first_step: i32,
    pub(crate) last_step: i32,
    /// Prefill tokens to spare in the step that completes its prefill.
    pub(crate) leftover: u32,
}

/// Items in order: first those that decode, then those that run but still prefill, then those that
/// wait, next one first.
pub(crate) struct Replay<'a> {
    rules: Rules<'a>,
    items: &'a [Item],
    /// Items in the order in which they get their slots.
    order: Vec<u32>,
    /// Of this order, those before this place hold a slot (less the finished ones).
    started: usize,
    /// The place of the item whose prefill is next, and how much of it is done in the replay.
    head: usize,
    progress: u32,
    /// The item that prefills as the step begins, and its tokens in the cache.
    underway: (u32, u32),
    now: Segment,
    /// Some item begins in the first step.
    begins: bool,
    /// Finish steps of decoding items, above the item's number.
    finishing: BinaryHeap<Reverse<u64>>,
    /// Promised gaps of decoding latency work, with their counts.
    gaps: BTreeMap<Micros, u32>,
    fates: Vec<Fate>,
    segments: Segments,
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
        let state = State { running: running as u32, used_blocks, ..State::default() };
        let mut replay = Replay {
            rules,
            items,
            order: (0..items.len() as u32).collect(),
            started: running,
            head: decoding,
            progress: 0,
            underway: (u32::MAX, 0),
            now: Segment { time, state, ..Segment::default() },
            begins: items[..decoding].iter().any(|item| item.begins),
            finishing: BinaryHeap::with_capacity(
                items.len().min(rules.view.config.slots() as usize),
            ),
            gaps: BTreeMap::new(),
            fates: alloc::vec![Fate::default(); items.len()],
            segments: Segments::with_capacity(2 * items.len().min(256) + 1),
        };
        for i in 0..decoding {
            replay.begin_decode(i);
        }
        replay
    }

    /// Runs until everybody has finished.
    pub(crate) fn run(mut self) -> (Vec<Fate>, Segments) {
        loop {
            let goes_on = self.head < self.items.len() || !self.finishing.is_empty();
            if goes_on {
                self.segments.push(&self.now);
            } else {
                self.segments.push_always(&self.now);
            }
            if self.head_may_run() {
                self.prefill();
            } else if let Some(event) = self.next_event() {
                self.advance(event - self.now.step, &Prefill::default());
            } else {
                break;
            }
            self.begin();
            self.retire();
        }
        (self.fates, self.segments)
    }

    /// Time since the base.
    fn elapsed(&self) -> i32 {
        within_horizon(self.now.time.minus(self.rules.view.now).0)
    }

    /// The step after which somebody who decodes finishes, or the first one if somebody begins.
    fn next_event(&self) -> Option<u32> {
        let finish = self.finishing.peek().map(|Reverse(packed)| (packed >> 32) as u32);
        if self.begins { finish.map(|finish| finish.min(1)) } else { finish }
    }

    /// After the first step: those who had no token have one now.
    fn begin(&mut self) {
        if !core::mem::take(&mut self.begins) {
            return;
        }
        let (first, first_step) = (self.elapsed(), steps(self.now.step));
        for (fate, item) in self.fates.iter_mut().zip(self.items) {
            if item.begins {
                (fate.first, fate.first_step) = (first, first_step);
            }
        }
    }

    /// The head holds a slot, or somebody takes one now: the first of the next few that can, who
    /// becomes the head.
    fn head_may_run(&mut self) -> bool {
        if self.head < self.started {
            return true;
        }
        if self.now.state.running >= self.rules.view.config.slots() {
            return false;
        }
        let window = &self.order[self.head..];
        let window = &window[..window.len().min(BYPASS_WINDOW)];
        let Some(chosen) = window.iter().position(|i| self.may_start(*i as usize)) else {
            return false;
        };
        self.order[self.head..=self.head + chosen].rotate_right(1);
        let i = self.head_item();
        let state = &mut self.now.state;
        state.running += 1;
        state.used_blocks = state.used_blocks.saturating_add(self.items[i].blocks);
        self.fates[i].start = self.elapsed();
        self.started = self.head + 1;
        true
    }

    /// Whether an item has its blocks, and the prompt that it shares.
    fn may_start(&self, i: usize) -> bool {
        let item = &self.items[i];
        let computed = |leader: u32| {
            let underway = self.underway.0 == leader && self.underway.1 >= item.done;
            underway || self.fates[leader as usize].first_step > 0
        };
        item.leader.is_none_or(computed) && self.rules.has_blocks(&self.now.state, item.blocks)
    }

    fn head_item(&self) -> usize {
        self.order[self.head] as usize
    }

    /// Either several full chunks of the head, or one step that completes it and perhaps others.
    fn prefill(&mut self) {
        let i = self.head_item();
        let item = self.items[i];
        let start = item.done + self.progress;
        self.underway = (i as u32, start);
        let budget = self.rules.prefill_budget(self.now.time, &self.now.state, start);
        let left = item.todo - self.progress;
        if left > budget {
            let mut steps = (left - 1) / budget;
            if let Some(event) = self.next_event() {
                steps = steps.min(event - self.now.step);
            }
            self.progress += steps * budget;
            let span = span(start, start + steps * budget);
            self.advance(steps, &Prefill { tokens: budget, span, ..Prefill::default() });
        } else {
            self.complete_prefills(budget);
        }
    }

    fn complete_prefills(&mut self, budget: u32) {
        let (mut left, mut prefill) = (budget, Prefill::default());
        let first = self.head;
        while left > 0 && self.head_may_run() {
            let i = self.head_item();
            let item = self.items[i];
            let len = (item.todo - self.progress).min(left);
            let start = item.done + self.progress;
            prefill.add(start, len);
            left -= len;
            self.progress += len;
            if self.progress < item.todo {
                break;
            }
            self.fates[i].leftover = left;
            self.head += 1;
            self.progress = 0;
        }
        self.advance(1, &prefill);
        for place in first..self.head {
            let i = self.order[place] as usize;
            self.fates[i].first = self.elapsed();
            self.fates[i].first_step = steps(self.now.step);
            self.begin_decode(i);
        }
    }

    /// `steps` equal steps with the same prefill work each; its spans are those of all of them.
    fn advance(&mut self, steps: u32, prefill: &Prefill) {
        let state = &mut self.now.state;
        let load = StepLoad {
            decode_seqs: state.decode_seqs + prefill.singles,
            context_tokens: state.context_tokens + prefill.single_context,
            prefill_tokens: prefill.tokens,
            prefill_span: prefill.span,
        };
        self.now.time = self.now.time.plus(self.rules.view.cost.steps(steps, &load));
        self.now.step += steps;
        state.context_tokens += u64::from(state.decode_seqs) * u64::from(steps);
    }

    fn begin_decode(&mut self, i: usize) {
        let item = &self.items[i];
        let finish = self.now.step + item.decode_steps();
        self.finishing.push(Reverse(u64::from(finish) << 32 | i as u64));
        let state = &mut self.now.state;
        state.decode_seqs += 1;
        state.context_tokens += item.decode_context();
        if let Some(tpot) = item.gap.micros() {
            *self.gaps.entry(tpot).or_default() += 1;
            state.tightest_tpot = state.tightest_tpot.tighter(item.gap);
        }
    }

    /// Ends the items whose last token has come.
    fn retire(&mut self) {
        while let Some(Reverse(packed)) = self.finishing.peek().copied() {
            let (finish, i) = ((packed >> 32) as u32, packed as u32 as usize);
            if finish > self.now.step {
                break;
            }
            self.finishing.pop();
            let item = &self.items[i];
            self.fates[i].last = self.elapsed();
            self.fates[i].last_step = steps(self.now.step);
            let state = &mut self.now.state;
            state.decode_seqs -= 1;
            state.running -= 1;
            state.used_blocks = state.used_blocks.saturating_sub(item.blocks);
            state.context_tokens -= item.decode_context() + u64::from(item.decode_steps());
            if let Some(tpot) = item.gap.micros() {
                let count = self.gaps.get_mut(&tpot).expect("counted when it began to decode");
                *count -= 1;
                if *count == 0 {
                    self.gaps.remove(&tpot);
                    state.tightest_tpot = Gap::new(self.gaps.keys().next().copied());
                }
            }
        }
    }
}

/// Prefill work of a step. A chunk of one token costs what a decoding sequence costs.
#[derive(Clone, Copy, Default)]
struct Prefill {
    tokens: u32,
    span: u64,
    singles: u32,
    single_context: u64,
}

impl Prefill {
    fn add(&mut self, start: u32, len: u32) {
        if len == 1 {
            self.singles += 1;
            self.single_context += u64::from(start) + 1;
        } else {
            self.tokens += len;
            self.span += span(start, start + len);
        }
    }
}

/// `end^2 - start^2`.
const fn span(start: u32, end: u32) -> u64 {
    (end as u64 + start as u64) * (end as u64 - start as u64)
}
