//! The end of a reservation: what it teaches, and how well it was forecast.

use super::Gate;
use crate::admission::Settled;
use crate::ledger::Reservation;
use crate::request::{RequestId, Terminal};
use crate::time::Micros;
use crate::timeline::Timeline;

impl Gate {
    /// Ends a reservation. `outputs` are the generated lengths of its sequences (in order), `first`
    /// and `last` the times of its first and last token if they came. Returns how it was forecast;
    /// `None` if there is no such reservation (any more).
    pub fn finish(
        &mut self,
        now: Micros,
        id: RequestId,
        terminal: Terminal,
        outputs: &[u32],
        first: Option<Micros>,
        last: Option<Micros>,
    ) -> Option<Settled> {
        let reservation = self.ledger.release(id)?;
        self.admission.ended(id);
        let served = first.is_some() || outputs.iter().any(|tokens| *tokens > 0);
        self.tenants.end(&reservation, served);
        self.learn_bands(&reservation, terminal, first, last);
        match terminal {
            Terminal::Completed => self.learn(&reservation, outputs, first, last),
            Terminal::Expired => self.margins[reservation.kind().line().index()].observe_lost(),
            Terminal::Cancelled | Terminal::Failed => {}
        }
        if self.ledger.is_empty() {
            self.timeline = Timeline::idle(now);
        }
        Some(reservation.settled())
    }

    /// Learns how late tokens come against what was said at admission: also from a client that
    /// left after its first one.
    fn learn_bands(
        &mut self,
        reservation: &Reservation,
        terminal: Terminal,
        first: Option<Micros>,
        last: Option<Micros>,
    ) {
        let kind = reservation.kind();
        let bands = &mut self.bands[kind.class.index()];
        // Tokens of an expired request never come.
        let never = (terminal == Terminal::Expired).then_some(Micros::MAX);
        if let Some(within) = first.or(never).and_then(|came| reservation.first_within(came)) {
            bands.observe_first(kind.exact(), within);
        }
        let last = last.filter(|_| terminal == Terminal::Completed);
        if let Some(within) = last.or(never).and_then(|came| reservation.last_within(came)) {
            bands.observe_last(kind.exact(), within);
        }
    }

    /// Learns lengths and the margin from a completed request. Where the length was not known the
    /// last token tells more of the length than of the model, so the first is compared.
    fn learn(
        &mut self,
        reservation: &Reservation,
        outputs: &[u32],
        first: Option<Micros>,
        last: Option<Micros>,
    ) {
        let kind = reservation.kind();
        for (lesson, tokens) in reservation.lessons().iter().zip(outputs) {
            self.lengths.learn(kind.class, *lesson, *tokens);
        }
        let against = if kind.exact() {
            last.and_then(|came| reservation.last_against(came))
        } else {
            first.and_then(|came| reservation.first_against(came))
        };
        if let Some((actual, carried)) = against {
            self.margins[kind.line().index()].observe(actual, carried);
        }
    }
}
