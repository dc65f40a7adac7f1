//! Predicted times of a candidate against its targets.

use crate::admission::Quantity;
use crate::candidate::Candidate;
use crate::request::{Deadline, Request};
use crate::time::Micros;

/// A predicted time and what it may be at most: spans from arrival (gaps: from the first token).
#[derive(Clone, Copy, Debug)]
pub(super) struct Miss {
    pub(super) quantity: Quantity,
    pub(super) predicted: Micros,
    pub(super) budget: Micros,
}

/// By how much forecasts are stretched, per mille.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnMargins {
    /// What is still to come until a token.
    pub(super) times: u32,
    /// The span from the first to the last token.
    pub(super) gaps: u32,
}

impl OwnMargins {
    /// Forecasts as they are.
    pub(super) const NONE: OwnMargins = OwnMargins { times: 1_000, gaps: 1_000 };
}

/// Predicted times of a candidate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) first: Micros,
    pub(super) last: Micros,
}

impl Times {
    /// The first target of `deadline` that would be missed, if what is still to come is stretched.
    pub(super) fn miss(
        &self,
        now: Micros,
        request: &Request,
        deadline: &Deadline,
        candidate: &Candidate,
        margins: OwnMargins,
    ) -> Option<Miss> {
        let by = |span: Micros, margin: u32| Micros(span.0.saturating_mul(margin.into()) / 1_000);
        let late = |quantity, at: Micros, due: Option<Micros>| {
            let due = due.filter(|due| now.plus(by(at.minus(now), margins.times)) > *due)?;
            let (predicted, budget) = (at.minus(request.arrival), due.minus(request.arrival));
            Some(Miss { quantity, predicted, budget })
        };
        let writing = self.last.minus(self.first);
        let slow = || {
            let allowed = deadline.tpot?.0.saturating_mul(candidate.promise.gaps.into());
            (by(writing, margins.gaps).0 > allowed).then_some(Miss {
                quantity: Quantity::Gaps,
                predicted: writing,
                budget: Micros(allowed),
            })
        };
        late(Quantity::FirstToken, self.first, deadline.first_token)
            .or_else(|| late(Quantity::LastToken, self.last, deadline.last_token))
            .or_else(slow)
    }

    /// The same if others take this share of the device from now on, per mille below 1000.
    pub(super) fn behind(&self, now: Micros, permille: u64) -> Times {
        let left = 1_000u64.saturating_sub(permille).max(1);
        let at = |time: Micros| now.plus(Micros(time.minus(now).0.saturating_mul(1_000) / left));
        Times { first: at(self.first), last: at(self.last) }
    }

    /// What a client is shown when it is refused although it would be in time.
    pub(super) fn shown(&self, request: &Request) -> Miss {
        let Deadline { first_token, last_token, .. } = request.deadline;
        let (quantity, at, due) = match last_token {
            Some(_) => (Quantity::LastToken, self.last, last_token),
            None => (Quantity::FirstToken, self.first, first_token),
        };
        let budget = due.map_or(Micros::MAX, |due| due.minus(request.arrival));
        Miss { quantity, predicted: at.minus(request.arrival), budget }
    }

    /// The room that the deadlines of a request leave: the time until they are due, over the time
    /// that it needs alone on the device (which `self` is then), per mille. `None` without a
    /// deadline.
    pub(super) fn room(&self, now: Micros, candidate: &Candidate) -> Option<u32> {
        let deadline = candidate.promise.deadline;
        let over = |due: Micros, needed: Micros| {
            let permille = due.0.saturating_mul(1_000) / needed.0.max(1);
            u32::try_from(permille).unwrap_or(u32::MAX)
        };
        if let Some(due) = deadline.last_token {
            return Some(over(due.minus(now), self.last.minus(now)));
        }
        let first = deadline.first_token?.minus(now);
        let Some(tpot) = deadline.tpot else { return Some(over(first, self.first.minus(now))) };
        let writing = Micros(tpot.0.saturating_mul(candidate.promise.gaps.into()));
        Some(over(first.plus(writing), self.last.minus(now)))
    }
}
