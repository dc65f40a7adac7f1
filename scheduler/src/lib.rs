//! The pure scheduler of Sluice: it decides what enters, what runs in the next step, and when
//! everybody would finish. `no_std`, integers only, no clock, no randomness: the same inputs give
//! the same decisions on every machine, in the server and in the simulator alike.
//!
//! Words: a *request* is what a client sent, a *sequence* its running form (n choices are n
//! sequences); a *step* is one forward pass; a *chunk* is the tokens of one sequence in one step
//! (decode is a chunk of length 1); a *block* is a fixed-size unit of KV cache. A request is
//! *admitted* or *shed* by the gate; once inside it is *waiting*, *running* or *preempted* until it
//! ends in exactly one terminal state: completed, expired, cancelled or failed.
#![no_std]
#![deny(clippy::float_arithmetic)]

extern crate alloc;

pub mod admission;
pub mod admission_policy;
mod band;
mod basis;
#[cfg(feature = "serde")]
mod boxed;
mod candidate;
pub mod class;
pub mod cluster;
mod columns;
pub mod cost;
mod delays;
pub mod demand;
pub mod gate;
mod intake;
mod isolation;
mod kinds;
pub mod kv;
mod lean;
mod ledger;
mod length;
mod line;
mod margin;
mod pace;
mod placement;
pub mod plan;
mod planner;
pub mod policy;
pub mod prefix;
mod promise;
mod queues;
mod refusals;
mod replay;
pub mod request;
mod retry;
mod room;
mod rules;
pub mod scaling;
pub mod scheduler;
mod segments;
pub mod sequence;
pub mod tenants;
pub mod time;
pub mod timeline;

pub use admission::{
    Admission, Forecast, GateConfig, IsolationConfig, KindConfig, Quantity, RetryConfig, Rule,
    Settled, Shed, ShedReason,
};
pub use admission_policy::{AdmissionMode, UnknownAdmission};
pub use class::{Class, ClassConfig, ClassTable, Slo};
pub use cluster::ClusterView;
pub use cost::{CostModel, StepLoad};
pub use demand::Demand;
pub use gate::{Early, Gate};
pub use kv::{KvBlocks, OutOfBlocks};
pub use plan::{Chunk, Event, SeqOutcome, StepPlan};
pub use prefix::{BlockHash, CacheChanges};
pub use request::{
    Deadline, FinishReason, OutputLength, Request, RequestId, SeqId, SequenceSpec, Terminal,
};
pub use scaling::{Fleet, Scaling, ScalingConfig};
pub use scheduler::{Counts, Scheduler, SchedulerConfig};
pub use tenants::{TenantConfig, TenantId, TenantTable};
pub use time::Micros;
pub use timeline::Timeline;
