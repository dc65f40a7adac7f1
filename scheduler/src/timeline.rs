//! The forecast: the scheduler's state replayed forward, built once a step, looked up by the gate.
//!
//! Building it costs a replay (`replay.rs`) and happens off the gate's lock. Under the lock the
//! gate only looks a candidate up (`placement.rs`), checks whom it would delay (`delays.rs`), and
//! inserts it. What is scanned for that lies in columns of 32-bit numbers; the rest of an entry,
//! needed for a neighbour or two, lies apart.

use alloc::vec::Vec;

use crate::basis::LOOKS;
use crate::class::Class;
use crate::columns::{Columns, within_horizon};
use crate::lean;
use crate::planner::Heads;
use crate::policy::Rank;
use crate::promise::{Kind, Limits, Margins, Promise};
use crate::replay::{Fate, Item, Replay};
use crate::request::RequestId;
use crate::room::Wanted;
use crate::rules::Rules;
use crate::scheduler::Scheduler;
use crate::segments::Segments;
use crate::sequence::Sequence;
use crate::tenants::Service;
use crate::time::{MaybeMicros, Micros};

/// An entry that belongs to nobody in the ledger (any more).
pub(crate) const NOBODY: u32 = u32::MAX;

/// The rest of an entry: a sequence, or a request that was inserted since the build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) id: RequestId,
    /// Its place in the queue for prefill. Ties go to who was there before.
    pub(crate) rank: Rank,
    /// Prefill tokens that it still needs.
    pub(crate) todo: u32,
    /// Prefill tokens to spare in the step that completes its prefill; those behind it use them.
    pub(crate) leftover: u32,
    /// It runs already: it does not wait for a slot.
    pub(crate) holds_slot: bool,
    /// Where its reservation lies in the ledger, as of the installation.
    pub(crate) slot: u32,
    pub(crate) kind: Kind,
}

/// The predicted future of everything that was admitted.
#[derive(Clone, Debug)]
pub struct Timeline {
    pub(crate) base: Micros,
    /// Of the entries, the first ones decode; the rest has a prompt to compute, next one first.
    pub(crate) decoding: usize,
    /// Behind the last of those that runs already, by line: it is overtaken by other lines only.
    pub(crate) running_until: [usize; 4],
    pub(crate) columns: Columns,
    pub(crate) entries: Vec<Entry>,
    /// First and last token of each entry without delays by insertions since the build.
    pub(crate) built: Vec<(i32, i32)>,
    pub(crate) segments: Segments,
    /// Entries in order of request, until their slots in the ledger are known.
    by_id: Vec<u32>,
    /// Requests whose last tokens the step in flight brings, in order.
    leaving: Vec<RequestId>,
    waiting: [u32; 2],
    /// What the scheduler kept for latency work when it was built.
    pub(crate) wanted: Wanted,
    /// What the scheduler's policy has counted.
    pub(crate) counts: Vec<u64>,
    /// Blocks in use when it was built.
    pub(crate) held_blocks: u32,
    /// What each tenant was served when the timeline was built.
    pub(crate) service: Service,
}

impl Timeline {
    /// In the place of one that was not written down.
    #[cfg(feature = "serde")]
    pub(crate) fn none() -> Timeline {
        Timeline::idle(Micros(0))
    }

    /// Nothing runs and nothing waits.
    pub(crate) fn idle(base: Micros) -> Timeline {
        Timeline {
            base,
            decoding: 0,
            running_until: [0; 4],
            columns: Columns::default(),
            entries: Vec::new(),
            built: Vec::new(),
            segments: Segments::idle(base),
            by_id: Vec::new(),
            leaving: Vec::new(),
            waiting: [0; 2],
            wanted: Wanted::default(),
            counts: Vec::new(),
            held_blocks: 0,
            service: Service::default(),
        }
    }

    /// Replays `scheduler` forward from `base`: now, or the predicted end of the step in flight
    /// (call it right after `plan`, before the step runs).
    #[must_use]
    pub fn build(base: Micros, scheduler: &Scheduler) -> Timeline {
        let mut line = Timeline::idle(base);
        let sequences = scheduler.running.len() + scheduler.waiting.len();
        line.entries = lean::with_room(sequences);
        let mut found = Found::with_capacity(sequences);
        let prefilling = line.collect_decoding(scheduler, &mut found);
        line.collect_prefilling(scheduler, prefilling, &mut found);
        line.counts = scheduler.policy.state();
        line.held_blocks = scheduler.kv.num_blocks() - scheduler.kv.num_free();
        let used = (line.held_blocks + scheduler.committed_blocks()).saturating_sub(found.freed);
        let reserved = scheduler.service.reserved_permille();
        let view = scheduler.view(base);
        let rules = Rules::new(view, &*scheduler.policy, scheduler.wanted, reserved);
        let replay = Replay::new(rules, &found.items, line.decoding, used);
        let (fates, segments) = replay.run();
        line.segments = segments;
        for (promise, entry) in found.promises.iter_mut().zip(&line.entries) {
            promise.deadline = rules.unguarded(entry.kind.class, promise.deadline);
        }
        line.wanted = scheduler.wanted;
        line.take_fates(&fates, &found.promises);
        line.by_id = in_order_of_request(&line.entries);
        line.service.clone_from(&scheduler.service);
        line
    }

    /// Entries of sequences that will decode after the step in flight. One whose last token it
    /// brings is left out. Returns the running sequences that will still have a prompt to compute.
    fn collect_decoding(&mut self, scheduler: &Scheduler, found: &mut Found) -> Vec<Sequence> {
        let mut prefilling = Vec::new();
        for seq in &scheduler.running {
            match seq.after_step(self.base) {
                Some(after) if after.pending() == 1 => {
                    let blocks = scheduler.expected_blocks(&after);
                    let begins = after.first_token == MaybeMicros::NONE;
                    let item = item(&after, after.computed, blocks);
                    let item = Item { todo: 0, running: true, begins, ..item };
                    self.collect(&after, item, found);
                }
                Some(after) => prefilling.push(after),
                None => {
                    self.leaving.push(seq.id.request);
                    found.freed += scheduler.leaves(seq);
                }
            }
        }
        self.decoding = self.entries.len();
        prefilling
    }

    /// Entries of running and of waiting sequences with a prompt to compute, in the policy's order.
    /// Of those that wait with the same prompt only the first computes it, and the next one waits
    /// for that.
    fn collect_prefilling(
        &mut self,
        scheduler: &Scheduler,
        mut running: Vec<Sequence>,
        found: &mut Found,
    ) {
        let waiting = &scheduler.waiting;
        let key = |i: &usize| waiting[*i].place();
        let mut order: Vec<usize> = (0..waiting.len()).rev().collect();
        // They are in order already, but for those that came after the plan.
        if !order.is_sorted_by_key(key) {
            order.sort_unstable_by_key(key);
        }
        let heads = Heads::new(order.iter().map(|i| &waiting[*i]));
        for seq in &mut running {
            seq.rank = heads.of_running(seq.line(), rank(scheduler, seq, self.base));
        }
        running.sort_by_key(Sequence::place);
        let mut running = running.into_iter().peekable();
        // The last sequence that computes its prompt itself, and its place among the entries.
        let mut computing: Option<(&Sequence, u32)> = None;
        for seq in order.into_iter().map(|i| &waiting[i]) {
            while let Some(before) = running.next_if(|other| other.rank <= seq.rank) {
                self.collect_running(scheduler, &before, found);
            }
            let ahead = computing.filter(|(other, _)| continues_same(other, seq)).map(|(_, i)| i);
            let item = self.waiting_item(scheduler, seq, ahead, found);
            if !item.shares {
                computing = Some((seq, self.entries.len() as u32));
            }
            self.collect(seq, item.item, found);
            self.waiting[seq.class.index()] += 1;
        }
        for seq in running {
            self.collect_running(scheduler, &seq, found);
        }
    }

    fn collect_running(&mut self, scheduler: &Scheduler, seq: &Sequence, found: &mut Found) {
        let blocks = scheduler.expected_blocks(seq);
        let item = Item { running: true, ..item(seq, seq.computed, blocks) };
        self.collect(seq, item, found);
        self.running_until[seq.line().index()] = self.entries.len();
    }

    /// What a waiting sequence looks like to the replay, if the entry `ahead` waits and computes
    /// the same prompt.
    fn waiting_item(
        &self,
        scheduler: &Scheduler,
        seq: &Sequence,
        ahead: Option<u32>,
        found: &Found,
    ) -> Waiting {
        let block_size = scheduler.config.block_size;
        let running = scheduler.siblings(seq).next().is_some();
        let leader = if running { self.running_leader(seq.id.request, found) } else { ahead };
        let shares = running || ahead.is_some();
        // What its sibling will have computed, or what it finds in the cache.
        let shared = if shares { seq.shared_blocks(block_size) } else { 0 };
        let cached = seq.settled / block_size;
        let is_next = self.waiting[0] + self.waiting[1] < LOOKS as u32;
        let in_use = if is_next { scheduler.blocks_in_use(seq) } else { 0 };
        let own = scheduler.config.blocks_for(seq.peak_tokens()) - shared.max(in_use);
        let leader = leader.filter(|_| shared > cached);
        Waiting { item: Item { leader, ..item(seq, shared.max(cached) * block_size, own) }, shares }
    }

    /// The entry of a request that runs and still prefills.
    fn running_leader(&self, id: RequestId, found: &Found) -> Option<u32> {
        let is_it = |i: &usize| found.items[*i].running && self.entries[*i].id == id;
        (self.decoding..self.entries.len()).find(is_it).map(|i| i as u32)
    }

    fn collect(&mut self, seq: &Sequence, item: Item, found: &mut Found) {
        self.entries.push(Entry {
            id: seq.id.request,
            rank: seq.rank,
            todo: item.todo,
            leftover: 0,
            holds_slot: item.running,
            slot: NOBODY,
            kind: Kind::new(seq.line(), seq.tenant, seq.output.exact),
        });
        found.items.push(item);
        found.promises.push(Promise {
            deadline: seq.deadline(),
            first_token: seq.first_token.get(),
            gaps: seq.generated + seq.remaining() - 1,
        });
    }

    /// Fills the columns; limits are without margins until [`Timeline::protect`].
    fn take_fates(&mut self, fates: &[Fate], promises: &[Promise]) {
        let limits: Vec<Limits> = promises
            .iter()
            .zip(fates)
            .map(|(promise, fate)| promise.limits(self.base, fate.last))
            .collect();
        let column = |of: fn(&Fate) -> i32| with_room(fates.iter().map(of));
        let limit = |of: fn(&Limits) -> i32| with_room(limits.iter().map(of));
        self.columns = Columns {
            start: column(|fate| fate.start),
            first: column(|fate| fate.first),
            last: column(|fate| fate.last),
            first_step: column(|fate| fate.first_step),
            last_step: column(|fate| fate.last_step),
            first_limit: limit(|limits| limits.first),
            last_limit: limit(|limits| limits.last),
            gap_limit: limit(|limits| limits.gap),
        };
        self.built = with_room(fates.iter().map(|fate| (fate.first, fate.last)));
        for (entry, fate) in self.entries.iter_mut().zip(fates) {
            entry.leftover = fate.leftover;
        }
    }

    /// Predicted first and last token of every entry: one for each sequence that the scheduler had,
    /// one for each request that was admitted since.
    pub fn forecasts(&self) -> impl Iterator<Item = (RequestId, Micros, Micros)> {
        let times = self.columns.first.iter().zip(&self.columns.last);
        let at = |time: &i32| self.base.plus(Micros(*time as u64));
        self.entries
            .iter()
            .zip(times)
            .map(move |(entry, (first, last))| (entry.id, at(first), at(last)))
    }

    /// Stretches what is still to come, as of `now`, by margins.
    pub(crate) fn protect(&mut self, now: Micros, margins: &Margins) {
        let now = within_horizon(now.minus(self.base).0);
        let columns = &mut self.columns;
        for (i, entry) in self.entries.iter().enumerate() {
            let (first, last) = (columns.first[i], columns.last[i]);
            let limits = margins.limits(entry.kind, now, (first, last), columns.limits(i));
            columns.set_limits(i, limits);
        }
    }

    /// Nothing protects the promises of these entries any more.
    pub(crate) fn unprotect(&mut self, lost: impl Fn(&Entry) -> bool) {
        for (i, entry) in self.entries.iter().enumerate() {
            if lost(entry) {
                self.columns.set_limits(i, Limits::NONE);
            }
        }
    }

    /// Entries with the delays of their first and their last token by insertions since the build.
    /// What is inserted is delayed by what came later.
    pub(crate) fn delays(&self) -> impl Iterator<Item = (&Entry, u32, u32)> {
        let times = self.columns.first.iter().zip(&self.columns.last);
        self.entries.iter().zip(&self.built).zip(times).map(|((entry, built), (first, last))| {
            (entry, (first - built.0) as u32, (last - built.1) as u32)
        })
    }

    /// From now on delays count from here.
    pub(crate) fn forget_delays(&mut self) {
        let times = self.columns.first.iter().zip(&self.columns.last);
        for (built, (first, last)) in self.built.iter_mut().zip(times) {
            *built = (*first, *last);
        }
    }

    /// The scheduler knew this request when the timeline was built (until entries are resolved).
    pub(crate) fn contains(&self, id: RequestId) -> bool {
        let of = |i: &u32| self.entries[*i as usize].id;
        self.by_id.binary_search_by_key(&id, of).is_ok() || self.leaving.binary_search(&id).is_ok()
    }

    /// Gives each entry the slot of its request in the ledger. `slots` is in order of request. Then
    /// that order is not needed any more.
    pub(crate) fn resolve(&mut self, slots: impl Iterator<Item = (RequestId, u32)>) {
        let mut slots = slots.peekable();
        for i in core::mem::take(&mut self.by_id) {
            let entry = &mut self.entries[i as usize];
            while slots.next_if(|(id, _)| *id < entry.id).is_some() {}
            if let Some((_, slot)) = slots.peek().filter(|(id, _)| *id == entry.id) {
                entry.slot = *slot;
            }
        }
    }

    /// Sequences of `class` that waited when the timeline was built.
    pub(crate) const fn waiting(&self, class: Class) -> u32 {
        self.waiting[class.index()]
    }
}

/// What the replay needs of the sequences, and what they were promised, in the order of entries.
struct Found {
    items: Vec<Item>,
    promises: Vec<Promise>,
    /// Blocks of those whose last token the step in flight brings.
    freed: u32,
}

impl Found {
    fn with_capacity(sequences: usize) -> Found {
        let (items, promises) = (Vec::with_capacity(sequences), Vec::with_capacity(sequences));
        Found { items, promises, freed: 0 }
    }
}

/// A list of `items` with room for those that will be inserted, so that this takes no memory.
fn with_room<T>(items: impl ExactSizeIterator<Item = T>) -> Vec<T> {
    let mut list = lean::with_room(items.len());
    list.extend(items);
    list
}

/// A waiting sequence as the replay sees it.
struct Waiting {
    item: Item,
    /// Somebody else computes its prompt.
    shares: bool,
}

/// Both continue the same prompt of the same request.
fn continues_same(a: &Sequence, b: &Sequence) -> bool {
    (a.id.request, a.prompt) == (b.id.request, b.prompt)
}

fn in_order_of_request(entries: &[Entry]) -> Vec<u32> {
    let mut ids: Vec<(RequestId, u32)> =
        entries.iter().zip(0..).map(|(entry, i)| (entry.id, i)).collect();
    ids.sort_unstable();
    ids.into_iter().map(|(_, i)| i).collect()
}

fn rank(scheduler: &Scheduler, seq: &Sequence, now: Micros) -> Rank {
    scheduler.rank(now, seq).unwrap_or(Rank::LAST)
}

/// What `seq` looks like to the replay when the first `done` tokens are in the cache.
fn item(seq: &Sequence, done: u32, blocks: u32) -> Item {
    let tempo = seq.tempo();
    let todo = seq.known() - done;
    let remaining = seq.remaining();
    Item {
        line: seq.line(),
        tempo,
        patient: seq.is_patient(),
        running: false,
        done,
        todo,
        remaining,
        blocks,
        leader: None,
        begins: false,
        passed: seq.bypassed,
    }
}
