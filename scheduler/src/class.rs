//! Service classes: latency (small batches, tight budget, sheds early) and throughput (deep queue,
//! full batches).

use crate::time::Micros;

/// The class of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Class {
    /// Interactive work: a tight budget, refused early.
    Latency,
    /// Bulk work: a deep queue, full batches.
    Throughput,
}

impl Class {
    /// Every class, in order of precedence.
    pub const ALL: [Class; 2] = [Class::Latency, Class::Throughput];

    /// Position in [`Class::ALL`], for per-class arrays.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name in headers, configuration and metric labels.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Class::Latency => "latency",
            Class::Throughput => "throughput",
        }
    }
}

/// Targets of a class; an absent one is not promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Slo {
    /// Arrival to first token.
    pub ttft: Option<Micros>,
    /// Mean gap between tokens.
    pub tpot: Option<Micros>,
    /// Arrival to last token.
    pub e2e: Option<Micros>,
}

/// Settings of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ClassConfig {
    /// What a request of this class is promised unless it brings its own targets.
    pub slo: Slo,
    /// Most sequences of this class that may wait; one more is shed with `queue_full`.
    pub max_waiting: u32,
    /// Fixed multiple of the SLO that a forecast may use, in per mille (800 = `--safety-factor
    /// 0.8`); `None` calibrates the margin from observed forecast errors.
    pub safety_permille: Option<u32>,
}

/// The settings of both classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ClassTable(pub [ClassConfig; 2]);

impl ClassTable {
    /// The settings of `class`.
    #[must_use]
    pub const fn get(&self, class: Class) -> &ClassConfig {
        &self.0[class.index()]
    }
}
