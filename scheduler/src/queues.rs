//! Who has a prompt to compute, in a replay: those that hold a slot, and by line those that wait
//! for one.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::class::Class;
use crate::intake::BYPASS_WINDOW;
use crate::line::Line;
use crate::replay::Item;

/// Numbers of items; the smaller goes first.
pub(crate) struct Queues {
    /// How much of its prompt each item has computed in the replay.
    pub(crate) progress: Vec<u32>,
    /// In order: with the first place of its line that waited when it started. Only other lines
    /// overtake it.
    running: Vec<(u32, u32)>,
    waiting: [VecDeque<u32>; 4],
}

impl Queues {
    /// All but the first `decoding` items, which are in order.
    pub(crate) fn new(items: &[Item], decoding: usize) -> Queues {
        let prefilling = || (decoding..items.len()).map(|i| (i as u32, &items[i]));
        let mut waiting = Line::ALL.map(|_| VecDeque::new());
        for (i, item) in prefilling().filter(|(_, item)| !item.running) {
            waiting[item.line.index()].push_back(i);
        }
        Queues {
            progress: alloc::vec![0; items.len()],
            running: prefilling().filter(|(_, item)| item.running).map(|(i, _)| (i, i)).collect(),
            waiting,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.iter().all(VecDeque::is_empty)
    }

    /// Somebody of `line` waits for a slot.
    pub(crate) fn waits(&self, line: Line) -> bool {
        !self.waiting[line.index()].is_empty()
    }

    pub(crate) fn any_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Items of the latency class that hold a slot, and of those that wait the first for whose line
    /// that many slots are `free`, with the tokens that they still have to compute.
    pub(crate) fn latency<'a>(
        &'a self,
        items: &'a [Item],
        free: &[u32; 4],
    ) -> impl Iterator<Item = (&'a Item, u32)> {
        let waiting = |borrows| {
            let line = Line { class: Class::Latency, borrows }.index();
            self.waiting[line].iter().take(free[line] as usize)
        };
        let waiting = waiting(false).chain(waiting(true));
        let running = self.running.iter().map(|(_, i)| i);
        let running = running.filter(|i| items[**i as usize].line.class == Class::Latency);
        running.chain(waiting).map(|i| {
            let item = &items[*i as usize];
            (item, item.todo - self.progress[*i as usize])
        })
    }

    /// The next one: who holds a slot, or the first of the next few who can take one if its line
    /// is open, and takes it; then the second value is true. `may_start` is given the progress.
    pub(crate) fn next(
        &mut self,
        open: [bool; 4],
        may_start: impl Fn(&[u32], usize) -> bool,
    ) -> Option<(usize, bool)> {
        let holder = self.running.first().copied();
        let mut at = [0; 4];
        for _ in 0..BYPASS_WINDOW {
            let head = |line: Line| {
                let line = line.index();
                self.waiting[line].get(at[line]).filter(|_| open[line]).map(|i| (*i, line))
            };
            let Some((i, line)) = Line::ALL.into_iter().filter_map(head).min() else { break };
            if holder.is_some_and(|(place, _)| place <= i) {
                break;
            }
            if may_start(&self.progress, i as usize) {
                let queue = &mut self.waiting[line];
                queue.remove(at[line]);
                let started = (queue.front().map_or(i, |first| i.min(*first)), i);
                let place = self.running.partition_point(|other| *other < started);
                self.running.insert(place, started);
                return Some((i as usize, true));
            }
            at[line] += 1;
        }
        holder.map(|(_, holder)| (holder as usize, false))
    }

    /// The prompt of an item that holds a slot is computed.
    pub(crate) fn complete(&mut self, i: usize) {
        // It is the first of them, but for some that were overtaken.
        if let Some(place) = self.running.iter().position(|(_, item)| *item == i as u32) {
            self.running.remove(place);
        }
    }
}
