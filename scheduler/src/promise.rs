//! What was promised to an entry of the timeline, and how much later its tokens may come.

use crate::class::Class;
use crate::line::Line;
use crate::request::Deadline;
use crate::tenants::TenantId;
use crate::time::Micros;

/// No promise is broken by any delay: nothing was promised, or the promise is lost already.
pub(crate) const UNPROTECTED: i32 = i32::MAX;

/// Times in a timeline are 32-bit numbers, counted from its base; what is later than this (18
/// minutes) counts as if it came now. Sums with a delay then still fit.
pub(crate) const HORIZON: i32 = 1 << 30;

/// What a request was promised.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Promise {
    pub(crate) deadline: Deadline,
    /// When its first token came, if it has come.
    pub(crate) first_token: Option<Micros>,
    /// Gaps between its tokens, over its whole output.
    pub(crate) gaps: u32,
}

/// Times by which tokens are due, from the base, and the span from the first to the last token that
/// is allowed. [`UNPROTECTED`] where nothing is promised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) first: i32,
    pub(crate) last: i32,
    pub(crate) gap: i32,
}

impl Limits {
    /// Nothing is promised.
    pub(crate) const NONE: Limits =
        Limits { first: UNPROTECTED, last: UNPROTECTED, gap: UNPROTECTED };
}

impl Promise {
    /// Its limits in a timeline from `base`, if its last token is forecast for `last` there. While
    /// the first token has not come, the span counts from where the forecast puts it; afterwards
    /// the end of the span is a time like that of the last token, and the earlier of those that can
    /// still be met counts.
    pub(crate) fn limits(&self, base: Micros, last: i32) -> Limits {
        let Deadline { first_token, last_token, tpot } = self.deadline;
        let from_base = |due: Micros| match due.minus(base).0 {
            span if span < UNPROTECTED as u64 => span as i32,
            _ => UNPROTECTED,
        };
        let due = |due: Option<Micros>| due.map_or(UNPROTECTED, from_base);
        let span = tpot.map(|tpot| Micros(tpot.0.saturating_mul(u64::from(self.gaps))));
        let Some(came) = self.first_token else {
            let gap = span.map_or(UNPROTECTED, |span| from_base(base.plus(span)));
            return Limits { first: due(first_token), last: due(last_token), gap };
        };
        let ends = [due(last_token), due(span.map(|span| came.plus(span)))];
        let live = ends.into_iter().filter(|due| *due >= last).min();
        Limits { first: UNPROTECTED, last: live.unwrap_or(UNPROTECTED), gap: UNPROTECTED }
    }
}

/// By how much forecasts are stretched before they are compared with a deadline, for exact and for
/// learned lengths, by line: the inverse, in parts of 65,536.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Margins([[u32; 2]; 4]);

/// Whose margin protects an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Kind {
    pub(crate) class: Class,
    pub(crate) tenant: TenantId,
    /// Exact, and borrows, in a bit each: thousands of entries are kept.
    flags: u8,
}

const EXACT: u8 = 1;
const BORROWS: u8 = 2;

impl Kind {
    pub(crate) const fn new(line: Line, tenant: TenantId, exact: bool) -> Kind {
        let flags = if exact { EXACT } else { 0 } | if line.borrows { BORROWS } else { 0 };
        Kind { class: line.class, tenant, flags }
    }

    /// Its length is known, so its forecast is as good as the cost model.
    pub(crate) const fn exact(self) -> bool {
        self.flags & EXACT > 0
    }

    /// It is more than its tenant's reservation is for.
    pub(crate) const fn borrows(self) -> bool {
        self.flags & BORROWS > 0
    }

    /// The same, but it borrows.
    pub(crate) const fn borrowing(self) -> Kind {
        Kind { flags: self.flags | BORROWS, ..self }
    }

    /// With whom it queues.
    pub(crate) const fn line(self) -> Line {
        Line { class: self.class, borrows: self.borrows() }
    }
}

impl Margins {
    /// From multiples per mille.
    pub(crate) fn new(permille: [[u32; 2]; 4]) -> Margins {
        Margins(permille.map(|of_line| of_line.map(|m| (65_536_000 / m.max(1_000)).min(65_536))))
    }

    const fn inverse(&self, kind: Kind) -> u32 {
        self.0[kind.line().index()][if kind.exact() { 0 } else { 1 }]
    }

    /// What `due` becomes for an entry with these forecasts of its first and its last token.
    pub(crate) fn limits(
        &self,
        kind: Kind,
        now: i32,
        (first, last): (i32, i32),
        due: Limits,
    ) -> Limits {
        Limits {
            first: self.limit(kind, now, first, due.first),
            last: self.limit(kind, now, last, due.last),
            gap: self.limit(kind, 0, last - first, due.gap),
        }
    }

    /// The limit of a time that is due at `due`, if the margin stretches what comes after `now`. A
    /// promise that is lost already, and one of a learned length that is inside the margin, no
    /// longer protects.
    fn limit(&self, kind: Kind, now: i32, forecast: i32, due: i32) -> i32 {
        if due == UNPROTECTED || forecast > due {
            return UNPROTECTED;
        }
        let room = u64::from((due - now).max(0) as u32) * u64::from(self.inverse(kind));
        let limit = now.saturating_add((room >> 16) as i32).min(due);
        if limit < forecast && !kind.exact() { UNPROTECTED } else { limit }
    }
}
