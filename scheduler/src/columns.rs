//! What a delay does to the entries of a timeline: one column a quantity, so that all of them can
//! be scanned for each candidate, several at once.

use alloc::vec::Vec;

use crate::lean;
use crate::promise::{HORIZON, Limits};

/// One entry: times in microseconds from the base, steps from the base, and limits of times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// When it has its slot, its first token and its last.
    pub(crate) start: i32,
    pub(crate) first: i32,
    pub(crate) last: i32,
    pub(crate) first_step: i32,
    pub(crate) last_step: i32,
    pub(crate) limits: Limits,
}

/// All entries, in order: first those that decode, then the queue for prefill.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    pub(crate) start: Vec<i32>,
    pub(crate) first: Vec<i32>,
    pub(crate) last: Vec<i32>,
    pub(crate) first_step: Vec<i32>,
    pub(crate) last_step: Vec<i32>,
    pub(crate) first_limit: Vec<i32>,
    pub(crate) last_limit: Vec<i32>,
    /// Of the span from the first to the last token.
    pub(crate) gap_limit: Vec<i32>,
}

impl Columns {
    pub(crate) fn len(&self) -> usize {
        self.start.len()
    }

    pub(crate) fn limits(&self, i: usize) -> Limits {
        Limits { first: self.first_limit[i], last: self.last_limit[i], gap: self.gap_limit[i] }
    }

    pub(crate) fn set_limits(&mut self, i: usize, limits: Limits) {
        self.first_limit[i] = limits.first;
        self.last_limit[i] = limits.last;
        self.gap_limit[i] = limits.gap;
    }

    pub(crate) fn insert(&mut self, index: usize, row: Row) {
        lean::insert(&mut self.start, index, row.start);
        lean::insert(&mut self.first, index, row.first);
        lean::insert(&mut self.last, index, row.last);
        lean::insert(&mut self.first_step, index, row.first_step);
        lean::insert(&mut self.last_step, index, row.last_step);
        lean::insert(&mut self.first_limit, index, row.limits.first);
        lean::insert(&mut self.last_limit, index, row.limits.last);
        lean::insert(&mut self.gap_limit, index, row.limits.gap);
    }
}

/// `time` after a delay.
pub(crate) fn later(time: i32, delay: i32) -> i32 {
    time + delay.min(HORIZON - time)
}

/// A time or a span in 32 bits.
pub(crate) fn within_horizon(micros: u64) -> i32 {
    micros.min(HORIZON as u64) as i32
}
