//! The rule of thumb that practitioners write down: predicted wait = outstanding work / active
//! replicas; if that and the request's own cost are more than the SLO times 0.8, 429.
//!
//! Work is what each request would take alone, with the longest answer that it may have: it ignores
//! that a batch shares its steps, and so counts several times what the device will spend. Here to
//! be compared with; one gate sees one replica.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{AdmissionMode, AdmissionPolicy, Answer, Offer, Refused};
use crate::admission::{Quantity, ShedReason};
use crate::request::{Request, RequestId, SequenceSpec};
use crate::time::Micros;

/// Work over one replica, plus own cost, against a share of the SLO.
#[derive(Clone, Debug)]
pub(super) struct Article {
    /// The share of the SLO that may be used, per mille.
    permille: u32,
    /// What each request inside takes alone. As many as the gate holds reservations.
    inside: BTreeMap<RequestId, Micros>,
    outstanding: Micros,
}

impl Article {
    pub(super) const fn new(permille: u32) -> Article {
        Article { permille, inside: BTreeMap::new(), outstanding: Micros(0) }
    }

    /// Device time of the request alone, one sequence after another, to the first or to the last
    /// token of its longest answers.
    fn cost(offer: &Offer<'_>, quantity: Quantity) -> Micros {
        let (config, cost) = (offer.view.config, offer.view.cost);
        let alone = |spec: &SequenceSpec| {
            let prefill = cost.prefill(0, spec.prompt_tokens, config.max_num_batched_tokens);
            let decode = cost.decode(1, u64::from(spec.prompt_tokens) + 1, spec.output.max - 1);
            if quantity == Quantity::FirstToken { prefill } else { prefill.plus(decode) }
        };
        offer.request.sequences.iter().map(alone).fold(Micros(0), Micros::plus)
    }

    /// What of the request is due, and when: its last token, or else its first. A promised gap is
    /// not looked at: it would allow more the longer the answer, and nothing could be said early.
    fn due(request: &Request) -> Option<(Quantity, Micros)> {
        let last = request.deadline.last_token.map(|due| (Quantity::LastToken, due));
        last.or_else(|| Some((Quantity::FirstToken, request.deadline.first_token?)))
    }
}

impl AdmissionPolicy for Article {
    fn mode(&self) -> AdmissionMode {
        AdmissionMode::Article { permille: self.permille }
    }

    fn judge(&self, offer: &Offer<'_>) -> Answer {
        let Some((quantity, due)) = Self::due(offer.request) else { return Answer::Enter };
        let now = offer.view.now;
        let predicted = self.outstanding.plus(Self::cost(offer, quantity));
        let slo = due.minus(now);
        let most = Micros(slo.0.saturating_mul(self.permille.into()) / 1_000);
        if predicted <= most {
            return Answer::Enter;
        }
        let waited = now.minus(offer.request.arrival);
        Answer::Refuse(Refused {
            reason: ShedReason::SloMiss,
            wait: predicted.minus(most),
            predicted: Some((quantity, waited.plus(predicted), waited.plus(most))),
        })
    }

    fn entered(&mut self, offer: &Offer<'_>) {
        let cost = Self::cost(offer, Quantity::LastToken);
        self.inside.insert(offer.request.id, cost);
        self.outstanding = self.outstanding.plus(cost);
    }

    fn ended(&mut self, id: RequestId) {
        let cost = self.inside.remove(&id).unwrap_or_default();
        self.outstanding = self.outstanding.minus(cost);
    }

    fn state(&self) -> Vec<u64> {
        self.inside.iter().flat_map(|(id, cost)| [id.0, cost.0]).collect()
    }

    fn restore(&mut self, state: &[u64]) -> bool {
        let pairs = state.chunks_exact(2);
        let whole = pairs.remainder().is_empty();
        self.inside = pairs.map(|pair| (RequestId(pair[0]), Micros(pair[1]))).collect();
        self.outstanding = self.inside.values().copied().fold(Micros(0), Micros::plus);
        whole
    }
}
