//! The endpoints: each takes its request apart, asks the engine, and shapes the answer.

pub mod answer;
pub mod chat;
pub mod completions;
pub mod health;
pub mod models;
pub mod prepare;
pub mod stream;
pub mod tokenize;
