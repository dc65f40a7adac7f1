//! The cluster as one replica's gate sees it: an immutable value, swapped in once a tick.

use crate::time::Micros;

/// How far the view can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Standing {
    /// Nothing was ever heard.
    #[default]
    Alone,
    /// A few ticks old at most.
    Fresh,
    /// Older, or half of the others are missing: work counts, capacity does not.
    Doubtful,
    /// Too old to be used.
    Lost,
}

/// Replicas by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Replicas {
    /// Loading their model.
    pub pending: u32,
    /// Serving.
    pub ready: u32,
    /// Finishing what they have.
    pub draining: u32,
    /// Not heard of any more and not given up yet.
    pub missing: u32,
}

/// Room at others for requests of one class that are refused here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Room {
    /// Others that have room.
    pub peers: u32,
    /// What of their capacity is spare, per mille of a device, divided by the replicas that have
    /// none: these all send their clients there.
    pub spare_permille: u32,
}

/// The cluster, this replica included. The default is a replica that is alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ClusterView {
    /// How far it can be trusted. In a view that is `Lost` the others are missing.
    pub standing: Standing,
    /// Who is there.
    pub replicas: Replicas,
    /// What they can do, per mille of a device.
    pub capacity_permille: u32,
    /// What first attempts asked for lately, per mille of a device.
    pub offered_permille: u32,
    /// Outstanding work by class.
    pub outstanding: [Micros; 2],
    /// Sequences that wait.
    pub waiting: u32,
    /// Sequences that run.
    pub running: u32,
    /// Share of requests of each class that had to be refused lately: the mean over those that
    /// serve, per mille.
    pub refused_permille: [u32; 2],
    /// Room at others, by class.
    pub room: [Room; 2],
    /// How far the others' virtual queues of retries reach, on average; `None` if nobody else
    /// serves.
    pub next_slot: Option<Micros>,
    /// The others' capacity, per mille of a device.
    pub others_permille: u32,
    /// This replica's part of what a replica had in flight that died since the last view: its
    /// clients will come back.
    pub surge: Micros,
}

impl ClusterView {
    /// When a refused request should come back to whoever takes it, given its own slot here: not
    /// later than the mean of all queues, as it may come to any of them.
    #[must_use]
    pub fn slot(&self, own: Micros) -> Micros {
        let Some(others) = self.next_slot else { return own };
        let weight = u128::from(self.others_permille);
        let sum = u128::from(own.0) * 1_000 + u128::from(others.0) * weight;
        let mean = sum / (1_000 + weight);
        own.min(Micros(u64::try_from(mean).unwrap_or(u64::MAX)))
    }
}

/// The share of requests by which the kinds to refuse are chosen, per mille, where `own` is what
/// had to be refused here and `fleet` the mean of all replicas. A replica that has to refuse cuts
/// as deep as the others, so that all refuse the same kinds first; one that has nothing to refuse
/// cuts nobody.
pub(crate) fn shedding(own: u64, fleet: u32) -> u64 {
    if own == 0 { 0 } else { own.max(fleet.into()) }
}
