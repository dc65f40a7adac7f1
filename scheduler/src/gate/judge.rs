//! Whether a request enters: its own deadline, no harm to others, whose kind goes first, and
//! latency work that is expected.

use super::Gate;
use super::displace::Displaced;
use super::times::{Miss, OwnMargins, Times};
use crate::admission::{Quantity, Rule, ShedReason};
use crate::admission_policy::{Answer, Offer, Refused};
use crate::candidate::Candidate;
use crate::class::Class;
use crate::kinds::Standing;
use crate::pace::Pace;
use crate::placement::Placement;
use crate::refusals::Verdict;
use crate::request::{Deadline, Request};
use crate::tenants::OverBudget;
use crate::time::Micros;

/// Who has so much room now, per mille of the forecast, is not cut: there is no need to.
const AMPLE: u32 = 4_000;

/// One in so many near misses of bulk work is let in.
const NEAR_MISSES: u64 = 100;

/// Why a candidate is not admitted.
pub(super) enum Refusal {
    Shed {
        reason: ShedReason,
        rule: Rule,
        shown: Miss,
        /// How long it has to wait at the least, if a policy says so.
        wait: Micros,
    },
    Unsatisfiable(Miss),
    OverBudget(OverBudget, Miss),
}

impl Refusal {
    /// By the gate's own rules.
    const fn by(rule: Rule, reason: ShedReason, shown: Miss) -> Refusal {
        Refusal::Shed { reason, rule, shown, wait: Micros(0) }
    }
}

impl Refused {
    /// The rule, and what the client is shown: what it was predicted by, or the forecast.
    pub(super) fn explained(&self, forecast: Miss) -> (Rule, Miss) {
        match self.predicted {
            None => (Rule::Bound, forecast),
            Some((quantity, predicted, budget)) => {
                (Rule::Own, Miss { quantity, predicted, budget })
            }
        }
    }
}

impl Gate {
    /// Bounds first, then forecasts. A refusal by forecast of a request that would be in time alone
    /// on the device counts for its kind.
    pub(super) fn judge(
        &mut self,
        now: Micros,
        request: &mut Request,
        candidate: &Candidate,
        at: &Placement,
    ) -> Result<Displaced, Refusal> {
        let lag = self.lag(now);
        let forecast = Times { first: at.first.plus(lag), last: at.finish.plus(lag) };
        let shown = forecast.shown(request);
        let refuse = |reason| Err(Refusal::by(Rule::Bound, reason, shown));
        if self.draining {
            return refuse(ShedReason::Draining);
        }
        let over = self.tenants.check(now, request.tenant);
        over.map_err(|over| Refusal::OverBudget(over, shown))?;
        let waiting = self.ledger.waiting(request.class);
        let sequences = request.sequences.len() as u32;
        let full = waiting + sequences > self.queue_bound(request);
        let offer = Offer { view: self.rules(now).view, request, inside: self.inside() };
        match self.admission.judge(&offer) {
            Answer::Forecast => {}
            Answer::Enter => {
                return if full { refuse(ShedReason::QueueFull) } else { Ok(Displaced::new()) };
            }
            Answer::Refuse(refused) => {
                let (rule, shown) = refused.explained(shown);
                let Refused { reason, wait, .. } = refused;
                return Err(Refusal::Shed { reason, rule, shown, wait });
            }
        }
        let passed = |due: Option<Micros>| due.is_some_and(|due| due <= now);
        if passed(request.deadline.first_token) || passed(request.deadline.last_token) {
            return refuse(ShedReason::Expired);
        }
        self.check_satisfiable(now, request)?;
        let standing = self.standing(now, candidate);
        let idle = self.ledger.is_empty();
        let verdict = if idle {
            self.take_off_missed_targets(request, &forecast);
            Ok(Displaced::new())
        } else if full {
            return refuse(ShedReason::QueueFull);
        } else {
            self.judge_forecast(now, request, candidate, at, &forecast, standing)
        };
        if let Some(standing) = standing {
            let kinds = &mut self.kinds[request.class.index()];
            let verdict = match verdict {
                Ok(_) => Verdict::LetIn,
                Err(_) if kinds.cuts(now, &self.config.kinds, standing) => Verdict::Cut,
                Err(_) => Verdict::Refused,
            };
            kinds.observe(now, &self.config.kinds, standing, verdict);
        }
        verdict
    }

    /// Without what the policy keeps by itself.
    fn unguarded(&self, now: Micros, candidate: &Candidate) -> Candidate {
        let mut candidate = *candidate;
        let deadline = &mut candidate.promise.deadline;
        *deadline = self.rules(now).unguarded(candidate.kind.class, *deadline);
        candidate
    }

    /// Whether what decodes in every step would be too much for a gap that the policy keeps.
    fn too_slow(
        &self,
        now: Micros,
        candidate: &Candidate,
        at: &Placement,
        margin: u32,
    ) -> Option<Miss> {
        let Pace { step, gap } = self.timeline.pace(&self.rules(now), candidate, at)?;
        let stretched = step.0.saturating_mul(margin.into()) / 1_000;
        let of_all = |gap: Micros| Micros(gap.0.saturating_mul(candidate.promise.gaps.into()));
        (stretched > gap.0).then(|| Miss {
            quantity: Quantity::Gaps,
            predicted: of_all(step),
            budget: of_all(gap),
        })
    }

    /// What the rule by kind looks at; it does not judge requests without a deadline, nor those
    /// that would be late alone. Of a last token of unknown length the room is taken to the first
    /// token, which the prompt decides: the rest would be that of a guess.
    fn standing(&self, now: Micros, candidate: &Candidate) -> Option<Standing> {
        let mut alone = self.alone(now, candidate);
        if Self::is_guess(candidate) {
            alone.last = alone.first;
        }
        let room = alone.room(now, &self.unguarded(now, candidate))?;
        (room >= 1_000).then_some(Standing { room, size: candidate.todo })
    }

    /// Its last token is due and its length is not known.
    fn is_guess(candidate: &Candidate) -> bool {
        candidate.promise.deadline.last_token.is_some() && !candidate.kind.exact()
    }

    /// The three rules: its own deadline, its kind, no harm to others.
    fn judge_forecast(
        &mut self,
        now: Micros,
        request: &Request,
        candidate: &Candidate,
        at: &Placement,
        forecast: &Times,
        standing: Option<Standing>,
    ) -> Result<Displaced, Refusal> {
        let protected = self.is_protected(candidate);
        // What is promised to retries is borrowed, like that of those who were refused.
        let kept = if protected { Micros(0) } else { self.retries.kept(now, request) };
        let delayed = Times { first: forecast.first.plus(kept), last: forecast.last.plus(kept) };
        let margins = self.own_margins(now, candidate);
        let deadline = self.rules(now).unguarded(request.class, request.deadline);
        let miss = delayed.miss(now, request, &deadline, candidate, margins);
        if let Some(miss) = self.too_slow(now, candidate, at, margins.gaps) {
            return Err(Refusal::by(Rule::Own, ShedReason::SloMiss, miss));
        }
        if let Some(miss) = miss
            && !self.explores(now, request, candidate, &delayed)
        {
            let reason =
                if at.waits_for_blocks { ShedReason::KvPressure } else { ShedReason::SloMiss };
            return Err(Refusal::by(Rule::Own, reason, miss));
        }
        let reason = ShedReason::SloMiss;
        let shown = forecast.shown(request);
        let kinds = &self.kinds[request.class.index()];
        let unguarded = self.unguarded(now, candidate);
        let loaded = delayed.room(now, &unguarded).filter(|_| !Self::is_guess(candidate));
        let goes_first = |standing| {
            let ample = loaded.is_some_and(|loaded| loaded >= AMPLE);
            (!ample && kinds.cuts(now, &self.config.kinds, standing))
                || loaded.is_some_and(|loaded| kinds.is_tight(loaded))
        };
        if !protected && standing.is_some_and(goes_first) {
            return Err(Refusal::by(Rule::Kind, reason, shown));
        }
        // Who explores is a little late even without it.
        if request.class == Class::Throughput && miss.is_none() && !protected {
            let later = delayed.behind(now, self.expected(now));
            if let Some(shown) = later.miss(now, request, &request.deadline, candidate, margins) {
                return Err(Refusal::by(Rule::Expected, reason, shown));
            }
        }
        if !self.timeline.harms(candidate, at, kept) {
            return Ok(Displaced::new());
        }
        let harm = Refusal::by(Rule::Harm, reason, shown);
        self.displaces(candidate, at, kept).ok_or(harm)
    }

    /// Work was asked for.
    pub(super) fn count_offered(&mut self, now: Micros, class: Class, work: Micros) {
        if class == Class::Latency {
            self.offered.add(now, work);
        }
    }

    /// The share of the device that latency work is expected to ask for, per mille.
    fn expected(&self, now: Micros) -> u64 {
        self.offered.permille(now).min(self.config.isolation.latency_share_permille.into())
    }

    /// Whether bulk work that misses its deadline by nothing but the margin is let in all the same,
    /// if it harms nobody: now and then it has to be seen whether the margin is too large.
    fn explores(
        &mut self,
        now: Micros,
        request: &Request,
        candidate: &Candidate,
        delayed: &Times,
    ) -> bool {
        let is_late =
            delayed.miss(now, request, &request.deadline, candidate, OwnMargins::NONE).is_some();
        if request.class == Class::Latency || is_late {
            return false;
        }
        self.near_misses += 1;
        self.near_misses.is_multiple_of(NEAR_MISSES)
    }

    /// When the candidate would have its tokens on an idle device.
    pub(super) fn alone(&self, now: Micros, candidate: &Candidate) -> Times {
        let (first, last) = candidate.alone(&self.rules(now));
        Times { first, last }
    }

    /// The targets that the client itself set: those that differ from its class's.
    fn own_targets(&self, request: &Request) -> Deadline {
        let own = self.tenants.table().slo(request.tenant, request.class);
        let slo = own.unwrap_or(&self.class(request.class).slo);
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
        let candidate = Candidate::shortest(&self.rules(now), &self.cache, request);
        match self.alone(now, &candidate).miss(now, request, &own, &candidate, OwnMargins::NONE) {
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
}
