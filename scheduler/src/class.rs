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

    /// The class that shares the device with this one.
    #[must_use]
    pub const fn other(self) -> Class {
        match self {
            Class::Latency => Class::Throughput,
            Class::Throughput => Class::Latency,
        }
    }

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
    /// Its target batch: most sequences of this class that run at once. `None`: as many as a step
    /// takes.
    pub max_num_seqs: Option<u32>,
    /// Slots that the other class leaves free for it while it has work. `None`: as many as the
    /// scheduling policy keeps.
    pub slots_kept: Option<u32>,
    /// Most of the KV pool that this class may hold while the other class has work, per mille; it
    /// borrows the rest while nobody else wants it. `None`: all but what the policy keeps.
    pub kv_permille: Option<u32>,
}

impl Default for ClassConfig {
    /// Nothing is promised, and nothing limits the class but a queue of a thousand sequences.
    fn default() -> ClassConfig {
        ClassConfig {
            slo: Slo::default(),
            max_waiting: 1_000,
            safety_permille: None,
            max_num_seqs: None,
            slots_kept: None,
            kv_permille: None,
        }
    }
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
