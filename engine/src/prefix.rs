//! What KV blocks are known by: a chain of keyed hashes over the tokens of a sequence.
//!
//! Each full block is hashed together with the hash of the block before it; the first one with a
//! root that stands for the request's `cache_salt`. So two blocks have the same hash only if all
//! tokens up to their ends, and the salts, are the same.
//!
//! The hash is SipHash-2-4 with 128 bits (Aumasson and Bernstein 2012), under a key that is drawn
//! when the engine starts and never leaves it, nor do hashes reach clients. Whoever does not know
//! the key cannot find two inputs with one hash, so a client cannot forge its way to another's
//! blocks; by chance two of 2^40 blocks collide with a probability of 2^-49. The key belongs to the
//! process, and so to its one model.

use std::hash::Hasher as _;
use std::sync::Arc;

use scheduler::BlockHash;
use siphasher::sip128::{Hasher128 as _, SipHasher24};

/// Hashes blocks.
#[derive(Clone)]
pub(crate) struct BlockHasher {
    keyed: SipHasher24,
    block_size: usize,
}

/// The key is nobody's business.
impl std::fmt::Debug for BlockHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockHasher").field("block_size", &self.block_size).finish_non_exhaustive()
    }
}

impl BlockHasher {
    /// With a key of its own. `block_size` is in tokens.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn new(block_size: u32) -> Result<BlockHasher, getrandom::Error> {
        let keyed = SipHasher24::new_with_keys(getrandom::u64()?, getrandom::u64()?);
        Ok(BlockHasher { keyed, block_size: block_size as usize })
    }

    /// Where the chains of all requests with this salt begin.
    pub(crate) fn root(&self, salt: Option<&str>) -> BlockHash {
        let mut hasher = self.keyed;
        hasher.write_u8(u8::from(salt.is_some()));
        hasher.write(salt.unwrap_or_default().as_bytes());
        BlockHash(hasher.finish128().as_bytes())
    }

    /// The hash of the block of `tokens` that follows on the block with the hash `before`.
    pub(crate) fn next(&self, before: BlockHash, tokens: &[u32]) -> BlockHash {
        let mut hasher = self.keyed;
        hasher.write(&before.0);
        for pair in tokens.chunks(2) {
            let low = u64::from(pair[0]);
            hasher.write_u64(pair.get(1).map_or(low, |high| low | u64::from(*high) << 32));
        }
        BlockHash(hasher.finish128().as_bytes())
    }

    /// The hashes of the full blocks of `tokens`, first to last.
    pub(crate) fn chain(&self, root: BlockHash, tokens: &[u32]) -> Arc<[BlockHash]> {
        let mut last = root;
        let hash = |block: &[u32]| {
            last = self.next(last, block);
            last
        };
        tokens.chunks_exact(self.block_size).map(hash).collect()
    }

    /// Tokens of a block.
    pub(crate) const fn block_size(&self) -> usize {
        self.block_size
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_hash_stands_for_salt_and_all_tokens_before() {
        let hasher = BlockHasher::new(3).expect("random numbers");
        let mut seen = BTreeSet::new();
        for salt in [None, Some(""), Some("a"), Some("b")] {
            let root = hasher.root(salt);
            for first in [[1, 2, 3], [1, 2, 4], [3, 2, 1], [1 << 17, 2, 3]] {
                let tokens = [&first[..], &[7, 8, 9, 10]].concat();
                let chain = hasher.chain(root, &tokens);
                assert_eq!(chain.len(), 2, "the last token fills no block");
                assert_eq!(chain[1], hasher.next(chain[0], &[7, 8, 9]));
                assert_eq!(chain, hasher.chain(root, &tokens), "the same again");
                assert!(chain.iter().all(|hash| seen.insert(*hash)), "{salt:?} {first:?}");
            }
        }
        let other = BlockHasher::new(3).expect("random numbers");
        assert_ne!(hasher.root(None), other.root(None), "each process has its key");
    }
}
