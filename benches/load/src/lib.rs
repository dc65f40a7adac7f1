//! Load generator for any OpenAI-compatible server.
//!
//! Three ways to offer load: a closed loop (each of `c` slots sends its next request when the last
//! one has ended), an open loop (Poisson arrivals that do not wait for anybody) and a trace.
//! Only the last two can show overload: a closed loop slows down together with the server.
//!
//! How it measures, so that two servers can be compared:
//! - Every latency counts from the *scheduled* arrival. A generator that is late, or a server that
//!   accepts connections late, cannot hide its delay (no coordinated omission).
//! - Every request ends in exactly one [`outcome::End`]; the counts of a run sum to what was sent.
//! - Goodput is the output tokens of the requests that met their SLO, over the time of the run.
//!   Attainment is the share that met it: of all offered requests, and of those not refused.
//! - Nothing is retried. A refused request is a refused request.
//!
//! It shares its cores with the server it measures, so it runs on one thread and looks at the bytes
//! of a stream once, without parsing the JSON of each token.

pub mod arrivals;
pub mod cli;
pub mod client;
pub mod commands;
pub mod drive;
pub mod exchange;
pub mod outcome;
pub mod plot;
pub mod prompt;
pub mod report;
pub mod sse;
pub mod summary;
