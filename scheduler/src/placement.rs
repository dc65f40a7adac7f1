//! A candidate in the timeline: where it would go, and its insertion.

use alloc::vec::Vec;
use core::ops::Range;

use crate::candidate::Candidate;
use crate::class::Class;
use crate::columns::{Row, within_horizon};
use crate::cost::CostModel;
use crate::delays::{Delays, steps};
use crate::lean;
use crate::policy::Rank;
use crate::promise::{Margins, Promise};
use crate::rules::Rules;
use crate::segments::Load;
use crate::tenants::Service;
use crate::time::Micros;
use crate::timeline::{Entry, Timeline};

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
    /// Steps from the first to the last token, those in which it waits for its turn included.
    decode_steps: u32,
    pub(crate) first: Micros,
    pub(crate) finish: Micros,
    /// It waits for a slot or blocks that somebody behind it would have taken.
    pub(crate) takes_slot: bool,
    /// It waits for blocks, not only for a slot.
    pub(crate) waits_for_blocks: bool,
    /// How much later those behind it start.
    pub(crate) queue_delay: Micros,
    /// How much longer the step gets in which its prefill begins beside the end of another.
    pub(crate) filled: Micros,
    /// Entries behind it whose prefill fills steps whether it is there or not: not bulk work behind
    /// latency work, which is held to a pace.
    pub(crate) backlog: usize,
    /// What a full chunk of its prefill adds to a step.
    pub(crate) chunk: Micros,
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

impl Placement {
    /// The steps in which it decodes.
    pub(crate) const fn decoding_steps(&self) -> Range<u32> {
        let first = self.start_step.saturating_add(self.prefill_steps);
        first..first.saturating_add(self.decode_steps)
    }
}

impl Timeline {
    /// Looks up where `candidate` would go and when it would have its tokens, if nobody came later.
    pub(crate) fn place(&self, rules: &Rules<'_>, candidate: &Candidate) -> Placement {
        let index = self.index(candidate);
        let (ahead, mut leftover) = match index.checked_sub(1).filter(|i| *i >= self.decoding) {
            Some(before) => (self.time(self.columns.first[before]), self.entries[before].leftover),
            None => (self.base, 0),
        };
        let slot = self.wait_for_slot(rules, candidate, index, ahead);
        if slot.time > ahead {
            leftover = 0;
        }
        let cost = rules.view.cost;
        let at = self.segments.at(slot.time);
        let state = self.segments.state(at);
        let next = candidate.next();
        let (turns, budget) = rules.shape_with(self.segments.time(at), state, &next);
        let base = cost.step(&state.load(turns));
        let fill = Fill::new(cost, candidate, leftover, budget, self.entries.get(index));
        let first = slot
            .time
            .plus(fill.before)
            .plus(Micros(base.0 * u64::from(fill.steps)))
            .plus(fill.own)
            .plus(fill.after);
        let start_step = self.segments.step_at(at, slot.time);
        let last_in_queue = index == self.entries.len();
        let from = start_step + if last_in_queue { fill.steps } else { 0 };
        let until = match candidate.is_patient() {
            true => self.segments.step_after(from, candidate.steps),
            false => from.saturating_add(candidate.steps),
        };
        let time_of = |step| self.segments.time_of(cost, step);
        let decode = time_of(until).minus(time_of(from));
        // Its own gap bounds what bulk work behind it adds to the steps in which it decodes.
        let backlog = self.backlog(candidate, index);
        let only_bulk = backlog == 0 && index < self.entries.len();
        let paced = only_bulk.then(|| rules.paced(self.segments.time(at), state, candidate));
        let decode = decode.min(paced.flatten().unwrap_or(decode));
        let carrying = Micros(base.0 * u64::from(fill.carried) / u64::from(budget));
        Placement {
            index,
            start_step,
            start: slot.time,
            prefill_steps: fill.steps,
            decode_steps: until - from,
            first,
            finish: first.plus(decode).plus(candidate.shared(candidate.steps)),
            takes_slot: slot.time > ahead,
            waits_for_blocks: slot.blocks,
            queue_delay: candidate.prefill.plus(carrying),
            filled: fill.before,
            backlog,
            chunk: Micros(fill.own.0 * u64::from(budget) / u64::from(fill.carried.max(1))),
            leftover: fill.leftover,
        }
    }

    /// Where latency work was promised a gap, no prefill makes a step longer than that, so what is
    /// behind fills steps however it is paced.
    fn for_harm(&self, candidate: &Candidate, at: &Placement) -> Placement {
        let backlog = match candidate.tempo.tpot.micros() {
            Some(_) => self.entries.len() - at.index,
            None => at.backlog,
        };
        Placement { backlog, ..*at }
    }

    /// Entries from `index` on that fill steps whether `candidate` is there or not.
    fn backlog(&self, candidate: &Candidate, index: usize) -> usize {
        let behind = &self.entries[index..];
        match candidate.kind.class {
            Class::Latency => {
                // Who borrows is held to the pace of what is reserved.
                let goes_on = |entry: &&Entry| {
                    entry.kind.class == Class::Latency
                        && (candidate.kind.borrows() || !entry.kind.borrows())
                };
                behind.iter().take_while(goes_on).count()
            }
            Class::Throughput => behind.len(),
        }
    }

    /// Where and when at the earliest a request would start and have its first token whose rank is
    /// not before that of `least` and whose prompts are not shorter. Also whether it would wait for
    /// blocks.
    pub(crate) fn earliest(&self, rules: &Rules<'_>, least: &Candidate) -> (usize, Micros, bool) {
        let index = self.index(least);
        let before = index.checked_sub(1).filter(|i| *i >= self.decoding);
        let ahead = before.map_or(self.base, |before| self.time(self.columns.first[before]));
        let slot = self.wait_for_slot(rules, least, index, ahead);
        // What others leave of a step may hold as much of its prompt as fits into a step.
        let (cost, budget) = (rules.view.cost, rules.view.config.max_num_batched_tokens);
        let rest = least.todo.saturating_sub(budget);
        let steps = cost.decode(0, 0, rest.div_ceil(budget));
        (index, slot.time.plus(steps).plus(cost.prefill_work(0, rest)), slot.blocks)
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
        let class = candidate.kind.class;
        // Interactive work takes the slot of whoever is next, bulk work that of its own class and,
        // if it is within a reservation, of who borrows.
        let line = candidate.kind.line();
        let takes = |entry: &Entry| {
            let yields = entry.kind.borrows() && !line.borrows;
            class == Class::Latency || entry.kind.class == class || yields
        };
        let mut queue = (index..).zip(&self.entries[index..]);
        let next = queue.find(|(_, entry)| !entry.holds_slot && takes(entry));
        let Some((i, occupant)) = next else {
            return self.first_room(rules, candidate, ahead);
        };
        let time = self.time(self.columns.start[i]).max(ahead);
        let before = self.segments.at(time).saturating_sub(1);
        let blocks = time > ahead && self.has_slots(rules, candidate, before);
        let slot = Slot { time, blocks };
        if occupant.kind.line() == line {
            return slot;
        }
        // What is kept for its line may be free before.
        let room = self.first_room(rules, candidate, ahead);
        if room.time < slot.time { room } else { slot }
    }

    /// The place of a candidate among the entries: behind those of its class that run.
    fn index(&self, candidate: &Candidate) -> usize {
        let queue = &self.entries[self.decoding..];
        let ahead = queue.partition_point(|entry| entry.rank <= candidate.rank);
        (self.decoding + ahead).max(self.running_until[candidate.kind.line().index()])
    }

    /// The first moment from `ahead` at which nobody else has the slot and the blocks that the
    /// candidate needs.
    fn first_room(&self, rules: &Rules<'_>, candidate: &Candidate, ahead: Micros) -> Slot {
        let mut at = self.segments.at(ahead);
        let mut slot = Slot { time: ahead, blocks: false };
        while at + 1 < self.segments.len() {
            let free = self.has_slots(rules, candidate, at);
            let state = self.segments.state(at);
            if free && rules.has_blocks(state, candidate.kind.line(), candidate.blocks) {
                break;
            }
            slot.blocks |= free;
            at += 1;
        }
        slot.time = self.segments.time(at).max(ahead);
        slot
    }

    fn has_slots(&self, rules: &Rules<'_>, candidate: &Candidate, segment: usize) -> bool {
        let held = &self.segments.state(segment).held;
        let free = rules.room.free_slots(candidate.kind.line(), held);
        candidate.slots <= free || held.running() == 0
    }

    /// Whether a promise would break by `candidate`, placed at `at`, and by `more` work beside it.
    pub(crate) fn harms(&self, candidate: &Candidate, at: &Placement, more: Micros) -> bool {
        Delays::new(&self.columns, candidate, &self.for_harm(candidate, at))
            .harm(&self.columns, more)
    }

    /// Entries whose promises `candidate` would break: see [`Timeline::harms`].
    pub(crate) fn broken(&self, candidate: &Candidate, at: &Placement, more: Micros) -> Vec<usize> {
        Delays::new(&self.columns, candidate, &self.for_harm(candidate, at))
            .broken(&self.columns, more)
            .collect()
    }

    /// Where a candidate that borrows stands: in the round of the one of its tenant that goes
    /// before it, or in the next one that is its tenant's. Its own `rank` is the policy's.
    pub(crate) fn borrowed_rank(&self, service: &Service, candidate: &Candidate) -> Rank {
        let tenant = candidate.kind.tenant;
        let next = service.next_round(tenant);
        let rank = candidate.rank.borrowed(next);
        let Some((_, order)) = rank.in_round() else { return rank };
        let waiting = self.entries[self.decoding..].iter().rev();
        let own = waiting.filter(|entry| entry.kind.tenant == tenant);
        let mut rounds = own.filter_map(|entry| entry.rank.in_round());
        let ahead = rounds.find(|(_, other)| *other <= order);
        rank.moved_to(ahead.map_or(next, |(round, _)| round.max(next)))
    }

    /// Puts an admitted candidate in: everybody's times move by its delays, and its own entry is
    /// protected with `margins`, as of now. `slot` is where the ledger keeps it.
    pub(crate) fn insert(
        &mut self,
        rules: &Rules<'_>,
        candidate: &Candidate,
        at: &Placement,
        margins: &Margins,
        slot: u32,
    ) {
        Delays::new(&self.columns, candidate, at).accept(&mut self.columns);
        let first_step = at.start_step.saturating_add(at.prefill_steps);
        let last_step = first_step.saturating_add(at.decode_steps);
        self.segments.insert(
            rules.view.cost,
            &Load {
                start: at.start_step,
                first: first_step,
                finish: last_step,
                steps: candidate.steps,
                class: candidate.kind.class,
                borrows: candidate.kind.borrows(),
                patient: candidate.is_patient(),
                slots: candidate.slots,
                blocks: candidate.blocks,
                context_tokens: candidate.context_tokens,
                tempo: candidate.tempo,
                prefill: candidate.prefill,
                step_cost: candidate.step_cost(),
            },
        );
        let from_base = |time: Micros| within_horizon(time.minus(self.base).0);
        let (first, last) = (from_base(at.first), from_base(at.finish));
        let now = from_base(rules.view.now);
        let deadline = rules.unguarded(candidate.kind.class, candidate.promise.deadline);
        let due = Promise { deadline, ..candidate.promise }.limits(self.base, last);
        let row = Row {
            start: from_base(at.start),
            first,
            last,
            first_step: steps(first_step),
            last_step: steps(last_step),
            limits: margins.limits(candidate.kind, now, (first, last), due),
        };
        self.columns.insert(at.index, row);
        lean::insert(&mut self.built, at.index, (first, last));
        let before = at.index.checked_sub(1).filter(|before| *before >= self.decoding);
        let entry = Entry {
            id: candidate.id,
            // Entries stay in order although it went behind those that run.
            rank: candidate.rank.max(before.map_or(candidate.rank, |i| self.entries[i].rank)),
            todo: candidate.todo,
            leftover: at.leftover,
            holds_slot: false,
            slot,
            kind: candidate.kind,
        };
        lean::insert(&mut self.entries, at.index, entry);
        for until in self.running_until.iter_mut().filter(|until| **until > at.index) {
            *until += 1;
        }
    }

    fn time(&self, from_base: i32) -> Micros {
        self.base.plus(Micros(from_base as u64))
    }
}

/// When a candidate gets its slot.
struct Slot {
    time: Micros,
    /// Blocks were short for at least a part of the wait.
    blocks: bool,
}
