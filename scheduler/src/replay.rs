//! The scheduler's state replayed forward, from event to event.
//!
//! The same rules as in `planner.rs` and `intake.rs` (decodes first, then chunks in order, somebody
//! who waits for a slot and for the blocks of its peak), but time comes from the cost model and
//! lengths from their predictions. Between two events (a prefill ends, a sequence finishes) steps
//! differ only in the growing context, so they are one closed form: n sequences take at most about
//! 2n events.
//!
//! Where bulk work decodes by turns, it runs on a clock of its own: each step moves it on by the
//! share of those that go, and a sequence ends when it has moved on by as many turns as it has
//! tokens to come. Off by no more than a round of turns, this too is one closed form.
//! Left out: preemption, and that who starts after all siblings have ended finds no prompt to
//! share.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::class::Class;
use crate::columns::within_horizon;
use crate::delays::steps;
use crate::line::Line;
use crate::queues::Queues;
use crate::rules::Rules;
use crate::segments::{Gap, Segment, Segments, State, TURN, Tempo};
use crate::time::Micros;

/// A sequence as the replay sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) line: Line,
    /// What it asks of its steps, if it is latency work.
    pub(crate) tempo: Tempo,
    /// It decodes by turns if the policy rations.
    pub(crate) patient: bool,
    /// It runs: it has its slot and its blocks.
    pub(crate) running: bool,
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
    /// Steps in a row in which it has waited for its turn.
    pub(crate) passed: u8,
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

/// Items in order: first those that decode, then those that have a prompt to compute, next one
/// first.
pub(crate) struct Replay<'a> {
    rules: Rules<'a>,
    items: &'a [Item],
    /// Those with a prompt to compute.
    queues: Queues,
    now: Segment,
    /// Some item begins in the first step.
    begins: bool,
    /// When decoding items finish, above the item's number: steps ([`above`]), and turns of the
    /// patient ones.
    finishing: BinaryHeap<Reverse<u64>>,
    turning: BinaryHeap<Reverse<(u64, u32)>>,
    /// Of decoding latency work.
    tempos: Tempos,
    fates: Vec<Fate>,
    segments: Segments,
}

impl<'a> Replay<'a> {
    /// `decoding` items decode; `used_blocks` are what the running ones hold or are expected to
    /// take.
    pub(crate) fn new(
        rules: Rules<'a>,
        items: &'a [Item],
        decoding: usize,
        used_blocks: u32,
    ) -> Replay<'a> {
        let time = rules.view.now;
        let mut state = State { used_blocks, ..State::default() };
        for item in items {
            state.held.enter(item.line);
            if item.running {
                state.held.start(item.line, item.blocks);
            }
        }
        let bulk = state.held.inside[Class::Throughput.index()] > 0;
        let borrowers = state.held.borrowers > 0;
        let slots = items.len().min(rules.view.config.slots() as usize);
        let mut replay = Replay {
            rules,
            items,
            queues: Queues::new(items, decoding),
            now: Segment { time, state, ..Segment::default() },
            begins: items[..decoding].iter().any(|item| item.begins),
            finishing: BinaryHeap::with_capacity(slots),
            turning: BinaryHeap::new(),
            tempos: Tempos { bulk, borrowers, ..Tempos::default() },
            fates: alloc::vec![Fate::default(); items.len()],
            segments: Segments::with_capacity(2 * items.len().min(256) + 1),
        };
        for i in 0..decoding {
            replay.begin_decode(i);
        }
        replay.credit_turns();
        replay
    }

    /// Who has waited for a turn already gets it so much sooner.
    fn credit_turns(&mut self) {
        let turns = self.rules.turns(&self.now, self.items, &self.queues);
        let rate = self.now.state.turn_rate(turns);
        let items = self.items;
        let credit = |Reverse((finish, i)): Reverse<(u64, u32)>| {
            let passed = u64::from(items[i as usize].passed) * rate;
            Reverse((finish - passed.min(TURN - 1), i))
        };
        self.turning = core::mem::take(&mut self.turning).into_iter().map(credit).collect();
    }

    /// Runs until everybody has finished.
    pub(crate) fn run(mut self) -> (Vec<Fate>, Segments) {
        loop {
            let goes_on =
                !self.queues.is_empty() || !self.finishing.is_empty() || !self.turning.is_empty();
            if goes_on {
                self.segments.push(&self.now);
            } else {
                self.segments.push_always(&self.now);
            }
            if let Some(i) = self.next_prefill() {
                self.prefill(i);
            } else {
                let turns = self.rules.turns(&self.now, self.items, &self.queues);
                let Some(steps) = self.steps_to_event(turns) else { break };
                self.advance(steps, turns, &Prefill::default());
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

    /// Steps until somebody who decodes finishes, or one if somebody begins.
    fn steps_to_event(&self, turns: u32) -> Option<u32> {
        let finish = self.finishing.peek().map(|Reverse(next)| parts(*next).0 - self.now.step);
        let rate = self.now.state.turn_rate(turns).max(1);
        let turning = self.turning.peek().map(|Reverse((turn, _))| {
            let left = turn.saturating_sub(self.now.turn).max(1);
            u32::try_from(left.div_ceil(rate)).unwrap_or(u32::MAX)
        });
        let next = finish.into_iter().chain(turning).min();
        if self.begins { next.map(|next| next.min(1)) } else { next }
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

    /// Who computes a part of its prompt next: the first in order who holds a slot, or can take
    /// one now and does.
    fn next_prefill(&mut self) -> Option<usize> {
        let (rules, items, state) = (&self.rules, self.items, &self.now.state);
        let fates = &self.fates;
        let open = rules.room.free(&state.held).map(|free| free > 0);
        let computed = |progress: &[u32], leader: u32, needed: u32| {
            let leader = leader as usize;
            items[leader].done + progress[leader] >= needed || fates[leader].first_step > 0
        };
        let may_start = |progress: &[u32], i: usize| {
            let item = &items[i];
            item.leader.is_none_or(|leader| computed(progress, leader, item.done))
                && rules.has_blocks(state, item.line, item.blocks)
        };
        let (i, starts) = self.queues.next(open, may_start)?;
        if starts {
            let item = &items[i];
            let state = &mut self.now.state;
            state.held.start(item.line, item.blocks);
            state.used_blocks = state.used_blocks.saturating_add(item.blocks);
            self.fates[i].start = self.elapsed();
        }
        Some(i)
    }

    /// Either several full chunks of item `i`, or one step that completes it and perhaps others.
    fn prefill(&mut self, i: usize) {
        let item = self.items[i];
        let start = item.done + self.queues.progress[i];
        let (turns, budget) = self.rules.shape(&self.now, self.items, &self.queues, start);
        let left = item.todo - self.queues.progress[i];
        if left > budget {
            let mut steps = (left - 1) / budget;
            if let Some(event) = self.steps_to_event(turns) {
                steps = steps.min(event);
            }
            self.queues.progress[i] += steps * budget;
            let span = span(start, start + steps * budget);
            let prefill = Prefill { tokens: budget, span, ..Prefill::default() };
            self.advance(steps, turns, &prefill);
        } else {
            self.complete_prefills(i, turns, budget);
        }
    }

    fn complete_prefills(&mut self, mut i: usize, turns: u32, budget: u32) {
        let (mut left, mut prefill) = (budget, Prefill::default());
        let mut completed = Vec::new();
        let mut begun = None;
        loop {
            let item = self.items[i];
            let start = item.done + self.queues.progress[i];
            let len = (item.todo - self.queues.progress[i]).min(left);
            prefill.add(start, len);
            left -= len;
            if start + len < item.done + item.todo {
                begun = Some((i, len));
                break;
            }
            self.fates[i].leftover = left;
            self.queues.complete(i);
            completed.push(i);
            if left == 0 {
                break;
            }
            let Some(next) = self.next_prefill() else { break };
            i = next;
        }
        self.advance(1, turns, &prefill);
        if let Some((i, len)) = begun {
            self.queues.progress[i] += len;
        }
        for i in completed {
            self.fates[i].first = self.elapsed();
            self.fates[i].first_step = steps(self.now.step);
            self.begin_decode(i);
        }
    }

    /// `steps` equal steps with so many turns and the same prefill work each; its spans are those
    /// of all of them.
    fn advance(&mut self, steps: u32, turns: u32, prefill: &Prefill) {
        let state = &mut self.now.state;
        let mut load = state.load(turns);
        load.decode_seqs += prefill.singles;
        load.context_tokens += prefill.single_context;
        load.prefill_tokens = prefill.tokens;
        load.prefill_span = prefill.span;
        let growth = state.growth(turns) + u64::from(prefill.singles);
        let took = self.rules.view.cost.growing_steps(steps, &load, growth);
        self.now.time = self.now.time.plus(took);
        self.now.step += steps;
        self.now.turn += u64::from(steps) * state.turn_rate(turns);
        state.steady.context_tokens += u64::from(state.steady.seqs) * u64::from(steps);
        state.patient.context_tokens += u64::from(turns) * u64::from(steps);
    }

    fn begin_decode(&mut self, i: usize) {
        let item = &self.items[i];
        let state = &mut self.now.state;
        if item.patient {
            let finish = self.now.turn + u64::from(item.decode_steps()) * TURN;
            self.turning.push(Reverse((finish, i as u32)));
            state.patient.add(item.decode_context());
            return;
        }
        let finish = self.now.step + item.decode_steps();
        self.finishing.push(Reverse(above(finish, i)));
        state.steady.add(item.decode_context());
        self.tempos.add(item.tempo, i);
        state.tempo = state.tempo.tighter(item.tempo);
    }

    /// Ends the items whose last token has come.
    fn retire(&mut self) {
        while let Some(Reverse((finish, i))) = self.turning.peek().copied() {
            if finish > self.now.turn {
                break;
            }
            self.turning.pop();
            let context = self.end(i as usize);
            self.now.state.patient.remove(context);
        }
        let mut tempo_ends = false;
        while let Some((finish, i)) = self.finishing.peek().map(|Reverse(next)| parts(*next)) {
            if finish > self.now.step {
                break;
            }
            self.finishing.pop();
            let context = self.end(i);
            self.now.state.steady.remove(context);
            tempo_ends |= self.items[i].tempo != Tempo::default();
        }
        if tempo_ends {
            let fates = &self.fates;
            self.now.state.tempo = self.tempos.tightest(|i| fates[i].last_step > 0);
        }
    }

    /// The last token of item `i` has come. Returns the context that it leaves.
    fn end(&mut self, i: usize) -> u64 {
        let item = &self.items[i];
        self.fates[i].last = self.elapsed();
        self.fates[i].last_step = steps(self.now.step);
        let state = &mut self.now.state;
        state.held.end(item.line, item.blocks);
        state.used_blocks = state.used_blocks.saturating_sub(item.blocks);
        item.decode_context() + u64::from(item.decode_steps())
    }
}

/// What decoding latency work asks of its steps.
#[derive(Default)]
struct Tempos {
    /// Bulk work is inside: a pace bounds nothing else.
    bulk: bool,
    /// Who borrows is inside: the same of what is within reservations.
    borrowers: bool,
    tpots: Gaps,
    paces: Gaps,
    reserved: Gaps,
}

impl Tempos {
    fn add(&mut self, tempo: Tempo, i: usize) {
        self.tpots.add(tempo.tpot, i);
        if self.bulk {
            self.paces.add(tempo.pace, i);
        }
        if self.borrowers {
            self.reserved.add(tempo.reserved, i);
        }
    }

    fn tightest(&mut self, ended: impl Fn(usize) -> bool) -> Tempo {
        Tempo {
            tpot: self.tpots.tightest(&ended),
            pace: self.paces.tightest(&ended),
            reserved: self.reserved.tightest(&ended),
        }
    }
}

/// Gaps above the item's number. Those of items that have ended stay until they are the tightest.
#[derive(Default)]
struct Gaps(BinaryHeap<Reverse<u64>>);

impl Gaps {
    fn add(&mut self, gap: Gap, i: usize) {
        if let Some(gap) = gap.micros() {
            self.0.push(Reverse(above(gap.0 as u32, i)));
        }
    }

    fn tightest(&mut self, ended: impl Fn(usize) -> bool) -> Gap {
        while let Some((gap, i)) = self.0.peek().map(|Reverse(next)| parts(*next)) {
            if !ended(i) {
                return Gap::new(Some(Micros(gap.into())));
            }
            self.0.pop();
        }
        Gap::default()
    }
}

/// A step or a gap, above the number of the item that it belongs to: one number to compare.
const fn above(key: u32, i: usize) -> u64 {
    (key as u64) << 32 | i as u64
}

/// The same apart again.
const fn parts(number: u64) -> (u32, usize) {
    ((number >> 32) as u32, number as u32 as usize)
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
