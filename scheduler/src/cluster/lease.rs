//! A cap for all replicas together, divided into leases.
//!
//! Each replica holds a number of whole units and lets nobody in above that. What the holders may
//! claim is decided where their leases are kept, in one step ([`grant`]): never more than the cap
//! less what the others hold. What each asks for is decided here ([`Lease::claim`]): its part of
//! the cap by demand, no less than is in use. So the sum of what is held never exceeds the cap,
//! whatever is lost or late on the way; how well it is divided follows within a few ticks.
//! (Doorman, Google's client-side rate limiting, works this way.)

use crate::time::Micros;

/// What is held stays held so long without a renewal: in an outage nobody else can get it.
const FROZEN: Micros = Micros(30_000_000);

/// After that the cap is divided evenly. Who gains by it waits so much longer than who loses.
const HANDOVER: Micros = Micros(2_000_000);

/// How much of the way the demand follows a smaller one.
const DEMAND_STEPS: u32 = 16;

/// What can be granted of `cap` to who holds `held` and wants `want`, where the others hold
/// `others` in sum. Who is not `steady`, because it or the others may be missing from the books,
/// gets no more than it held.
#[must_use]
pub fn grant(cap: u32, others: u64, held: u32, want: u32, steady: bool) -> u32 {
    let want = if steady { want } else { want.min(held) };
    let free = u64::from(cap).saturating_sub(others);
    want.min(u32::try_from(free).unwrap_or(u32::MAX))
}

/// One of `parts` even parts of `cap` in whole units; the first ones get one more if it does not
/// divide evenly, so that the parts add up to the cap.
#[must_use]
pub const fn share(cap: u32, parts: u32, rank: u32) -> u32 {
    let parts = if parts == 0 { 1 } else { parts };
    cap / parts + (rank % parts < cap % parts) as u32
}

/// What happened to a tenant here since it was asked last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Units in use.
    pub in_use: u32,
    /// Requests that were refused for want of units.
    pub refused: u32,
}

/// What others hold and want of one cap, in sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Their demands.
    pub demand: u64,
    /// How many they are.
    pub count: u32,
    /// How many of them come first where units cannot be divided.
    pub before: u32,
}

/// One replica's lease on one cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    cap: u32,
    held: u32,
    demand: u32,
    /// When the call was sent by which it was renewed last.
    renewed: Option<Micros>,
}

impl Lease {
    /// Nothing is held yet.
    #[must_use]
    pub const fn new(cap: u32) -> Lease {
        Lease { cap, held: 0, demand: 0, renewed: None }
    }

    /// The cap that it is a part of.
    #[must_use]
    pub const fn cap(&self) -> u32 {
        self.cap
    }

    /// Units held.
    #[must_use]
    pub const fn held(&self) -> u32 {
        self.held
    }

    /// What it would like to use.
    #[must_use]
    pub const fn demand(&self) -> u32 {
        self.demand
    }

    /// Follows the demand: up at once, down slowly, so that a gap between two requests gives
    /// nothing away.
    pub fn observe(&mut self, seen: Use) {
        let now = seen.in_use.saturating_add(seen.refused).min(self.cap);
        let slower = self.demand - self.demand.div_ceil(DEMAND_STEPS).min(self.demand);
        self.demand = now.max(slower);
    }

    /// What to ask for, and to keep to from now on if it is less than is held: whoever gives units
    /// back must do so before others hear of it.
    pub fn claim(&mut self, in_use: u32, others: &Others) -> u32 {
        let want = self.part(others).max(in_use.min(self.held));
        self.held = self.held.min(want);
        want
    }

    /// Its part of the cap by demand; what nobody asks for is divided evenly, for bursts.
    fn part(&self, others: &Others) -> u32 {
        let Others { demand, count, before } = *others;
        let cap = u64::from(self.cap);
        let own = u64::from(self.demand);
        let all = own + demand;
        let parts = count + 1;
        if all <= cap {
            let idle = u32::try_from(cap - all).unwrap_or(u32::MAX);
            return self.demand + share(idle, parts, before);
        }
        // Rounded up for who comes first: the rest is whole units too, and no demand is left out
        // as long as there is one for each.
        let floor = own * cap / all;
        let odd = u64::from(own * cap % all > 0 && before < parts.div_ceil(2));
        let least = u64::from(own > 0 && cap >= u64::from(parts));
        u32::try_from((floor + odd).max(least)).unwrap_or(self.cap).min(self.cap)
    }

    /// The answer to a claim of a call that was sent at `sent`.
    pub fn granted(&mut self, sent: Micros, units: u32) {
        self.held = units.min(self.cap);
        self.renewed = Some(sent);
    }

    /// What may be used now. A lease that could not be renewed stays as it is for a while; then
    /// the cap is divided evenly among the replicas known last, of which this one is number `rank`.
    #[must_use]
    pub fn limit(&self, now: Micros, replicas: u32, rank: u32) -> u32 {
        let even = share(self.cap, replicas, rank);
        let Some(renewed) = self.renewed else { return even };
        let age = now.minus(renewed);
        if age <= FROZEN {
            self.held
        } else if age <= FROZEN.plus(HANDOVER) {
            self.held.min(even)
        } else {
            even
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// What everybody holds of `cap` when all ask in turn, a few times over.
    fn settle(cap: u32, uses: &[u32], rounds: usize) -> Vec<u32> {
        let mut leases: Vec<Lease> = uses.iter().map(|_| Lease::new(cap)).collect();
        for _ in 0..rounds {
            for i in 0..leases.len() {
                let sum = |of: fn(&Lease) -> u32| {
                    let others = leases.iter().enumerate().filter(|(j, _)| *j != i);
                    others.map(|(_, lease)| u64::from(of(lease))).sum::<u64>()
                };
                let (held, demand) = (sum(Lease::held), sum(Lease::demand));
                let others = Others { demand, count: uses.len() as u32 - 1, before: i as u32 };
                let lease = &mut leases[i];
                lease.observe(Use { in_use: lease.held.min(uses[i]), refused: uses[i] });
                let want = lease.claim(0, &others);
                let units = grant(cap, held, lease.held, want, true);
                lease.granted(Micros(0), units);
            }
        }
        leases.iter().map(Lease::held).collect()
    }

    proptest! {
        #[test]
        fn leases_never_exceed_the_cap_and_use_nearly_all_of_it(
            cap in 0u32..200,
            uses in prop::collection::vec(0u32..100, 1..12),
            rounds in 1usize..12,
        ) {
            let held = settle(cap, &uses, rounds);
            let sum: u32 = held.iter().sum();
            prop_assert!(sum <= cap, "{held:?} of {cap}");
            if rounds >= 4 {
                prop_assert!(sum + uses.len() as u32 >= cap, "{held:?} of {cap} for {uses:?}");
            }
        }

        #[test]
        fn even_parts_add_up(cap in 0u32..10_000, parts in 1u32..300) {
            let sum: u32 = (0..parts).map(|rank| share(cap, parts, rank)).sum();
            prop_assert_eq!(sum, cap);
        }

        /// Whatever was granted, whoever is not steady gains nothing, and nobody exceeds the cap.
        #[test]
        fn a_grant_keeps_to_what_is_free(
            cap in 0u32..100, others in 0u64..200, held in 0u32..100, want in 0u32..200,
            steady: bool,
        ) {
            let units = grant(cap, others, held, want, steady);
            prop_assert!(u64::from(units) + others.min(cap.into()) <= u64::from(cap));
            prop_assert!(steady || units <= held);
            prop_assert!(units <= want);
        }
    }

    #[test]
    fn sticky_traffic_gets_nearly_the_whole_cap_where_it_is() {
        let held = settle(64, &[62, 1, 1, 0], 4);
        assert!(held[0] >= 60, "{held:?}");
    }

    #[test]
    fn a_tiny_cap_goes_round_in_whole_units() {
        let held = settle(2, &[5, 5, 5, 5, 5], 4);
        assert_eq!(held.iter().sum::<u32>(), 2, "{held:?}");
    }

    #[test]
    fn an_outage_freezes_a_lease_and_then_divides_the_cap_evenly() {
        let mut lease = Lease::new(10);
        assert_eq!(lease.limit(Micros(0), 4, 0), 3, "never heard of anybody");
        lease.granted(Micros(0), 8);
        let at = |lease: &Lease, s: u64| lease.limit(Micros(s * 1_000_000), 4, 1);
        assert_eq!([1, 29, 31, 33].map(|s| at(&lease, s)), [8, 8, 3, 3]);
        lease.granted(Micros(0), 1);
        assert_eq!([1, 29, 31, 33].map(|s| at(&lease, s)), [1, 1, 1, 3], "who gains waits");
    }

    #[test]
    fn what_is_in_use_is_not_given_away() {
        let mut lease = Lease::new(10);
        lease.granted(Micros(0), 8);
        lease.observe(Use { in_use: 6, refused: 0 });
        let others = Others { demand: 100, count: 3, before: 0 };
        assert_eq!(lease.claim(6, &others), 6);
        assert_eq!(lease.held(), 6, "kept to before anybody hears of it");
    }
}
