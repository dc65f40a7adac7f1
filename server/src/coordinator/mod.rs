//! What replicas of one model tell each other, through something that all of them reach: Redis, or
//! nothing at all for a replica that is alone.
//!
//! One task ([`task`]) makes one call each tick: it leaves an absolute snapshot of this replica and
//! gets those of the others. No request waits for it, and nothing that a request needs is kept
//! there. What the calls mean is written down three times, and tests hold the three together:
//! [`memory`] in Rust (the adapter of tests and the model of the protocol), `tick.lua` for Redis,
//! and [`agent`], the replica's side, which knows no network and no clock.
//! What is known of the others becomes a [`scheduler::ClusterView`] in the gate.

pub mod address;
pub mod agent;
mod caps;
pub mod memory;
pub mod record;
pub mod redis;
pub mod status;
pub mod task;

use futures_util::future::BoxFuture;

pub use agent::Agent;
pub use memory::{Memory, Store};
pub use redis::Redis;
pub use status::{Condition, Status};

/// What a replica asks for of one cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Of which tenant: the number of its name, see [`record::number`].
    pub tenant: u64,
    /// The cap for all replicas together, in units.
    pub cap: u32,
    /// What it holds.
    pub held: u32,
    /// What it wants to hold.
    pub want: u32,
    /// What it would use if it could.
    pub demand: u32,
}

/// One call: everything that the others are to know of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its name, another one each time that it starts.
    pub member: Box<str>,
    /// Counts the calls of this member: an older one that comes late changes nothing.
    pub seq: u32,
    /// What the books were called when it read them last, 0 if it never did.
    pub epoch: u64,
    /// How long its entry lives, in milliseconds.
    pub life_ms: u32,
    /// It goes, and takes its entry with it.
    pub leaves: bool,
    /// Its report, see [`record::encode`].
    pub record: Vec<u8>,
    /// What it asks for of the caps that it knows.
    pub claims: Vec<Claim>,
}

/// A live member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: Box<str>,
    /// How much longer its entry lives, in milliseconds.
    pub expires_in_ms: u64,
    /// Its report, see [`record::decode`].
    pub record: Vec<u8>,
    /// What it holds and wants of caps, see [`record::shares`].
    pub leases: Vec<u8>,
}

/// The answer to a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The time there, in milliseconds.
    pub now_ms: u64,
    /// What the books are called: another number each time that they were lost.
    pub epoch: u64,
    /// The member was in the books before and so were most of the others, so that more could be
    /// granted than it held.
    pub steady: bool,
    /// The call came too late, behind a newer one, and changed nothing.
    pub stale: bool,
    /// For each claim what it holds now.
    pub grants: Vec<u32>,
    /// All live members, the caller included.
    pub members: Vec<Member>,
}

/// What a connection was made to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Another number for another server, or the same one started again.
    pub server: u64,
    /// It may throw entries away when its memory is full.
    pub evicts: bool,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// It cannot be reached, or cannot do what it is asked: this may pass.
    #[error("{0}")]
    Down(String),
    /// It does not let us in, or is not who it should be: somebody has to do something.
    #[error("{0}")]
    Denied(String),
}

/// Where replicas meet.
pub trait Coordinator: Send {
    /// Connects, anew if there was a connection.
    ///
    /// # Errors
    /// See [`Trouble`].
    fn connect(&mut self) -> BoxFuture<'_, Result<Peer, Trouble>>;

    /// Makes one call.
    ///
    /// # Errors
    /// See [`Trouble`]; whether the call has been carried out is not known then.
    fn tick<'a>(&'a mut self, call: &'a Call) -> BoxFuture<'a, Result<Reply, Trouble>>;
}

#[cfg(test)]
mod simulation;
