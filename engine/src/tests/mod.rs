//! The engine as a whole, with the simulated runner and with a tiny model: every way in and every
//! way out.

mod faults;
mod lifecycle;
mod prefix;
pub(crate) mod rig;
