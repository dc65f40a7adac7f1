//! OpenAI's wire types, with vLLM's extras where their meaning is the same. The only module that
//! knows JSON shapes.
//!
//! A body is read in two passes. The first looks at the names of its top-level fields only
//! ([`fields`]): what is known and harmless is accepted, what would change the answer and cannot be
//! honoured is refused by name. The second reads the typed parts, each of which ignores the fields
//! of the others.

pub mod chat;
pub mod common;
pub mod completion;
pub mod error;
pub mod fields;
pub mod logprobs;
pub mod message;
pub mod models;
pub mod prompt;
pub mod sampling;
pub mod tokenize;
