//! What a replica tells the others: an absolute snapshot, never a difference, so that one that is
//! lost costs a moment and leaves nothing behind.

use crate::time::Micros;

/// Where a replica is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Stage {
    /// It loads its model: it will have capacity.
    #[default]
    Pending,
    /// It serves.
    Ready,
    /// It finishes what it has and takes nothing new.
    Draining,
}

/// What the gate knows of its own load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Load {
    /// Predicted device time of admitted, unfinished requests, by class.
    pub outstanding: [Micros; 2],
    /// Admitted, unfinished requests.
    pub in_flight: u32,
    /// Device time that first attempts asked for lately, admitted or not, per mille of the time
    /// that passed: above 1000 more came than the device can do.
    pub offered_permille: u32,
    /// Share of the requests of each class that had to be refused lately, per mille.
    pub refused_permille: [u32; 2],
    /// How long ago a request of each class was refused for want of capacity; [`Micros::MAX`] if
    /// never.
    pub since_refused: [Micros; 2],
    /// How far the virtual queue of retries reaches from now.
    pub next_slot: Micros,
}

/// What a replica tells the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Report {
    /// Where it is in its life.
    pub stage: Stage,
    /// What its gate says.
    pub load: Load,
    /// Sequences that wait.
    pub waiting: u32,
    /// Sequences that run.
    pub running: u32,
    /// KV blocks that are free, per mille.
    pub free_kv_permille: u32,
    /// Age of its last step while there is work, else 0.
    pub step_age: Micros,
}

/// An engine that has made no step for so long has no capacity, though its process lives.
const HUNG: Micros = Micros(5_000_000);

/// Who refused somebody for want of capacity this recently has no room to offer.
const REFUSES: Micros = Micros(1_000_000);

impl Report {
    /// What it can do, per mille of a device: all or nothing.
    #[must_use]
    pub fn capacity_permille(&self) -> u32 {
        let serves = self.stage == Stage::Ready && self.step_age < HUNG;
        if serves { 1_000 } else { 0 }
    }

    /// All outstanding work.
    #[must_use]
    pub fn work(&self) -> Micros {
        self.load.outstanding[0].plus(self.load.outstanding[1])
    }

    /// What of its capacity nobody asked for lately, per mille.
    #[must_use]
    pub fn spare_permille(&self) -> u32 {
        self.capacity_permille().saturating_sub(self.load.offered_permille)
    }

    /// Whether it would take a request of a class that `here` refuses, as far as one can tell from
    /// outside: it serves, has refused nobody of the class lately, and has no more to do. (As much
    /// is enough: when a burst comes, both had nothing to do at the last tick.)
    #[must_use]
    pub fn has_room(&self, class: usize, here: &Report) -> bool {
        self.capacity_permille() > 0
            && self.load.since_refused[class] > REFUSES
            && self.work() <= here.work()
    }
}
