//! The end of a reservation: what it teaches, and how well it was forecast.

use super::Gate;
use crate::admission::Settled;
use crate::ledger::Reservation;
use crate::request::{RequestId, SequenceSpec, Terminal};
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
        self.learn_bands(&reservation, terminal, first, last);
        match terminal {
            Terminal::Completed => self.learn(&reservation, outputs, first, last),
            Terminal::Expired => self.margins[reservation.kind.class.index()].observe_lost(),
            Terminal::Cancelled | Terminal::Failed => {}
        }
        if self.ledger.is_empty() {
            self.timeline = Timeline::idle(now);
        }
        Some(Settled {
            forecast: reservation.forecast,
            carried_first: reservation.carried_first,
            carried_last: reservation.carried_last,
            exact: reservation.kind.exact,
        })
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
        let Reservation { kind, forecast, .. } = reservation;
        let bands = &mut self.bands[kind.class.index()];
        // Tokens of an expired request never come.
        let never = (terminal == Terminal::Expired).then_some(Micros::MAX);
        if let Some(came) = first.or(never) {
            bands.observe_first(kind.exact, came <= forecast.upper_first);
        }
        let last = last.filter(|_| terminal == Terminal::Completed);
        if let Some(came) = last.or(never) {
            bands.observe_last(kind.exact, came <= forecast.upper_last);
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
        let Reservation { kind, arrival, .. } = reservation;
        for (spec, tokens) in reservation.sequences.as_slice().iter().zip(outputs) {
            let SequenceSpec { prompt_tokens, output, .. } = spec;
            self.lengths.learn(kind.class, *prompt_tokens, output, *tokens);
        }
        let (came, carried) = if kind.exact {
            (last, reservation.carried_last)
        } else {
            (first, reservation.carried_first)
        };
        if let Some(came) = came {
            let margin = &mut self.margins[kind.class.index()];
            margin.observe(came.minus(*arrival), carried.minus(*arrival));
        }
    }
}
