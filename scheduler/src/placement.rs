//! A candidate in the timeline: where it would go, whom it would delay, and its insertion.
//!
//! A request is placed as one entry, however many sequences it has: its prefill is theirs together,
//! its steps are those of the longest, and each of its steps costs what all of them add. The
//! forecasts are those of its slowest sequence then. Delays of others are bounded by three numbers:
//! the prefill work (everybody who shares a step with it), the steps that its prefill takes (those
//! behind it in the queue), and what it adds to each step that it decodes in.

use crate::class::Class;
use crate::cost::CostModel;
use crate::replay::{Rules, Segment};
use crate::request::{Request, RequestId};
use crate::sequence::Sequence;
use crate::time::Micros;
use crate::timeline::{Entry, Hot, Key, Promise, Timeline, to_i32};

/// A request that asks for admission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) id: RequestId,
    pub(crate) class: Class,
    pub(crate) key: Key,
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
}

impl Candidate {
    /// The demand of `request`, whose predicted lengths are filled in.
    pub(crate) fn new(rules: &Rules<'_>, request: &Request) -> Candidate {
        let (config, cost) = (rules.view.config, rules.view.cost);
        let leader = Sequence::new(request, 0);
        let rank = rules.policy.rank(&rules.view, &leader).unwrap_or(crate::policy::Rank::LAST);
        let sequences = request.sequences.len() as u32;
        let slots = sequences.min(config.slots());
        let mut candidate = Candidate {
            id: request.id,
            class: request.class,
            key: (rank, request.arrival, leader.id),
            promise: Promise {
                deadline: request.deadline,
                exact: request.sequences.iter().all(|spec| spec.output.exact),
                first_token: None,
                gaps: 0,
            },
            slots,
            todo: 0,
            prefill: Micros(0),
            steps: 0,
            step_ns: 0,
            context_tokens: 0,
            blocks: 0,
        };
        let mut prompt = None;
        for index in 0..request.sequences.len() {
            let seq = Sequence::new(request, index);
            let shares = prompt.replace(seq.prompt) == Some(seq.prompt);
            candidate.add(cost, config.block_size, &seq, shares);
        }
        // More sequences than slots run in waves.
        candidate.promise.gaps = candidate.steps;
        candidate.steps = candidate.steps.saturating_mul(sequences.div_ceil(slots));
        candidate.step_ns = candidate.step_ns / u64::from(sequences) * u64::from(slots);
        candidate
    }

    fn add(&mut self, cost: &CostModel, block_size: u32, seq: &Sequence, shares: bool) {
        let shared = if shares { seq.shared_blocks(block_size) } else { 0 };
        let (done, steps) = (shared * block_size, seq.remaining() - 1);
        let context = u64::from(seq.prompt_tokens) + u64::from(steps / 2);
        self.todo = self.todo.saturating_add(seq.prompt_tokens - done);
        self.prefill = self.prefill.plus(cost.prefill_work(done, seq.prompt_tokens - done));
        self.steps = self.steps.max(steps);
        self.step_ns = self.step_ns.saturating_add(cost.decode_work_ns(context));
        self.context_tokens = self.context_tokens.saturating_add(context);
        self.blocks = self.blocks.saturating_add(seq.peak_tokens().div_ceil(block_size) - shared);
    }

    /// What `steps` shared decode steps cost those who share them.
    const fn shared(&self, steps: u32) -> Micros {
        Micros(self.step_ns.saturating_mul(steps as u64) / 1_000)
    }

    /// Device time that it adds to a busy device.
    pub(crate) const fn work(&self) -> Micros {
        self.prefill.plus(self.shared(self.steps))
    }
}

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
    /// Prefill tokens to spare in the step that completes its prefill.
    leftover: u32,
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
        let queue = &self.entries[self.decoding..];
        let fixed = self.fixed - self.decoding;
        let behind = queue[fixed..].partition_point(|entry| entry.key <= candidate.key) + fixed;
        let index = self.decoding + behind;
        let (ahead, mut leftover) = match behind.checked_sub(1) {
            Some(before) => (self.first(self.decoding + before), queue[before].leftover),
            None => (self.base, 0),
        };
        let slot = self.wait_for_slot(rules, candidate, index, ahead);
        if slot.time > ahead {
            leftover = 0;
        }
        let at = self.segment_at(slot.time);
        let segment = &self.segments[at];
        let budget = rules.prefill_budget(segment, 0);
        let steps = candidate.todo.saturating_sub(leftover).div_ceil(budget);
        let base = rules.view.cost.decode(segment.decode_seqs, segment.context_tokens, 1);
        let start_step = self.step_at(at, slot.time);
        let first = slot.time.plus(Micros(base.0 * u64::from(steps))).plus(candidate.prefill);
        let last_in_queue = index == self.entries.len();
        let from = start_step + if last_in_queue { steps } else { 0 };
        let until = from.saturating_add(candidate.steps);
        let decode =
            self.time_of(rules.view.cost, until).minus(self.time_of(rules.view.cost, from));
        let carried = u64::from(candidate.todo.saturating_sub(leftover));
        Placement {
            index,
            start_step,
            start: slot.time,
            prefill_steps: steps,
            first,
            finish: first.plus(decode).plus(candidate.shared(candidate.steps)),
            takes_slot: slot.time > ahead,
            waits_for_blocks: slot.blocks,
            queue_delay: candidate.prefill.plus(Micros(base.0 * carried / u64::from(budget))),
            leftover: (budget - candidate.todo.saturating_sub(leftover) % budget) % budget,
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
        if index < self.entries.len() {
            let time = self.start(index).max(ahead);
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
        let ahead = self.hot[..at.index].iter().any(|hot| {
            let delay = delays.ahead(hot);
            delay > 0 && delay + more > i64::from(hot.last_slack.min(hot.gap_slack))
        });
        ahead
            || self.hot[at.index..].iter().enumerate().any(|(i, hot)| {
                let delay = delays.behind(self, at.index + i, hot);
                delay.first + more > i64::from(hot.first_slack)
                    || delay.last + more > i64::from(hot.last_slack)
                    || (delay.gap > 0 && delay.gap > i64::from(hot.gap_slack))
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
        for hot in &mut self.hot[..at.index] {
            let delay = delays.ahead(hot);
            hot.shift(&Delay { start: 0, first: 0, last: delay, gap: delay });
        }
        for i in at.index..self.hot.len() {
            let delay = delays.behind(self, i, &self.hot[i]);
            self.hot[i].shift(&delay);
        }
        self.insert_segments(rules, candidate, at);
        let first_step = at.start_step + at.prefill_steps.max(1);
        let entry = Entry {
            id: candidate.id,
            class: candidate.class,
            key: candidate.key,
            promise: candidate.promise,
            start: at.start,
            first: at.first,
            finish: at.finish,
            leftover: at.leftover,
        };
        let finish_step = first_step.saturating_add(candidate.steps);
        let mut hot = Hot::new(first_step, finish_step);
        entry.protect(&mut hot, rules.view.now, margin);
        self.hot.insert(at.index, hot);
        self.entries.insert(at.index, entry);
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

    fn start(&self, index: usize) -> Micros {
        self.entries[index].start.plus(Micros(self.hot[index].start_delay as u64))
    }

    fn first(&self, index: usize) -> Micros {
        self.entries[index].first.plus(Micros(self.hot[index].first_delay as u64))
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
    start_step: i32,
    steps: i32,
    step_ns: i64,
    prefill: i64,
    queue: i64,
    takes_slot: bool,
}

impl Delays {
    fn new(line: &Timeline, candidate: &Candidate, at: &Placement) -> Delays {
        debug_assert_eq!(line.hot.len(), line.entries.len());
        Delays {
            start_step: to_i32(u64::from(at.start_step)),
            steps: to_i32(u64::from(candidate.steps)),
            step_ns: i64::from(to_i32(candidate.step_ns)),
            prefill: i64::from(to_i32(candidate.prefill.0)),
            queue: i64::from(to_i32(at.queue_delay.0)),
            takes_slot: at.takes_slot,
        }
    }

    /// What the decode steps shared until `step` cost.
    fn shared(&self, step: i32) -> i64 {
        let steps = (step - self.start_step).clamp(0, self.steps);
        self.step_ns * i64::from(steps) / 1_000
    }

    /// Of the last token of one who is ahead: only those that still decode then are delayed.
    fn ahead(&self, hot: &Hot) -> i64 {
        if hot.finish_step <= self.start_step {
            0
        } else {
            self.prefill + self.shared(hot.finish_step)
        }
    }

    /// Of one who is behind. Where slots or blocks bind, everybody moves to the next release.
    fn behind(&self, line: &Timeline, index: usize, hot: &Hot) -> Delay {
        let release = if self.takes_slot && index + 1 < line.entries.len() {
            line.start(index + 1).minus(line.start(index)).0 as i64
        } else {
            0
        };
        let start = self.queue.max(release);
        let first = start + self.shared(hot.first_step);
        let last = start + self.shared(hot.finish_step);
        Delay { start, first, last, gap: last - first }
    }
}

impl Hot {
    fn shift(&mut self, delay: &Delay) {
        self.start_delay = self.start_delay.saturating_add(narrow(delay.start));
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
