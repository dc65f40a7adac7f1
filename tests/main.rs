//! End-to-end tests: the real binary, spoken to over HTTP. Most use the simulated runner and need
//! no weights; those that need text use the demo model (`make model`).
#![allow(clippy::panic, clippy::unwrap_used, reason = "this crate is nothing but tests")]

mod admission;
mod cancel;
mod classes;
mod clients;
mod coordinator;
mod crowd;
mod deploy;
mod errors;
mod journal;
mod metrics;
mod openai_shapes;
mod profiles;
mod record;
mod rolling;
mod shutdown;
mod startup_errors;
mod streaming;
mod tenants;
mod tidy;
