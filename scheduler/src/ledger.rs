//! What was promised and is not finished: one reservation for each admitted request.
//!
//! Reservations lie in slots that do not move, so that an entry of the timeline can name the slot
//! of its request. They are found by request through a list of slots in order of request.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::admission::Forecast;
use crate::candidate::Candidate;
use crate::class::Class;
use crate::promise::Kind;
use crate::request::{RequestId, SequenceSpec};
use crate::time::Micros;
use crate::timeline::Timeline;

/// An admitted request.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Reservation {
    pub(crate) id: RequestId,
    pub(crate) forecast: Forecast,
    pub(crate) arrival: Micros,
    /// That forecast plus every delay accepted since.
    pub(crate) carried_first: Micros,
    pub(crate) carried_last: Micros,
    pub(crate) sequences: Specs,
    pub(crate) kind: Kind,
    /// No installed timeline has it yet.
    pub(crate) pending: bool,
}

/// The sequences of a request; most have one.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum Specs {
    One(SequenceSpec),
    Many(Box<[SequenceSpec]>),
}

impl Specs {
    pub(crate) fn new(specs: &[SequenceSpec]) -> Specs {
        match specs {
            [one] => Specs::One(*one),
            many => Specs::Many(many.into()),
        }
    }

    pub(crate) fn as_slice(&self) -> &[SequenceSpec] {
        match self {
            Specs::One(one) => core::slice::from_ref(one),
            Specs::Many(many) => many,
        }
    }
}

impl Reservation {
    fn num_sequences(&self) -> u32 {
        self.sequences.as_slice().len() as u32
    }

    fn delay(&mut self, first: u32, last: u32) {
        self.carried_first = self.carried_first.plus(Micros(first.into()));
        self.carried_last = self.carried_last.plus(Micros(last.into()));
    }
}

/// All reservations, with their sums by class.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Ledger {
    slots: Vec<Option<Reservation>>,
    free: Vec<u32>,
    /// Slots in use, in order of request.
    by_id: Vec<u32>,
    /// Requests on their way to the scheduler, in order of admission.
    on_their_way: Vec<(u32, Candidate)>,
    work: [Micros; 2],
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

    /// Books a reservation for `candidate`; returns its slot.
    pub(crate) fn reserve(&mut self, reservation: Reservation, candidate: Candidate) -> u32 {
        let class = reservation.kind.class.index();
        self.work[class] = self.work[class].plus(reservation.forecast.work);
        self.pending[class] += reservation.num_sequences();
        let place = self.find(reservation.id).expect_err("request ids are never reused");
        let slot = self.free.pop().unwrap_or_else(|| {
            push_lean(&mut self.slots, None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(reservation);
        make_room(&mut self.by_id);
        self.by_id.insert(place, slot);
        self.on_their_way.push((slot, candidate));
        slot
    }

    /// Ends a reservation; `None` if there is none (any more).
    pub(crate) fn release(&mut self, id: RequestId) -> Option<Reservation> {
        let place = self.find(id).ok()?;
        let slot = self.by_id.remove(place);
        let reservation = self.slots[slot as usize].take().expect("it was found");
        push_lean(&mut self.free, slot);
        let class = reservation.kind.class.index();
        self.work[class] = self.work[class].minus(reservation.forecast.work);
        if reservation.pending {
            self.pending[class] -= reservation.num_sequences();
            let at = self.on_their_way.iter().rposition(|(other, _)| *other == slot);
            self.on_their_way.remove(at.expect("a pending request is on its way"));
        }
        if self.by_id.is_empty() {
            self.waiting = [0; 2];
        }
        Some(reservation)
    }

    /// Requests in `timeline` are with the scheduler, and its entries learn their slots. Returns
    /// those that are still on their way, in order of admission.
    pub(crate) fn confirm(&mut self, timeline: &mut Timeline) -> Vec<(u32, Candidate)> {
        let (slots, pending) = (&mut self.slots, &mut self.pending);
        self.on_their_way.retain(|(slot, candidate)| {
            let stays = !timeline.contains(candidate.id);
            if let (false, Some(reservation)) = (stays, &mut slots[*slot as usize]) {
                reservation.pending = false;
                pending[reservation.kind.class.index()] -= reservation.num_sequences();
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
            match reservation.sequences {
                Specs::One(_) => reservation.delay(first, last),
                Specs::Many(_) => several.push((entry.slot, first, last)),
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

/// Room for one more, without doubling: what waits should take little memory.
fn make_room<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact(16.max(list.len() / 8));
    }
}

pub(crate) fn push_lean<T>(list: &mut Vec<T>, item: T) {
    make_room(list);
    list.push(item);
}
