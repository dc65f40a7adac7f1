//! One replica of Sluice over virtual time.
//!
//! The very scheduler and gate of the server are driven with discrete events: no model, no clock,
//! no network. A run is a function of its workload and its seed. Baselines stand beside the gate,
//! and a run is measured by what was offered, not only by what was let in.

pub mod autoscale;
pub mod classes;
pub mod cli;
pub mod counterfactual;
mod driver;
pub mod experiment;
mod front;
pub mod hindsight;
pub mod mooncake;
pub mod policies;
pub mod prefix;
pub mod profile;
mod random;
mod record;
pub mod score;
pub mod stats;
pub mod steps;
mod stream;
pub mod table;
pub mod tables;
mod target;
pub mod tenants;
pub mod workload;

pub use driver::Setup;
pub use front::{Admitting, Decision};
pub use profile::Profile;
pub use random::Random;
pub use record::{Fate, Measured, Record, Run, is_met};
pub use score::Score;
pub use stream::{Stream, merge};
pub use target::Target;
pub use workload::{Job, Workload};
