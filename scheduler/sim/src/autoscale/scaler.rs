//! Ways to scale: what they look at, and through which controller.

use std::fmt;

use clap::ValueEnum;
use scheduler::{Fleet, Micros, Scaling, ScalingConfig};

use super::hpa::{Hpa, Metric, Pods, Policy, Settings};

/// Bounds of every scaler here.
pub const BOUNDS: (u32, u32) = (2, 48);

/// Load of a replica that is aimed at.
pub const TARGET: f64 = 0.8;

/// Seconds until a replica that was asked for serves.
pub const COLD_START: u64 = 480;

/// A way to scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scaler {
    /// HPA on the utilisation of the replicas, no admission: everybody waits.
    Utilisation,
    /// Twice as many when more than 2 % are refused or more than 8 wait for each replica; one fewer
    /// when less than 0.1 % and fewer than 2.
    Doubling,
    /// HPA on waiting requests (6 for each pod) and on the share of refusals (1 %).
    TwoMetrics,
    /// KEDA on the sum of `inference_admission_offered_replicas`, 0.8 for each pod.
    Offered,
    /// KEDA on `inference_desired_replicas`.
    Desired,
}

/// What the scalers see: averages as Prometheus has them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Signals {
    /// Busy share of ready replicas.
    pub utilisation: f64,
    /// Waiting requests for each ready replica.
    pub waiting: f64,
    /// Refused attempts over all attempts of the last minute.
    pub rejected: f64,
    /// Work of first attempts, in replicas.
    pub offered: f64,
}

/// A scaler at work.
#[derive(Debug)]
pub(super) struct Control {
    scaler: Scaler,
    hpa: Hpa,
    rule: ScalingConfig,
    scaling: Scaling,
}

impl Scaler {
    /// Whether the replicas refuse what would be late.
    #[must_use]
    pub fn admits(self) -> bool {
        self != Scaler::Utilisation
    }

    /// Windows and policies: the two-metric manifest has its own.
    fn settings(self) -> Settings {
        let (min, max) = BOUNDS;
        let percent = if self == Scaler::TwoMetrics { 200.0 } else { 100.0 };
        Settings {
            min,
            max,
            up: Policy { window: 30, percent, period: 60 },
            down: Policy { window: 600, percent: 20.0, period: 120 },
        }
    }
}

impl fmt::Display for Scaler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Scaler::Utilisation => "utilisation, no admission",
            Scaler::Doubling => "doubling at 2 % refused",
            Scaler::TwoMetrics => "waiting and share refused",
            Scaler::Offered => "offered replicas",
            Scaler::Desired => "desired replicas",
        })
    }
}

impl Control {
    pub(super) fn new(scaler: Scaler, replicas: u32) -> Control {
        let (min, max) = BOUNDS;
        let rule = ScalingConfig {
            target_permille: (TARGET * 1e3) as u32,
            min,
            max,
            cold_start: Micros(COLD_START * 1_000_000),
        };
        let fleet = Fleet { ready: replicas, ..Fleet::default() };
        let scaling = Scaling::begin(&rule, Micros(0), &fleet);
        Control { scaler, hpa: Hpa::new(scaler.settings()), rule, scaling }
    }

    /// Each second: what replicas work out by themselves.
    pub(super) fn look(&mut self, now: u64, pods: Pods, offered: f64) {
        let fleet = Fleet {
            offered_permille: (offered * 1e3) as u64,
            ready: pods.ready,
            starting: pods.all.saturating_sub(pods.ready),
            draining: 0,
        };
        self.scaling = self.scaling.observe(&self.rule, Micros(now * 1_000_000), &fleet);
    }

    /// Each synchronisation: how many replicas to ask for.
    pub(super) fn sync(&mut self, now: u64, pods: Pods, signals: &Signals) -> u32 {
        let metrics = match self.scaler {
            Scaler::Utilisation => {
                vec![Metric::PerPod { mean: signals.utilisation, target: TARGET }]
            }
            Scaler::TwoMetrics => vec![
                Metric::PerPod { mean: signals.waiting, target: 6.0 },
                Metric::PerPod { mean: signals.rejected, target: 0.01 },
            ],
            Scaler::Offered => vec![Metric::Total { total: signals.offered, target: TARGET }],
            Scaler::Desired => {
                vec![Metric::Total { total: self.scaling.desired().into(), target: 1.0 }]
            }
            Scaler::Doubling => return doubled(now, pods, signals),
        };
        self.hpa.sync(now, pods, &metrics)
    }
}

/// Once a minute.
fn doubled(now: u64, pods: Pods, signals: &Signals) -> u32 {
    let (min, max) = BOUNDS;
    let next = match now.is_multiple_of(60) {
        true if signals.rejected > 0.02 || signals.waiting > 8.0 => pods.all * 2,
        true if signals.rejected < 0.001 && signals.waiting < 2.0 => pods.all - 1,
        _ => pods.all,
    };
    next.clamp(min, max)
}
