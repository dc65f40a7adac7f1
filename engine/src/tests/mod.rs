//! The engine as a whole, with the simulated runner: every way in and every way out.

mod faults;
mod lifecycle;
pub(crate) mod rig;
