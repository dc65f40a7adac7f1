//! What the end-to-end tests stand on: the real `sluice` binary as a child process on a free port,
//! and a plain HTTP client to talk to it.
//!
//! Helpers panic with the server's log when something that has to work does not: they are called
//! from tests only.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a broken set-up should fail its test")]

pub mod binary;
pub mod http;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod redis;
pub mod tls;

pub use http::Reply;
pub use process::Server;
