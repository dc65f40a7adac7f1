//! The forecast: the scheduler's state replayed forward, built once a step, looked up by the gate.
//!
//! Building it costs a replay (`replay.rs`) and happens off the gate's lock, while the device runs.
//! Under the lock the gate only looks a candidate up, checks whom it would delay, and inserts it
//! (`placement.rs`). What is scanned then lies in one array of small integers; the rest, needed for
//! a neighbour or two, lies in another.

use alloc::vec::Vec;

use crate::class::Class;
use crate::policy::Rank;
use crate::replay::{Item, Replay, Rules, Segment};
use crate::request::{Deadline, RequestId, SeqId};
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;
use crate::time::Micros;

/// Order of prefill: the policy's rank, then arrival, then id.
pub(crate) type Key = (Rank, Micros, SeqId);

/// No promise is broken by any delay: nothing was promised, or the promise is lost already.
const UNPROTECTED: i32 = i32::MAX;

/// What a delay does to one entry: scanned for each candidate. Microseconds and steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hot {
    /// Where the rest of it lies.
    entry: u32,
    /// Steps from the base until the first and the last token.
    pub(crate) first_step: i32,
    pub(crate) finish_step: i32,
    /// How much later its first token, its last token, and its last token counted from the first
    /// may come.
    pub(crate) first_slack: i32,
    pub(crate) last_slack: i32,
    pub(crate) gap_slack: i32,
    /// When it has its slot, from the base.
    pub(crate) start: i32,
    /// Delays by candidates that were inserted since the build.
    pub(crate) first_delay: i32,
    pub(crate) last_delay: i32,
}

/// The rest of an entry: a sequence, or a request that was inserted since the build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) id: RequestId,
    pub(crate) class: Class,
    pub(crate) key: Key,
    pub(crate) promise: Promise,
    pub(crate) first: Micros,
    pub(crate) finish: Micros,
    /// Prefill tokens that it still needs.
    pub(crate) todo: u32,
    /// Prefill tokens to spare in the step that completes its prefill; those behind it use them.
    pub(crate) leftover: u32,
}

/// What an entry was promised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(crate) deadline: Deadline,
    /// Its length is known, so its forecast is as good as the cost model.
    pub(crate) exact: bool,
    /// When its first token came, if it has come.
    pub(crate) first_token: Option<Micros>,
    /// Gaps between its tokens, over its whole output.
    pub(crate) gaps: u32,
}

/// By how much forecasts are stretched before they are compared with a deadline, per mille: for
/// exact and for learned lengths, by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Margins(pub(crate) [[u32; 2]; 2]);

impl Margins {
    pub(crate) const fn get(&self, class: Class, exact: bool) -> u32 {
        self.0[class.index()][if exact { 0 } else { 1 }]
    }
}

/// The predicted future of everything that was admitted.
#[derive(Clone, Debug)]
pub struct Timeline {
    pub(crate) base: Micros,
    /// Of `hot`, the first ones decode, the next ones (up to `fixed`) run already and cannot be
    /// overtaken, the rest waits, next one first.
    pub(crate) decoding: usize,
    pub(crate) fixed: usize,
    pub(crate) hot: Vec<Hot>,
    /// In order of the build, then of insertion.
    pub(crate) entries: Vec<Entry>,
    pub(crate) segments: Vec<Segment>,
    /// Requests that the scheduler knew, in order.
    ids: Vec<RequestId>,
    waiting: [u32; 2],
}

impl Timeline {
    /// Nothing runs and nothing waits.
    pub(crate) fn idle(base: Micros) -> Timeline {
        Timeline {
            base,
            decoding: 0,
            fixed: 0,
            hot: Vec::new(),
            entries: Vec::new(),
            segments: alloc::vec![Segment { time: base, ..Segment::default() }],
            ids: Vec::new(),
            waiting: [0; 2],
        }
    }

    /// Replays `scheduler` forward from `base`: now, or the predicted end of the step in flight
    /// (call it right after `plan`, before the step runs).
    #[must_use]
    pub fn build(base: Micros, scheduler: &Scheduler) -> Timeline {
        let mut line = Timeline::idle(base);
        let mut items = Vec::with_capacity(scheduler.running.len() + scheduler.waiting.len());
        let used =
            scheduler.kv.num_blocks() - scheduler.kv.num_free() + scheduler.committed_blocks();
        line.collect_running(scheduler, &mut items);
        line.collect_waiting(scheduler, &mut items);
        let rules = Rules { view: scheduler.view(base), policy: &*scheduler.policy };
        let replay = Replay::new(rules, &items, line.decoding, line.fixed, used);
        let (fates, segments) = replay.run();
        for (entry, fate) in line.entries.iter_mut().zip(&fates) {
            (entry.first, entry.finish) = (fate.first, fate.finish);
            entry.leftover = fate.leftover;
            let start = fate.start.minus(base);
            line.hot.push(Hot::new(line.hot.len(), start, fate.first_step, fate.finish_step));
        }
        line.segments = segments;
        line.ids = scheduler.requests.keys().copied().collect();
        line
    }

    /// Entries of running sequences as they will be after the step in flight. One whose last token
    /// it brings is left out.
    fn collect_running(&mut self, scheduler: &Scheduler, items: &mut Vec<Item>) {
        let (mut decoding, mut prefilling) = (Vec::new(), Vec::new());
        for seq in &scheduler.running {
            let Some(after) = seq.after_step(self.base) else { continue };
            let place = (rank(scheduler, &after, self.base), seq.arrival, seq.id);
            let of_kind = if after.pending() == 1 { &mut decoding } else { &mut prefilling };
            of_kind.push((place, after));
        }
        prefilling.sort_by_key(|(place, _)| *place);
        self.decoding = decoding.len();
        self.fixed = decoding.len() + prefilling.len();
        for (place, seq) in decoding.iter().chain(&prefilling) {
            let todo = if seq.pending() == 1 { 0 } else { seq.pending() };
            let blocks = scheduler.config.blocks_for(seq.peak_tokens());
            items.push(item(seq, seq.computed, todo, blocks));
            self.entries.push(entry(seq, *place, todo, self.base));
        }
    }

    /// Entries of waiting sequences in the policy's order. Of those with the same prompt only the
    /// first computes it.
    fn collect_waiting(&mut self, scheduler: &Scheduler, items: &mut Vec<Item>) {
        let mut order: Vec<(Key, &Sequence)> = scheduler
            .waiting
            .iter()
            .map(|seq| ((rank(scheduler, seq, self.base), seq.arrival, seq.id), seq))
            .collect();
        order.sort_by_key(|(place, _)| *place);
        let mut before: Option<&Sequence> = None;
        for (place, seq) in order {
            let same =
                |other: &Sequence| (other.id.request, other.prompt) == (seq.id.request, seq.prompt);
            let shares = before.is_some_and(same) || scheduler.siblings(seq).next().is_some();
            let blocks = if shares { seq.shared_blocks(scheduler.config.block_size) } else { 0 };
            let done = blocks * scheduler.config.block_size;
            let own = scheduler.config.blocks_for(seq.peak_tokens()) - blocks;
            items.push(item(seq, done, seq.known() - done, own));
            self.entries.push(entry(seq, place, seq.known() - done, self.base));
            self.waiting[seq.class.index()] += 1;
            before = Some(seq);
        }
    }

    /// Predicted first and last token of every entry: one for each sequence that the scheduler had,
    /// one for each request that was admitted since.
    pub fn forecasts(&self) -> impl Iterator<Item = (RequestId, Micros, Micros)> {
        self.hot.iter().map(|hot| {
            let entry = self.entry(hot);
            let first = entry.first.plus(Micros(hot.first_delay as u64));
            (entry.id, first, entry.finish.plus(Micros(hot.last_delay as u64)))
        })
    }

    pub(crate) fn entry(&self, hot: &Hot) -> &Entry {
        &self.entries[hot.entry as usize]
    }

    /// Computes every slack, as of `now` and with these margins.
    pub(crate) fn protect(&mut self, now: Micros, margins: &Margins) {
        for hot in &mut self.hot {
            let entry = &self.entries[hot.entry as usize];
            let margin = margins.get(entry.class, entry.promise.exact);
            entry.protect(hot, now, margin);
        }
    }

    /// Takes the delays of insertions into the forecasts, and tells the ledger of them.
    pub(crate) fn take_delays(&mut self) -> Vec<(RequestId, u32, u32)> {
        let mut delays = Vec::new();
        for hot in &mut self.hot {
            let entry = &mut self.entries[hot.entry as usize];
            if hot.last_delay > 0 || hot.first_delay > 0 {
                delays.push((entry.id, hot.first_delay as u32, hot.last_delay as u32));
            }
            entry.first = entry.first.plus(Micros(hot.first_delay as u64));
            entry.finish = entry.finish.plus(Micros(hot.last_delay as u64));
            (hot.first_delay, hot.last_delay) = (0, 0);
        }
        delays
    }

    /// The scheduler knew this request when the timeline was built.
    pub(crate) fn contains(&self, id: RequestId) -> bool {
        self.ids.binary_search(&id).is_ok()
    }

    /// Sequences of `class` that waited when the timeline was built.
    pub(crate) const fn waiting(&self, class: Class) -> u32 {
        self.waiting[class.index()]
    }
}

impl Hot {
    /// Unprotected and undelayed; `start` is counted from the base.
    pub(crate) fn new(entry: usize, start: Micros, first_step: u32, finish_step: u32) -> Hot {
        Hot {
            entry: entry as u32,
            first_step: to_i32(u64::from(first_step)),
            finish_step: to_i32(u64::from(finish_step)),
            first_slack: UNPROTECTED,
            last_slack: UNPROTECTED,
            gap_slack: UNPROTECTED,
            start: to_i32(start.0),
            first_delay: 0,
            last_delay: 0,
        }
    }
}

impl Entry {
    /// Sets the slacks of `hot`. `margin` stretches what is still to come, per mille.
    pub(crate) fn protect(&self, hot: &mut Hot, now: Micros, margin: u32) {
        let promise = &self.promise;
        let first = self.first.plus(Micros(hot.first_delay as u64));
        let last = self.finish.plus(Micros(hot.last_delay as u64));
        let inverse = u64::from(1_000_000 / margin.max(1));
        let slack = |from: Micros, due: Option<Micros>, forecast: Micros| {
            let Some(due) = due.filter(|due| forecast <= *due) else { return UNPROTECTED };
            let limit = from.plus(Micros(due.minus(from).0.saturating_mul(inverse) / 1_000));
            let slack = limit.0 as i64 - forecast.0 as i64;
            if slack < 0 && !promise.exact { UNPROTECTED } else { clamp(slack) }
        };
        let gaps = |from: Micros| {
            let span = |tpot: Micros| Micros(tpot.0.saturating_mul(u64::from(promise.gaps)));
            promise.deadline.tpot.map(|tpot| from.plus(span(tpot)))
        };
        hot.last_slack = slack(now, promise.deadline.last_token, last);
        if let Some(came) = promise.first_token {
            hot.first_slack = UNPROTECTED;
            hot.gap_slack = slack(now, gaps(came), last);
        } else {
            hot.first_slack = slack(now, promise.deadline.first_token, first);
            hot.gap_slack = slack(first, gaps(first), last);
        }
    }
}

fn rank(scheduler: &Scheduler, seq: &Sequence, now: Micros) -> Rank {
    scheduler.policy.rank(&scheduler.view(now), seq).unwrap_or(Rank::LAST)
}

fn item(seq: &Sequence, done: u32, todo: u32, blocks: u32) -> Item {
    let (tpot, remaining) = (seq.deadline.tpot, seq.remaining());
    Item { class: seq.class, tpot, done, todo, remaining, blocks }
}

/// The entry of `seq`; its times come from the replay.
fn entry(seq: &Sequence, key: Key, todo: u32, base: Micros) -> Entry {
    let promise = Promise {
        deadline: seq.deadline,
        exact: seq.output.exact,
        first_token: seq.first_token,
        gaps: seq.generated + seq.remaining() - 1,
    };
    Entry {
        id: seq.id.request,
        class: seq.class,
        key,
        promise,
        first: base,
        finish: base,
        todo,
        leftover: 0,
    }
}

pub(crate) fn to_i32(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// To 32 bits, below [`UNPROTECTED`].
fn clamp(slack: i64) -> i32 {
    slack.clamp(i64::from(i32::MIN), i64::from(UNPROTECTED - 1)) as i32
}
