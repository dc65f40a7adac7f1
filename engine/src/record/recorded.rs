//! Gate and scheduler as the rest of the engine sees them: whatever changes them is written down.
//! Reading needs no wrapper, and there is no way to change them past it.

use std::borrow::Cow;
use std::ops::Deref;

use scheduler::{
    Admission, BlockHash, CacheChanges, ClusterView, CostModel, Event as Outcome, Gate, Micros,
    Request, RequestId, Scheduler, SeqId, SeqOutcome, Settled, Shed, StepPlan, TenantId, Terminal,
    Timeline,
};

use super::event::{Event, Outcomes, PlanNote, State, encode};
use super::tape::{RecordStatus, Tape};

/// The gate with its tape, if it is recorded.
#[derive(Debug)]
pub(crate) struct RecordedGate {
    gate: Gate,
    tape: Option<Tape>,
    /// The largest number of a request that was admitted.
    newest: Option<RequestId>,
}

impl Deref for RecordedGate {
    type Target = Gate;

    fn deref(&self) -> &Gate {
        &self.gate
    }
}

impl RecordedGate {
    pub(crate) const fn new(gate: Gate, tape: Option<Tape>) -> RecordedGate {
        RecordedGate { gate, tape, newest: None }
    }

    /// See [`Gate::admit`].
    pub(crate) fn admit(&mut self, now: Micros, request: &mut Request) -> Admission {
        let asked = request.deadline;
        let decision = self.gate.admit(now, request);
        if let Some(tape) = &self.tape {
            self.newest = self.newest.max(Some(request.id));
            tape.put(&Event::Admit { now, request: Cow::Borrowed(request), asked, decision });
        }
        decision
    }

    /// See [`Gate::early`] and [`Gate::refuse`].
    pub(crate) fn refuse_early(
        &mut self,
        now: Micros,
        least: &Request,
        sequences: u32,
    ) -> Option<Shed> {
        let early = self.gate.early(now, least, sequences)?;
        let decision = self.gate.refuse(now, least, early);
        if let Some(tape) = &self.tape {
            let least = Cow::Borrowed(least);
            tape.put(&Event::RefuseEarly { now, least, sequences, decision });
        }
        Some(decision)
    }

    /// See [`Gate::install`] and [`Gate::update_cache`]. `timeline` was built from the scheduler as
    /// it is now, and `changes` were taken from it.
    pub(crate) fn install(
        &mut self,
        now: Micros,
        base: Micros,
        timeline: Timeline,
        changes: CacheChanges,
        cost: CostModel,
    ) -> Timeline {
        let spent = self.gate.install(now, timeline, cost);
        self.gate.update_cache(changes);
        if let Some(tape) = &self.tape {
            tape.put(&Event::Install { now, base });
        }
        spent
    }

    /// See [`Gate::finish`].
    pub(crate) fn finish(
        &mut self,
        now: Micros,
        id: RequestId,
        terminal: Terminal,
        outputs: &[u32],
        first: Option<Micros>,
        last: Option<Micros>,
    ) -> Option<Settled> {
        let settled = self.gate.finish(now, id, terminal, outputs, first, last);
        if let Some(tape) = &self.tape {
            let outputs = Cow::Borrowed(outputs);
            tape.put(&Event::Finish { now, id, terminal, outputs, first, last, settled });
        }
        settled
    }

    /// Begins the next segment of the record with the state as it is, then installs `timeline`,
    /// which was built from the scheduler just now. `state` is the scheduler's. Returns the spent
    /// timeline.
    pub(crate) fn begin_segment(
        &mut self,
        now: Micros,
        timeline: Timeline,
        changes: CacheChanges,
        cost: CostModel,
        state: Vec<u8>,
    ) -> Timeline {
        if let Some(tape) = &self.tape {
            self.gate.carry();
            tape.begin(cost, State::of(&self.gate, state));
        }
        self.install(now, now, timeline, changes, cost)
    }

    /// The largest number of a request that was admitted while recording.
    pub(crate) const fn newest(&self) -> Option<RequestId> {
        self.newest
    }

    /// The record ends here, with the state as it is.
    pub(crate) fn end_record(&mut self, scheduler: &RecordedScheduler) {
        if let Some(tape) = &self.tape {
            self.gate.carry();
            tape.put(&Event::Seal(State::of(&self.gate, scheduler.state()).sums()));
        }
    }

    /// How the record fares, if there is one.
    pub(crate) fn record_status(&self) -> Option<RecordStatus> {
        self.tape.as_ref().map(Tape::status)
    }

    /// See [`Gate::set_cluster`].
    pub(crate) fn set_cluster(&mut self, now: Micros, view: ClusterView) {
        self.gate.set_cluster(now, view);
        if let Some(tape) = &self.tape {
            tape.put(&Event::Cluster { now, view });
        }
    }

    /// See [`Gate::set_tenant_limit`].
    pub(crate) fn set_tenant_limit(&mut self, tenant: TenantId, requests: u32) {
        self.gate.set_tenant_limit(tenant, Some(requests));
        if let Some(tape) = &self.tape {
            tape.put(&Event::TenantLimit { tenant, requests });
        }
    }

    /// See [`Gate::drain`].
    pub(crate) fn drain(&mut self) {
        self.gate.drain();
        if let Some(tape) = &self.tape {
            tape.put(&Event::Drain);
        }
    }
}

/// The scheduler with its tape, if it is recorded.
#[derive(Debug)]
pub(crate) struct RecordedScheduler {
    scheduler: Scheduler,
    tape: Option<Tape>,
    /// Requests up to this one may have been admitted before the segment began.
    known_until: Option<RequestId>,
}

impl Deref for RecordedScheduler {
    type Target = Scheduler;

    fn deref(&self) -> &Scheduler {
        &self.scheduler
    }
}

impl RecordedScheduler {
    pub(crate) const fn new(scheduler: Scheduler, tape: Option<Tape>) -> RecordedScheduler {
        RecordedScheduler { scheduler, tape, known_until: None }
    }

    /// See [`Scheduler::enqueue`].
    pub(crate) fn enqueue(&mut self, request: &Request) {
        self.scheduler.enqueue(request);
        let before = Some(request.id) <= self.known_until;
        let whole = before.then_some(Cow::Borrowed(request));
        self.put(&Event::Enqueue { id: request.id, request: whole });
    }

    /// See [`Scheduler::cancel`].
    pub(crate) fn cancel(&mut self, id: RequestId) -> bool {
        let live = self.scheduler.cancel(id);
        self.put(&Event::Cancel { id, live });
        live
    }

    /// See [`Scheduler::stop`].
    pub(crate) fn stop(&mut self, seq: SeqId) -> Vec<Outcome> {
        self.put(&Event::Stop(seq));
        self.scheduler.stop(seq)
    }

    /// See [`Scheduler::plan`].
    pub(crate) fn plan(&mut self, now: Micros) -> StepPlan {
        let plan = self.scheduler.plan(now);
        if let Some(tape) = &self.tape {
            tape.put(&Event::Plan { now, note: PlanNote::of(&plan) });
        }
        plan
    }

    /// See [`Scheduler::complete`].
    pub(crate) fn complete(
        &mut self,
        now: Micros,
        plan: &StepPlan,
        outcomes: &[SeqOutcome],
    ) -> Vec<Outcome> {
        if let Some(tape) = &self.tape {
            tape.put(&Event::Complete { now, outcomes: Outcomes::of(plan, outcomes) });
        }
        self.scheduler.complete(now, plan, outcomes)
    }

    /// See [`Scheduler::know_block`].
    pub(crate) fn know_block(&mut self, seq: SeqId, hash: BlockHash) {
        self.put(&Event::Block { seq, hash });
        self.scheduler.know_block(seq, hash);
    }

    /// See [`Scheduler::take_cache_changes`]. What is taken has to be installed with the next
    /// timeline: the record does not say it, a replay takes it at that point.
    pub(crate) fn take_cache_changes(&mut self) -> CacheChanges {
        self.scheduler.take_cache_changes()
    }

    /// See [`Scheduler::fail`].
    pub(crate) fn fail(&mut self, plan: &StepPlan) -> Vec<Outcome> {
        self.put(&Event::Fail);
        self.scheduler.fail(plan)
    }

    /// See [`Scheduler::set_cost`].
    pub(crate) fn set_cost(&mut self, cost: CostModel) {
        self.scheduler.set_cost(cost);
        self.put(&Event::Cost(cost));
    }

    /// The next segment of the record should begin.
    pub(crate) fn is_segment_due(&self) -> bool {
        self.tape.as_ref().is_some_and(Tape::is_due)
    }

    /// All of it, written down.
    pub(crate) fn state(&self) -> Vec<u8> {
        encode(&self.scheduler)
    }

    /// A segment has begun; requests up to this one may have been admitted before.
    pub(crate) const fn note_segment(&mut self, newest: Option<RequestId>) {
        self.known_until = newest;
    }

    /// The record is closed.
    pub(crate) fn close_record(&self) {
        if let Some(tape) = &self.tape {
            tape.close();
        }
    }

    fn put(&self, event: &Event<'_>) {
        if let Some(tape) = &self.tape {
            tape.put(event);
        }
    }
}
