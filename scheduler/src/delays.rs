//! Whom a candidate would delay, and by how much.
//!
//! Delays of others are bounded by three numbers: the prefill work (everybody who shares a step
//! with it), the steps that its prefill takes (those behind it in the queue), and what it adds to
//! each step that it decodes in. The loops here have no branches and work on 32-bit columns, so
//! that the compiler can take several entries at a time.

use crate::candidate::Candidate;
use crate::columns::{Columns, later};
use crate::placement::Placement;
use crate::segments::StepCost;
use crate::time::Micros;

/// One delay counts for no more than this (nine minutes), so that a time within the horizon, a
/// delay and the work kept for others still fit 32 bits.
const LONGEST: i32 = (1 << 29) - 1;

/// How many entries are checked before a broken promise is looked for.
const BLOCK: usize = 128;

fn short(micros: u64) -> i32 {
    micros.min(LONGEST as u64) as i32
}

/// A count of steps in 32 bits.
pub(crate) fn steps(steps: u32) -> i32 {
    steps.min(LONGEST as u32) as i32
}

/// Delays of the first and of the last token of one entry.
#[derive(Clone, Copy)]
struct Delay {
    first: i32,
    last: i32,
}

/// The delays that a candidate causes, in microseconds.
pub(crate) struct Delays {
    /// Entries from here on are behind it.
    index: usize,
    start_step: i32,
    first_step: i32,
    prefill_steps: i32,
    /// Of the step that it fills up, and of each full step that carries the rest of its prefill.
    filled: i32,
    chunk: i32,
    /// All of those together, and with what was filled up.
    rest: i32,
    work: i32,
    /// The step that completes the last prefill behind it, if anybody is behind.
    backlog_end: Option<i32>,
    steps: i32,
    step_cost: StepCost,
    queue: i32,
    takes_slot: bool,
}

impl Delays {
    pub(crate) fn new(columns: &Columns, candidate: &Candidate, at: &Placement) -> Delays {
        let work = short(candidate.prefill.0);
        let filled = short(at.filled.0).min(work);
        let prefill_steps = steps(at.prefill_steps);
        Delays {
            index: at.index,
            start_step: steps(at.start_step),
            first_step: steps(at.start_step).saturating_add(prefill_steps),
            prefill_steps,
            filled,
            chunk: short(at.chunk.0).min(LONGEST / prefill_steps.max(1)),
            rest: work - filled,
            work,
            backlog_end: columns.first_step[at.index..at.index + at.backlog].last().copied(),
            steps: steps(candidate.steps),
            step_cost: candidate.step_cost(),
            queue: short(at.queue_delay.0),
            takes_slot: at.takes_slot,
        }
    }

    /// What the decode steps shared until `step` cost.
    fn shared(&self, step: i32) -> i32 {
        let steps = (step - self.first_step).max(0).min(self.steps);
        self.step_cost.times(steps as u32) as i32
    }

    /// Of one who is ahead or decodes: what still decodes then is delayed, and what ends in the
    /// step that the candidate fills up. While others wait behind the candidate (`BACKLOG`, until
    /// step `end`), steps are full with it or without it: it only makes them more.
    #[inline(always)]
    fn ahead<const BACKLOG: bool>(&self, end: i32, first_step: i32, last_step: i32) -> Delay {
        let prefill = if BACKLOG {
            if last_step > end { self.work } else { 0 }
        } else {
            let chunks = (last_step - self.start_step).max(0).min(self.prefill_steps);
            self.filled + (self.chunk * chunks).min(self.rest)
        };
        let after = if last_step > self.start_step { prefill + self.shared(last_step) } else { 0 };
        let last = if last_step == self.start_step { self.filled } else { after };
        let first = if first_step == self.start_step { self.filled } else { 0 };
        Delay { first, last: last.min(LONGEST).max(first) }
    }

    /// Of one who is behind and starts `start` later.
    #[inline(always)]
    fn behind(&self, start: i32, first_step: i32, last_step: i32) -> Delay {
        let first = (start + self.shared(first_step)).min(LONGEST);
        Delay { first, last: (start + self.shared(last_step)).min(LONGEST) }
    }

    /// How much later one starts who is behind, has its slot at `start`, and is followed by one who
    /// has it at `next`: where slots or blocks bind (`SLOT`), everybody moves to the next release.
    #[inline(always)]
    fn start<const SLOT: bool>(&self, start: i32, next: i32) -> i32 {
        if SLOT { (next - start).min(LONGEST).max(self.queue) } else { self.queue }
    }

    /// Whether a promise breaks by these delays and by `more` work beside them.
    pub(crate) fn harm(&self, columns: &Columns, more: Micros) -> bool {
        let more = short(more.0);
        let ahead = match self.backlog_end {
            Some(end) => self.harms_ahead::<true>(columns, end, more),
            None => self.harms_ahead::<false>(columns, 0, more),
        };
        ahead
            || if self.takes_slot {
                self.harms_behind::<true>(columns, more)
            } else {
                self.harms_behind::<false>(columns, more)
            }
    }

    /// Entries whose promises break by these delays and by `more` work beside them. Slower than
    /// [`Delays::harm`]: for when somebody is harmed and it matters who.
    pub(crate) fn broken(&self, columns: &Columns, more: Micros) -> impl Iterator<Item = usize> {
        let check = Check::new(columns, 0, columns.len(), short(more.0));
        (0..columns.len()).filter(move |i| check.breaks(*i, self.of(columns, *i)))
    }

    fn of(&self, columns: &Columns, i: usize) -> Delay {
        let (first_step, last_step) = (columns.first_step[i], columns.last_step[i]);
        if i >= self.index {
            let next = columns.start.get(i + 1).filter(|_| self.takes_slot);
            let start = next.map_or(self.queue, |next| self.start::<true>(columns.start[i], *next));
            return self.behind(start, first_step, last_step);
        }
        match self.backlog_end {
            Some(end) => self.ahead::<true>(end, first_step, last_step),
            None => self.ahead::<false>(0, first_step, last_step),
        }
    }

    fn harms_ahead<const BACKLOG: bool>(&self, columns: &Columns, end: i32, more: i32) -> bool {
        let mut from = 0;
        while from < self.index {
            let to = (from + BLOCK).min(self.index);
            let check = Check::new(columns, from, to, more);
            let (first_steps, last_steps) =
                (&columns.first_step[from..to], &columns.last_step[from..to]);
            let mut broken = false;
            for i in 0..to - from {
                let delay = self.ahead::<BACKLOG>(end, first_steps[i], last_steps[i]);
                broken |= check.breaks(i, delay);
            }
            if broken {
                return true;
            }
            from = to;
        }
        false
    }

    fn harms_behind<const SLOT: bool>(&self, columns: &Columns, more: i32) -> bool {
        let Some(last) = columns.len().checked_sub(1).filter(|last| *last >= self.index) else {
            return false;
        };
        let mut from = self.index;
        while from < last {
            let to = (from + BLOCK).min(last);
            let check = Check::new(columns, from, to, more);
            let (starts, nexts) = (&columns.start[from..to], &columns.start[from + 1..to + 1]);
            let (first_steps, last_steps) =
                (&columns.first_step[from..to], &columns.last_step[from..to]);
            let mut broken = false;
            for i in 0..to - from {
                let start = self.start::<SLOT>(starts[i], nexts[i]);
                broken |= check.breaks(i, self.behind(start, first_steps[i], last_steps[i]));
            }
            if broken {
                return true;
            }
            from = to;
        }
        Check::new(columns, last, last + 1, more).breaks(0, self.of(columns, last))
    }

    /// Makes everybody's times later.
    pub(crate) fn accept(&self, columns: &mut Columns) {
        match self.backlog_end {
            Some(end) => self.accept_ahead::<true>(columns, end),
            None => self.accept_ahead::<false>(columns, 0),
        }
        if self.takes_slot {
            self.accept_behind::<true>(columns);
        } else {
            self.accept_behind::<false>(columns);
        }
    }

    fn accept_behind<const SLOT: bool>(&self, columns: &mut Columns) {
        let Some(last) = columns.len().checked_sub(1).filter(|last| *last >= self.index) else {
            return;
        };
        let (from, n) = (self.index, last - self.index);
        let of_last = self.of(columns, last);
        let starts = &mut columns.start[from..=last];
        let (firsts, lasts) = (&mut columns.first[from..last], &mut columns.last[from..last]);
        let (first_steps, last_steps) =
            (&columns.first_step[from..last], &columns.last_step[from..last]);
        for i in 0..n {
            let start = self.start::<SLOT>(starts[i], starts[i + 1]);
            let delay = self.behind(start, first_steps[i], last_steps[i]);
            starts[i] = later(starts[i], start);
            firsts[i] = later(firsts[i], delay.first);
            lasts[i] = later(lasts[i], delay.last);
        }
        starts[n] = later(starts[n], self.queue);
        columns.first[last] = later(columns.first[last], of_last.first);
        columns.last[last] = later(columns.last[last], of_last.last);
    }

    fn accept_ahead<const BACKLOG: bool>(&self, columns: &mut Columns, end: i32) {
        let n = self.index;
        let (first_steps, last_steps) = (&columns.first_step[..n], &columns.last_step[..n]);
        let (firsts, lasts) = (&mut columns.first[..n], &mut columns.last[..n]);
        for i in 0..n {
            let delay = self.ahead::<BACKLOG>(end, first_steps[i], last_steps[i]);
            firsts[i] = later(firsts[i], delay.first);
            lasts[i] = later(lasts[i], delay.last);
        }
    }
}

/// A part of the columns that is checked for broken promises.
struct Check<'a> {
    first: &'a [i32],
    last: &'a [i32],
    first_limit: &'a [i32],
    last_limit: &'a [i32],
    gap_limit: &'a [i32],
    more: i32,
}

impl Check<'_> {
    fn new(columns: &Columns, from: usize, to: usize, more: i32) -> Check<'_> {
        Check {
            first: &columns.first[from..to],
            last: &columns.last[from..to],
            first_limit: &columns.first_limit[from..to],
            last_limit: &columns.last_limit[from..to],
            gap_limit: &columns.gap_limit[from..to],
            more,
        }
    }

    /// Whether this delay of entry `i` breaks what it was promised. Who is not delayed loses
    /// nothing.
    #[inline(always)]
    fn breaks(&self, i: usize, delay: Delay) -> bool {
        let over = |delay: i32, more: i32, slack: i32| (delay > 0) & (delay + more > slack);
        let gap = self.gap_limit[i] - (self.last[i] - self.first[i]);
        over(delay.first, self.more, self.first_limit[i] - self.first[i])
            | over(delay.last, self.more, self.last_limit[i] - self.last[i])
            | over(delay.last - delay.first, 0, gap)
    }
}

#[cfg(test)]
mod tests;
