//! What the gate does for tenants: who is within a reservation, who is over a budget, and what is
//! kept for others.

use super::Gate;
use super::times::OwnMargins;
use crate::candidate::Candidate;
use crate::request::Request;
use crate::tenants::{Budgets, Cost, OverBudget, Service, TenantId, TenantTable};
use crate::time::Micros;

impl Gate {
    /// With tenants; the scheduler has the same ones. Only for a gate that has admitted nothing.
    #[must_use]
    pub fn with_tenants(self, tenants: &TenantTable) -> Gate {
        let service = Service::new(tenants);
        Gate { tenants: Budgets::new(tenants.clone()), service, ..self }
    }

    /// Sets how many requests of a tenant may be inside, for a part of a limit that several
    /// replicas share. Those that are inside already stay.
    pub fn set_tenant_limit(&mut self, tenant: TenantId, max_requests: Option<u32>) {
        self.tenants.set_limit(tenant, max_requests);
    }

    /// Predicted device time of a tenant's admitted, unfinished requests.
    #[must_use]
    pub fn tenant_outstanding(&self, tenant: TenantId) -> Micros {
        self.tenants.outstanding(tenant)
    }

    /// A tenant's admitted, unfinished requests.
    #[must_use]
    pub fn tenant_requests(&self, tenant: TenantId) -> u32 {
        self.tenants.requests(tenant)
    }

    /// How many requests of a tenant were refused because it was over its budget.
    #[must_use]
    pub fn tenant_refused(&self, tenant: TenantId) -> u64 {
        self.tenants.refused(tenant)
    }

    /// The share of the device that a tenant's admitted requests took lately, per mille.
    #[must_use]
    pub fn tenant_share(&self, now: Micros, tenant: TenantId) -> u32 {
        self.tenants.share(now, tenant)
    }

    /// What a candidate costs its tenant.
    pub(super) fn tenant_cost(&self, candidate: &Candidate) -> Cost {
        let chunks = candidate.todo.div_ceil(self.config.scheduler.max_num_batched_tokens);
        Cost { prefill: candidate.prefill, work: self.share(candidate, chunks) }
    }

    /// Gives a candidate that borrows its place among those who do.
    pub(super) fn stand(&self, candidate: &mut Candidate) {
        if candidate.kind.borrows() {
            candidate.rank = self.timeline.borrowed_rank(&self.service, candidate);
        }
    }

    /// It is within its tenant's reservation.
    pub(super) fn is_protected(&self, candidate: &Candidate) -> bool {
        self.tenants.matters() && !candidate.kind.borrows()
    }

    /// Most sequences of the class of `request` that may wait if it does: who borrows leaves room
    /// for what is reserved by others.
    pub(super) fn queue_bound(&self, request: &Request) -> u32 {
        let most = self.class(request.class).max_waiting;
        if !request.borrows {
            return most;
        }
        let left = 1_000 - self.tenants.reserved_by_others(request.tenant);
        (u64::from(most) * u64::from(left) / 1_000) as u32
    }

    /// By how much the forecast of a candidate is stretched before it is compared with its own
    /// deadline. Others may come for what is reserved and not used, so who borrows has to be in
    /// time without it; and the gaps of all leave room for it.
    pub(super) fn own_margins(&self, now: Micros, candidate: &Candidate) -> OwnMargins {
        let margin = self.margin(candidate);
        if !self.tenants.matters() {
            return OwnMargins { times: margin, gaps: margin };
        }
        let kept = self.tenants.kept_for_others(now, candidate.kind.tenant);
        let stretched = margin * 1_000 / (1_000 - kept);
        let times = if candidate.kind.borrows() { stretched } else { margin };
        OwnMargins { times, gaps: stretched }
    }

    /// How long to wait for a tenant that is over its budget: for the share to fall below the cap,
    /// or for one of its own requests to end.
    pub(super) fn invite(
        &mut self,
        now: Micros,
        request: &Request,
        work: Micros,
        over: OverBudget,
    ) -> Micros {
        let earliest = match over {
            OverBudget::Share(at) => at,
            OverBudget::Requests => self.ledger.next_end(request.tenant).unwrap_or(now),
        };
        self.tenants.invite(now, request.tenant, work, earliest)
    }
}
