//! What was promised and is not finished: one reservation for each admitted request.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::admission::Forecast;
use crate::candidate::Candidate;
use crate::class::Class;
use crate::request::{RequestId, SequenceSpec};
use crate::time::Micros;
use crate::timeline::Timeline;

/// An admitted request.
#[derive(Clone, Debug)]
pub(crate) struct Reservation {
    pub(crate) candidate: Candidate,
    pub(crate) forecast: Forecast,
    pub(crate) arrival: Micros,
    pub(crate) sequences: Vec<SequenceSpec>,
    /// That forecast plus every delay accepted since.
    pub(crate) carried_first: Micros,
    pub(crate) carried_last: Micros,
    /// No installed timeline has it yet.
    pub(crate) pending: bool,
}

impl Reservation {
    fn num_sequences(&self) -> u32 {
        self.sequences.len() as u32
    }
}

/// All reservations, with their sums by class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    reservations: BTreeMap<RequestId, Reservation>,
    work: [Micros; 2],
    /// Sequences of pending requests.
    pending: [u32; 2],
    /// Sequences that waited in the scheduler when the installed timeline was built.
    waiting: [u32; 2],
}

impl Ledger {
    pub(crate) fn is_empty(&self) -> bool {
        self.reservations.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.reservations.len()
    }

    pub(crate) const fn work(&self, class: Class) -> Micros {
        self.work[class.index()]
    }

    /// Sequences that wait, or are on their way to the scheduler.
    pub(crate) const fn waiting(&self, class: Class) -> u32 {
        self.waiting[class.index()] + self.pending[class.index()]
    }

    pub(crate) fn reserve(&mut self, reservation: Reservation) {
        let class = reservation.candidate.class.index();
        self.work[class] = self.work[class].plus(reservation.candidate.work());
        self.pending[class] += reservation.num_sequences();
        let before = self.reservations.insert(reservation.candidate.id, reservation);
        assert!(before.is_none(), "request ids are never reused");
    }

    /// Ends a reservation; `None` if there is none (any more).
    pub(crate) fn release(&mut self, id: RequestId) -> Option<Reservation> {
        let reservation = self.reservations.remove(&id)?;
        let class = reservation.candidate.class.index();
        self.work[class] = self.work[class].minus(reservation.candidate.work());
        if reservation.pending {
            self.pending[class] -= reservation.num_sequences();
        }
        if self.reservations.is_empty() {
            self.waiting = [0; 2];
        }
        Some(reservation)
    }

    /// Requests in `timeline` are with the scheduler. Returns those that are still on their way, in
    /// order of admission.
    pub(crate) fn confirm(&mut self, timeline: &Timeline) -> Vec<Candidate> {
        let mut on_their_way = Vec::new();
        for (id, reservation) in &mut self.reservations {
            if !reservation.pending {
                continue;
            }
            if timeline.contains(*id) {
                reservation.pending = false;
                self.pending[reservation.candidate.class.index()] -= reservation.num_sequences();
            } else {
                on_their_way.push(reservation.candidate);
            }
        }
        self.waiting = Class::ALL.map(|class| timeline.waiting(class));
        on_their_way
    }

    /// Adds delays of first and last tokens to what is carried. A request with several entries is
    /// delayed by the largest.
    pub(crate) fn carry(&mut self, mut delays: Vec<(RequestId, u32, u32)>) {
        delays.sort();
        let mut reservations = self.reservations.iter_mut().peekable();
        for of_request in delays.chunk_by(|a, b| a.0 == b.0) {
            let id = of_request[0].0;
            while reservations.next_if(|(other, _)| **other < id).is_some() {}
            let Some((_, reservation)) = reservations.next_if(|(other, _)| **other == id) else {
                continue;
            };
            let first = of_request.iter().map(|delay| delay.1).max().unwrap_or(0);
            let last = of_request.iter().map(|delay| delay.2).max().unwrap_or(0);
            reservation.carried_first = reservation.carried_first.plus(Micros(first.into()));
            reservation.carried_last = reservation.carried_last.plus(Micros(last.into()));
        }
    }
}
