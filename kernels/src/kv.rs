//! The paged KV pool.

/// Element type of the KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvDtype {
    /// IEEE half precision.
    F16,
    /// Single precision.
    F32,
}

/// Keys and values of all sequences, in blocks of [`PagedKv::BLOCK`] tokens.
#[derive(Debug)]
pub struct PagedKv {}

impl PagedKv {
    /// Tokens per block.
    pub const BLOCK: usize = 32;
}
