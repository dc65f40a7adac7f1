//! Tests of the scheduler crate through its public interface, as the engine uses it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod cluster;
mod forecasts;
mod gate;
mod memory;
mod operations;
