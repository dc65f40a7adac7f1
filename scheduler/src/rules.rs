//! What decides the shape of steps to come: the scheduler's limits, cost model and policy.

use crate::candidate::Candidate;
use crate::class::Class;
use crate::cost::StepLoad;
use crate::line::Line;
use crate::policy::{Decoding, SchedulerPolicy, StepState, View};
use crate::queues::Queues;
use crate::replay::Item;
use crate::request::Deadline;
use crate::room::{Room, Wanted};
use crate::segments::{Segment, State, Tempo};
use crate::time::Micros;

/// The same rules for the replay and for the candidates of the gate.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) view: View<'a>,
    pub(crate) policy: &'a dyn SchedulerPolicy,
    pub(crate) room: Room,
}

/// A prefill that goes first in a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) line: Line,
    pub(crate) tempo: Tempo,
    /// Tokens still to compute, from this position on.
    pub(crate) todo: u32,
    pub(crate) start: u32,
}

impl<'a> Rules<'a> {
    pub(crate) fn new(
        view: View<'a>,
        policy: &'a dyn SchedulerPolicy,
        wanted: Wanted,
        reserved_permille: u32,
    ) -> Rules<'a> {
        Rules { view, policy, room: Room::new(view.config, policy, wanted, reserved_permille) }
    }

    /// Turns of patient sequences in a step like those from `now` on, in which nobody prefills.
    pub(crate) fn turns(&self, now: &Segment, items: &[Item], queues: &Queues) -> u32 {
        if now.state.patient.seqs == 0 {
            return 0;
        }
        let step = self.demand(&now.state, items, queues);
        step.bounded(self.policy.turns(&self.at(now.time), &step))
    }

    /// Turns and prefill tokens of a step like those from `now` on, whose first chunk begins at
    /// position `start`.
    pub(crate) fn shape(
        &self,
        now: &Segment,
        items: &[Item],
        queues: &Queues,
        start: u32,
    ) -> (u32, u32) {
        let mut step = self.demand(&now.state, items, queues);
        step.prefill_start = start;
        self.answer(now.time, &now.state, &step)
    }

    /// The same if `next` prefills first and nobody else does.
    pub(crate) fn shape_with(&self, time: Micros, state: &State, next: &Next) -> (u32, u32) {
        let mut step = state.step();
        step.prefills = true;
        step.prefill_start = next.start;
        if next.line.class == Class::Latency {
            step.add_latency_prefill(next.line, next.tempo, next.todo);
        }
        self.answer(time, state, &step)
    }

    /// How long it would take at most to decode beside those of `state`, for a candidate whose gap
    /// bounds the steps.
    pub(crate) fn paced(
        &self,
        time: Micros,
        state: &State,
        candidate: &Candidate,
    ) -> Option<Micros> {
        if candidate.tempo == Tempo::default() {
            return None;
        }
        // Those that bound the steps now may end before it does.
        let mut step = State { tempo: candidate.tempo, ..*state }.step();
        step.prefills = true;
        step.steady.seqs += candidate.slots;
        step.steady.context_tokens += candidate.context_tokens;
        let (turns, tokens) = self.answer(time, state, &step);
        let Decoding { seqs: decode_seqs, context_tokens } = step.decoding(turns);
        let mut load = StepLoad { decode_seqs, context_tokens, ..StepLoad::default() };
        load.add_chunk(0, tokens);
        let each = self.view.cost.step(&load);
        Some(Micros(each.0.saturating_mul(candidate.steps.into())))
    }

    /// What the policy leaves for prefill, at least a token, and the turns beside it.
    fn answer(&self, time: Micros, state: &State, step: &StepState) -> (u32, u32) {
        let view = self.at(time);
        let turns = match state.patient.seqs {
            0 => 0,
            _ => step.bounded(self.policy.turns(&view, step)),
        };
        let decoding = step.decoding(turns);
        let budget = self.policy.token_budget(&view, step, &decoding);
        let budget = budget.min(view.config.max_num_batched_tokens);
        (turns, budget.saturating_sub(decoding.seqs).max(1))
    }

    fn demand(&self, state: &State, items: &[Item], queues: &Queues) -> StepState {
        let mut step = state.step();
        let free = self.room.free(&state.held);
        let full = self.view.config.max_num_batched_tokens;
        for (item, left) in queues.latency(items, &free) {
            if item.line.borrows && step.latency_prefill >= full {
                continue;
            }
            step.add_latency_prefill(item.line, item.tempo, left);
            if step.reserved_prefill >= full {
                break;
            }
        }
        let starts = |line: Line| free[line.index()] > 0 && queues.waits(line);
        step.prefills = queues.any_running() || Line::ALL.into_iter().any(starts);
        step
    }

    /// What of a promise has to be protected by admission: a gap that is promised to latency work
    /// is kept by the policy, if it bounds steps.
    pub(crate) fn unguarded(&self, class: Class, deadline: Deadline) -> Deadline {
        Deadline { tpot: deadline.tpot.filter(|tpot| !self.guards(class, *tpot)), ..deadline }
    }

    pub(crate) fn guards(&self, class: Class, tpot: Micros) -> bool {
        class == Class::Latency && self.policy.step_limit(tpot).is_some()
    }

    const fn at(&self, time: Micros) -> View<'a> {
        View { now: time, ..self.view }
    }

    /// A sequence of `line` with a peak of `blocks` finds room in `state`. One that runs alone
    /// always does.
    pub(crate) fn has_blocks(&self, state: &State, line: Line, blocks: u32) -> bool {
        let config = self.view.config;
        let kept = config.num_blocks - config.watermark();
        let fits = state.used_blocks.saturating_add(blocks) <= kept;
        state.held.running() == 0 || (fits && self.room.has_share(line, &state.held, blocks))
    }
}
