//! What is asked of the device, measured in devices: the signal for an autoscaler.
//!
//! Each first attempt counts with the device time that it takes of a full device, whether it is let
//! in or refused for want of capacity. The sum over a second is how many devices of this kind the
//! traffic needs. It is linear in the traffic where targets are of first token and gap, so a scaler
//! that follows it goes to where it has to be and no further; a share of refusals is steep (at 7 %
//! refused a target of 1 % asks for seven times the fleet), and a utilisation ends at 1.
//! Retries are measured apart: they bring work that has been counted before.
//!
//! Lengths are predicted by their median, which is best for deadlines. Work adds up by the mean,
//! so the mean is taken here.

use crate::request::Request;
use crate::retry::fading::Fading;
use crate::time::Micros;

/// Work is averaged over this time.
const WINDOW: Micros = Micros(30_000_000);

/// How much of the way the mean work of a class follows the next request.
const MEAN_STEPS: u64 = 16;

/// Work that was asked for lately, per mille of what this device can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// First attempts that were let in or refused for want of capacity.
    pub offered_permille: u32,
    /// Retries of the same.
    pub retried_permille: u32,
    /// What was let in, first attempts and retries.
    pub admitted_permille: u32,
}

/// What became of a request, as far as capacity is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Let in.
    Admitted,
    /// Another device would have taken it.
    Wanting,
    /// No number of devices helps.
    Hopeless,
}

/// Measures the demand.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Meter {
    offered: Fading,
    retried: Fading,
    admitted: Fading,
    /// Mean work by class, for requests that are refused before their length is known.
    means: [Micros; 2],
}

impl Meter {
    pub(crate) const fn new() -> Meter {
        let none = Fading::new(WINDOW);
        Meter { offered: none, retried: none, admitted: none, means: [Micros(0); 2] }
    }

    /// A request that takes `work` of a full device was decided on.
    pub(crate) fn came(&mut self, now: Micros, request: &Request, work: Micros, outcome: Outcome) {
        let mean = &mut self.means[request.class.index()];
        *mean = match mean.0 {
            0 => work,
            _ => mean.minus(Micros(mean.0 / MEAN_STEPS)).plus(Micros(work.0 / MEAN_STEPS)),
        };
        self.count(now, request, work, outcome);
    }

    /// A request that takes at least `least` was refused before more was known of it.
    pub(crate) fn refused_early(
        &mut self,
        now: Micros,
        request: &Request,
        least: Micros,
        outcome: Outcome,
    ) {
        let work = least.max(self.means[request.class.index()]);
        self.count(now, request, work, outcome);
    }

    fn count(&mut self, now: Micros, request: &Request, work: Micros, outcome: Outcome) {
        if outcome == Outcome::Hopeless {
            return;
        }
        let attempt = if request.retry == 0 { &mut self.offered } else { &mut self.retried };
        attempt.add(now, work.0);
        if outcome == Outcome::Admitted {
            self.admitted.add(now, work.0);
        }
    }

    pub(crate) fn report(&self, now: Micros) -> Demand {
        let permille = |sum: &Fading| {
            let work = u128::from(sum.sum(now)) * 1_000 / u128::from(WINDOW.0);
            u32::try_from(work).unwrap_or(u32::MAX)
        };
        Demand {
            offered_permille: permille(&self.offered),
            retried_permille: permille(&self.retried),
            admitted_permille: permille(&self.admitted),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::class::Class;
    use crate::request::{Deadline, RequestId};
    use crate::tenants::TenantId;

    fn request(retry: u32) -> Request {
        Request {
            id: RequestId(0),
            class: Class::Latency,
            tenant: TenantId::DEFAULT,
            borrows: false,
            arrival: Micros(0),
            deadline: Deadline::default(),
            retry,
            origin: 0,
            prefixes: Vec::new(),
            sequences: Vec::new(),
        }
    }

    /// Three devices' worth a second, of which one gets in; and as much again in retries.
    #[test]
    fn demand_counts_devices_and_keeps_retries_apart() {
        let mut meter = Meter::new();
        let mut now = Micros(0);
        for i in 0..6_000 {
            now = now.plus(Micros(50_000));
            let outcome = if i % 3 == 0 { Outcome::Admitted } else { Outcome::Wanting };
            meter.came(now, &request(0), Micros(150_000), outcome);
            meter.came(now, &request(1), Micros(150_000), Outcome::Wanting);
            meter.came(now, &request(0), Micros(150_000), Outcome::Hopeless);
        }
        let demand = meter.report(now);
        assert!(demand.offered_permille.abs_diff(3_000) < 60, "{demand:?}");
        assert!(demand.retried_permille.abs_diff(3_000) < 60, "{demand:?}");
        assert!(demand.admitted_permille.abs_diff(1_000) < 30, "{demand:?}");
        assert_eq!(meter.means, [Micros(150_000), Micros(0)]);
        assert_eq!(meter.report(now.plus(WINDOW)), Demand::default());
    }

    #[test]
    fn who_is_refused_before_its_length_is_known_counts_like_the_others() {
        let mut meter = Meter::new();
        meter.came(Micros(0), &request(0), Micros(300_000), Outcome::Admitted);
        meter.refused_early(Micros(0), &request(0), Micros(10), Outcome::Wanting);
        assert_eq!(meter.report(Micros(0)).offered_permille, 20);
    }
}
