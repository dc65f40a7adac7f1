//! Tests of the scheduler crate through its public interface, as the engine uses it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

extern crate sluice_scheduler as scheduler;

mod cluster;
mod example;
mod fairness;
mod forecasts;
mod gate;
mod longest_first;
mod memory;
mod operations;
mod pressure;
mod starvation;
mod tenants;
mod turns;
