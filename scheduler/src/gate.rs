//! The admission gate: decides and reserves in one critical section.
//!
//! A request is admitted if, by the forecast, it makes its own deadline and breaks no promise made
//! before, each with the margin of its class. The second check carries most of the value: with the
//! first alone every newcomer "fits" and pushes earlier ones over. Promises that are lost already
//! veto nothing, and an idle device admits whatever fits at all.

use alloc::boxed::Box;

use crate::admission::{Admission, AdmissionMode, Forecast, GateConfig, Shed, ShedReason};
use crate::candidate::Candidate;
use crate::class::{Class, ClassConfig};
use crate::cost::CostModel;
use crate::ledger::{Ledger, Reservation};
use crate::length::Lengths;
use crate::margin::Margin;
use crate::placement::Placement;
use crate::policy::{SchedulerPolicy, View};
use crate::replay::Rules;
use crate::request::{Deadline, Request, RequestId, SequenceSpec, Terminal};
use crate::retry::RetrySlots;
use crate::time::Micros;
use crate::timeline::{Margins, Timeline};

/// The admission gate.
#[derive(Debug)]
pub struct Gate {
    config: GateConfig,
    policy: Box<dyn SchedulerPolicy>,
    cost: CostModel,
    ledger: Ledger,
    timeline: Timeline,
    margins: [Margin; 2],
    lengths: Lengths,
    retries: RetrySlots,
    draining: bool,
}

/// A target that would be missed: spans from arrival (gaps: from the first token).
#[derive(Clone, Copy, Debug)]
struct Miss {
    predicted: Micros,
    budget: Micros,
}

/// Why a candidate is not admitted.
enum Refusal {
    Shed(ShedReason, Miss),
    Unsatisfiable(Miss),
}

impl Gate {
    /// An empty gate. `policy` is the scheduler's: the gate asks it where a request would stand.
    #[must_use]
    pub fn new(config: GateConfig, policy: Box<dyn SchedulerPolicy>, cost: CostModel) -> Gate {
        let margin = |class| Margin::new(config.scheduler.classes.get(class).safety_permille);
        Gate {
            config,
            policy,
            cost,
            ledger: Ledger::default(),
            timeline: Timeline::idle(Micros(0)),
            margins: Class::ALL.map(margin),
            lengths: Lengths::default(),
            retries: RetrySlots::new(),
            draining: false,
        }
    }

    /// Decides, and on `Admit` reserves for all sequences at once and fills in their predicted
    /// lengths. A target of its class that an idle device cannot meet is taken off a request that
    /// is admitted all the same. Microseconds; no allocation proportional to the queue.
    pub fn admit(&mut self, now: Micros, request: &mut Request) -> Admission {
        assert!(!request.sequences.is_empty(), "a request has at least one sequence");
        let available = self.config.scheduler.num_blocks;
        let peaks = request.sequences.iter().map(|spec| spec.peak_tokens());
        let needed = self.config.scheduler.blocks_for(peaks.max().unwrap_or(0));
        if needed > available {
            return Admission::NeverFits { needed, available };
        }
        for spec in &mut request.sequences {
            spec.output.predicted =
                self.lengths.predict(request.class, spec.prompt_tokens, &spec.output);
        }
        if self.ledger.is_empty() {
            self.timeline = Timeline::idle(now);
        }
        let candidate = Candidate::new(&self.rules(now), request);
        let at = self.timeline.place(&self.rules(now), &candidate);
        let verdict = self.judge(now, request, &candidate, &at);
        if request.retry > 0 {
            self.retries.returned(now, verdict.is_ok());
        }
        match verdict {
            Ok(()) => Admission::Admit(self.reserve(now, request, candidate, &at)),
            Err(Refusal::Unsatisfiable(Miss { predicted, budget })) => {
                Admission::Unsatisfiable { predicted, budget }
            }
            Err(Refusal::Shed(reason, miss)) => {
                Admission::Shed(self.shed(now, &candidate, &at, reason, miss))
            }
        }
    }

    /// Swaps in the timeline that the engine thread built; requests admitted since are inserted
    /// into it again. `cost` is the model it was built with.
    pub fn install(&mut self, now: Micros, timeline: Timeline, cost: CostModel) {
        self.cost = cost;
        self.ledger.carry(self.timeline.take_delays());
        if self.ledger.is_empty() {
            self.timeline = Timeline::idle(now);
            return;
        }
        self.timeline = timeline;
        let margins = Margins(self.margins.map(|m| [m.permille(true), m.permille(false)]));
        self.timeline.protect(now, &margins);
        for candidate in self.ledger.confirm(&self.timeline) {
            let at = self.timeline.place(&self.rules(now), &candidate);
            self.insert(now, &candidate, &at);
        }
        // Their delays were carried when they were admitted.
        self.timeline.take_delays();
    }

    /// Ends a reservation. `outputs` are the generated lengths of its sequences (in order), `first`
    /// and `last` the times of its first and last token if they came.
    pub fn finish(
        &mut self,
        now: Micros,
        id: RequestId,
        terminal: Terminal,
        outputs: &[u32],
        first: Option<Micros>,
        last: Option<Micros>,
    ) {
        let Some(reservation) = self.ledger.release(id) else { return };
        match terminal {
            Terminal::Completed => self.learn(&reservation, outputs, first, last),
            Terminal::Expired => self.margins[reservation.candidate.class.index()].observe_lost(),
            Terminal::Cancelled | Terminal::Failed => {}
        }
        if self.ledger.is_empty() {
            self.timeline = Timeline::idle(now);
        }
    }

    /// From now on everything is shed with `Draining`.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Outstanding work of a class: predicted device time of admitted, unfinished requests.
    #[must_use]
    pub fn outstanding(&self, class: Class) -> Micros {
        self.ledger.work(class)
    }

    /// Sequences of a class that wait in the scheduler or are on their way to it, as of the
    /// installed timeline.
    #[must_use]
    pub const fn waiting(&self, class: Class) -> u32 {
        self.ledger.waiting(class)
    }

    /// Requests that were admitted and are not finished.
    #[must_use]
    pub fn num_reserved(&self) -> usize {
        self.ledger.len()
    }

    /// The forecast in force: the installed timeline with what was admitted since.
    #[must_use]
    pub const fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// By how much forecasts of a class with known lengths are stretched before they are compared
    /// with a deadline, per mille.
    #[must_use]
    pub fn margin_permille(&self, class: Class) -> u32 {
        self.margins[class.index()].permille(true)
    }

    fn rules(&self, now: Micros) -> Rules<'_> {
        let view = View { now, config: &self.config.scheduler, cost: &self.cost };
        Rules { view, policy: &*self.policy }
    }

    fn class(&self, class: Class) -> &ClassConfig {
        self.config.scheduler.classes.get(class)
    }

    fn margin(&self, candidate: &Candidate) -> u32 {
        self.margins[candidate.class.index()].permille(candidate.promise.exact)
    }

    /// By how much the device is behind the installed timeline.
    fn lag(&self, now: Micros) -> Micros {
        now.minus(self.timeline.base)
    }

    fn judge(
        &mut self,
        now: Micros,
        request: &mut Request,
        candidate: &Candidate,
        at: &Placement,
    ) -> Result<(), Refusal> {
        let lag = self.lag(now);
        let forecast = Times { first: at.first.plus(lag), last: at.finish.plus(lag) };
        let shown = forecast.shown(request);
        if self.draining {
            return Err(Refusal::Shed(ShedReason::Draining, shown));
        }
        let waiting = self.ledger.waiting(request.class);
        let sequences = request.sequences.len() as u32;
        let full = waiting + sequences > self.class(request.class).max_waiting;
        if self.config.mode == AdmissionMode::None {
            return if full { Err(Refusal::Shed(ShedReason::QueueFull, shown)) } else { Ok(()) };
        }
        let passed = |due: Option<Micros>| due.is_some_and(|due| due <= now);
        if passed(request.deadline.first_token) || passed(request.deadline.last_token) {
            return Err(Refusal::Shed(ShedReason::Expired, shown));
        }
        self.check_satisfiable(now, request)?;
        if self.ledger.is_empty() {
            self.take_off_missed_targets(request, &forecast);
            return Ok(());
        }
        if full {
            return Err(Refusal::Shed(ShedReason::QueueFull, shown));
        }
        let kept = if request.retry == 0 { self.retries.kept(now) } else { Micros(0) };
        let delayed = Times { first: forecast.first.plus(kept), last: forecast.last.plus(kept) };
        let margin = self.margin(candidate);
        if let Some(miss) = delayed.miss(now, request, &request.deadline, candidate, margin) {
            let reason =
                if at.waits_for_blocks { ShedReason::KvPressure } else { ShedReason::SloMiss };
            return Err(Refusal::Shed(reason, miss));
        }
        if self.timeline.harms(candidate, at, kept) {
            return Err(Refusal::Shed(ShedReason::SloMiss, shown));
        }
        Ok(())
    }

    /// The targets that the client itself set: those that differ from its class's.
    fn own_targets(&self, request: &Request) -> Deadline {
        let slo = &self.class(request.class).slo;
        let after = |span: Option<Micros>| span.map(|span| request.arrival.plus(span));
        let Deadline { first_token, last_token, tpot } = request.deadline;
        Deadline {
            first_token: first_token.filter(|due| Some(*due) != after(slo.ttft)),
            last_token: last_token.filter(|due| Some(*due) != after(slo.e2e)),
            tpot: tpot.filter(|tpot| Some(*tpot) != slo.tpot),
        }
    }

    /// Whether the client's own targets could be met by a short answer on an idle device.
    fn check_satisfiable(&self, now: Micros, request: &Request) -> Result<(), Refusal> {
        let own = self.own_targets(request);
        if own == Deadline::default() {
            return Ok(());
        }
        let mut short = request.clone();
        for spec in &mut short.sequences {
            spec.output.predicted = if spec.output.exact { spec.output.max } else { 1 };
        }
        let rules = self.rules(now);
        let candidate = Candidate::new(&rules, &short);
        let at = Timeline::idle(now).place(&rules, &candidate);
        let alone = Times { first: at.first, last: at.finish };
        match alone.miss(now, request, &own, &candidate, 1_000) {
            Some(miss) => Err(Refusal::Unsatisfiable(miss)),
            None => Ok(()),
        }
    }

    /// Takes off what is not promised: targets of the class that are missed on an idle device.
    fn take_off_missed_targets(&self, request: &mut Request, alone: &Times) {
        let gaps = request.sequences.iter().map(|spec| spec.output.predicted - 1).max();
        let deadline = &mut request.deadline;
        deadline.first_token = deadline.first_token.filter(|due| alone.first <= *due);
        deadline.last_token = deadline.last_token.filter(|due| alone.last <= *due);
        let writing = alone.last.minus(alone.first);
        let allowed = |tpot: Micros| tpot.0.saturating_mul(gaps.unwrap_or(0).into());
        deadline.tpot = deadline.tpot.filter(|tpot| writing.0 <= allowed(*tpot));
    }

    fn reserve(
        &mut self,
        now: Micros,
        request: &Request,
        mut candidate: Candidate,
        at: &Placement,
    ) -> Forecast {
        candidate.promise.deadline = request.deadline;
        self.insert(now, &candidate, at);
        let work = candidate.work();
        if request.retry == 0 {
            self.retries.admitted_first(now, work);
        }
        let lag = self.lag(now);
        let (first_token, last_token) = (at.first.plus(lag), at.finish.plus(lag));
        self.ledger.reserve(Reservation {
            candidate,
            arrival: request.arrival,
            sequences: request.sequences.clone(),
            carried_first: first_token,
            carried_last: last_token,
            pending: true,
        });
        Forecast { first_token, last_token, work }
    }

    fn insert(&mut self, now: Micros, candidate: &Candidate, at: &Placement) {
        let margin = self.margin(candidate);
        let view = View { now, config: &self.config.scheduler, cost: &self.cost };
        let rules = Rules { view, policy: &*self.policy };
        self.timeline.insert(&rules, candidate, at, margin);
    }

    /// A refusal with its slot in the queue of retries: at the earliest when the device has caught
    /// up by what the forecast is too late.
    fn shed(
        &mut self,
        now: Micros,
        candidate: &Candidate,
        at: &Placement,
        reason: ShedReason,
        miss: Miss,
    ) -> Shed {
        let running = self.timeline.segments[0].running.max(1);
        let steps = u64::from(candidate.steps) + u64::from(at.prefill_steps);
        let share = Micros(self.cost.fixed_ns / 1_000 * steps / u64::from(running));
        let work = candidate.work().plus(share);
        let earliest = now.plus(miss.predicted.minus(miss.budget));
        Shed {
            reason,
            retry_after: self.retries.promise(now, earliest, work, candidate.id.0),
            should_retry: true,
            predicted: miss.predicted,
            budget: miss.budget,
            position: (at.index - self.timeline.decoding) as u32,
        }
    }

    /// Learns lengths and the margin from a completed request. Where the length was not known the
    /// last token tells more of the length than of the model, so the first is compared.
    fn learn(
        &mut self,
        reservation: &Reservation,
        outputs: &[u32],
        first: Option<Micros>,
        last: Option<Micros>,
    ) {
        let Reservation { candidate, arrival, .. } = reservation;
        for (spec, tokens) in reservation.sequences.iter().zip(outputs) {
            let SequenceSpec { prompt_tokens, output, .. } = spec;
            if !output.exact {
                self.lengths.learn(candidate.class, *prompt_tokens, output.max, *tokens);
            }
        }
        let (came, carried) = if candidate.promise.exact {
            (last, reservation.carried_last)
        } else {
            (first, reservation.carried_first)
        };
        if let Some(came) = came {
            let margin = &mut self.margins[candidate.class.index()];
            margin.observe(came.minus(*arrival), carried.minus(*arrival));
        }
    }
}

/// Predicted times of a candidate.
#[derive(Clone, Copy, Debug)]
struct Times {
    first: Micros,
    last: Micros,
}

impl Times {
    /// The first target of `deadline` that would be missed. What is still to come is stretched by
    /// `margin`, per mille.
    fn miss(
        &self,
        now: Micros,
        request: &Request,
        deadline: &Deadline,
        candidate: &Candidate,
        margin: u32,
    ) -> Option<Miss> {
        let stretched = |span: Micros| Micros(span.0.saturating_mul(margin.into()) / 1_000);
        let late = |at: Micros, due: Option<Micros>| {
            let due = due.filter(|due| now.plus(stretched(at.minus(now))) > *due)?;
            Some(Miss { predicted: at.minus(request.arrival), budget: due.minus(request.arrival) })
        };
        let writing = self.last.minus(self.first);
        let slow = || {
            let allowed = deadline.tpot?.0.saturating_mul(candidate.promise.gaps.into());
            (stretched(writing).0 > allowed)
                .then_some(Miss { predicted: writing, budget: Micros(allowed) })
        };
        late(self.first, deadline.first_token)
            .or_else(|| late(self.last, deadline.last_token))
            .or_else(slow)
    }

    /// What a client is shown when it is refused although it would be in time.
    fn shown(&self, request: &Request) -> Miss {
        let Deadline { first_token, last_token, .. } = request.deadline;
        let (at, due) = match last_token {
            Some(due) => (self.last, due),
            None => (self.first, first_token.unwrap_or(Micros::MAX)),
        };
        Miss { predicted: at.minus(request.arrival), budget: due.minus(request.arrival) }
    }
}
