//! The endpoints: each takes its request apart, asks the engine, and shapes the answer.

pub mod admit;
pub mod answer;
pub mod call;
pub mod chat;
pub mod completions;
pub mod drain;
pub mod early;
pub mod health;
pub mod models;
pub mod outlook;
pub mod prepare;
pub mod stream;
pub mod tokenize;
