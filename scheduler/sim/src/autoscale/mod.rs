//! The closed loop of traffic, admission and autoscaler, second by second, over hours.
//!
//! A fluid model: what takes minutes here (replicas that start, windows that have to pass) does not
//! depend on single requests. The autoscaler is Kubernetes' documented algorithm ([`hpa`]); the
//! number of desired replicas comes from the very rule of the server.

pub mod command;
pub mod hpa;
pub mod scaler;
pub mod tables;
pub mod world;

pub use command::Autoscale;
pub use scaler::Scaler;
pub use world::{Outcome, Traffic, run};
