//! Long arrays in a box, written down as sequences: serde's own arrays have at most 32 elements.

use alloc::boxed::Box;
use alloc::vec::Vec;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer, T: Serialize, const N: usize>(
    array: &[T; N],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(array)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: Deserialize<'de>, const N: usize>(
    deserializer: D,
) -> Result<Box<[T; N]>, D::Error> {
    let all = Vec::<T>::deserialize(deserializer)?.into_boxed_slice();
    let len = all.len();
    all.try_into().map_err(|_| D::Error::invalid_length(len, &"the length of the array"))
}
