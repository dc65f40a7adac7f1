//! What replicas that serve one model know of each other, as plain integers: what each reports, who
//! is there and how old that is, and how they share out what is limited for all of them together.
//!
//! The local forecast decides; nothing in here can admit a request that it refuses. What others
//! report makes a refusal more useful (come back soon, somebody else has room), keeps the order in
//! which replicas refuse the same, and divides a tenant's cap. How it is carried from one replica
//! to the other, and by whom, is not known here.

mod lease;
mod report;
mod roster;
mod view;

pub use lease::{Lease, Others, Use, grant, share};
pub use report::{Load, Report, Stage};
pub use roster::{Entry, Pace, Roster, tick};
pub(crate) use view::shedding;
pub use view::{ClusterView, Replicas, Room, Standing};
