//! Tenants: who pays. A tenant has a reserved share of the device's time, may borrow what others
//! leave, and may have caps and targets of its own.
//!
//! The gate tells whether a request is within its tenant's reservation (`budget.rs`); the
//! scheduler takes in those first, and shares what is left among those who borrow (`order.rs`).

mod budget;
mod order;
mod share;
mod turns;

use alloc::vec::Vec;

use crate::class::{Class, Slo};

pub(crate) use budget::{Budgets, Cost, OverBudget};
pub(crate) use order::Service;

/// Most tenants, the default one included.
pub const MAX_TENANTS: usize = 256;

/// A place in the [`TenantTable`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TenantId(pub u8);

impl TenantId {
    /// Who sends requests that no other tenant is known to have sent.
    pub const DEFAULT: TenantId = TenantId(0);

    /// For arrays by tenant.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Settings of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TenantConfig {
    /// The share of the device's time that is kept for it, per mille.
    pub reserved_permille: u32,
    /// The share of the device's time that it may have at most, per mille; `None` is all of it.
    pub cap_permille: Option<u32>,
    /// Most of its requests that may be inside.
    pub max_requests: Option<u32>,
    /// What its requests of each class are promised instead of what the class promises.
    pub slo: [Option<Slo>; 2],
}

/// All tenants, the default one first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TenantTable(Vec<TenantConfig>);

impl Default for TenantTable {
    /// The default tenant alone, without a reservation: as if there were no tenants.
    fn default() -> TenantTable {
        TenantTable(alloc::vec![TenantConfig::default()])
    }
}

impl TenantTable {
    /// The default tenant's settings first. `None` unless there are 1 to [`MAX_TENANTS`] tenants
    /// whose reservations are at most the whole device together.
    #[must_use]
    pub fn new(tenants: Vec<TenantConfig>) -> Option<TenantTable> {
        let reserved = tenants.iter().fold(0u32, |sum, t| sum.saturating_add(t.reserved_permille));
        let fits = (1..=MAX_TENANTS).contains(&tenants.len()) && reserved <= 1_000;
        fits.then_some(TenantTable(tenants))
    }

    /// The settings of `tenant`; those of the default one if there is no such tenant.
    #[must_use]
    pub fn get(&self, tenant: TenantId) -> &TenantConfig {
        self.0.get(tenant.index()).unwrap_or(&self.0[0])
    }

    /// How many there are, at least one.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "the default tenant is always there")]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// What a request of `tenant` in `class` is promised, if that is not what the class promises.
    #[must_use]
    pub fn slo(&self, tenant: TenantId, class: Class) -> Option<&Slo> {
        self.get(tenant).slo[class.index()].as_ref()
    }

    /// The settings of all, to be completed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut TenantConfig> {
        self.0.iter_mut()
    }

    /// Whether it matters who sends a request.
    pub(crate) fn matters(&self) -> bool {
        self.len() > 1 || self.0[0].reserved_permille > 0
    }

    /// What all reservations leave, shared by those who have none; per mille, at least 1.
    fn leftover_weight(&self) -> u32 {
        let reserved: u32 = self.0.iter().map(|tenant| tenant.reserved_permille).sum();
        let without = self.0.iter().filter(|tenant| tenant.reserved_permille == 0).count() as u32;
        (1_000u32.saturating_sub(reserved) / without.max(1)).max(1)
    }
}
