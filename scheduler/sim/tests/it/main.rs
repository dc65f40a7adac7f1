//! Scheduler and gate over virtual time: invariants of every run, and what the gate achieves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod coverage;
mod demand;
mod forecasts;
mod invariants;
mod isolation;
mod prefix;
mod promises;
mod tenants;
