//! Who else is there, by what is heard of them once a tick, and what that is worth as it ages.
//!
//! A view is never cleared because the others cannot be heard: it ages. For three ticks it is used,
//! with what the others will have done since; then work counts in full and capacity not at all;
//! after the time to live both are dropped, as if this replica were alone. Only who is missing from
//! a fresh view is gone, and then its clients are expected to come back. But if half of the others
//! or more go missing at once, rather the connection between here and there is broken than all of
//! them: they are kept, as the worst they can be, until it is clear.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::report::{Report, Stage};
use super::view::{ClusterView, Replicas, Room, Standing};
use crate::class::Class;
use crate::time::Micros;

/// Those who went missing all at once are kept for so long.
const HELD: Micros = Micros(10_000_000);

/// Who is missing is kept for so many ticks: until it is clear who else is.
const GONE: u64 = 2;

/// The shortest tick.
const TICK: Micros = Micros(100_000);

/// An entry lives for so many ticks, and is taken at its word for so many.
const LIFE: u64 = 10;
const FRESH: u64 = 3;

/// How far apart calls of one replica are when there are so many of them, so that all of them
/// together keep whoever answers busy for a fifth of the time: an answer takes about 90 us and 1.4
/// us for each replica in it (Redis 7.0, 96 bytes each, measured at 16, 64 and 256 replicas).
#[must_use]
pub fn tick(replicas: u32) -> Micros {
    let n = u64::from(replicas);
    Micros(n.saturating_mul(450 + 7 * n)).max(TICK)
}

/// The rhythm of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Between two calls.
    pub tick: Micros,
    /// An entry that is older is dropped.
    pub life: Micros,
}

impl Pace {
    /// Of a replica among so many.
    #[must_use]
    pub fn of(replicas: u32) -> Pace {
        let tick = tick(replicas);
        Pace { tick, life: Micros(tick.0 * LIFE) }
    }

    /// A call that is not answered within this time is given up: early enough for another one while
    /// the entry still lives.
    #[must_use]
    pub const fn patience(&self) -> Micros {
        Micros(self.life.0 / 2)
    }
}

/// What is heard of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name, another one each time that it starts.
    pub member: Box<str>,
    /// How old its report was when it was read.
    pub age: Micros,
    /// Its report.
    pub report: Report,
}

#[derive(Clone, Debug)]
struct Peer {
    member: Box<str>,
    report: Report,
    /// When it was written, by the clock here.
    written: Micros,
    /// Since when fresh views do not have it any more.
    missing: Option<Micros>,
}

/// The others.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    /// In order of their names.
    peers: Vec<Peer>,
    /// Of this replica.
    member: Box<str>,
    /// When the call was sent to which the last view was the answer.
    heard: Option<Micros>,
    /// What those had in flight who died since the last view was taken.
    surge: Micros,
}

impl Roster {
    /// Nobody else is known.
    #[must_use]
    pub fn new(member: &str) -> Roster {
        Roster { member: member.into(), ..Roster::default() }
    }

    /// A fresh view came, in answer to a call that was sent at `sent`: all entries but the own one.
    pub fn apply(&mut self, sent: Micros, entries: Vec<Entry>) {
        self.heard = Some(sent);
        for peer in &mut self.peers {
            let there = entries.iter().any(|entry| entry.member == peer.member);
            peer.missing = if there { None } else { peer.missing.or(Some(sent)) };
        }
        for Entry { member, age, report } in entries {
            let peer = Peer { member, report, written: sent.minus(age), missing: None };
            match self.peers.binary_search_by(|known| known.member.cmp(&peer.member)) {
                Ok(place) => self.peers[place] = peer,
                Err(place) => self.peers.insert(place, peer),
            }
        }
        let keep = if self.is_split() { HELD } else { Micros(self.pace().tick.0 * GONE) };
        let surge = &mut self.surge;
        self.peers.retain(|peer| {
            let gone = peer.missing.is_some_and(|since| sent.minus(since) >= keep);
            if gone {
                *surge = surge.plus(peer.report.work());
            }
            !gone
        });
    }

    /// Half of the others or more are missing, and more than one.
    #[must_use]
    pub fn is_split(&self) -> bool {
        let missing = self.peers.iter().filter(|peer| peer.missing.is_some()).count();
        missing >= 2 && missing * 2 >= self.peers.len()
    }

    /// Replicas known last, this one included.
    #[must_use]
    pub fn known(&self) -> u32 {
        u32::try_from(self.peers.len()).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// How many of them come before this one, by name, where `turn` moves who is first.
    #[must_use]
    pub fn rank(&self, turn: u64) -> u32 {
        let before = self.peers.partition_point(|peer| peer.member < self.member);
        let place = (before as u64 + turn) % u64::from(self.known());
        u32::try_from(place).unwrap_or(0)
    }

    /// The rhythm that fits how many there are.
    #[must_use]
    pub fn pace(&self) -> Pace {
        Pace::of(self.known())
    }

    /// How old the last view is; `None` if there never was one.
    #[must_use]
    pub fn age(&self, now: Micros) -> Option<Micros> {
        self.heard.map(|heard| now.minus(heard))
    }

    /// How far the view can be trusted.
    #[must_use]
    pub fn standing(&self, now: Micros) -> Standing {
        let Pace { tick, life } = self.pace();
        match self.age(now) {
            None => Standing::Alone,
            Some(age) if age > life => Standing::Lost,
            Some(age) if age > Micros(tick.0 * FRESH) || self.is_split() => Standing::Doubtful,
            Some(_) => Standing::Fresh,
        }
    }

    /// The cluster as it is to be counted with now, `own` being the report of this replica. What
    /// died since the last view is told once.
    pub fn view(&mut self, now: Micros, own: &Report) -> ClusterView {
        let standing = self.standing(now);
        let mut sum = Sum::default();
        sum.add(own, own.capacity_permille());
        for peer in &self.peers {
            sum.missing += u32::from(standing == Standing::Lost || peer.missing.is_some());
            if standing < Standing::Lost {
                let (report, capacity) = peer.aged(now, standing);
                sum.add(&report, capacity);
            }
        }
        let mut view = sum.view(own);
        view.standing = standing;
        if standing == Standing::Fresh {
            view.room = Class::ALL.map(|class| self.room(now, class.index(), own));
        }
        let surge = core::mem::take(&mut self.surge);
        view.surge = Micros(surge.0 / u64::from(view.replicas.ready.max(1)));
        view
    }

    /// Room at others for a class.
    fn room(&self, now: Micros, class: usize, own: &Report) -> Room {
        let mut room = Room::default();
        let mut full = 1;
        for peer in &self.peers {
            let (report, capacity) = peer.aged(now, Standing::Fresh);
            if report.has_room(class, own) {
                room.peers += 1;
                room.spare_permille += report.spare_permille().max(LEAST_SPARE);
            } else if capacity > 0 {
                full += 1;
            }
        }
        room.spare_permille /= full;
        room
    }
}

/// Who has refused nobody has something to spare, whatever was asked of it.
const LEAST_SPARE: u32 = 50;

impl Peer {
    /// Its report and its capacity as they are to be counted with now: with what it will have done
    /// since the report was written, or else as the worst that it can be.
    fn aged(&self, now: Micros, standing: Standing) -> (Report, u32) {
        let mut report = self.report;
        let capacity = report.capacity_permille();
        if standing != Standing::Fresh || self.missing.is_some() || capacity == 0 {
            return (report, 0);
        }
        let age = now.minus(self.written);
        let mut done = age;
        for work in &mut report.load.outstanding {
            let part = (*work).min(done);
            (*work, done) = (work.minus(part), done.minus(part));
        }
        report.load.next_slot = report.load.next_slot.minus(age);
        report.load.since_refused = report.load.since_refused.map(|since| since.plus(age));
        (report, capacity)
    }
}

/// Sums over replicas, and what means are made of.
#[derive(Default)]
struct Sum {
    replicas: Replicas,
    missing: u32,
    capacity: u32,
    offered: u32,
    outstanding: [Micros; 2],
    waiting: u32,
    running: u32,
    refused: [u64; 2],
    slots: u64,
}

impl Sum {
    fn add(&mut self, report: &Report, capacity: u32) {
        let count = match report.stage {
            Stage::Pending => &mut self.replicas.pending,
            Stage::Ready => &mut self.replicas.ready,
            Stage::Draining => &mut self.replicas.draining,
        };
        *count += 1;
        let load = &report.load;
        for class in 0..2 {
            self.outstanding[class] = self.outstanding[class].plus(load.outstanding[class]);
        }
        self.offered = self.offered.saturating_add(load.offered_permille);
        self.waiting = self.waiting.saturating_add(report.waiting);
        self.running = self.running.saturating_add(report.running);
        if capacity > 0 {
            self.capacity = self.capacity.saturating_add(capacity);
            self.slots = self.slots.saturating_add(load.next_slot.0);
            for class in 0..2 {
                self.refused[class] += u64::from(load.refused_permille[class]);
            }
        }
    }

    fn view(self, own: &Report) -> ClusterView {
        let serving = u64::from(self.capacity / 1_000).max(1);
        let own_capacity = own.capacity_permille();
        let own_slots = if own_capacity > 0 { own.load.next_slot.0 } else { 0 };
        let others_permille = self.capacity - own_capacity;
        let others = u64::from(others_permille / 1_000);
        ClusterView {
            replicas: Replicas { missing: self.missing, ..self.replicas },
            capacity_permille: self.capacity,
            offered_permille: self.offered,
            outstanding: self.outstanding,
            waiting: self.waiting,
            running: self.running,
            refused_permille: self.refused.map(|sum| u32::try_from(sum / serving).unwrap_or(1_000)),
            next_slot: (others > 0).then(|| Micros((self.slots - own_slots) / others)),
            others_permille,
            ..ClusterView::default()
        }
    }
}

#[cfg(test)]
mod tests;
