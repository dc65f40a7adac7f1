//! An admission policy is written down by its mode and what it remembers.

use alloc::boxed::Box;
use alloc::vec::Vec;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{AdmissionMode, AdmissionPolicy};

#[allow(clippy::borrowed_box, reason = "serde hands over the field as it is")]
pub(crate) fn serialize<S: Serializer>(
    policy: &Box<dyn AdmissionPolicy>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    (policy.mode(), policy.state()).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Box<dyn AdmissionPolicy>, D::Error> {
    let (mode, state) = <(AdmissionMode, Vec<u64>)>::deserialize(deserializer)?;
    let mut policy = mode.policy();
    match policy.restore(&state) {
        true => Ok(policy),
        false => Err(D::Error::custom("the admission policy cannot remember that")),
    }
}
