//! The other replicas, as far as they matter to a request that is refused here.
//!
//! Nothing of this is asked before the local rules have said no, so what others report can make a
//! refusal kinder and never an admission bolder; the kinds alone are chosen by what all refuse
//! (see [`crate::cluster`]).

use super::Gate;
use crate::admission::ShedReason;
use crate::class::Class;
use crate::cluster::{ClusterView, Load};
use crate::time::Micros;

/// A view that nobody has renewed for so long says nothing of room any more.
const CURRENT: Micros = Micros(1_000_000);

/// Nobody is sent away to wait longer than this: by then the room will be somebody else's.
const LONGEST: Micros = Micros(5_000_000);

/// Time for the others to show what came to them before.
const SHORTEST: Micros = Micros(200_000);

/// What the gate knows of the other replicas.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Elsewhere {
    pub(super) view: ClusterView,
    /// When the view came.
    since: Micros,
    /// When the last client that was sent away will be there.
    last: Micros,
    /// When a request of each class was refused for want of capacity.
    refused: [Option<Micros>; 2],
}

impl Gate {
    /// The cluster as it is now. Nothing is admitted for it that would be refused without.
    pub fn set_cluster(&mut self, now: Micros, view: ClusterView) {
        for (kinds, share) in self.kinds.iter_mut().zip(view.refused_permille) {
            kinds.follow(share);
        }
        if view.surge > Micros(0) {
            let slo = self.class(Class::Latency).slo;
            let within = slo.e2e.or(slo.ttft).unwrap_or(CURRENT);
            self.retries.expect(now, view.surge, within);
        }
        self.elsewhere.view = view;
        self.elsewhere.since = now;
    }

    /// The view in force.
    #[must_use]
    pub const fn cluster(&self) -> &ClusterView {
        &self.elsewhere.view
    }

    /// What the others should know of this gate.
    #[must_use]
    pub fn load(&self, now: Micros) -> Load {
        let share = |class: Class| {
            let share = self.kinds[class.index()].share(now, &self.config.kinds);
            u32::try_from(share).unwrap_or(1_000).min(1_000)
        };
        let since = |at: Option<Micros>| at.map_or(Micros::MAX, |at| now.minus(at));
        Load {
            outstanding: Class::ALL.map(|class| self.outstanding(class)),
            in_flight: u32::try_from(self.num_reserved()).unwrap_or(u32::MAX),
            offered_permille: self.demand(now).offered_permille,
            refused_permille: Class::ALL.map(share),
            since_refused: self.elsewhere.refused.map(since),
            next_slot: self.retries.reach(now),
        }
    }

    /// Whether a request that is refused for `reason` and takes `work` should try another replica:
    /// how long to wait first. Those who are sent away are spread over what the others have to
    /// spare, as retries are over what this replica has.
    pub(super) fn send_away(
        &mut self,
        now: Micros,
        class: Class,
        reason: ShedReason,
        work: Micros,
    ) -> Option<Micros> {
        use ShedReason::{KvPressure, QueueFull, SloMiss};
        if !matches!(reason, SloMiss | QueueFull | KvPressure) {
            return None;
        }
        self.full = true;
        let elsewhere = &mut self.elsewhere;
        elsewhere.refused[class.index()] = Some(now);
        let room = elsewhere.view.room[class.index()];
        if room.peers == 0 || now.minus(elsewhere.since) > CURRENT {
            return None;
        }
        let length = work.0.saturating_mul(1_000) / u64::from(room.spare_permille.max(1));
        let due = elsewhere.last.max(now).plus(Micros(length));
        let wait = due.minus(now);
        (wait <= LONGEST).then(|| {
            elsewhere.last = due;
            wait.max(SHORTEST)
        })
    }
}
