//! At most so many requests inside: the limit of most servers that have one (vLLM's
//! `--max-num-queued-reqs`, TGI's `max_concurrent_requests`, Triton's `max_queue_size`).

use super::{AdmissionMode, AdmissionPolicy, Answer, Offer, Refused};
use crate::admission::ShedReason;

/// Refuses while `requests` are inside, waiting or running.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueCap {
    pub(super) requests: u32,
}

impl AdmissionPolicy for QueueCap {
    fn mode(&self) -> AdmissionMode {
        AdmissionMode::QueueCap { requests: self.requests }
    }

    fn judge(&self, offer: &Offer<'_>) -> Answer {
        match offer.inside.requests < self.requests {
            true => Answer::Enter,
            false => Answer::Refuse(Refused::state(ShedReason::QueueFull)),
        }
    }
}
