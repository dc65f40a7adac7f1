//! The server: an OpenAI-compatible HTTP API over the engine. Its rooms, in the order in which a
//! request passes through them: [`net`] (connections), [`app`] (routes and layers), [`auth`],
//! [`body`], [`openai`] (wire types), [`deadline`], [`api`] (the endpoints), [`generation`] (tokens
//! to text), [`error`]. Around them: [`cli`], [`config`], [`launch`], [`metrics`], [`journal`],
//! [`shutdown`], [`scaling`]. [`replay`] is another command: it reads what a server has recorded.

pub mod api;
pub mod app;
pub mod auth;
pub mod body;
pub mod calibrate;
pub mod class;
pub mod cli;
pub mod config;
pub mod coordinator;
pub mod deadline;
pub mod endpoint;
pub mod error;
pub mod generation;
pub mod journal;
pub mod launch;
pub mod log;
pub mod metrics;
pub mod net;
pub mod openai;
pub mod origin;
pub mod replay;
pub mod request_id;
pub mod scaling;
pub mod serve;
pub mod shutdown;
pub mod state;
pub mod tenants;
