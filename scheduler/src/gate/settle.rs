//! The end of a reservation: what it teaches, and how well it was forecast.

use super::Gate;
use crate::admission::Settled;
use crate::class::Class;
use crate::ledger::{Lessons, Reservation};
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
        let (reservation, lessons) = self.ledger.release(id)?;
        self.admission.ended(id);
        let served = first.is_some() || outputs.iter().any(|tokens| *tokens > 0);
        self.tenants.end(&reservation, served);
        self.learn_bands(&reservation, terminal, first, last);
        self.count_lost(&reservation, terminal, first, last);
        match terminal {
            Terminal::Completed => self.learn(&reservation, &lessons, outputs, first, last),
            Terminal::Expired => self.margins[reservation.kind().line().index()].observe_lost(),
            Terminal::Cancelled | Terminal::Failed => {}
        }
        if self.ledger.is_empty() {
            self.timeline = Timeline::idle(now);
        }
        Some(reservation.settled())
    }

    /// A bulk promise that broke although nobody was let in at its cost counts against what may be
    /// broken of them. What latency work exchanges among its own is bounded apart from that.
    fn count_lost(
        &mut self,
        reservation: &Reservation,
        terminal: Terminal,
        first: Option<Micros>,
        last: Option<Micros>,
    ) {
        let ended = matches!(terminal, Terminal::Completed | Terminal::Expired);
        let is_bulk = reservation.kind().class == Class::Throughput;
        if ended && is_bulk && !reservation.is_displaced() && reservation.is_late(first, last) {
            self.budgets[Class::Throughput.index()].lose();
        }
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
        lessons: &Lessons,
        outputs: &[u32],
        first: Option<Micros>,
        last: Option<Micros>,
    ) {
        let kind = reservation.kind();
        for (lesson, tokens) in lessons.of().iter().zip(outputs) {
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

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::admission::{GateConfig, IsolationConfig};
    use crate::admission_policy::AdmissionMode;
    use crate::class::{ClassConfig, ClassTable};
    use crate::cost::CostModel;
    use crate::policy;
    use crate::request::{Deadline, OutputLength, Request, SequenceSpec};
    use crate::scheduler::SchedulerConfig;
    use crate::tenants::TenantId;

    const DUE: Micros = Micros(10_000_000);

    /// What may be displaced of promises to bulk work, all but the last of which were kept, after
    /// the last one ended like this.
    fn left_after(terminal: Terminal, last: Option<Micros>) -> usize {
        let scheduler = SchedulerConfig {
            num_blocks: 64,
            block_size: 16,
            max_num_seqs: 8,
            max_num_batched_tokens: 64,
            max_model_len: 1_024,
            classes: ClassTable([ClassConfig::default(); 2]),
        };
        let config = GateConfig::new(AdmissionMode::Deadline, scheduler);
        let isolation = IsolationConfig { displacement_permille: 500, ..config.isolation };
        let cost = CostModel {
            fixed_ns: 1_000_000,
            per_seq_ns: 0,
            per_context_token_ps: 0,
            per_prefill_token_ns: 0,
            per_prefill_span_ps: 0,
        };
        let policy = policy::by_name("deadline").expect("it is the default");
        let mut gate = Gate::new(GateConfig { isolation, ..config }, policy, cost);
        for id in (0..4).map(RequestId) {
            let output = OutputLength { min: 0, max: 2, predicted: 0, hint: None, exact: true };
            let mut request = Request {
                id,
                class: Class::Throughput,
                tenant: TenantId::DEFAULT,
                borrows: false,
                arrival: Micros(0),
                deadline: Deadline { last_token: Some(DUE), ..Deadline::default() },
                retry: 0,
                origin: 0,
                prefixes: vec![],
                sequences: vec![SequenceSpec { prompt: 0, prompt_tokens: 8, output }],
            };
            let admission = gate.admit(Micros(0), &mut request);
            assert!(matches!(admission, crate::Admission::Admit(_)), "{admission:?}");
            let (terminal, last) =
                if id.0 == 3 { (terminal, last) } else { (Terminal::Completed, Some(DUE)) };
            gate.finish(Micros(0), id, terminal, &[2], last, last);
        }
        gate.budgets[Class::Throughput.index()].left()
    }

    #[test]
    fn a_bulk_promise_that_broke_by_itself_is_one_less_to_displace() {
        let late = Some(DUE.plus(Micros(1)));
        assert_eq!(left_after(Terminal::Completed, Some(DUE)), 2);
        assert_eq!(left_after(Terminal::Completed, late), 1);
        assert_eq!(left_after(Terminal::Expired, None), 1);
        assert_eq!(left_after(Terminal::Cancelled, None), 2, "who leaves is not late");
    }
}
