//! How many replicas there should be: up fast, down slowly.
//!
//! The rule is absolute: it names a number that follows from the offered work alone, not a multiple
//! of what there is. So replicas that are on their way are not asked for twice, however long they
//! take to start, and the answer does not overshoot. What is asymmetric is the patience:
//!
//! - Up at once, as soon as the load of a replica exceeds its target by a twentieth.
//! - Down one step in two minutes, by a fifth at most, and only to a number that would have carried
//!   the highest load of the last ten minutes with room to spare (the survivors of N replicas
//!   carry N/(N-1) of their load); never while a replica starts or drains, and not before a replica
//!   that was asked for last could have started.
//!
//! Between the load at which it goes up (0.84 of a replica) and that at which it goes down (0.7)
//! there is room for noise, so a steady load never moves it down and up again. State in, state out;
//! without observations it stays where it is.

use crate::time::Micros;

/// Load of a replica, over its target, above which there have to be more, per mille.
const TOLERANCE: u64 = 1_050;

/// Load of a replica, over its target, that survivors may have, per mille.
const SURVIVORS: u64 = 875;

/// The highest load is remembered over ten minutes, in pieces of half a minute.
const PIECE: Micros = Micros(30_000_000);
const PIECES: usize = 20;

/// Time between two steps down.
const PAUSE: Micros = Micros(120_000_000);

/// A step down takes at most one in this many.
const PART: u32 = 5;

/// Bounds and targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalingConfig {
    /// Load of a replica that is aimed at, per mille of what it can do.
    pub target_permille: u32,
    /// Fewest replicas.
    pub min: u32,
    /// Most replicas.
    pub max: u32,
    /// From the decision to a replica that serves.
    pub cold_start: Micros,
}

impl Default for ScalingConfig {
    fn default() -> ScalingConfig {
        ScalingConfig {
            target_permille: 800,
            min: 1,
            max: 64,
            cold_start: Micros::from_millis(480_000),
        }
    }
}

/// All replicas of a model, as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// Work of first attempts offered to all of them, per mille of what one can do.
    pub offered_permille: u64,
    /// Replicas that serve.
    pub ready: u32,
    /// Replicas that will serve: they were asked for, or load their model.
    pub starting: u32,
    /// Replicas that finish what they have and end.
    pub draining: u32,
}

/// The rule's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    desired: u32,
    raised: Micros,
    lowered: Micros,
    /// Highest offered work of each piece, used in turn; and the number of the piece it is of.
    peaks: [(u64, u64); PIECES],
}

impl Scaling {
    /// The memory of somebody who sees `fleet` for the first time: it is right as it is, until more
    /// is known.
    #[must_use]
    pub fn begin(config: &ScalingConfig, now: Micros, fleet: &Fleet) -> Scaling {
        let here = fleet.ready.saturating_add(fleet.starting);
        Scaling {
            desired: here.clamp(config.min, config.max.max(config.min)),
            raised: now,
            lowered: now,
            peaks: [(0, 0); PIECES],
        }
    }

    /// How many replicas there should be.
    #[must_use]
    pub const fn desired(&self) -> u32 {
        self.desired
    }

    /// The memory after one more look at the fleet.
    #[must_use]
    pub fn observe(mut self, config: &ScalingConfig, now: Micros, fleet: &Fleet) -> Scaling {
        self.remember(now, fleet.offered_permille);
        let most = config.max.max(config.min);
        let target = u64::from(config.target_permille.max(1));
        let carried = u64::from(self.desired) * target * TOLERANCE / 1_000;
        if fleet.offered_permille > carried {
            let needed = replicas(fleet.offered_permille, target).clamp(config.min, most);
            if needed > self.desired {
                self.desired = needed;
                self.raised = now;
            }
        } else if self.may_lower(config, now, fleet) {
            let least = replicas(self.peak(now), target * SURVIVORS / 1_000);
            let step = (self.desired / PART).max(1);
            let next = least.max(self.desired - step).max(config.min);
            if next < self.desired {
                self.desired = next;
                self.lowered = now;
            }
        }
        self.desired = self.desired.clamp(config.min, most);
        self
    }

    /// The last change had its time, and no replica is on its way in or out.
    fn may_lower(&self, config: &ScalingConfig, now: Micros, fleet: &Fleet) -> bool {
        let window = Micros(PIECE.0 * PIECES as u64);
        self.desired > config.min
            && fleet.starting == 0
            && fleet.draining == 0
            && now.minus(self.raised) >= window.max(config.cold_start)
            && now.minus(self.lowered) >= PAUSE
    }

    fn remember(&mut self, now: Micros, offered: u64) {
        let piece = now.0 / PIECE.0;
        let (of, peak) = &mut self.peaks[(piece % PIECES as u64) as usize];
        *peak = if *of == piece { offered.max(*peak) } else { offered };
        *of = piece;
    }

    /// The highest offered work of the last ten minutes.
    fn peak(&self, now: Micros) -> u64 {
        let piece = now.0 / PIECE.0;
        let recent = self.peaks.iter().filter(|(of, _)| of + PIECES as u64 > piece);
        recent.map(|(_, peak)| *peak).max().unwrap_or(0)
    }
}

/// Replicas that carry `offered` with at most `each`.
fn replicas(offered: u64, each: u64) -> u32 {
    u32::try_from(offered.div_ceil(each.max(1))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
