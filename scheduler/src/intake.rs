//! Taking waiting sequences in: who may start, and who goes past whom.

use crate::basis::Basis;
use crate::plan::StepPlan;
use crate::planner::Place;
use crate::policy::Change;
use crate::room::{Held, Room};
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;

/// How many waiting sequences are tried when the first ones do not fit.
pub(crate) const BYPASS_WINDOW: usize = 8;

/// How often a sequence is overtaken because it does not fit; after that the queue waits for it.
const MAX_BYPASSES: u8 = 64;

/// Why a waiting sequence was not taken in.
enum NotNow {
    /// Its blocks are not there, or are kept for others; a smaller one may fit.
    TooLarge,
    /// Another one is computing what it will share.
    PrefixFirst,
}

/// The waiting sequences on their way into one step.
pub(crate) struct Intake {
    room: Room,
    held: Held,
    /// Blocks that those that run are still to take.
    committed: u32,
    /// Those nearer the head than this have been looked at.
    from_head: usize,
    /// Of them, those that do not fit, by distance from the head.
    passed: [usize; BYPASS_WINDOW],
    num_passed: usize,
    closed: bool,
}

impl Intake {
    pub(crate) fn new(scheduler: &Scheduler, room: Room, held: Held) -> Intake {
        Intake {
            room,
            held,
            committed: scheduler.committed_blocks(),
            from_head: 0,
            passed: [0; BYPASS_WINDOW],
            num_passed: 0,
            closed: false,
        }
    }

    /// Nobody starts any more in this step.
    pub(crate) const fn close(&mut self) {
        self.closed = true;
    }

    /// A running sequence has taken blocks.
    pub(crate) fn recount(&mut self, scheduler: &Scheduler) {
        if !scheduler.waiting.is_empty() {
            self.committed = scheduler.committed_blocks();
        }
    }

    /// Starts the next waiting sequence that can, with a chunk of at most `left` tokens, unless the
    /// running one at `before` goes first. Returns the length of the chunk.
    pub(crate) fn start(
        &mut self,
        scheduler: &mut Scheduler,
        before: Option<&Place>,
        left: u32,
        plan: &mut StepPlan,
    ) -> Option<u32> {
        let open = self.room.free(&self.held).map(|free| free > 0);
        if !open.contains(&true) {
            return None;
        }
        while !self.closed && self.from_head < scheduler.waiting.len() {
            let i = scheduler.waiting.len() - 1 - self.from_head;
            let seq = &scheduler.waiting[i];
            if before.is_some_and(|(rank, ..)| *rank <= seq.rank) {
                return None;
            }
            if !open[seq.line().index()] {
                self.from_head += 1;
                continue;
            }
            match self.may_start(scheduler, seq, plan) {
                Ok(basis) => return Some(self.take_in(scheduler, i, basis, left, plan)),
                Err(NotNow::TooLarge) if seq.bypassed >= MAX_BYPASSES => self.close(),
                Err(NotNow::TooLarge | NotNow::PrefixFirst) => self.pass(),
            }
        }
        None
    }

    /// Goes past a sequence that does not fit.
    fn pass(&mut self) {
        self.passed[self.num_passed] = self.from_head;
        self.num_passed += 1;
        self.from_head += 1;
        self.closed |= self.num_passed == BYPASS_WINDOW;
    }

    /// Whether a waiting sequence, whose class has a slot, can start now, and what it need not
    /// compute then.
    fn may_start(
        &self,
        scheduler: &Scheduler,
        seq: &Sequence,
        plan: &StepPlan,
    ) -> Result<Basis, NotNow> {
        let config = &scheduler.config;
        let basis = scheduler.basis(seq, plan).ok_or(NotNow::PrefixFirst)?;
        let needed = config.blocks_for(seq.peak_tokens()) - basis.in_use();
        let kept = if scheduler.running.is_empty() { 0 } else { config.watermark() };
        let fits = needed + kept + self.committed <= scheduler.kv.num_free();
        if fits && self.room.has_share(seq.line(), &self.held, needed) {
            Ok(basis)
        } else {
            Err(NotNow::TooLarge)
        }
    }

    /// Moves the sequence at place `i` of the queue into the running set, with its first chunk.
    /// Those that do not fit and are nearer the head have been overtaken.
    fn take_in(
        &mut self,
        scheduler: &mut Scheduler,
        i: usize,
        basis: Basis,
        left: u32,
        plan: &mut StepPlan,
    ) -> u32 {
        let last = scheduler.waiting.len() - 1;
        for from_head in &self.passed[..self.num_passed] {
            let seq = &mut scheduler.waiting[last - from_head];
            seq.bypassed = seq.bypassed.saturating_add(1);
        }
        let mut seq = scheduler.waiting.remove(i);
        scheduler.policy.observe(&seq, Change::Started);
        scheduler.charge(&seq);
        let peak = scheduler.config.blocks_for(seq.peak_tokens());
        scheduler.build_on(&mut seq, basis);
        let len = seq.pending().min(left);
        let grown = scheduler.kv.grow(seq.id, seq.computed + len);
        assert!(grown.is_ok(), "its whole peak was free");
        plan.chunks.push(seq.advance(len));
        self.held.start(seq.line(), peak - basis.in_use());
        self.committed += scheduler.growth(&seq);
        let place = scheduler.running_index(seq.id).unwrap_or_else(|place| place);
        scheduler.running.insert(place, seq);
        len
    }
}

impl Scheduler {
    /// Running sequences of the same request with the same prompt.
    pub(crate) fn siblings(&self, seq: &Sequence) -> impl Iterator<Item = &Sequence> {
        let (request, prompt) = (seq.id.request, seq.prompt);
        let first = match seq.alone {
            true => self.running.len(),
            false => self.running.partition_point(|other| other.id.request < request),
        };
        self.running[first..]
            .iter()
            .take_while(move |other| other.id.request == request)
            .filter(move |other| other.prompt == prompt)
    }
}
