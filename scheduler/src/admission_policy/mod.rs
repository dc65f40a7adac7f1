//! Admission policies: who is refused, and when to come back. One file each.
//!
//! Whatever the policy, the gate itself refuses while it drains, what can never fit, and what finds
//! the queue of its class full. `deadline` leaves the rest to the gate's forecasts, `none` lets
//! everything in, and the others are the rules of other servers, to compare with.
//!
//! A new one is a file beside these, a variant of [`AdmissionMode`], and its line in
//! [`AdmissionMode::policy`]. A policy may ask for nothing that gets smaller as a request gets
//! longer: then it can refuse before the prompt is tokenised.

mod article;
mod mode;
#[cfg(feature = "serde")]
pub(crate) mod named;
mod queue_cap;
mod saturation;
#[cfg(test)]
mod tests;
mod token_bucket;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt::Debug;

use crate::admission::{Quantity, ShedReason};
use crate::policy::View;
use crate::request::{Request, RequestId};
use crate::time::Micros;

use article::Article;
pub use mode::{AdmissionMode, UnknownAdmission};
use queue_cap::QueueCap;
use saturation::Saturation;
use token_bucket::TokenBucket;

/// What is inside already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// Requests that were admitted and have not ended.
    pub requests: u32,
    /// Sequences that wait.
    pub waiting: u32,
    /// KV blocks in use, as of the last step.
    pub held_blocks: u32,
}

/// A request that asks for admission.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Time, limits and costs.
    pub view: View<'a>,
    /// The request; predicted lengths are filled in.
    pub request: &'a Request,
    /// What is inside already.
    pub inside: Inside,
}

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub reason: ShedReason,
    /// How long it has to wait at the least; zero if the policy does not know.
    pub wait: Micros,
    /// A prediction that it comes from: what of, when from arrival on, and the most that it may be.
    pub predicted: Option<(Quantity, Micros, Micros)>,
}

impl Refused {
    /// For a state, not for a prediction.
    const fn state(reason: ShedReason) -> Refused {
        Refused { reason, wait: Micros(0), predicted: None }
    }
}

/// What a policy says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It enters.
    Enter,
    /// Forecasts decide.
    Forecast,
    /// It is refused.
    Refuse(Refused),
}

/// Decides who is refused.
pub trait AdmissionPolicy: Debug + Send {
    /// Its name and parameters.
    fn mode(&self) -> AdmissionMode;

    /// Whether `offer` enters. Changes nothing: it is also asked before the prompt is tokenised.
    fn judge(&self, offer: &Offer<'_>) -> Answer;

    /// `offer` was admitted.
    fn entered(&mut self, _offer: &Offer<'_>) {}

    /// An admitted request has ended.
    fn ended(&mut self, _id: RequestId) {}

    /// All that it remembers.
    fn state(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Takes over what another policy of this kind remembers. Returns whether that makes sense.
    fn restore(&mut self, state: &[u64]) -> bool {
        state.is_empty()
    }
}

/// Forecasts decide.
#[derive(Clone, Copy, Debug)]
struct ByForecast;

impl AdmissionPolicy for ByForecast {
    fn mode(&self) -> AdmissionMode {
        AdmissionMode::Deadline
    }

    fn judge(&self, _: &Offer<'_>) -> Answer {
        Answer::Forecast
    }
}

/// Everything that fits the queue bounds gets in: the queue of most servers.
#[derive(Clone, Copy, Debug)]
struct Everybody;

impl AdmissionPolicy for Everybody {
    fn mode(&self) -> AdmissionMode {
        AdmissionMode::None
    }

    fn judge(&self, _: &Offer<'_>) -> Answer {
        Answer::Enter
    }
}

impl AdmissionMode {
    /// The policy, which has seen nobody.
    #[must_use]
    pub fn policy(self) -> Box<dyn AdmissionPolicy> {
        match self {
            AdmissionMode::Deadline => Box::new(ByForecast),
            AdmissionMode::None => Box::new(Everybody),
            AdmissionMode::QueueCap { requests } => Box::new(QueueCap { requests }),
            AdmissionMode::TokenBucket { rate, burst } => Box::new(TokenBucket::new(rate, burst)),
            AdmissionMode::Saturation { queue, kv_permille } => {
                Box::new(Saturation { queue, kv_permille })
            }
            AdmissionMode::Article { permille } => Box::new(Article::new(permille)),
        }
    }
}
