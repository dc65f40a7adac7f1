//! Blocks known by what is in them, so that a prompt that begins like an earlier one need not be
//! computed again.
//!
//! A full block is known by a hash of its tokens and of the hash of the block before it: it stands
//! for the whole prefix that it ends. The scheduler only compares hashes; who makes them sees to it
//! that equal ones mean equal tokens, and that tenants who must not share do not.
//!
//! Whoever holds a block holds all blocks before it. So the blocks that are cached of any sequence
//! are its first ones, and how many they are is found by bisection (`leading`).

mod blocks;
mod chain;
mod index;

pub(crate) use blocks::NamedBlocks;
pub(crate) use chain::Chain;
pub use index::CacheChanges;
pub(crate) use index::CachedPrefixes;

/// What a full block is known by: 128 bits of a keyed or cryptographic hash of its tokens and of
/// all tokens before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BlockHash(pub [u8; 16]);

/// How many of the first `len` blocks are cached, if those that are lie before those that are not.
/// Few lookups when few are.
pub(crate) fn leading(len: usize, is_cached: impl Fn(usize) -> bool) -> usize {
    let (mut cached, mut reach) = (0, 1);
    while cached + reach <= len && is_cached(cached + reach - 1) {
        cached += reach;
        reach *= 2;
    }
    let mut missing = (cached + reach).min(len + 1);
    while missing - cached > 1 {
        let middle = cached + (missing - cached) / 2;
        if is_cached(middle - 1) {
            cached = middle;
        } else {
            missing = middle;
        }
    }
    cached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_blocks_are_counted_with_few_lookups() {
        for len in 0..70 {
            for cached in 0..=len {
                let lookups = core::cell::Cell::new(0u32);
                let found = leading(len, |i| {
                    lookups.set(lookups.get() + 1);
                    assert!(i < len);
                    i < cached
                });
                assert_eq!(found, cached);
                let most = 2 * (cached + 1).ilog2() + 2;
                assert!(lookups.get() <= most, "{} lookups for {cached} of {len}", lookups.get());
            }
        }
    }
}
