//! A policy is written down by its name and what it has counted.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{SchedulerPolicy, by_name};

#[allow(clippy::borrowed_box, reason = "serde hands over the field as it is")]
pub(crate) fn serialize<S: Serializer>(
    policy: &Box<dyn SchedulerPolicy>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    (policy.name(), policy.state()).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Box<dyn SchedulerPolicy>, D::Error> {
    let (name, state) = <(String, Vec<u64>)>::deserialize(deserializer)?;
    let mut policy = by_name(&name)
        .ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&name), &"a policy's name"))?;
    match policy.restore(&state) {
        true => Ok(policy),
        false => Err(D::Error::custom("the policy cannot have counted that")),
    }
}
