//! The books in memory: the model of the protocol, and the adapter for a process that is alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures_util::future::{BoxFuture, FutureExt, ready};
use scheduler::cluster::grant;

use super::{Call, Coordinator, Member, Peer, Reply, Trouble, record};

/// The entry of one member.
#[derive(Clone, Debug)]
struct Entry {
    expires_ms: u64,
    record: Vec<u8>,
    leases: Vec<u8>,
}

/// The books. Time is an argument.
#[derive(Clone, Debug, Default)]
pub struct Store {
    entries: BTreeMap<Box<str>, Entry>,
    epoch: u64,
}

impl Store {
    /// Carries out one call, as `tick.lua` does in Redis.
    pub fn tick(&mut self, now_ms: u64, call: &Call) -> Reply {
        let was_there = self.entries.get(&call.member).is_some_and(|e| e.expires_ms > now_ms);
        let mut gone = 0;
        self.entries.retain(|name, entry| {
            let lives = entry.expires_ms > now_ms;
            gone += usize::from(!lives && *name != call.member);
            lives
        });
        let others = self.entries.len() - usize::from(was_there);
        if self.epoch == 0 {
            self.epoch = now_ms.max(1);
        }
        let last = self.entries.get(&call.member).and_then(|entry| record::decode(&entry.record));
        let mut reply = Reply { now_ms, epoch: self.epoch, ..Reply::default() };
        if last.is_some_and(|last| last.seq >= call.seq) {
            reply.stale = true;
            return reply;
        }
        if call.leaves {
            self.entries.remove(&call.member);
            reply.members = self.members(now_ms);
            return reply;
        }
        reply.steady = was_there && call.epoch == self.epoch && !(gone >= 2 && gone >= others);
        reply.grants = self.grants(call, reply.steady);
        let entry = Entry {
            expires_ms: now_ms + u64::from(call.life_ms),
            record: call.record.clone(),
            leases: record::leases(&call.claims, &reply.grants),
        };
        self.entries.insert(call.member.clone(), entry);
        reply.members = self.members(now_ms);
        reply
    }

    /// What each claim is granted beside what the others hold.
    fn grants(&self, call: &Call, steady: bool) -> Vec<u32> {
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, entry) in self.entries.iter().filter(|(name, _)| **name != call.member) {
            for share in record::shares(&entry.leases) {
                *held.entry(share.tenant).or_default() += u64::from(share.held);
            }
        }
        let grants = call.claims.iter().map(|claim| {
            let others = held.get(&claim.tenant).copied().unwrap_or(0);
            grant(claim.cap, others, claim.held, claim.want, steady)
        });
        grants.collect()
    }

    /// Whether a member's entry lives.
    #[cfg(test)]
    pub(super) fn is_live(&self, now_ms: u64, name: &str) -> bool {
        self.entries.get(name).is_some_and(|entry| entry.expires_ms > now_ms)
    }

    fn members(&self, now_ms: u64) -> Vec<Member> {
        let live = self.entries.iter().filter(|(_, entry)| entry.expires_ms > now_ms);
        let members = live.map(|(name, entry)| Member {
            name: name.clone(),
            expires_in_ms: entry.expires_ms - now_ms,
            record: entry.record.clone(),
            leases: entry.leases.clone(),
        });
        members.collect()
    }

    /// Everything is lost, as by `FLUSHALL`.
    pub fn flush(&mut self) {
        *self = Store::default();
    }
}

/// Books that live in this process. Clones share them.
#[derive(Clone, Debug)]
pub struct Memory {
    store: Arc<Mutex<Store>>,
    origin: Instant,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { store: Arc::default(), origin: Instant::now() }
    }
}

impl Memory {
    /// Everything is lost.
    pub fn flush(&self) {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).flush();
    }
}

impl Coordinator for Memory {
    fn connect(&mut self) -> BoxFuture<'_, Result<Peer, Trouble>> {
        ready(Ok(Peer::default())).boxed()
    }

    fn tick<'a>(&'a mut self, call: &'a Call) -> BoxFuture<'a, Result<Reply, Trouble>> {
        let now_ms = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        // Books are named after the time at which they were opened, and 0 is no name.
        ready(Ok(store.tick(now_ms + 1_000, call))).boxed()
    }
}
