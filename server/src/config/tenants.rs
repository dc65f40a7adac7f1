//! `[tenant.NAME]`: who pays, and what for.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{bail, ensure};
use serde::{Deserialize, Serialize};

use super::Target;
use crate::class::ClassName;
use crate::coordinator::record;

/// The name of the tenant of requests that belong to nobody else.
pub const DEFAULT: &str = "default";

/// Most tiers: they are label values of metrics.
const MAX_TIERS: usize = 16;

/// Longest name of a tenant or a tier.
const MAX_NAME: usize = 64;

/// Settings of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantSettings {
    /// Keys that say that a request is its. Never printed.
    #[serde(skip_serializing)]
    pub api_keys: Vec<String>,
    /// Share of the device's time that is kept for it.
    pub reserved: f64,
    /// Share of the device's time that it may have at most; absent means all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_share: Option<f64>,
    /// Most of its requests that may be inside; absent means any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
    /// Class of its requests that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_class: Option<ClassName>,
    /// Its label in metrics; absent means `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// What it is promised by class.
    pub class: TenantClasses,
}

/// What a tenant is promised instead of what the classes promise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantClasses {
    /// Interactive work.
    pub latency: TenantTargets,
    /// Bulk work.
    pub throughput: TenantTargets,
}

/// Targets of a tenant in one class; what is absent is the class's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantTargets {
    /// Arrival to first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_ttft: Option<Target>,
    /// Mean gap between tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_tpot: Option<Target>,
    /// Arrival to last token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_e2e: Option<Target>,
}

impl TenantTargets {
    /// Nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == TenantTargets::default()
    }
}

/// Checks all tenants, beside the keys that belong to none of them.
pub(super) fn check(
    tenants: &BTreeMap<String, TenantSettings>,
    api_key: &[String],
) -> anyhow::Result<()> {
    let others = tenants.keys().filter(|name| *name != DEFAULT).count();
    let most = scheduler::tenants::MAX_TENANTS - 1;
    ensure!(others <= most, "there are {others} [tenant.NAME] tables; at most {most} can be");
    let mut keys: BTreeSet<&str> = api_key.iter().map(String::as_str).collect();
    let mut numbers = BTreeMap::from([(record::number(DEFAULT), DEFAULT)]);
    for (name, tenant) in tenants {
        check_one(name, tenant)?;
        let other = numbers.insert(record::number(name), name.as_str());
        if let Some(other) = other.filter(|other| other != name) {
            bail!(
                "tenant.{name} and tenant.{other} would share one lease, as their names have the \
                 same number; rename one of them"
            );
        }
        for key in &tenant.api_keys {
            ensure!(!key.is_empty(), "tenant.{name}.api_keys has an empty key; leave it out");
            ensure!(
                keys.insert(key),
                "tenant.{name}.api_keys has a key that is listed twice; a key belongs to one tenant"
            );
        }
    }
    let reserved: f64 = tenants.values().map(|tenant| tenant.reserved).sum();
    ensure!(
        permille_sum(tenants) <= 1_000,
        "tenant.*.reserved are {reserved:.3} together; lower them to at most 1"
    );
    let tiers: BTreeSet<&str> = tenants.values().filter_map(|t| t.tier.as_deref()).collect();
    ensure!(
        tiers.len() < MAX_TIERS,
        "tenant.*.tier has {} different values; at most {} can be",
        tiers.len(),
        MAX_TIERS - 1
    );
    Ok(())
}

fn permille_sum(tenants: &BTreeMap<String, TenantSettings>) -> u32 {
    tenants.values().map(|tenant| permille(tenant.reserved)).sum()
}

/// A share that was checked, in whole per mille.
pub fn permille(share: f64) -> u32 {
    (share * 1_000.0).round() as u32
}

fn check_one(name: &str, tenant: &TenantSettings) -> anyhow::Result<()> {
    ensure!(
        is_name(name),
        "tenant.{name:?}: a name has 1 to {MAX_NAME} letters, digits, `_`, `-` or `.`"
    );
    let TenantSettings { reserved, max_share, max_requests, tier, .. } = tenant;
    ensure!((0.0..=1.0).contains(reserved), "tenant.{name}.reserved must be 0 to 1");
    if let Some(share) = max_share {
        ensure!(
            (0.001..=1.0).contains(share) && share >= reserved,
            "tenant.{name}.max_share must be 0.001 to 1 and at least its reserved share"
        );
    }
    ensure!(max_requests.is_none_or(|n| n > 0), "tenant.{name}.max_requests must be at least 1");
    ensure!(
        tier.as_deref().is_none_or(is_name),
        "tenant.{name}.tier must have 1 to {MAX_NAME} letters, digits, `_`, `-` or `.`"
    );
    let classes = &tenant.class;
    for (class, targets) in [("latency", classes.latency), ("throughput", classes.throughput)] {
        ensure!(
            targets.slo_ttft != Some(Target::Auto) && targets.slo_e2e != Some(Target::Auto),
            "tenant.{name}.class.{class}: only slo_tpot can be `auto`; give a duration or `none`"
        );
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(allowed)
}
