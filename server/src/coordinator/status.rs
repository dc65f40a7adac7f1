//! How the coordinator fares, for series and log.

use std::time::Duration;

use scheduler::ClusterView;

/// Whether it can be counted on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// There is none: this replica is alone.
    #[default]
    None,
    /// Nothing was heard yet.
    Connecting,
    /// Calls are answered.
    Up,
    /// They are not: it cannot be reached.
    Down,
    /// It does not let us in, or is not who it should be.
    Denied,
    /// They are, but half of the others or more are missing.
    Split,
}

/// How it fares now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Status {
    /// Whether it can be counted on.
    pub condition: Condition,
    /// The view in force.
    pub view: ClusterView,
    /// How old what it rests on is; `None` if nothing was ever heard.
    pub age: Option<Duration>,
}
