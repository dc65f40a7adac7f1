//! How many requests came lately, and how many of them were refused.

use crate::time::Micros;

/// What is older than this is forgotten. Counts are kept for each half of it, so they reach back
/// over at least half of it.
pub(crate) const WINDOW: Micros = Micros(30_000_000);
const HALF: Micros = Micros(WINDOW.0 / 2);

/// How far the rules may be from their parts of the refusals: small numbers vary.
const AT_ODDS: u64 = 3;

/// The share is not believed before this many requests.
const ENOUGH: u64 = 8;

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    LetIn,
    /// Below the cut, whatever else there was against it.
    Cut,
    /// By what the device can do.
    Refused,
}

#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Counts {
    seen: u32,
    cut: u32,
    refused: u32,
}

/// Recent requests of one class that would have been in time alone, and refusals among them.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Refusals {
    current: Counts,
    previous: Counts,
    /// When the current half began.
    since: Micros,
}

impl Refusals {
    /// A request came.
    pub(crate) fn count(&mut self, now: Micros, verdict: Verdict) {
        let age = now.minus(self.since);
        if age >= HALF {
            self.previous = if age < WINDOW { self.current } else { Counts::default() };
            self.current = Counts::default();
            self.since = now;
        }
        let counts = &mut self.current;
        counts.seen = counts.seen.saturating_add(1);
        let of_verdict = match verdict {
            Verdict::LetIn => return,
            Verdict::Cut => &mut counts.cut,
            Verdict::Refused => &mut counts.refused,
        };
        *of_verdict = of_verdict.saturating_add(1);
    }

    /// The share of requests that has to be refused, per mille, if the cut takes the part
    /// `strength` of it, per mille. The rest is left to the other rules. If these have refused far
    /// less than that, the cut has become its own reason.
    pub(crate) fn share(&self, now: Micros, strength: u32) -> u64 {
        let age = now.minus(self.since);
        let sum = |of: fn(&Counts) -> u32| {
            let current = if age < WINDOW { of(&self.current) } else { 0 };
            let previous = if age < HALF { of(&self.previous) } else { 0 };
            u64::from(current) + u64::from(previous)
        };
        let refused = sum(|counts| counts.refused);
        let explained = AT_ODDS * refused * 1_000 / 1_000u64.saturating_sub(strength.into()).max(1);
        let all = refused + sum(|counts| counts.cut);
        all.min(explained) * 1_000 / sum(|counts| counts.seen).max(ENOUGH)
    }
}
