//! A candidate in the timeline: where it would go, whom it would delay, and its insertion.
//!
//! Delays of others are bounded by three numbers:
//! the prefill work (everybody who shares a step with it), the steps that its prefill takes (those
//! behind it in the queue), and what it adds to each step that it decodes in.

use core::cmp::Ordering;

use crate::candidate::Candidate;
use crate::class::Class;
use crate::cost::CostModel;
use crate::replay::{Rules, Segment};
use crate::time::Micros;
use crate::timeline::{Entry, Hot, Timeline, to_i32};

/// Where a candidate would go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    /// Its index among the entries.
    pub(crate) index: usize,
    /// Step and time at which its prefill starts.
    pub(crate) start_step: u32,
    pub(crate) start: Micros,
    /// Steps until its first token, those of others that carry it included.
    pub(crate) prefill_steps: u32,
    pub(crate) first: Micros,
    pub(crate) finish: Micros,
    /// It waits for a slot or blocks that somebody behind it would have taken.
    takes_slot: bool,
    /// It waits for blocks, not only for a slot.
    pub(crate) waits_for_blocks: bool,
    /// How much later those behind it start.
    queue_delay: Micros,
    /// How much longer the step gets in which its prefill begins beside the end of another.
    filled: Micros,
    /// What a full chunk of its prefill adds to a step.
    chunk: Micros,
    /// Prefill tokens to spare in the step that completes its prefill.
    leftover: u32,
}

/// How the prefill of a candidate shares steps with its neighbours in the queue.
struct Fill {
    /// Its tokens beyond those that end the step of the one before it, and the steps for them.
    carried: u32,
    steps: u32,
    /// How much longer it makes the step of the one before it.
    before: Micros,
    /// What its other tokens cost.
    own: Micros,
    /// What those behind it add to the step that completes it.
    after: Micros,
    /// Tokens to spare in that step.
    leftover: u32,
}

impl Fill {
    /// The one before leaves `leftover` tokens of its last step. If somebody is behind, those were
    /// used already and only change hands.
    fn new(
        cost: &CostModel,
        candidate: &Candidate,
        leftover: u32,
        budget: u32,
        next: Option<&Entry>,
    ) -> Fill {
        let behind = next.map_or(0, |entry| entry.todo);
        let before = candidate.todo.min(leftover);
        let carried = candidate.todo - before;
        let spare = leftover - before + (budget - carried % budget) % budget;
        Fill {
            carried,
            steps: carried.div_ceil(budget),
            before: cost.prefill_work(0, before - before.min(behind)),
            own: candidate.prefill.minus(cost.prefill_work(0, before)),
            after: cost.prefill_work(0, spare.min(behind)),
            leftover: spare,
        }
    }
}

/// Delays of one entry: of its start, its first and its last token, and of the span between them.
struct Delay {
    start: i64,
    first: i64,
    last: i64,
    gap: i64,
}

impl Timeline {
    /// Looks up where `candidate` would go and when it would have its tokens, if nobody came later.
    pub(crate) fn place(&self, rules: &Rules<'_>, candidate: &Candidate) -> Placement {
        let queue = &self.hot[self.decoding..];
        let fixed = self.fixed - self.decoding;
        let behind =
            queue[fixed..].partition_point(|hot| self.entry(hot).key <= candidate.key) + fixed;
        let index = self.decoding + behind;
        let (ahead, mut leftover) = match behind.checked_sub(1) {
            Some(before) => (self.first(&queue[before]), self.entry(&queue[before]).leftover),
            None => (self.base, 0),
        };
        let slot = self.wait_for_slot(rules, candidate, index, ahead);
        if slot.time > ahead {
            leftover = 0;
        }
        let cost = rules.view.cost;
        let at = self.segment_at(slot.time);
        let segment = &self.segments[at];
        let budget = rules.prefill_budget(segment, 0);
        let base = cost.decode(segment.decode_seqs, segment.context_tokens, 1);
        let fill = Fill::new(
            cost,
            candidate,
            leftover,
            budget,
            self.hot.get(index).map(|hot| self.entry(hot)),
        );
        let first = slot
            .time
            .plus(fill.before)
            .plus(Micros(base.0 * u64::from(fill.steps)))
            .plus(fill.own)
            .plus(fill.after);
        let start_step = self.step_at(at, slot.time);
        let last_in_queue = index == self.hot.len();
        let from = start_step + if last_in_queue { fill.steps } else { 0 };
        let until = from.saturating_add(candidate.steps);
        let decode = self.time_of(cost, until).minus(self.time_of(cost, from));
        let carrying = Micros(base.0 * u64::from(fill.carried) / u64::from(budget));
        Placement {
            index,
            start_step,
            start: slot.time,
            prefill_steps: fill.steps,
            first,
            finish: first.plus(decode).plus(candidate.shared(candidate.steps)),
            takes_slot: slot.time > ahead,
            waits_for_blocks: slot.blocks,
            queue_delay: candidate.prefill.plus(carrying),
            filled: fill.before,
            chunk: Micros(fill.own.0 * u64::from(budget) / u64::from(fill.carried.max(1))),
            leftover: fill.leftover,
        }
    }

    /// The first moment from `ahead` at which the candidate has a slot and its blocks: that of the
    /// one whose place it takes, or at the end of the queue the first with room.
    fn wait_for_slot(
        &self,
        rules: &Rules<'_>,
        candidate: &Candidate,
        index: usize,
        ahead: Micros,
    ) -> Slot {
        if let Some(occupant) = self.hot.get(index) {
            let time = self.start(occupant).max(ahead);
            let before = self.segment_at(time).saturating_sub(1);
            let blocks = time > ahead && self.has_slots(rules, candidate, before);
            return Slot { time, blocks };
        }
        let mut at = self.segment_at(ahead);
        let mut slot = Slot { time: ahead, blocks: false };
        while at + 1 < self.segments.len() {
            let free = self.has_slots(rules, candidate, at);
            if free && rules.has_blocks(&self.segments[at], candidate.blocks) {
                break;
            }
            slot.blocks |= free;
            at += 1;
        }
        slot.time = self.segments[at].time.max(ahead);
        slot
    }

    fn has_slots(&self, rules: &Rules<'_>, candidate: &Candidate, segment: usize) -> bool {
        self.segments[segment].running + candidate.slots <= rules.view.config.slots()
    }

    /// Whether a promise would break by `candidate`, placed at `at`, and by `more` work beside it.
    pub(crate) fn harms(&self, candidate: &Candidate, at: &Placement, more: Micros) -> bool {
        let more = more.0 as i64;
        let delays = Delays::new(self, candidate, at);
        self.hot.iter().enumerate().any(|(i, hot)| {
            let delay = delays.of(self, i, hot);
            let breaks = |delay: i64, more, slack| delay > 0 && delay + more > i64::from(slack);
            breaks(delay.first, more, hot.first_slack)
                || breaks(delay.last, more, hot.last_slack)
                || breaks(delay.gap, 0, hot.gap_slack)
        })
    }

    /// Puts an admitted candidate in: everybody's times and slacks move by its delays, and its own
    /// entry is protected with `margin`, as of `now`.
    pub(crate) fn insert(
        &mut self,
        rules: &Rules<'_>,
        candidate: &Candidate,
        at: &Placement,
        margin: u32,
    ) {
        let delays = Delays::new(self, candidate, at);
        for i in 0..self.hot.len() {
            let delay = delays.of(self, i, &self.hot[i]);
            self.hot[i].shift(&delay);
        }
        self.insert_segments(rules, candidate, at);
        let first_step = at.start_step + at.prefill_steps;
        let entry = Entry {
            id: candidate.id,
            class: candidate.class,
            key: candidate.key,
            promise: candidate.promise,
            first: at.first,
            finish: at.finish,
            todo: candidate.todo,
            leftover: at.leftover,
        };
        let finish_step = first_step.saturating_add(candidate.steps);
        let mut hot =
            Hot::new(self.entries.len(), at.start.minus(self.base), first_step, finish_step);
        entry.protect(&mut hot, rules.view.now, margin);
        self.hot.insert(at.index, hot);
        self.entries.push(entry);
    }

    /// The steps of the candidate get longer and fuller.
    fn insert_segments(&mut self, rules: &Rules<'_>, candidate: &Candidate, at: &Placement) {
        let first_step = at.start_step + at.prefill_steps;
        let finish_step = first_step.saturating_add(candidate.steps);
        let start = self.split(rules.view.cost, at.start_step);
        let first = self.split(rules.view.cost, first_step);
        let finish = self.split(rules.view.cost, finish_step);
        for (i, segment) in self.segments.iter_mut().enumerate().skip(start) {
            if i < finish {
                segment.running += candidate.slots;
                segment.used_blocks = segment.used_blocks.saturating_add(candidate.blocks);
            }
            if i >= first {
                let decoded = (segment.step - first_step).min(candidate.steps);
                segment.time = segment.time.plus(candidate.prefill).plus(candidate.shared(decoded));
            }
            if i >= first && i < finish {
                segment.decode_seqs += candidate.slots;
                segment.context_tokens += candidate.context_tokens;
                if candidate.class == Class::Latency {
                    let tpot = candidate.promise.deadline.tpot;
                    segment.tightest_tpot = segment.tightest_tpot.into_iter().chain(tpot).min();
                }
            }
        }
    }

    /// Makes a segment begin at `step`; returns its index.
    fn split(&mut self, cost: &CostModel, step: u32) -> usize {
        let after = self.segments.partition_point(|segment| segment.step < step);
        if self.segments.get(after).is_none_or(|segment| segment.step > step) {
            let time = self.time_of(cost, step);
            let mut segment = self.segments[after.saturating_sub(1)];
            segment.context_tokens +=
                u64::from(segment.decode_seqs) * u64::from(step - segment.step);
            (segment.step, segment.time) = (step, time);
            self.segments.insert(after, segment);
        }
        after
    }

    fn start(&self, hot: &Hot) -> Micros {
        self.base.plus(Micros(hot.start as u64))
    }

    fn first(&self, hot: &Hot) -> Micros {
        self.entry(hot).first.plus(Micros(hot.first_delay as u64))
    }

    /// The last segment that has begun by `time`, or the first one.
    fn segment_at(&self, time: Micros) -> usize {
        self.segments.partition_point(|segment| segment.time <= time).max(1) - 1
    }

    /// The step that runs at `time`, which lies in the segment `at` or after the last.
    fn step_at(&self, at: usize, time: Micros) -> u32 {
        let segment = &self.segments[at];
        let Some(next) = self.segments.get(at + 1) else { return segment.step };
        let whole = next.time.minus(segment.time).0.max(1);
        let part = time.minus(segment.time).0.min(whole);
        segment.step + (u64::from(next.step - segment.step) * part / whole) as u32
    }

    /// When `step` begins: between two events by interpolation, after the last by the closed form.
    fn time_of(&self, cost: &CostModel, step: u32) -> Micros {
        let at = self.segments.partition_point(|segment| segment.step <= step).max(1) - 1;
        let segment: &Segment = &self.segments[at];
        let steps = step - segment.step;
        match self.segments.get(at + 1) {
            Some(next) if next.step > segment.step => {
                let whole = next.time.minus(segment.time).0;
                let part = whole * u64::from(steps) / u64::from(next.step - segment.step);
                segment.time.plus(Micros(part))
            }
            _ => {
                let (b, k) = (segment.decode_seqs, segment.context_tokens);
                segment.time.plus(cost.decode(b, k, steps))
            }
        }
    }
}

/// When a candidate gets its slot.
struct Slot {
    time: Micros,
    /// Blocks were short for at least a part of the wait.
    blocks: bool,
}

/// The delays that a candidate causes, in microseconds.
struct Delays {
    index: usize,
    start_step: i32,
    prefill_steps: i32,
    /// Of the step that it fills up, and of each full step that carries the rest of its prefill.
    filled: i64,
    chunk: i64,
    /// All of those together, and with what was filled up.
    rest: i64,
    work: i64,
    /// The step that completes the last prefill behind it, if anybody is behind.
    backlog_end: Option<i32>,
    steps: i32,
    /// What it adds to a step that it decodes in, 1/256 us.
    step_cost: i64,
    queue: i64,
    takes_slot: bool,
}

impl Delays {
    fn new(line: &Timeline, candidate: &Candidate, at: &Placement) -> Delays {
        let work = i64::from(to_i32(candidate.prefill.0));
        let filled = i64::from(to_i32(at.filled.0)).min(work);
        Delays {
            index: at.index,
            start_step: to_i32(u64::from(at.start_step)),
            prefill_steps: to_i32(u64::from(at.prefill_steps)),
            filled,
            chunk: i64::from(to_i32(at.chunk.0)),
            rest: work - filled,
            work,
            backlog_end: line.hot[at.index..].last().map(|hot| hot.first_step),
            steps: to_i32(u64::from(candidate.steps)),
            step_cost: i64::from(to_i32(candidate.step_ns.saturating_mul(32) / 125)),
            queue: i64::from(to_i32(at.queue_delay.0)),
            takes_slot: at.takes_slot,
        }
    }

    /// What the decode steps shared until `step` cost.
    fn shared(&self, step: i32) -> i64 {
        let first_step = self.start_step.saturating_add(self.prefill_steps);
        let steps = step.saturating_sub(first_step).clamp(0, self.steps);
        (self.step_cost * i64::from(steps)) >> 8
    }

    /// What its prefill adds to the steps until `step`. While others wait behind it, their steps
    /// are full with it or without it: it only makes them more.
    fn prefill_until(&self, step: i32) -> i64 {
        match self.backlog_end {
            None => {
                let chunks = (step - self.start_step).min(self.prefill_steps);
                self.filled + (self.chunk * i64::from(chunks)).min(self.rest)
            }
            Some(end) if step > end => self.work,
            Some(_) => 0,
        }
    }

    fn of(&self, line: &Timeline, index: usize, hot: &Hot) -> Delay {
        if index < self.index { self.ahead(hot) } else { self.behind(line, index, hot) }
    }

    /// Of one who is ahead or decodes: what still decodes then is delayed, and what ends in the
    /// step that the candidate fills up.
    fn ahead(&self, hot: &Hot) -> Delay {
        let first = if hot.first_step == self.start_step { self.filled } else { 0 };
        let last = match hot.finish_step.cmp(&self.start_step) {
            Ordering::Less => 0,
            Ordering::Equal => self.filled,
            Ordering::Greater => self.prefill_until(hot.finish_step) + self.shared(hot.finish_step),
        };
        Delay { start: 0, first, last, gap: last - first }
    }

    /// Of one who is behind. Where slots or blocks bind, everybody moves to the next release.
    fn behind(&self, line: &Timeline, index: usize, hot: &Hot) -> Delay {
        let next = line.hot.get(index + 1).filter(|_| self.takes_slot);
        let release = next.map_or(0, |next| i64::from(next.start) - i64::from(hot.start));
        let start = self.queue.max(release);
        let first = start + self.shared(hot.first_step);
        let last = start + self.shared(hot.finish_step);
        Delay { start, first, last, gap: last - first }
    }
}

impl Hot {
    fn shift(&mut self, delay: &Delay) {
        self.start = self.start.saturating_add(narrow(delay.start));
        self.first_delay = self.first_delay.saturating_add(narrow(delay.first));
        self.last_delay = self.last_delay.saturating_add(narrow(delay.last));
        self.first_slack = less(self.first_slack, narrow(delay.first));
        self.last_slack = less(self.last_slack, narrow(delay.last));
        self.gap_slack = less(self.gap_slack, narrow(delay.gap));
    }
}

fn narrow(delay: i64) -> i32 {
    i32::try_from(delay).unwrap_or(i32::MAX)
}

/// A slack after a delay; what is not protected stays so.
const fn less(slack: i32, delay: i32) -> i32 {
    if slack == i32::MAX { slack } else { slack.saturating_sub(delay) }
}
