//! `[class.latency]` and `[class.throughput]`: what is promised to each class, what it may hold,
//! and which routes select it.

use std::time::Duration;

use anyhow::{bail, ensure};
use scheduler::Class;
use serde::{Deserialize, Serialize};

use super::{Safety, Target, over_default};
use crate::endpoint::Endpoint;

/// Settings of both classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Classes {
    /// Interactive work.
    #[serde(deserialize_with = "latency_settings")]
    pub latency: ClassSettings,
    /// Bulk work.
    #[serde(deserialize_with = "throughput_settings")]
    pub throughput: ClassSettings,
}

/// Settings of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassSettings {
    /// Arrival to first token.
    pub slo_ttft: Target,
    /// Mean gap between tokens; `auto` is four times the unloaded gap.
    pub slo_tpot: Target,
    /// Arrival to last token.
    pub slo_e2e: Target,
    /// How much of a deadline a forecast may use.
    pub safety_factor: Safety,
    /// Most sequences that wait.
    pub max_waiting: u32,
    /// Target batch: most sequences of the class in a step; absent means as many as a step takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_seqs: Option<u32>,
    /// Slots that the other class leaves free for it while it has work; absent means what the
    /// scheduling policy keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_kept: Option<u32>,
    /// Share of the KV pool that it may hold while the other class has work; absent means all but
    /// what the scheduling policy keeps for the other one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_share: Option<f64>,
    /// Routes whose requests are of this class if neither they nor their tenant say otherwise.
    pub routes: Vec<String>,
}

impl Default for Classes {
    fn default() -> Classes {
        let latency = ClassSettings {
            slo_ttft: Target::Within(Duration::from_millis(1_500)),
            slo_tpot: Target::Auto,
            slo_e2e: Target::None,
            safety_factor: Safety::Auto,
            max_waiting: 256,
            max_num_seqs: None,
            slots_kept: None,
            kv_share: None,
            routes: Vec::new(),
        };
        let throughput = ClassSettings {
            slo_ttft: Target::Within(Duration::from_secs(60)),
            slo_tpot: Target::None,
            max_waiting: 1_024,
            ..latency.clone()
        };
        Classes { latency, throughput }
    }
}

fn latency_settings<'de, D: serde::Deserializer<'de>>(d: D) -> Result<ClassSettings, D::Error> {
    over_default(d, &Classes::default().latency)
}

fn throughput_settings<'de, D: serde::Deserializer<'de>>(d: D) -> Result<ClassSettings, D::Error> {
    over_default(d, &Classes::default().throughput)
}

impl Classes {
    /// The class that a route selects, if one does.
    #[must_use]
    pub fn of_route(&self, route: &str) -> Option<Class> {
        let [latency, throughput] = [&self.latency, &self.throughput]
            .map(|class| class.routes.iter().any(|listed| listed == route));
        latency.then_some(Class::Latency).or(throughput.then_some(Class::Throughput))
    }

    pub(super) fn check(&self, slots: u32) -> anyhow::Result<()> {
        for (name, class) in [("latency", &self.latency), ("throughput", &self.throughput)] {
            ensure!(
                class.slo_ttft != Target::Auto && class.slo_e2e != Target::Auto,
                "class.{name}: only slo_tpot can be `auto`; give a duration or `none`"
            );
            ensure!(
                (1..=65_536).contains(&class.max_waiting),
                "class.{name}.max_waiting must be 1 to 65536"
            );
            ensure!(
                class.max_num_seqs.is_none_or(|most| (1..=slots).contains(&most)),
                "class.{name}.max_num_seqs must be 1 to max_num_seqs, which is {slots}; leave it \
                 out for no limit of its own"
            );
            ensure!(
                class.slots_kept.is_none_or(|kept| kept < slots),
                "class.{name}.slots_kept must be below max_num_seqs, which is {slots}: the other \
                 class needs a slot too"
            );
            ensure!(
                class.kv_share.is_none_or(|share| share > 0.0 && share <= 1.0),
                "class.{name}.kv_share must be above 0 and at most 1"
            );
        }
        self.check_routes()
    }

    fn check_routes(&self) -> anyhow::Result<()> {
        let generating = Endpoint::ALL.map(Endpoint::route).join(" and ");
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for (name, class) in [("latency", &self.latency), ("throughput", &self.throughput)] {
            for route in &class.routes {
                ensure!(
                    Endpoint::on(route).is_some(),
                    "class.{name}.routes has {route:?}, on which nothing is generated; the routes \
                     that can be listed are {generating}"
                );
                if let Some((other, _)) = seen.iter().find(|(_, listed)| listed == route) {
                    bail!(
                        "class.{name}.routes has {route:?}, which is in class.{other}.routes \
                         already; leave it in one place, a route selects one class"
                    );
                }
                seen.push((name, route));
            }
        }
        Ok(())
    }
}
