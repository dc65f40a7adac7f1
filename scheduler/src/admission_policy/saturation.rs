//! The saturation threshold of llm-d and the Gateway API inference extension: a replica is full
//! when `max(waiting / 5, KV use / 0.8) >= 1`.

use super::{AdmissionMode, AdmissionPolicy, Answer, Offer, Refused};
use crate::admission::ShedReason;

/// Refuses while so many sequences wait, or so much of the KV pool is in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saturation {
    pub(super) queue: u32,
    pub(super) kv_permille: u32,
}

impl AdmissionPolicy for Saturation {
    fn mode(&self) -> AdmissionMode {
        AdmissionMode::Saturation { queue: self.queue, kv_permille: self.kv_permille }
    }

    fn judge(&self, offer: &Offer<'_>) -> Answer {
        let held = u64::from(offer.inside.held_blocks) * 1_000;
        let most = u64::from(offer.view.config.num_blocks) * u64::from(self.kv_permille);
        if offer.inside.waiting >= self.queue {
            Answer::Refuse(Refused::state(ShedReason::QueueFull))
        } else if held >= most {
            Answer::Refuse(Refused::state(ShedReason::KvPressure))
        } else {
            Answer::Enter
        }
    }
}
