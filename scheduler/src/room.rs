//! What each class may hold: the slots and blocks that the other one leaves free for it while it
//! has work, its target batch, and its share of the KV pool.
//!
//! Limits bind only while the other class has work inside: alone, either class has it all.

use crate::class::Class;
use crate::line::Line;
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
    /// Of them, those that borrow.
    pub(crate) borrowers: u32,
    /// What of all this is held by running sequences that borrow.
    pub(crate) borrowed: Borrowed,
}

/// What running sequences hold that are more than their tenants' reservations are for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Borrowed {
    slots: u32,
    blocks: u32,
}

impl Borrowed {
    pub(crate) const fn plus(self, slots: u32, blocks: u32) -> Borrowed {
        Borrowed { slots: self.slots + slots, blocks: self.blocks.saturating_add(blocks) }
    }

    const fn minus(self, slots: u32, blocks: u32) -> Borrowed {
        Borrowed { slots: self.slots - slots, blocks: self.blocks.saturating_sub(blocks) }
    }
}

impl Held {
    pub(crate) const fn running(&self) -> u32 {
        self.running[0] + self.running[1]
    }

    /// A sequence comes.
    pub(crate) const fn enter(&mut self, line: Line) {
        self.inside[line.class.index()] += 1;
        self.borrowers += line.borrows as u32;
    }

    /// Sequences of `class` wait.
    pub(crate) const fn waits(&self, class: Class) -> bool {
        self.inside[class.index()] > self.running[class.index()]
    }

    /// A sequence with a peak of `blocks` starts to run.
    pub(crate) const fn start(&mut self, line: Line, blocks: u32) {
        let class = line.class.index();
        self.running[class] += 1;
        self.blocks[class] = self.blocks[class].saturating_add(blocks);
        if line.borrows {
            self.borrowed = self.borrowed.plus(1, blocks);
        }
    }

    /// And ends.
    pub(crate) const fn end(&mut self, line: Line, blocks: u32) {
        let class = line.class.index();
        self.running[class] -= 1;
        self.inside[class] -= 1;
        self.blocks[class] = self.blocks[class].saturating_sub(blocks);
        if line.borrows {
            self.borrowers -= 1;
            self.borrowed = self.borrowed.minus(1, blocks);
        }
    }

    /// Sequences within reservations that run, and their blocks.
    const fn reserved(&self) -> (u32, u32) {
        let blocks = self.blocks[0].saturating_add(self.blocks[1]);
        (self.running() - self.borrowed.slots, blocks.saturating_sub(self.borrowed.blocks))
    }
}

/// What latency work used lately, and some more: bulk work leaves it free, because what is free
/// only when a bulk request ends is free too late. In parts of 1,024.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Wanted {
    slots: u64,
    blocks: u64,
    /// The same of what is within reservations, which those who borrow leave free.
    reserved_slots: u64,
    reserved_blocks: u64,
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
        if held.borrowers == 0 {
            return;
        }
        let inside = held.inside[0] + held.inside[1] - held.borrowers;
        follow(&mut self.reserved_slots, inside.min(slots));
        follow(&mut self.reserved_blocks, held.reserved().1);
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
    /// What those who borrow leave free for reservations, running ones included.
    reserved_slots: u32,
    reserved_blocks: u32,
    num_blocks: u32,
}

impl Room {
    pub(crate) fn new(
        config: &SchedulerConfig,
        policy: &dyn SchedulerPolicy,
        wanted: Wanted,
        reserved_permille: u32,
    ) -> Room {
        let slots = config.slots();
        let reserved = |all: u32, lately: u64| {
            let most = u64::from(all) * u64::from(reserved_permille) / 1_000;
            most.min((lately / 1_024).max(u64::from(all.div_ceil(16)))) as u32
        };
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
            reserved_slots: reserved(slots, wanted.reserved_slots),
            reserved_blocks: reserved(config.num_blocks, wanted.reserved_blocks),
            num_blocks: config.num_blocks,
        }
    }

    /// Slots that sequences of `line` may take now. What is kept for others does not keep a class
    /// out of which nobody runs, nor the first of those who borrow.
    pub(crate) fn free_slots(&self, line: Line, held: &Held) -> u32 {
        let free = self.free_of_class(line.class, held);
        if !line.borrows || held.borrowed.slots == 0 {
            return free;
        }
        let (used, _) = held.reserved();
        let kept = self.reserved_slots.saturating_sub(used);
        free.min(self.slots.saturating_sub(held.running()).saturating_sub(kept))
    }

    /// Slots that are free for each line.
    pub(crate) fn free(&self, held: &Held) -> [u32; 4] {
        Line::ALL.map(|line| self.free_slots(line, held))
    }

    fn free_of_class(&self, class: Class, held: &Held) -> u32 {
        let (own, other) = (class.index(), class.other().index());
        let binds = held.inside[other] > 0 && held.running[own] > 0;
        let wanted = self.wanted[other].saturating_sub(held.running[other]);
        let kept = if binds { self.slots_kept[other].max(wanted) } else { 0 };
        let free = self.slots.saturating_sub(held.running()).saturating_sub(kept);
        free.min(self.most_running[own].saturating_sub(held.running[own]))
    }

    /// Whether `blocks` more are within the share of `line`.
    pub(crate) const fn has_share(&self, line: Line, held: &Held, blocks: u32) -> bool {
        let (own, other) = (line.class.index(), line.class.other().index());
        let free = held.inside[other] == 0 || held.running[own] == 0;
        let of_class = free || held.blocks[own].saturating_add(blocks) <= self.most_blocks[own];
        let (_, used) = held.reserved();
        let kept = if self.reserved_blocks > used { self.reserved_blocks } else { used };
        let borrowed = held.borrowed.blocks.saturating_add(blocks);
        let left = borrowed.saturating_add(kept) <= self.num_blocks;
        of_class && (!line.borrows || held.borrowed.slots == 0 || left)
    }
}

#[cfg(test)]
mod tests;
