//! Class names as people write them: in headers, on the command line and in the configuration.

use scheduler::Class;
use serde::{Deserialize, Serialize};

/// The name of a service class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ClassName {
    /// Interactive work: a tight budget, refused early.
    Latency,
    /// Bulk work: a deep queue, full batches.
    Throughput,
}

impl From<ClassName> for Class {
    fn from(name: ClassName) -> Class {
        match name {
            ClassName::Latency => Class::Latency,
            ClassName::Throughput => Class::Throughput,
        }
    }
}

/// The class with this label.
#[must_use]
pub fn by_label(label: &str) -> Option<Class> {
    Class::ALL.into_iter().find(|class| class.label() == label)
}
