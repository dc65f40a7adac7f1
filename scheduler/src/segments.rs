//! The steps to come: the state of the device at each event, and the time at which it happens.
//!
//! Columns, because they are read apart: steps to find a step, times to find a moment, states
//! for the few segments that a candidate meets. Events that follow each other closely in the far
//! future are one segment: a forecast is not more exact than a part of the time it looks ahead, and
//! so the number of segments stays bounded however long the queue is.

use alloc::vec::Vec;
use core::ops::Range;

use crate::class::Class;
use crate::cost::{CostModel, StepLoad};
use crate::policy::{Decoding, StepState};
use crate::room::Held;
use crate::time::Micros;

/// An event opens a segment if it is further from the last one than this part of the steps until
/// it. With it a timeline has at most some 1,500 segments.
const PER_DISTANCE: u64 = 128;

/// The state at one event; it holds until the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Segment {
    pub(crate) step: u32,
    pub(crate) time: Micros,
    /// Turns that patient sequences have had so far.
    pub(crate) turn: u64,
    pub(crate) state: State,
}

/// What runs, and what it holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct State {
    /// Sequences that decode in each step, and those that do by turns if the policy rations.
    pub(crate) steady: Decoding,
    pub(crate) patient: Decoding,
    pub(crate) used_blocks: u32,
    /// The tightest of decoding latency work.
    pub(crate) tempo: Tempo,
    pub(crate) held: Held,
}

/// One turn of a patient sequence: a token. Parts of it count.
pub(crate) const TURN: u64 = 1 << 20;

impl State {
    /// What the policy is told of the decoding part.
    pub(crate) fn step(&self) -> StepState {
        StepState {
            steady: self.steady,
            patient: self.patient,
            tightest_tpot: self.tempo.tpot.micros(),
            tightest_pace: self.tempo.pace.micros(),
            reserved_pace: self.tempo.reserved.micros(),
            bulk: self.held.inside[Class::Throughput.index()] > 0,
            borrowers: self.held.borrowers > 0,
            ..StepState::default()
        }
    }

    /// The decoding part of a step with so many turns.
    pub(crate) fn load(&self, turns: u32) -> StepLoad {
        let Decoding { seqs, context_tokens } = self.step().decoding(turns);
        StepLoad { decode_seqs: seqs, context_tokens, ..StepLoad::default() }
    }

    /// By how much the context that is read grows in a step with so many turns.
    pub(crate) fn growth(&self, turns: u32) -> u64 {
        let (turns, patient) = (u64::from(turns), u64::from(self.patient.seqs.max(1)));
        u64::from(self.steady.seqs) + turns * turns / patient
    }

    /// How far each patient sequence comes in a step with so many turns.
    pub(crate) fn turn_rate(&self, turns: u32) -> u64 {
        u64::from(turns) * TURN / u64::from(self.patient.seqs.max(1))
    }
}

/// A promised gap between tokens in 32 bits (71 minutes at most), or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Gap(Option<core::num::NonZeroU32>);

impl Gap {
    pub(crate) fn new(tpot: Option<Micros>) -> Gap {
        let whole = |tpot: Micros| u32::try_from(tpot.0).unwrap_or(u32::MAX).max(1);
        Gap(tpot.and_then(|tpot| core::num::NonZeroU32::new(whole(tpot))))
    }

    pub(crate) fn micros(self) -> Option<Micros> {
        self.0.map(|tpot| Micros(tpot.get().into()))
    }

    pub(crate) fn tighter(self, other: Gap) -> Gap {
        Gap(self.0.into_iter().chain(other.0).min())
    }
}

/// What latency work asks of the steps that it is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Tempo {
    /// The gap that it was promised: no step shall be longer.
    pub(crate) tpot: Gap,
    /// The gap that its targets leave: bulk work shall not make a step longer.
    pub(crate) pace: Gap,
    /// The same gap if it is within its tenant's reservation: nor shall those who borrow.
    pub(crate) reserved: Gap,
}

impl Tempo {
    pub(crate) fn tighter(self, other: Tempo) -> Tempo {
        Tempo {
            tpot: self.tpot.tighter(other.tpot),
            pace: self.pace.tighter(other.pace),
            reserved: self.reserved.tighter(other.reserved),
        }
    }
}

/// What an inserted request does to the steps from `start` to `finish`, in which it runs, and from
/// `first`, from which it decodes. Steps are numbered as before the insertion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) start: u32,
    pub(crate) first: u32,
    pub(crate) finish: u32,
    /// Steps in which it decodes: fewer than from first to finish, if it waits for turns.
    pub(crate) steps: u32,
    pub(crate) class: Class,
    pub(crate) borrows: bool,
    pub(crate) patient: bool,
    pub(crate) slots: u32,
    pub(crate) blocks: u32,
    pub(crate) context_tokens: u64,
    pub(crate) tempo: Tempo,
    pub(crate) prefill: Micros,
    pub(crate) step_cost: StepCost,
}

/// What a sequence adds to each step that it decodes in, times a count of steps: a product that
/// fits 32 bits for every count up to the one it was made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepCost {
    scaled: u32,
    shift: u32,
}

impl StepCost {
    /// Of `ns` nanoseconds, for at most `steps` steps.
    pub(crate) fn new(ns: u64, steps: u32) -> StepCost {
        let most = u64::from(u32::MAX >> 2) / u64::from(steps.max(1));
        let scaled = |shift: u32| ns.saturating_mul(1 << shift) / 1_000;
        let shift = (0..=8).rev().find(|shift| scaled(*shift) <= most).unwrap_or(0);
        StepCost { scaled: scaled(shift).min(most) as u32, shift }
    }

    /// Microseconds of `steps` steps, at most those it was made for.
    pub(crate) const fn times(self, steps: u32) -> u32 {
        (self.scaled * steps) >> self.shift
    }
}

/// Segments in order, at least one.
#[derive(Clone, Debug)]
pub(crate) struct Segments {
    steps: Vec<u32>,
    times: Vec<Micros>,
    turns: Vec<u64>,
    states: Vec<State>,
}

impl Segments {
    /// Nothing happens from `base` on.
    pub(crate) fn idle(base: Micros) -> Segments {
        Segments {
            steps: alloc::vec![0],
            times: alloc::vec![base],
            turns: alloc::vec![0],
            states: alloc::vec![State::default()],
        }
    }

    /// Most sequences that run at once.
    pub(crate) fn peak_running(&self) -> u32 {
        self.states.iter().map(|state| state.held.running()).max().unwrap_or(0)
    }

    /// None yet; the first one has to be pushed.
    pub(crate) fn with_capacity(events: usize) -> Segments {
        Segments {
            steps: Vec::with_capacity(events),
            times: Vec::with_capacity(events),
            turns: Vec::with_capacity(events),
            states: Vec::with_capacity(events),
        }
    }

    /// The next event. One that is as good as at the same step as the last one is left out.
    pub(crate) fn push(&mut self, segment: &Segment) {
        let close =
            |last: &u32| u64::from(segment.step - last) * PER_DISTANCE < u64::from(segment.step);
        if !self.steps.last().is_some_and(close) {
            self.push_always(segment);
        }
    }

    /// The next event, however close.
    pub(crate) fn push_always(&mut self, segment: &Segment) {
        self.steps.push(segment.step);
        self.times.push(segment.time);
        self.turns.push(segment.turn);
        self.states.push(segment.state);
    }

    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    pub(crate) fn state(&self, at: usize) -> &State {
        &self.states[at]
    }

    /// The states from the first to the last of `steps`.
    pub(crate) fn states_within(&self, steps: Range<u32>) -> impl Iterator<Item = &State> {
        let first = self.steps.partition_point(|begins| *begins <= steps.start).max(1) - 1;
        let end = self.steps.partition_point(|begins| *begins < steps.end).max(first + 1);
        self.states[first..end].iter()
    }

    pub(crate) fn time(&self, at: usize) -> Micros {
        self.times[at]
    }

    /// The last segment that has begun by `time`, or the first one.
    pub(crate) fn at(&self, time: Micros) -> usize {
        self.times.partition_point(|begins| *begins <= time).max(1) - 1
    }

    /// The step that runs at `time`, which lies in the segment `at` or after the last.
    pub(crate) fn step_at(&self, at: usize, time: Micros) -> u32 {
        let step = self.steps[at];
        let Some(next) = self.times.get(at + 1) else { return step };
        let whole = next.minus(self.times[at]).0.max(1);
        let part = time.minus(self.times[at]).0.min(whole);
        step + (u64::from(self.steps[at + 1] - step) * part / whole) as u32
    }

    /// When `step` begins: between two events by interpolation, after the last by the closed form.
    pub(crate) fn time_of(&self, cost: &CostModel, step: u32) -> Micros {
        let at = self.steps.partition_point(|begins| *begins <= step).max(1) - 1;
        let (time, steps) = (self.times[at], step - self.steps[at]);
        match self.steps.get(at + 1) {
            Some(next) if *next > self.steps[at] => {
                let whole = self.times[at + 1].minus(time).0;
                let part = whole * u64::from(steps) / u64::from(next - self.steps[at]);
                time.plus(Micros(part))
            }
            _ => {
                let state = &self.states[at];
                time.plus(cost.steps(steps, &state.load(state.patient.seqs)))
            }
        }
    }

    /// The step in which a patient sequence that begins to decode at `step` has had `turns` turns.
    pub(crate) fn step_after(&self, step: u32, turns: u32) -> u32 {
        let turn = self.turn_of(step) + u64::from(turns) * TURN;
        let at = self.turns.partition_point(|begins| *begins <= turn).max(1) - 1;
        let more = turn - self.turns[at];
        let steps = match self.turns.get(at + 1) {
            Some(next) => {
                let (whole, steps) = (next - self.turns[at], self.steps[at + 1] - self.steps[at]);
                (more * u64::from(steps)).div_ceil(whole)
            }
            None => more.div_ceil(TURN),
        };
        self.steps[at].saturating_add(u32::try_from(steps).unwrap_or(u32::MAX))
    }

    /// The turns that patient sequences have had when `step` begins.
    fn turn_of(&self, step: u32) -> u64 {
        let at = self.steps.partition_point(|begins| *begins <= step).max(1) - 1;
        let (turn, steps) = (self.turns[at], u64::from(step - self.steps[at]));
        match self.steps.get(at + 1) {
            Some(next) => {
                let whole = self.turns[at + 1] - turn;
                turn + whole * steps / u64::from((next - self.steps[at]).max(1))
            }
            None => turn + steps * TURN,
        }
    }

    /// Steps that `load` runs in get fuller, those that it decodes in and all later ones later.
    pub(crate) fn insert(&mut self, cost: &CostModel, load: &Load) {
        self.split(cost, [load.start, load.first, load.finish]);
        let place = |step| self.steps.partition_point(|begins| *begins < step);
        let [start, first, finish] = [load.start, load.first, load.finish].map(place);
        let class = load.class.index();
        let borrowed = if load.borrows { load.slots } else { 0 };
        let borrowed_blocks = if load.borrows { load.blocks } else { 0 };
        for state in &mut self.states[..finish] {
            state.held.inside[class] += load.slots;
            state.held.borrowers += borrowed;
        }
        for state in &mut self.states[start..finish] {
            let held = &mut state.held;
            held.running[class] += load.slots;
            held.blocks[class] = held.blocks[class].saturating_add(load.blocks);
            held.borrowed = held.borrowed.plus(borrowed, borrowed_blocks);
            state.used_blocks = state.used_blocks.saturating_add(load.blocks);
        }
        for state in &mut self.states[first..finish] {
            let of = if load.patient { &mut state.patient } else { &mut state.steady };
            of.seqs += load.slots;
            of.context_tokens += load.context_tokens;
            state.tempo = state.tempo.tighter(load.tempo);
        }
        for (time, step) in self.times[first..].iter_mut().zip(&self.steps[first..]) {
            let decoded = (step - load.first).min(load.steps);
            let more = u64::from(load.step_cost.times(decoded)) + load.prefill.0;
            *time = Micros(time.0.saturating_add(more));
        }
    }

    /// Makes a segment begin at each of `steps`, which ascend: everything moves once.
    fn split(&mut self, cost: &CostModel, steps: [u32; 3]) {
        let mut new = [(0, Segment::default()); 3];
        let mut count = 0;
        for step in steps {
            let after = self.steps.partition_point(|begins| *begins < step);
            let exists = self.steps.get(after) == Some(&step);
            if exists || new[..count].iter().any(|(_, segment)| segment.step == step) {
                continue;
            }
            let before = after.saturating_sub(1);
            let mut state = self.states[before];
            let passed = u64::from(step - self.steps[before]);
            for decoding in [&mut state.steady, &mut state.patient] {
                decoding.context_tokens += u64::from(decoding.seqs) * passed;
            }
            let (time, turn) = (self.time_of(cost, step), self.turn_of(step));
            new[count] = (after, Segment { step, time, turn, state });
            count += 1;
        }
        let mut end = self.steps.len();
        self.steps.resize(end + count, 0);
        self.times.resize(end + count, Micros(0));
        self.turns.resize(end + count, 0);
        self.states.resize(end + count, State::default());
        for (i, (after, segment)) in new[..count].iter().enumerate().rev() {
            let shift = i + 1;
            self.steps.copy_within(*after..end, after + shift);
            self.times.copy_within(*after..end, after + shift);
            self.turns.copy_within(*after..end, after + shift);
            self.states.copy_within(*after..end, after + shift);
            let place = after + shift - 1;
            (self.steps[place], self.times[place]) = (segment.step, segment.time);
            self.turns[place] = segment.turn;
            self.states[place] = segment.state;
            end = *after;
        }
    }
}
