//! What tenants ask for and get, by tier.

use std::collections::BTreeMap;

use engine::TenantUse;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use scheduler::TenantId;

use super::register::{Labels, Real, Registrar};
use super::seconds;

#[derive(Debug)]
pub(crate) struct Tenants {
    /// The tier of each tenant, in the order of their ids.
    tiers: Vec<&'static str>,
    accepted: Family<Labels, Counter>,
    rejected: Family<Labels, Counter>,
    outstanding: Family<Labels, Real>,
    used: Family<Labels, Real>,
    reserved: Family<Labels, Real>,
    leases: Family<Labels, Real>,
}

impl Tenants {
    /// `tenants` are tiers and reserved shares, per mille.
    pub(crate) fn new(r: &mut Registrar, tenants: &[(&'static str, u32)]) -> Tenants {
        let this = Tenants {
            tiers: tenants.iter().map(|(tier, _)| *tier).collect(),
            accepted: r.family("inference_tenant_accepted_total"),
            rejected: r.family("inference_tenant_rejected_total"),
            outstanding: r.family("inference_tenant_outstanding_work_seconds"),
            used: r.family("inference_tenant_share_ratio"),
            reserved: r.family("inference_tenant_reserved_ratio"),
            leases: r.family("inference_coordinator_lease_units"),
        };
        for (tier, permille) in tenants {
            let labels = of_tier(tier);
            this.accepted.get_or_create(&labels).inc_by(0);
            this.rejected.get_or_create(&labels).inc_by(0);
            this.outstanding.get_or_create(&labels).set(0.0);
            this.used.get_or_create(&labels).set(0.0);
            this.leases.get_or_create(&labels).set(0.0);
            this.reserved.get_or_create(&labels).inc_by(f64::from(*permille) / 1e3);
        }
        this
    }

    /// The gate has decided.
    pub(crate) fn decided(&self, tenant: TenantId, refused: bool) {
        let counter = if refused { &self.rejected } else { &self.accepted };
        counter.get_or_create(&of_tier(self.tier(tenant.index()))).inc();
    }

    /// What each tenant has inside now, in the order of their ids.
    pub(crate) fn snapshot(&self, uses: &[TenantUse]) {
        for tier in &self.tiers {
            let (mut outstanding, mut share) = (0.0, 0.0);
            let own = uses.iter().enumerate().filter(|(place, _)| self.tier(*place) == *tier);
            for (_, found) in own {
                outstanding += seconds(found.outstanding);
                share += f64::from(found.share_permille) / 1e3;
            }
            self.outstanding.get_or_create(&of_tier(tier)).set(outstanding);
            self.used.get_or_create(&of_tier(tier)).set(share);
        }
    }

    /// How many requests of each of these tenants may be inside here, of a limit that all replicas
    /// share.
    pub(crate) fn leased(&self, units: impl Iterator<Item = (TenantId, u32)>) {
        let mut sums = BTreeMap::new();
        for (tenant, units) in units {
            *sums.entry(self.tier(tenant.index())).or_insert(0.0) += f64::from(units);
        }
        for (tier, sum) in sums {
            self.leases.get_or_create(&of_tier(tier)).set(sum);
        }
    }

    fn tier(&self, place: usize) -> &'static str {
        self.tiers.get(place).copied().unwrap_or(self.tiers[0])
    }
}

fn of_tier(tier: &'static str) -> Labels {
    vec![("tier", tier)]
}
