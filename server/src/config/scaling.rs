//! How many replicas are recommended: `[scaling]`.

use std::time::Duration;

use anyhow::ensure;
use scheduler::{Micros, ScalingConfig};
use serde::{Deserialize, Serialize};

/// Settings of `inference_desired_replicas`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScalingSettings {
    /// Load of a replica that is aimed at.
    pub target: f64,
    /// Fewest replicas.
    pub min_replicas: u32,
    /// Most replicas.
    pub max_replicas: u32,
    /// From the decision to a replica that serves.
    #[serde(with = "humantime_serde")]
    pub cold_start: Duration,
}

impl Default for ScalingSettings {
    fn default() -> ScalingSettings {
        let ScalingConfig { target_permille, min, max, cold_start } = ScalingConfig::default();
        ScalingSettings {
            target: f64::from(target_permille) / 1e3,
            min_replicas: min,
            max_replicas: max,
            cold_start: Duration::from_micros(cold_start.0),
        }
    }
}

impl ScalingSettings {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!((0.1..=1.0).contains(&self.target), "scaling.target must be 0.1 to 1");
        ensure!(
            (1..=self.max_replicas).contains(&self.min_replicas) && self.max_replicas <= 10_000,
            "scaling.min_replicas must be at least 1 and at most max_replicas, which is at \
             most 10000"
        );
        let hour = Duration::from_secs(3_600);
        ensure!(self.cold_start <= hour, "scaling.cold_start must be at most 1h");
        Ok(())
    }

    /// As the scheduler takes them.
    #[must_use]
    pub fn rule(&self) -> ScalingConfig {
        ScalingConfig {
            target_permille: (self.target * 1e3).round() as u32,
            min: self.min_replicas,
            max: self.max_replicas,
            cold_start: Micros(u64::try_from(self.cold_start.as_micros()).unwrap_or(u64::MAX)),
        }
    }
}
