//! What was promised and is not finished: one reservation for each admitted request.
//!
//! Reservations lie in slots that do not move, so that an entry of the timeline can name the slot
//! of its request. They are found by request through a list of slots in order of request.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::admission::{Forecast, Settled};
use crate::candidate::Candidate;
use crate::class::Class;
use crate::lean;
use crate::length::Lesson;
use crate::line::Line;
use crate::promise::Kind;
use crate::request::{Request, RequestId, SequenceSpec};
use crate::tenants::TenantId;
use crate::time::{Micros, Span};
use crate::timeline::{Entry, Timeline};

/// An admitted request. A forecast beyond 71 minutes is kept as 71 minutes, and nothing is learned
/// from it.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Reservation {
    id: RequestId,
    arrival: Micros,
    /// Its forecast, from arrival on.
    first: Span,
    last: Span,
    upper_first: Span,
    upper_last: Span,
    /// By when its tokens were promised.
    due_first: Span,
    due_last: Span,
    work: Span,
    /// Every delay of its first and of its last token that was accepted since.
    first_delay: Span,
    last_delay: Span,
    /// What its first sequence teaches at its end. Most requests have no other; of those that do
    /// the ledger keeps all of them apart, because thousands of reservations are kept.
    lesson: Lesson,
    class: Class,
    tenant: TenantId,
    /// Exact, borrows, has several sequences, and whether what it was promised was given up for
    /// others, in a bit each.
    flags: u8,
}

const EXACT: u8 = 1;
const BORROWS: u8 = 2;
const DISPLACED: u8 = 4;
const SEVERAL: u8 = 8;

fn flags(exact: bool, borrows: bool, several: bool) -> u8 {
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    flag(exact, EXACT) | flag(borrows, BORROWS) | flag(several, SEVERAL)
}

fn lesson(spec: &SequenceSpec) -> Lesson {
    Lesson::new(spec.prompt_tokens, &spec.output)
}

impl Reservation {
    /// Of a request that was admitted with this forecast.
    pub(crate) fn new(request: &Request, kind: Kind, forecast: &Forecast) -> Reservation {
        let from_arrival = |time: Micros| Span::new(time.minus(request.arrival));
        let due = |due: Option<Micros>| from_arrival(due.unwrap_or(Micros::MAX));
        Reservation {
            id: request.id,
            arrival: request.arrival,
            first: from_arrival(forecast.first_token),
            last: from_arrival(forecast.last_token),
            upper_first: from_arrival(forecast.upper_first),
            upper_last: from_arrival(forecast.upper_last),
            due_first: due(request.deadline.first_token),
            due_last: due(request.deadline.last_token),
            work: Span::new(forecast.work),
            first_delay: Span::default(),
            last_delay: Span::default(),
            lesson: lesson(&request.sequences[0]),
            class: kind.class,
            tenant: kind.tenant,
            flags: flags(kind.exact(), request.borrows, request.sequences.len() > 1),
        }
    }

    /// How it was forecast, and what became of the forecast.
    pub(crate) fn settled(&self) -> Settled {
        let time = |span: Span| self.arrival.plus(span.micros());
        let forecast = Forecast {
            first_token: time(self.first),
            last_token: time(self.last),
            upper_first: time(self.upper_first),
            upper_last: time(self.upper_last),
            work: self.work.micros(),
        };
        Settled {
            forecast,
            carried_first: forecast.first_token.plus(self.first_delay.micros()),
            carried_last: forecast.last_token.plus(self.last_delay.micros()),
            exact: self.kind().exact(),
            displaced: self.is_displaced(),
        }
    }

    /// Whether a first token that came then is within its bound; `None` if that is not known any
    /// more.
    pub(crate) fn first_within(&self, came: Micros) -> Option<bool> {
        Some(came.minus(self.arrival) <= self.upper_first.exact()?)
    }

    /// The same of the last token.
    pub(crate) fn last_within(&self, came: Micros) -> Option<bool> {
        Some(came.minus(self.arrival) <= self.upper_last.exact()?)
    }

    /// Whether a token came after the time it was promised for, or never. Promises of gaps, and
    /// those beyond 71 minutes, are not looked at.
    pub(crate) fn is_late(&self, first: Option<Micros>, last: Option<Micros>) -> bool {
        let late = |due: Span, came: Option<Micros>| {
            let within = |due| came.is_some_and(|came| came.minus(self.arrival) <= due);
            due.exact().is_some_and(|due| !within(due))
        };
        late(self.due_first, first) || late(self.due_last, last)
    }

    /// From arrival to a first token that came then, and to where the forecast had been carried;
    /// `None` if that is not known any more.
    pub(crate) fn first_against(&self, came: Micros) -> Option<(Micros, Micros)> {
        let carried = self.first.exact()?.plus(self.first_delay.exact()?);
        Some((came.minus(self.arrival), carried))
    }

    /// The same of the last token.
    pub(crate) fn last_against(&self, came: Micros) -> Option<(Micros, Micros)> {
        let carried = self.last.exact()?.plus(self.last_delay.exact()?);
        Some((came.minus(self.arrival), carried))
    }

    /// What it was promised was given up for others.
    pub(crate) const fn is_displaced(&self) -> bool {
        self.flags & DISPLACED > 0
    }

    /// Whose it is, and how it is protected.
    pub(crate) const fn kind(&self) -> Kind {
        let exact = self.flags & EXACT > 0;
        let line = Line { class: self.class, borrows: self.borrows() };
        Kind::new(line, self.tenant, exact)
    }

    /// It is more than its tenant's reservation is for.
    pub(crate) const fn borrows(&self) -> bool {
        self.flags & BORROWS > 0
    }

    /// Device time that it adds.
    pub(crate) fn work(&self) -> Micros {
        self.work.micros()
    }

    const fn has_several(&self) -> bool {
        self.flags & SEVERAL > 0
    }

    fn delay(&mut self, first: u32, last: u32) {
        self.first_delay.extend(first);
        self.last_delay.extend(last);
    }
}

/// What the sequences of a request teach at their end.
pub(crate) struct Lessons {
    first: Lesson,
    several: Option<Box<[Lesson]>>,
}

impl Lessons {
    /// By sequence, in order.
    pub(crate) fn of(&self) -> &[Lesson] {
        self.several.as_deref().unwrap_or(core::slice::from_ref(&self.first))
    }
}

/// All reservations, with their sums by class.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Ledger {
    slots: Vec<Option<Reservation>>,
    /// What the sequences of those that have several teach, in order, by slot.
    several: BTreeMap<u32, Box<[Lesson]>>,
    free: Vec<u32>,
    /// Slots in use, in order of request.
    by_id: Vec<u32>,
    /// Requests on their way to the scheduler, in order of admission.
    on_their_way: Vec<(u32, Candidate)>,
    work: [Micros; 2],
    /// Reservations that were displaced.
    displaced: u32,
    /// Sequences of pending requests.
    pending: [u32; 2],
    /// Sequences that waited in the scheduler when the installed timeline was built.
    waiting: [u32; 2],
}

impl Ledger {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) const fn work(&self, class: Class) -> Micros {
        self.work[class.index()]
    }

    /// Sequences that wait, or are on their way to the scheduler.
    pub(crate) const fn waiting(&self, class: Class) -> u32 {
        self.waiting[class.index()] + self.pending[class.index()]
    }

    /// Books the reservation of `request`, which `candidate` stands for; returns its slot.
    pub(crate) fn reserve(
        &mut self,
        reservation: Reservation,
        request: &Request,
        candidate: Candidate,
    ) -> u32 {
        let class = reservation.class.index();
        self.work[class] = self.work[class].plus(reservation.work.micros());
        self.pending[class] += request.sequences.len() as u32;
        let place = self.find(reservation.id).expect_err("request ids are never reused");
        let slot = self.free.pop().unwrap_or_else(|| {
            lean::push(&mut self.slots, None);
            self.slots.len() as u32 - 1
        });
        if reservation.has_several() {
            self.several.insert(slot, request.sequences.iter().map(lesson).collect());
        }
        self.slots[slot as usize] = Some(reservation);
        lean::insert(&mut self.by_id, place, slot);
        self.on_their_way.push((slot, candidate));
        slot
    }

    /// Ends a reservation, and tells what its sequences teach, in order; `None` if there is none
    /// (any more).
    pub(crate) fn release(&mut self, id: RequestId) -> Option<(Reservation, Lessons)> {
        let place = self.find(id).ok()?;
        let slot = self.by_id.remove(place);
        let reservation = self.slots[slot as usize].take().expect("it was found");
        let lessons = Lessons { first: reservation.lesson, several: self.several.remove(&slot) };
        lean::push(&mut self.free, slot);
        let class = reservation.class.index();
        self.work[class] = self.work[class].minus(reservation.work.micros());
        self.displaced -= u32::from(reservation.is_displaced());
        // No installed timeline has it yet.
        if let Some(at) = self.on_their_way.iter().rposition(|(other, _)| *other == slot) {
            self.pending[class] -= lessons.of().len() as u32;
            self.on_their_way.remove(at);
        }
        if self.by_id.is_empty() {
            self.waiting = [0; 2];
        }
        Some((reservation, lessons))
    }

    /// The promise of the reservation in `slot` is given up. Returns its class, and whether it
    /// borrows.
    pub(crate) fn displace(&mut self, slot: u32) -> (Class, bool) {
        let reservation = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        let reservation = reservation.expect("only what is reserved is displaced");
        assert!(!reservation.is_displaced(), "it is lost only once");
        reservation.flags |= DISPLACED;
        self.displaced += 1;
        (reservation.class, reservation.borrows())
    }

    /// Somebody inside was displaced.
    pub(crate) const fn has_displaced(&self) -> bool {
        self.displaced > 0
    }

    /// The reservation that an entry of the timeline belongs to, if it has not ended.
    pub(crate) fn owner(&self, entry: &Entry) -> Option<&Reservation> {
        let found = self.slots.get(entry.slot as usize)?.as_ref();
        // The slot may have changed hands.
        found.filter(|reservation| reservation.id == entry.id)
    }

    /// When the first of a tenant's requests is expected to end.
    pub(crate) fn next_end(&self, tenant: TenantId) -> Option<Micros> {
        let own = self.slots.iter().flatten().filter(|found| found.tenant == tenant);
        own.map(|found| found.settled().carried_last).min()
    }

    /// Requests in `timeline` are with the scheduler, and its entries learn their slots. Returns
    /// those that are still on their way, in order of admission.
    pub(crate) fn confirm(&mut self, timeline: &mut Timeline) -> Vec<(u32, Candidate)> {
        let (slots, several, pending) = (&self.slots, &self.several, &mut self.pending);
        self.on_their_way.retain(|(slot, candidate)| {
            let stays = !timeline.contains(candidate.id);
            if let (false, Some(reservation)) = (stays, &slots[*slot as usize]) {
                let sequences = several.get(slot).map_or(1, |lessons| lessons.len());
                pending[reservation.class.index()] -= sequences as u32;
            }
            stays
        });
        self.waiting = Class::ALL.map(|class| timeline.waiting(class));
        let id = |slot: &u32| self.slots[*slot as usize].as_ref().map(|found| (found.id, *slot));
        timeline.resolve(self.by_id.iter().filter_map(id));
        self.on_their_way.clone()
    }

    /// Adds the delays of first and last tokens in `timeline` to what is carried. A request with
    /// several entries is delayed by the largest.
    pub(crate) fn carry(&mut self, timeline: &Timeline) {
        let mut several: Vec<(u32, u32, u32)> = Vec::new();
        for (entry, first, last) in timeline.delays() {
            let Some(Some(reservation)) = self.slots.get_mut(entry.slot as usize) else { continue };
            // The slot may have changed hands.
            if (first, last) == (0, 0) || reservation.id != entry.id {
                continue;
            }
            if reservation.has_several() {
                several.push((entry.slot, first, last));
            } else {
                reservation.delay(first, last);
            }
        }
        several.sort_unstable();
        for of_request in several.chunk_by(|a, b| a.0 == b.0) {
            let first = of_request.iter().map(|delay| delay.1).max().unwrap_or(0);
            let last = of_request.iter().map(|delay| delay.2).max().unwrap_or(0);
            if let Some(reservation) = &mut self.slots[of_request[0].0 as usize] {
                reservation.delay(first, last);
            }
        }
    }

    fn find(&self, id: RequestId) -> Result<usize, usize> {
        let of = |slot: &u32| self.slots[*slot as usize].as_ref().map(|found| found.id);
        match self.by_id.last() {
            Some(last) if of(last) < Some(id) => Err(self.by_id.len()),
            _ => self.by_id.binary_search_by_key(&Some(id), of),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::request::{Deadline, OutputLength};

    fn reservation(last: Micros) -> Reservation {
        let output = OutputLength { min: 0, max: 9, predicted: 9, hint: None, exact: true };
        let request = Request {
            id: RequestId(1),
            class: Class::Throughput,
            tenant: TenantId::DEFAULT,
            borrows: false,
            arrival: Micros(7),
            deadline: Deadline::default(),
            retry: 0,
            origin: 0,
            prefixes: Vec::new(),
            sequences: vec![SequenceSpec { prompt: 0, prompt_tokens: 5, output }],
        };
        let first_token = Micros(1_007);
        let forecast = Forecast {
            first_token,
            last_token: last,
            upper_first: first_token,
            upper_last: last,
            work: Micros(500),
        };
        let line = Line { class: request.class, borrows: false };
        let kind = Kind::new(line, request.tenant, true);
        Reservation::new(&request, kind, &forecast)
    }

    #[test]
    fn a_forecast_is_kept_and_carried_exactly() {
        let mut reservation = reservation(Micros(2_007));
        reservation.delay(10, 20);
        let settled = reservation.settled();
        assert_eq!(settled.forecast.last_token, Micros(2_007));
        assert_eq!((settled.carried_first, settled.carried_last), (Micros(1_017), Micros(2_027)));
        assert_eq!(reservation.last_against(Micros(3_007)), Some((Micros(3_000), Micros(2_020))));
        let within = |came| reservation.last_within(Micros(came));
        assert_eq!((within(2_007), within(2_008)), (Some(true), Some(false)));
    }

    #[test]
    fn beyond_71_minutes_a_forecast_is_cut_and_teaches_nothing() {
        let longest = Micros(u32::MAX.into());
        let reservation = reservation(longest.plus(Micros(1_000_000)));
        assert_eq!(reservation.settled().forecast.last_token, longest.plus(Micros(7)));
        assert_eq!(reservation.last_within(Micros::MAX), None);
        assert_eq!(reservation.last_against(longest), None);
        assert!(reservation.first_against(longest).is_some(), "the first token was near");
    }
}
