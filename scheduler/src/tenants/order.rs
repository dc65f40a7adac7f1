//! In which order those who borrow are served: deficit round robin over predicted device time.
//!
//! Each tenant has a counter of the device time that it was served, divided by its weight. In one
//! round every tenant that waits may start work until its counter has grown by a quantum; within a
//! round, and within a tenant, the policy's order holds. So a quantum is how far urgency may go
//! before fairness. A tenant that comes back begins where those who wait are (as in VTC, Sheng et
//! al. 2024): what it did not ask for is not owed to it. Tenants that wait all the time are served
//! within a quantum, and what the largest sequence takes, of their shares (Shreedhar and Varghese,
//! 1995).

use alloc::vec::Vec;

use super::{TenantId, TenantTable};
use crate::time::Micros;

/// Device time of one round, all tenants together: what a full device does in a second.
pub(crate) const QUANTUM: Micros = Micros(1_000_000);

/// What tenants were served, and who comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Service {
    weights: Vec<u32>,
    /// Device time of what was started, as if all of the device were the tenant's share.
    served: Vec<Micros>,
    /// Who waited at the last plan.
    waiting: Vec<bool>,
    /// The counter at which the first round begins.
    base: Micros,
    /// What all reservations are together.
    reserved_permille: u32,
    matters: bool,
}

impl Default for Service {
    fn default() -> Service {
        Service::new(&TenantTable::default())
    }
}

impl Service {
    pub(crate) fn new(table: &TenantTable) -> Service {
        let leftover = table.leftover_weight();
        let weight = |reserved: u32| if reserved > 0 { reserved } else { leftover };
        Service {
            weights: table.0.iter().map(|tenant| weight(tenant.reserved_permille)).collect(),
            served: alloc::vec![Micros(0); table.len()],
            waiting: alloc::vec![false; table.len()],
            base: Micros(0),
            reserved_permille: table.0.iter().map(|tenant| tenant.reserved_permille).sum(),
            matters: table.matters(),
        }
    }

    /// What all reservations are together, per mille of the device.
    pub(crate) const fn reserved_permille(&self) -> u32 {
        self.reserved_permille
    }

    /// The device time that a tenant was served, over its weight: the least first is fair.
    pub(crate) fn of(&self, tenant: TenantId) -> Micros {
        self.served[self.place(tenant)]
    }

    /// Whether it matters who sends a request.
    pub(crate) const fn matters(&self) -> bool {
        self.matters
    }

    /// A sequence of `tenant` is started that takes `work`.
    pub(crate) fn charge(&mut self, tenant: TenantId, work: Micros) {
        let share = self.share(tenant, work);
        let place = self.place(tenant);
        self.served[place] = self.served[place].plus(share);
    }

    /// Before a plan: `tenants` are those of waiting sequences. Who comes back begins where the
    /// least served of those who waited is.
    pub(crate) fn begin(&mut self, tenants: impl Iterator<Item = TenantId>) {
        let mut waits = alloc::vec![false; self.served.len()];
        for tenant in tenants {
            waits[self.place(tenant)] = true;
        }
        let all = || (0..waits.len()).filter(|place| waits[*place]);
        let stayed = all().filter(|place| self.waiting[*place]);
        // Once nobody waits everybody has had enough, and all begin anew.
        let most = self.served.iter().max().copied().unwrap_or_default();
        self.base = stayed.map(|place| self.served[place]).min().unwrap_or(most);
        for place in all() {
            if !self.waiting[place] {
                self.served[place] = self.served[place].max(self.base);
            }
        }
        self.waiting = waits;
    }

    /// Rounds for waiting sequences that borrow, in the policy's order.
    pub(crate) fn rounds(&self) -> Rounds<'_> {
        Rounds { service: self, ahead: self.served.clone() }
    }

    /// The round in which a tenant of whom nothing waits would be served.
    pub(crate) fn next_round(&self, tenant: TenantId) -> u16 {
        self.round(self.of(tenant))
    }

    fn round(&self, counter: Micros) -> u16 {
        u16::try_from(counter.minus(self.base).0 / QUANTUM.0).unwrap_or(u16::MAX)
    }

    fn share(&self, tenant: TenantId, work: Micros) -> Micros {
        Micros(work.0.saturating_mul(1_000) / u64::from(self.weights[self.place(tenant)].max(1)))
    }

    fn place(&self, tenant: TenantId) -> usize {
        if tenant.index() < self.weights.len() { tenant.index() } else { 0 }
    }
}

/// Rounds as they are handed out.
pub(crate) struct Rounds<'a> {
    service: &'a Service,
    /// The counters once those before are served.
    ahead: Vec<Micros>,
}

impl Rounds<'_> {
    /// The round of the next sequence of `tenant`, which takes `work`.
    pub(crate) fn next(&mut self, tenant: TenantId, work: Micros) -> u16 {
        let ahead = &mut self.ahead[self.service.place(tenant)];
        let round = self.service.round(*ahead);
        *ahead = ahead.plus(self.service.share(tenant, work));
        round
    }
}
