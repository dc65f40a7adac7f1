//! The gate's view of the cache: which contents are there, kept up to date by changes.

use alloc::collections::{BTreeMap, BTreeSet};

use super::{BlockHash, leading};
use crate::request::{Request, SequenceSpec};

/// What came into the cache and what went, each content at most once: at most two for each block of
/// the pool, however long nobody asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CacheChanges(BTreeMap<BlockHash, bool>);

impl CacheChanges {
    pub(crate) fn add(&mut self, hash: BlockHash) {
        self.note(hash, true);
    }

    pub(crate) fn remove(&mut self, hash: BlockHash) {
        self.note(hash, false);
    }

    /// What came after it went, or the other way round, did not change.
    fn note(&mut self, hash: BlockHash, came: bool) {
        if self.0.remove(&hash).is_none() {
            self.0.insert(hash, came);
        }
    }
}

/// The contents that are cached, as of the last step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct CachedPrefixes(BTreeSet<BlockHash>);

impl CachedPrefixes {
    pub(crate) fn update(&mut self, changes: CacheChanges) {
        for (hash, came) in changes.0 {
            if came {
                self.0.insert(hash);
            } else {
                self.0.remove(&hash);
            }
        }
    }

    /// Tokens of the prompt of `spec` that need not be computed; one at least has to be.
    pub(crate) fn tokens(&self, request: &Request, spec: &SequenceSpec, block_size: u32) -> u32 {
        let Some(prefix) = request.prefixes.get(spec.prompt as usize) else { return 0 };
        let most = ((spec.prompt_tokens - 1) / block_size) as usize;
        let blocks = leading(most.min(prefix.len()), |i| self.0.contains(&prefix[i]));
        blocks as u32 * block_size
    }

    /// Most tokens of a prompt of at least `tokens` tokens that may turn out to be cached.
    pub(crate) fn most_tokens(&self, tokens: u32, block_size: u32) -> u32 {
        (tokens - 1).min((self.0.len() as u32).saturating_mul(block_size))
    }

    #[cfg(test)]
    pub(crate) const fn contents(&self) -> &BTreeSet<BlockHash> {
        &self.0
    }
}
