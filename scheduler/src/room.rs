//! What each class may hold: the slots and blocks that the other one leaves free for it while it
//! has work, its target batch, and its share of the KV pool.
//!
//! Limits bind only while the other class has work inside: alone, either class has it all.

use crate::class::Class;
use crate::policy::SchedulerPolicy;
use crate::scheduler::SchedulerConfig;

/// What the classes hold and want, by [`Class::index`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// Sequences that run.
    pub(crate) running: [u32; 2],
    /// Blocks that they hold or are expected to take.
    pub(crate) blocks: [u32; 2],
    /// Sequences that run or wait.
    pub(crate) inside: [u32; 2],
}

impl Held {
    pub(crate) const fn running(&self) -> u32 {
        self.running[0] + self.running[1]
    }

    /// Sequences of `class` wait.
    pub(crate) const fn waits(&self, class: Class) -> bool {
        self.inside[class.index()] > self.running[class.index()]
    }

    /// A sequence of `class` with a peak of `blocks` starts to run.
    pub(crate) const fn start(&mut self, class: Class, blocks: u32) {
        self.running[class.index()] += 1;
        self.blocks[class.index()] = self.blocks[class.index()].saturating_add(blocks);
    }

    /// And ends.
    pub(crate) const fn end(&mut self, class: Class, blocks: u32) {
        self.running[class.index()] -= 1;
        self.inside[class.index()] -= 1;
        self.blocks[class.index()] = self.blocks[class.index()].saturating_sub(blocks);
    }
}

/// What latency work used lately, and some more: bulk work leaves it free, because what is free
/// only when a bulk request ends is free too late. In parts of 1,024.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Wanted {
    slots: u64,
    blocks: u64,
}

impl Wanted {
    /// A step is planned while the classes hold this: up at once, down by a 1,024th.
    pub(crate) fn follow(&mut self, held: &Held, slots: u32) {
        let latency = Class::Latency.index();
        let follow = |wanted: &mut u64, used: u32| {
            let used = u64::from(used) * 1_024;
            *wanted = (*wanted - *wanted / 1_024).max(used + used / 4);
        };
        follow(&mut self.slots, held.inside[latency].min(slots));
        follow(&mut self.blocks, held.blocks[latency]);
    }

    const fn slots(self) -> u32 {
        (self.slots / 1_024) as u32
    }

    const fn blocks(self) -> u32 {
        (self.blocks / 1_024) as u32
    }
}

/// The limits of both classes, as the configuration says or else the policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    slots: u32,
    most_running: [u32; 2],
    slots_kept: [u32; 2],
    most_blocks: [u32; 2],
    wanted: [u32; 2],
}

impl Room {
    pub(crate) fn new(
        config: &SchedulerConfig,
        policy: &dyn SchedulerPolicy,
        wanted: Wanted,
    ) -> Room {
        let slots = config.slots();
        let kept = Class::ALL.map(|class| policy.keeps(config, class));
        let settings = |class: Class| config.classes.get(class);
        let share = |permille: u32| {
            let blocks = u64::from(config.num_blocks) * u64::from(permille) / 1_000;
            u32::try_from(blocks).unwrap_or(config.num_blocks)
        };
        Room {
            slots,
            most_running: Class::ALL
                .map(|class| settings(class).max_num_seqs.map_or(slots, |most| most.min(slots))),
            slots_kept: Class::ALL
                .map(|class| settings(class).slots_kept.unwrap_or(kept[class.index()].slots)),
            most_blocks: Class::ALL.map(|class| {
                let rest = || config.num_blocks.saturating_sub(kept[class.other().index()].blocks);
                let most = settings(class).kv_permille.map_or_else(rest, share);
                match class {
                    Class::Latency => most,
                    Class::Throughput => {
                        most.min(config.num_blocks.saturating_sub(wanted.blocks()))
                    }
                }
            }),
            wanted: [wanted.slots(), 0],
        }
    }

    /// Slots that sequences of `class` may take now. What is kept for the other class does not keep
    /// a class out of which nobody runs.
    pub(crate) fn free_slots(&self, class: Class, held: &Held) -> u32 {
        let (own, other) = (class.index(), class.other().index());
        let binds = held.inside[other] > 0 && held.running[own] > 0;
        let wanted = self.wanted[other].saturating_sub(held.running[other]);
        let kept = if binds { self.slots_kept[other].max(wanted) } else { 0 };
        let free = self.slots.saturating_sub(held.running()).saturating_sub(kept);
        free.min(self.most_running[own].saturating_sub(held.running[own]))
    }

    /// Whether `blocks` more are within the share of `class`.
    pub(crate) const fn has_share(&self, class: Class, held: &Held, blocks: u32) -> bool {
        let (own, other) = (class.index(), class.other().index());
        let free = held.inside[other] == 0 || held.running[own] == 0;
        free || held.blocks[own].saturating_add(blocks) <= self.most_blocks[own]
    }
}

#[cfg(test)]
mod tests;
