//! Settings that are one of a few words.

use serde::{Deserialize, Serialize};

use crate::class::ClassName;

/// Element type of the KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum KvCacheDtype {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

/// How weights are kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Weights {
    /// As stored.
    Auto,
    /// As f32.
    F32,
    /// As int8 blocks.
    #[serde(rename = "q8_0")]
    #[value(name = "q8_0")]
    Q8_0,
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RunnerKind {
    /// Our own CPU kernels.
    Cpu,
    /// candle's tensors: the slow f32 reference on a CPU.
    Candle,
    /// No model at all: steps take the time that a cost model says.
    Simulated,
}

/// Shape of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines: one JSON object a line.
    Json,
}

/// The class that an alias selects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alias {
    /// Which.
    pub class: ClassName,
}
