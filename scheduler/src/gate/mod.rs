//! The admission gate: decides and reserves in one critical section.
//!
//! A request is admitted if, by the forecast, it makes its own deadline and breaks no promise made
//! before, each with the margin of its class. The second check carries most of the value: with the
//! first alone every newcomer "fits" and pushes earlier ones over. Promises that are lost already
//! veto nothing, and an idle device admits whatever fits at all.

mod displace;
mod early;
mod elsewhere;
mod judge;
mod offered;
mod refuse;
mod settle;
mod tenants;
mod times;

use alloc::boxed::Box;

use crate::admission::{Admission, Forecast, GateConfig, Rule, ShedReason};
use crate::admission_policy::{AdmissionPolicy, Inside, Offer};
use crate::band::Bands;
use crate::candidate::Candidate;
use crate::class::{Class, ClassConfig};
use crate::cost::CostModel;
use crate::demand::Meter;
use crate::isolation::{Budget, Offered};
use crate::kinds::Kinds;
use crate::ledger::{Ledger, Reservation};
use crate::length::Lengths;
use crate::line::Line;
use crate::margin::Margin;
use crate::placement::Placement;
use crate::policy::{Change, SchedulerPolicy, View};
use crate::prefix::{CacheChanges, CachedPrefixes};
use crate::promise::Margins;
use crate::request::Request;
use crate::retry::RetrySlots;
use crate::rules::Rules;
use crate::sequence::Sequence;
use crate::tenants::{Budgets, Service, TenantTable};
use crate::time::Micros;
use crate::timeline::Timeline;
use elsewhere::Elsewhere;
use judge::Refusal;
use times::Miss;

pub use early::Early;

/// The admission gate.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Gate {
    config: GateConfig,
    #[cfg_attr(feature = "serde", serde(with = "crate::policy::named"))]
    policy: Box<dyn SchedulerPolicy>,
    #[cfg_attr(feature = "serde", serde(with = "crate::admission_policy::named"))]
    admission: Box<dyn AdmissionPolicy>,
    cost: CostModel,
    ledger: Ledger,
    /// Not written down: see [`Gate::carry`].
    #[cfg_attr(feature = "serde", serde(skip, default = "Timeline::none"))]
    timeline: Timeline,
    /// What lay in the prefix cache at the last step.
    cache: CachedPrefixes,
    /// By line: those who borrow are overtaken, and learn what that costs.
    margins: [Margin; 4],
    bands: [Bands; 2],
    kinds: [Kinds; 2],
    lengths: Lengths,
    /// Sequences that run at once when the device is full, and whether somebody was refused since
    /// that was learned.
    batch: u32,
    full: bool,
    /// What requests of each class took of a full device lately.
    shares: [Micros; 2],
    retries: RetrySlots,
    elsewhere: Elsewhere,
    /// Device time that latency work asked for lately.
    offered: Offered,
    /// What may be broken of the promises to each class.
    budgets: [Budget; 2],
    meter: Meter,
    draining: bool,
    /// Bulk requests that were late by the margin alone.
    near_misses: u64,
    tenants: Budgets,
    /// What each tenant was served, as of the installed timeline.
    service: Service,
}

impl Gate {
    /// An empty gate. `policy` is the scheduler's: the gate asks it where a request would stand.
    #[must_use]
    pub fn new(config: GateConfig, policy: Box<dyn SchedulerPolicy>, cost: CostModel) -> Gate {
        let margin =
            |line: Line| Margin::new(config.scheduler.classes.get(line.class).safety_permille);
        Gate {
            config,
            policy,
            admission: config.mode.policy(),
            cost,
            ledger: Ledger::default(),
            timeline: Timeline::idle(Micros(0)),
            cache: CachedPrefixes::default(),
            margins: Line::ALL.map(margin),
            bands: [Bands::new(); 2],
            kinds: [Kinds::new(), Kinds::new()],
            lengths: Lengths::default(),
            batch: config.scheduler.slots(),
            full: false,
            shares: [Micros(0); 2],
            retries: RetrySlots::new(config.retries),
            elsewhere: Elsewhere::default(),
            offered: Offered::default(),
            budgets: [Budget::default(); 2],
            meter: Meter::new(),
            draining: false,
            near_misses: 0,
            tenants: Budgets::new(TenantTable::default()),
            service: Service::default(),
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
                self.lengths.predict(request.class, spec.prompt_tokens, &spec.output, 0);
        }
        if self.ledger.is_empty() {
            self.timeline = Timeline::idle(now);
        }
        request.borrows = false;
        let mut candidate = Candidate::new(&self.rules(now), &self.cache, request);
        let cost = self.tenant_cost(&candidate);
        request.borrows = self.tenants.borrows(now, request, cost);
        if request.borrows {
            candidate.borrow();
        }
        self.stand(&mut candidate);
        let at = self.timeline.place(&self.rules(now), &candidate);
        let verdict = self.judge(now, request, &candidate, &at);
        let work = self.share(&candidate, at.prefill_steps);
        self.learn_share(request.class, work);
        if !matches!(verdict, Err(Refusal::Unsatisfiable(_))) {
            self.count_offered(now, request.class, work);
        }
        self.count_demand(now, request, &candidate, at.prefill_steps, &verdict);
        let held = self.retries.came(now, request, verdict.is_ok(), work);
        match verdict {
            Ok(displaced) => {
                self.give_up(&candidate, &displaced);
                self.count_promise(request);
                Admission::Admit(self.reserve(now, request, candidate, &at))
            }
            Err(Refusal::Unsatisfiable(Miss { quantity, predicted, budget })) => {
                Admission::Unsatisfiable { quantity, predicted, budget }
            }
            Err(Refusal::OverBudget(over, shown)) => {
                let wait = self.invite(now, request, work, over);
                let why = (ShedReason::TenantBudget, Rule::Bound);
                Admission::Shed(self.shed(now, request, at.index, why, shown, wait))
            }
            Err(Refusal::Shed { reason, rule, shown, wait }) => {
                let margin = self.margin(&candidate);
                let away = self.send_away(now, request.class, reason, work);
                let (reason, wait) = match (away, held) {
                    (Some(wait), _) => (ShedReason::ReplicaBusy, wait),
                    (None, Some(due)) => (reason, due.minus(now)),
                    (None, None) => (reason, self.slot(now, request, margin, work, &shown, wait)),
                };
                Admission::Shed(self.shed(now, request, at.index, (reason, rule), shown, wait))
            }
        }
    }

    /// Swaps in the timeline that the engine thread built; requests admitted since are inserted
    /// into it again. `cost` is the model it was built with. Returns the timeline that was in
    /// force, so that the caller can let go of it after the gate's lock.
    pub fn install(&mut self, now: Micros, timeline: Timeline, cost: CostModel) -> Timeline {
        self.cost = cost;
        self.ledger.carry(&self.timeline);
        let known = self.policy.restore(&timeline.counts);
        assert!(known, "the scheduler has the same policy");
        let mut next = if self.ledger.is_empty() { Timeline::idle(now) } else { timeline };
        if self.tenants.matters() && !self.ledger.is_empty() {
            core::mem::swap(&mut self.service, &mut next.service);
        }
        let spent = core::mem::replace(&mut self.timeline, next);
        if self.ledger.is_empty() {
            return spent;
        }
        let margins = self.all_margins();
        self.timeline.protect(now, &margins);
        for (slot, mut candidate) in self.ledger.confirm(&mut self.timeline) {
            self.stand(&mut candidate);
            let at = self.timeline.place(&self.rules(now), &candidate);
            self.insert(now, &candidate, &at, slot);
        }
        self.keep_given_up();
        // Their delays were carried when they were admitted.
        self.timeline.forget_delays();
        self.learn_batch();
        spent
    }

    /// Follows the prefix cache: `changes` are those since the last update. To be called whenever a
    /// timeline is installed.
    pub fn update_cache(&mut self, changes: CacheChanges) {
        self.cache.update(changes);
    }

    /// Books the delays of the installed timeline, as [`Gate::install`] does first. If another is
    /// installed next, the timeline matters no more, and the rest of the gate can be written down.
    #[cfg(feature = "serde")]
    pub fn carry(&mut self) {
        self.ledger.carry(&self.timeline);
        self.timeline.forget_delays();
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
        self.margins[Line { class, borrows: false }.index()].permille(true)
    }

    /// What it has learned of output lengths.
    #[cfg(test)]
    pub(crate) const fn lengths(&self) -> &Lengths {
        &self.lengths
    }

    fn rules(&self, now: Micros) -> Rules<'_> {
        let view = View { now, config: &self.config.scheduler, cost: &self.cost };
        Rules::new(view, &*self.policy, self.timeline.wanted, self.service.reserved_permille())
    }

    /// What an admission policy sees of those that are inside.
    fn inside(&self) -> Inside {
        let waiting = Class::ALL.map(|class| self.ledger.waiting(class));
        Inside {
            requests: self.ledger.len() as u32,
            waiting: waiting.into_iter().fold(0, u32::saturating_add),
            held_blocks: self.timeline.held_blocks,
        }
    }

    fn class(&self, class: Class) -> &ClassConfig {
        self.config.scheduler.classes.get(class)
    }

    fn margin(&self, candidate: &Candidate) -> u32 {
        self.margins[candidate.kind.line().index()].permille(candidate.kind.exact())
    }

    /// By how much the device is behind the installed timeline.
    fn lag(&self, now: Micros) -> Micros {
        now.minus(self.timeline.base)
    }

    fn reserve(
        &mut self,
        now: Micros,
        request: &Request,
        mut candidate: Candidate,
        at: &Placement,
    ) -> Forecast {
        candidate.promise.deadline = request.deadline;
        let work = candidate.work();
        let lag = self.lag(now);
        let (first_token, last_token) = (at.first.plus(lag), at.finish.plus(lag));
        let arrival = request.arrival;
        let (upper_first, upper_last) = self.bands[request.class.index()].upper(
            candidate.kind.exact(),
            first_token.minus(arrival),
            last_token.minus(arrival),
        );
        let (upper_first, upper_last) = (arrival.plus(upper_first), arrival.plus(upper_last));
        let forecast = Forecast { first_token, last_token, upper_first, upper_last, work };
        let reservation = Reservation::new(request, candidate.kind, &forecast);
        let cost = self.tenant_cost(&candidate);
        self.tenants.admit(now, request, cost, reservation.work());
        let slot = self.ledger.reserve(reservation, request, candidate);
        for index in 0..request.sequences.len() {
            self.policy.observe(&Sequence::new(request, index), Change::Queued);
        }
        let view = View { now, config: &self.config.scheduler, cost: &self.cost };
        self.admission.entered(&Offer { view, request, inside: self.inside() });
        self.insert(now, &candidate, at, slot);
        forecast
    }

    fn insert(&mut self, now: Micros, candidate: &Candidate, at: &Placement, slot: u32) {
        let margins = self.all_margins();
        let view = View { now, config: &self.config.scheduler, cost: &self.cost };
        let reserved = self.service.reserved_permille();
        let rules = Rules::new(view, &*self.policy, self.timeline.wanted, reserved);
        self.timeline.insert(&rules, candidate, at, &margins, slot);
    }

    fn all_margins(&self) -> Margins {
        Margins::new(self.margins.map(|margin| [margin.permille(true), margin.permille(false)]))
    }
}
