//! Between the leases of the agent and the tenants of the gate.

use scheduler::TenantId;
use scheduler::cluster::Use;

use super::agent::Shared;
use super::record;
use crate::state::App;

/// The tenants whose cap holds for all replicas together.
#[derive(Debug, Default)]
pub(super) struct Caps {
    tenants: Option<Vec<TenantId>>,
    /// Requests of each that had been refused when they were counted last.
    refused: Vec<u64>,
    /// What the gate was told last.
    limits: Vec<u32>,
}

impl Caps {
    /// The caps, the first time that there is an engine to ask.
    pub(super) fn appear(&mut self, app: &App) -> Option<Vec<Shared>> {
        let service = app.service()?;
        if self.tenants.is_some() {
            return None;
        }
        let limits = service.engine.tenant_limits();
        self.tenants = Some(limits.iter().map(|(tenant, _)| *tenant).collect());
        self.refused = vec![0; limits.len()];
        self.limits = limits.iter().map(|(_, cap)| *cap).collect();
        let shared = |(tenant, cap): &(TenantId, u32)| Shared {
            tenant: record::number(&service.tenants.get(*tenant).name),
            cap: *cap,
        };
        Some(limits.iter().map(shared).collect())
    }

    /// What happened to each since it was asked last.
    pub(super) fn uses(&mut self, app: &App) -> Vec<Use> {
        let (Some(service), Some(tenants)) = (app.service(), &self.tenants) else {
            return Vec::new();
        };
        let uses = service.engine.tenant_uses(tenants);
        let since = |((in_use, refused), before): ((u32, u64), &mut u64)| {
            let more = refused.saturating_sub(*before);
            *before = refused;
            Use { in_use, refused: u32::try_from(more).unwrap_or(u32::MAX) }
        };
        uses.into_iter().zip(&mut self.refused).map(since).collect()
    }

    /// Tells the gate what may be in use here now, if it is not what it was, and the series.
    pub(super) fn apply(&mut self, app: &App, limits: impl Iterator<Item = u32>) {
        let (Some(service), Some(tenants)) = (app.service(), &self.tenants) else { return };
        for ((tenant, told), limit) in tenants.iter().zip(&mut self.limits).zip(limits) {
            if *told != limit {
                *told = limit;
                service.engine.set_tenant_limit(*tenant, limit);
            }
        }
        service.metrics.tenant_leases(tenants.iter().copied().zip(self.limits.iter().copied()));
    }
}
