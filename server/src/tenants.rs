//! Who sends a request: a tenant by its key, or by a header of a gateway that is trusted.
//!
//! Keys win: a key that is a tenant's own says who it is. With any other key, or with none on an
//! open server, a trusted header names the tenant. Who is not known is the default tenant.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::HeaderMap;
use scheduler::{Class, Slo, TenantConfig, TenantId, TenantTable};

use crate::config::{Config, DEFAULT_TENANT, TenantSettings, TenantTargets, share_permille};
use crate::error::ApiError;
use crate::launch::{class_table, target};

/// Our own header. It asks for something, so without trust it is refused rather than ignored.
const HEADER: &str = "x-sluice-tenant";

/// Headers by which gateways name whom to be fair to; they send them to any server.
const FAIRNESS_HEADERS: [&str; 2] =
    ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"];

/// All tenants as the server knows them.
#[derive(Clone, Debug)]
pub struct Tenants {
    ids: BTreeMap<String, TenantId>,
    tenants: Vec<Tenant>,
    trusts_header: bool,
}

/// One tenant.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its name, for log lines.
    pub name: Arc<str>,
    /// Its label in metrics. There are a few of them, and they live as long as the process.
    pub tier: &'static str,
    /// Its reserved share, per mille.
    pub reserved_permille: u32,
    /// Class of its requests that name none.
    pub default_class: Option<Class>,
}

impl Tenants {
    /// Those of a configuration that was checked; the default tenant first, then by name.
    #[must_use]
    pub fn new(config: &Config) -> Tenants {
        let nothing = TenantSettings::default();
        let tenants = named(config, &nothing);
        let ids = (0..=u8::MAX).zip(&tenants);
        Tenants {
            ids: ids.map(|(id, (name, _))| ((*name).to_owned(), TenantId(id))).collect(),
            tenants: tenants.iter().map(|(name, settings)| Tenant::new(name, settings)).collect(),
            trusts_header: config.trust_tenant_header,
        }
    }

    /// A tenant; the default one if there is no such tenant.
    #[must_use]
    pub fn get(&self, tenant: TenantId) -> &Tenant {
        self.tenants.get(tenant.index()).unwrap_or(&self.tenants[0])
    }

    /// All of them, in the order of their ids.
    #[must_use]
    pub fn all(&self) -> &[Tenant] {
        &self.tenants
    }

    /// Who sends a request with these headers, if its key has said `of_key`.
    ///
    /// # Errors
    /// `x-sluice-tenant` where no header is trusted.
    pub fn caller(&self, headers: &HeaderMap, of_key: TenantId) -> Result<TenantId, ApiError> {
        if !self.trusts_header {
            if headers.contains_key(HEADER) {
                let message = "This server does not trust `x-sluice-tenant`; leave it out and use \
                               the tenant's key, or start the server with --trust-tenant-header \
                               behind a gateway.";
                return Err(ApiError::invalid(HEADER, message));
            }
            return Ok(of_key);
        }
        if of_key != TenantId::DEFAULT {
            return Ok(of_key);
        }
        let named = [HEADER].into_iter().chain(FAIRNESS_HEADERS).find_map(|name| headers.get(name));
        let known = named.and_then(|name| self.ids.get(name.to_str().ok()?.trim()));
        Ok(known.copied().unwrap_or(of_key))
    }
}

impl Tenant {
    fn new(name: &str, settings: &TenantSettings) -> Tenant {
        let tier = settings.tier.as_deref().unwrap_or(DEFAULT_TENANT);
        Tenant {
            name: name.into(),
            tier: Box::leak(tier.to_owned().into_boxed_str()),
            reserved_permille: share_permille(settings.reserved),
            default_class: settings.default_class.map(Class::from),
        }
    }
}

/// All keys that clients may use, each with its tenant.
#[must_use]
pub fn keys(config: &Config) -> Vec<(String, TenantId)> {
    let nothing = TenantSettings::default();
    let own = (0..=u8::MAX).zip(named(config, &nothing)).flat_map(|(id, (_, settings))| {
        settings.api_keys.iter().map(move |key| (key.clone(), TenantId(id)))
    });
    let shared = config.api_key.iter().map(|key| (key.clone(), TenantId::DEFAULT));
    shared.chain(own).collect()
}

/// The tenants as the scheduler takes them.
#[must_use]
pub fn table(config: &Config) -> TenantTable {
    let nothing = TenantSettings::default();
    let classes = class_table(&config.class);
    let tenant = |(_, settings): (&str, &TenantSettings)| TenantConfig {
        reserved_permille: share_permille(settings.reserved),
        cap_permille: settings.max_share.map(share_permille),
        max_requests: settings.max_requests,
        slo: Class::ALL.map(|class| {
            let targets = match class {
                Class::Latency => settings.class.latency,
                Class::Throughput => settings.class.throughput,
            };
            (!targets.is_empty()).then(|| over(classes.get(class).slo, targets))
        }),
    };
    TenantTable::new(named(config, &nothing).into_iter().map(tenant).collect()).unwrap_or_default()
}

/// What `targets` say, and what the class promises where they say nothing.
fn over(slo: Slo, targets: TenantTargets) -> Slo {
    Slo {
        ttft: targets.slo_ttft.map_or(slo.ttft, target),
        tpot: targets.slo_tpot.map_or(slo.tpot, target),
        e2e: targets.slo_e2e.map_or(slo.e2e, target),
    }
}

/// The tenants in the order of their ids; the default one is there whether it is named or not.
fn named<'a>(
    config: &'a Config,
    nothing: &'a TenantSettings,
) -> Vec<(&'a str, &'a TenantSettings)> {
    let default = config.tenant.get(DEFAULT_TENANT).unwrap_or(nothing);
    let others = config.tenant.iter().filter(|(name, _)| *name != DEFAULT_TENANT);
    let others = others.map(|(name, settings)| (name.as_str(), settings));
    [(DEFAULT_TENANT, default)].into_iter().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use scheduler::Micros;

    use super::*;

    fn config(text: &str) -> Config {
        Config::resolve(None, text.parse().expect("test TOML")).expect("valid")
    }

    const TWO: &str = "api_key = [\"gateway\"]\n\
        [tenant.zeta]\napi_keys = [\"z\"]\nreserved = 0.5\nmax_share = 0.75\n\
        class.latency.slo_ttft = \"300ms\"\n\
        [tenant.alpha]\napi_keys = [\"a\", \"b\"]\ntier = \"gold\"\n";

    #[test]
    fn keys_and_names_have_one_tenant_each() {
        let config = config(TWO);
        let id =
            |key: &str| keys(&config).iter().find(|(known, _)| known == key).map(|(_, id)| id.0);
        assert_eq!(["gateway", "a", "b", "z"].map(id), [Some(0), Some(1), Some(1), Some(2)]);
        let tenants = Tenants::new(&config);
        let shown = tenants.all().iter().map(|tenant| (&*tenant.name, tenant.tier));
        let expected = [("default", "default"), ("alpha", "gold"), ("zeta", "default")];
        assert!(shown.eq(expected));
    }

    #[test]
    fn what_a_tenant_says_stands_over_what_its_class_promises() {
        let table = table(&config(TWO));
        let slo = table.slo(TenantId(2), Class::Latency).copied().expect("its own");
        assert_eq!((slo.ttft, slo.tpot), (Some(Micros(300_000)), Some(Micros::MAX)));
        assert_eq!(table.slo(TenantId(2), Class::Throughput), None);
        let zeta = table.get(TenantId(2));
        assert_eq!((zeta.reserved_permille, zeta.cap_permille), (500, Some(750)));
    }

    #[test]
    fn a_header_counts_only_where_it_is_trusted_and_never_against_a_tenants_own_key() {
        let headers = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(name.parse().expect("a name"), HeaderValue::from_static(value))])
        };
        let [ours, gateway] = [HEADER, FAIRNESS_HEADERS[0]].map(|name| headers(name, "zeta"));
        let unknown = headers(HEADER, "nobody");
        let (none, alpha, zeta) = (TenantId::DEFAULT, TenantId(1), TenantId(2));
        let closed = Tenants::new(&config(TWO));
        assert!(closed.caller(&ours, none).is_err());
        assert_eq!(closed.caller(&gateway, none).ok(), Some(none));
        let trusting = Tenants::new(&config(&format!("trust_tenant_header = true\n{TWO}")));
        for headers in [&ours, &gateway] {
            assert_eq!(trusting.caller(headers, none).ok(), Some(zeta));
            assert_eq!(trusting.caller(headers, alpha).ok(), Some(alpha));
        }
        assert_eq!(trusting.caller(&unknown, none).ok(), Some(none));
    }
}
