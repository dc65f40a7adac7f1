//! The budget of retries: bulk work that is refused is told not to come back while retries are
//! more than a share of the first attempts.
//!
//! Retries that come when they are told do no harm, so this is about those that do not: clients
//! with backoffs of their own, nested retries. What counts is therefore who came, not who was
//! invited: a burst is invited whole as long as nobody has come back. The class that yields is
//! the lowest one, and only beside a higher one: where bulk work is all there is, its retries are
//! in nobody's way.

use super::fading::Fading;
use crate::class::Class;
use crate::request::Request;
use crate::time::Micros;

/// Attempts are counted over this time; a class is in use if somebody of it came in it.
const WINDOW: Micros = Micros(60_000_000);

/// One attempt; fine enough to fade.
const ONE: u64 = 1 << 16;

/// Fewer retries than this are no storm.
const ENOUGH: u64 = 10 * ONE;

#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Budget {
    first: Fading,
    retries: Fading,
    /// When somebody of the latency class came last.
    latency: Option<Micros>,
}

impl Budget {
    pub(super) const fn new() -> Budget {
        let none = Fading::new(WINDOW);
        Budget { first: none, retries: none, latency: None }
    }

    pub(super) fn came(&mut self, now: Micros, request: &Request) {
        if request.class == Class::Latency {
            self.latency = Some(now);
        }
        let kind = if request.retry == 0 { &mut self.first } else { &mut self.retries };
        kind.add(now, ONE);
    }

    /// Whether a refused request of `class` is worth a retry, `permille` being the retries that
    /// are allowed for a thousand first attempts.
    pub(super) fn invites(&self, now: Micros, class: Class, permille: u32) -> bool {
        let retries = self.retries.sum(now);
        let allowed = u128::from(self.first.sum(now)) * u128::from(permille) / 1_000;
        let within = retries < ENOUGH || u128::from(retries) <= allowed;
        let alone = self.latency.is_none_or(|came| now.minus(came) > WINDOW);
        class == Class::Latency || alone || within
    }
}
