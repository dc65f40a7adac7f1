//! Refusals before the prompt is tokenised: what is known by then is how short it is at most.
//!
//! A request is refused early only if the gate would refuse it whatever its tokens turn out to be:
//! by a bound, or because it could not have its first token in time even at the best place that it
//! may get in the queue. Neither whom it would delay nor its kind is asked, because both depend on
//! what is not known yet. So whoever the whole check would admit is never refused here.

use super::Gate;
use super::times::{Miss, OwnMargins, Times};
use crate::admission::{Rule, Shed, ShedReason};
use crate::admission_policy::{Answer, Offer};
use crate::candidate::Candidate;
use crate::class::Class;
use crate::line::Line;
use crate::request::Request;
use crate::time::Micros;

/// Why a request is refused before it is tokenised.
#[derive(Clone, Copy, Debug)]
pub struct Early {
    reason: ShedReason,
    rule: Rule,
    shown: Miss,
    index: usize,
    work: Micros,
    margin: u32,
    /// How long it has to wait at the least.
    wait: Micros,
    /// It would be in time alone on the device, so that it counts for the rule of kinds.
    counts: bool,
}

impl Gate {
    /// Whether a request would be refused now however long it is. `least` has each of its prompts
    /// once, with the fewest tokens that it can have, and answers of one token; `sequences` is how
    /// many there will be. Changes nothing and allocates nothing.
    #[must_use]
    pub fn early(&self, now: Micros, least: &Request, sequences: u32) -> Option<Early> {
        if self.ledger.is_empty() {
            return None;
        }
        let rules = self.rules(now);
        let candidate = Candidate::least(&rules, &self.cache, least, sequences);
        let (index, first, blocks) = self.timeline.earliest(&rules, &candidate);
        let first = first.plus(self.lag(now));
        let shown = Times { first, last: first }.shown(least);
        let lines = Line::ALL.into_iter().filter(|line| line.class == least.class);
        let of_line = |line: Line| {
            let margin = self.margins[line.index()];
            margin.permille(true).min(margin.permille(false))
        };
        // Now and then bulk work is let in that misses by nothing but the margin.
        let margin = match least.class {
            Class::Latency => lines.map(of_line).min().unwrap_or(1_000),
            Class::Throughput => 1_000,
        };
        let work = self.share(&candidate, 1).max(self.shares[least.class.index()]);
        let offer = Offer { view: rules.view, request: least, inside: self.inside() };
        let answer = self.admission.judge(&offer);
        let wait = match answer {
            Answer::Refuse(refused) => refused.wait,
            Answer::Enter | Answer::Forecast => Micros(0),
        };
        let refuse = |reason, rule, shown| {
            let alone = || self.alone(now, &candidate).room(now, &candidate);
            let counts = rule == Rule::Own && alone().is_some_and(|room| room >= 1_000);
            Some(Early { reason, rule, shown, index, work, margin, wait, counts })
        };
        if self.draining {
            return refuse(ShedReason::Draining, Rule::Bound, shown);
        }
        let passed = |due: Option<Micros>| due.is_some_and(|due| due <= now);
        if let Answer::Refuse(refused) = answer {
            let (rule, shown) = refused.explained(shown);
            return refuse(refused.reason, rule, shown);
        }
        let by_forecast = answer == Answer::Forecast;
        let deadline = &least.deadline;
        if by_forecast && (passed(deadline.first_token) || passed(deadline.last_token)) {
            return refuse(ShedReason::Expired, Rule::Bound, shown);
        }
        if self.tenants.check(now, least.tenant).is_err() {
            return refuse(ShedReason::TenantBudget, Rule::Bound, shown);
        }
        let waiting = self.ledger.waiting(least.class);
        if waiting.saturating_add(sequences) > self.class(least.class).max_waiting {
            return refuse(ShedReason::QueueFull, Rule::Bound, shown);
        }
        if !by_forecast {
            return None;
        }
        // It may turn out to be within a reservation, from which nothing is kept for retries.
        let may_be_reserved = self.tenants.has_reservation(least.tenant);
        let kept = if may_be_reserved { Micros(0) } else { self.retries.kept(now, least) };
        let first = first.plus(kept);
        let times = Times { first, last: first };
        let margins = OwnMargins { times: margin, gaps: margin };
        let miss = times.miss(now, least, deadline, &candidate, margins)?;
        let reason = if blocks { ShedReason::KvPressure } else { ShedReason::SloMiss };
        refuse(reason, Rule::Own, miss)
    }

    /// Refuses `least` for what [`Gate::early`] said of it just now.
    pub fn refuse(&mut self, now: Micros, least: &Request, early: Early) -> Shed {
        let Early { reason, rule, shown, index, work, margin, wait, counts } = early;
        self.meter.refused_early(now, least, work, super::offered::outcome(reason));
        if counts {
            self.kinds[least.class.index()].count_refused(now);
            self.count_offered(now, least.class, work);
        }
        let held = self.retries.came(now, least, false, work);
        let over = self.tenants.check(now, least.tenant).err();
        let over = over.filter(|_| reason == ShedReason::TenantBudget);
        let away = self.send_away(now, least.class, reason, work);
        let (reason, wait) = match (over, away, held) {
            (Some(over), ..) => (reason, self.invite(now, least, work, over)),
            (None, Some(wait), _) => (ShedReason::ReplicaBusy, wait),
            (None, None, Some(due)) => (reason, due.minus(now)),
            (None, None, None) => (reason, self.slot(now, least, margin, work, &shown, wait)),
        };
        self.shed(now, least, index, (reason, rule), shown, wait)
    }
}
