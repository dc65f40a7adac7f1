//! Which promises an admission may break, and who pays for them.
//!
//! Whoever is let in all the same although others become late by it *displaces* them: what they
//! were promised is given up, protects nobody any more, and is charged to the budget of their
//! class. They are served as before, only later.

use alloc::vec::Vec;

use super::Gate;
use crate::admission_policy::AdmissionMode;
use crate::candidate::Candidate;
use crate::class::Class;
use crate::ledger::Reservation;
use crate::placement::Placement;
use crate::request::{Deadline, Request};
use crate::time::Micros;

/// Latency work displaces its own class only where that takes so many times its work: what vetoes
/// many is exchanged for many.
const LARGE: u64 = 4;

/// And only where the least rooms are so far below the usual one, per mille: where deadlines are
/// proportional to the work, nobody vetoes for long.
const APART: u32 = 250;

/// Of the promises to latency work, so many may be broken by their own class, per mille, if no less
/// is allowed for bulk promises.
const OWN_PERMILLE: u32 = 18;

/// Places in the ledger whose promises are given up for an admission.
pub(super) type Displaced = Vec<u32>;

impl Gate {
    /// The promises that break by `candidate`, if all of them may be given up for it and the budget
    /// has that many left. Who is within its tenant's reservation pays nothing for those who
    /// borrow.
    pub(super) fn displaces(
        &self,
        candidate: &Candidate,
        at: &Placement,
        more: Micros,
    ) -> Option<Displaced> {
        let mut left = self.budgets.map(|budget| budget.left());
        let protected = self.is_protected(candidate);
        if !protected && !Class::ALL.into_iter().any(|class| left[class.index()] > 0) {
            return None;
        }
        let large = self.kinds[candidate.kind.class.index()].apart() >= APART;
        let mut displaced = Displaced::new();
        for i in self.timeline.broken(candidate, at, more) {
            let entry = &self.timeline.entries[i];
            // Who has ended is not late.
            let Some(owner) = self.ledger.owner(entry) else { continue };
            if displaced.contains(&entry.slot) {
                continue;
            }
            let left = &mut left[owner.kind().class.index()];
            if protected && owner.borrows() {
                displaced.push(entry.slot);
                continue;
            }
            if *left == 0 || !may_displace(candidate, owner, large) {
                return None;
            }
            *left -= 1;
            displaced.push(entry.slot);
        }
        Some(displaced)
    }

    /// Gives promises up for `candidate`, and charges them.
    pub(super) fn give_up(&mut self, candidate: &Candidate, displaced: &[u32]) {
        if displaced.is_empty() {
            return;
        }
        let protected = self.is_protected(candidate);
        for slot in displaced {
            let (class, borrows) = self.ledger.displace(*slot);
            if !(protected && borrows) {
                self.budgets[class.index()].charge(1);
            }
        }
        self.timeline.unprotect(|entry| displaced.contains(&entry.slot));
    }

    /// A promise was given to `request`: a part of one more may be broken.
    pub(super) fn count_promise(&mut self, request: &Request) {
        let promised = request.deadline != Deadline::default();
        let of_bulk = self.config.isolation.displacement_permille;
        let permille = match request.class {
            Class::Latency => of_bulk.min(OWN_PERMILLE),
            Class::Throughput => of_bulk,
        };
        if promised && self.config.mode == AdmissionMode::Deadline {
            self.budgets[request.class.index()].give(permille);
        }
    }

    /// The promises of displaced requests do not protect them in a new timeline either.
    pub(super) fn keep_given_up(&mut self) {
        if self.ledger.has_displaced() {
            let ledger = &self.ledger;
            let lost = |entry: &_| ledger.owner(entry).is_some_and(Reservation::is_displaced);
            self.timeline.unprotect(lost);
        }
    }
}

/// Whether the promise of `owner` may be given up for `candidate`: latency work goes before bulk,
/// and before what is large among its own, if that counts.
fn may_displace(candidate: &Candidate, owner: &Reservation, large: bool) -> bool {
    match (candidate.kind.class, owner.kind().class) {
        (Class::Latency, Class::Throughput) => true,
        (Class::Latency, Class::Latency) => {
            large && owner.work().0 >= candidate.work().0.saturating_mul(LARGE)
        }
        (Class::Throughput, _) => false,
    }
}
