//! The paged KV pool.
//!
//! A block holds the keys and values of [`PagedKv::BLOCK`] tokens of one sequence, for all layers
//! and heads. Within it, each (layer, head) has a page of its own: keys transposed,
//! `[head_dim][32]`, so that one query is multiplied with 32 keys at once and no sum runs across
//! lanes; then values, `[32][head_dim]`. Value rows are padded to whole vectors.

use std::io;

use memmap2::MmapMut;

use crate::lanes::{Element, LANES, Lanes, padded};
use crate::pool::Disjoint;

/// Element type of the KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvDtype {
    /// IEEE half precision; what does not fit becomes the largest finite value.
    F16,
    /// Single precision.
    F32,
}

impl KvDtype {
    /// Bytes of an element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            KvDtype::F16 => 2,
            KvDtype::F32 => 4,
        }
    }
}

/// What a pool keeps for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// Key and value heads of a layer.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl KvShape {
    /// A value row, padded to whole vectors.
    pub(crate) fn value_stride(self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Elements of a page: the keys and values of one layer and head in one block.
    fn page_len(self) -> usize {
        PagedKv::BLOCK * (self.head_dim + self.value_stride())
    }

    /// Elements before the page of this block, layer and head.
    fn page_start(self, block: usize, layer: usize, head: usize) -> usize {
        ((block * self.layers + layer) * self.kv_heads + head) * self.page_len()
    }
}

/// Keys and values of all sequences, in blocks of [`PagedKv::BLOCK`] tokens.
///
/// The memory is mapped, not filled: it is taken as blocks are written, in huge pages where the
/// system has them.
#[derive(Debug)]
pub struct PagedKv {
    shape: KvShape,
    dtype: KvDtype,
    num_blocks: usize,
    memory: MmapMut,
}

impl PagedKv {
    /// Tokens per block.
    pub const BLOCK: usize = 32;

    /// A pool of `num_blocks` zeroed blocks.
    ///
    /// # Errors
    /// The pool is larger than the address space, or the system refuses to map it.
    pub fn new(shape: KvShape, dtype: KvDtype, num_blocks: u32) -> io::Result<PagedKv> {
        let num_blocks = num_blocks as usize;
        let bytes = PagedKv::block_bytes(shape, dtype).checked_mul(num_blocks as u64);
        let bytes = bytes.and_then(|bytes| isize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // A mapping of length zero is an error to some systems.
        let memory = MmapMut::map_anon(bytes.unsigned_abs().max(1))?;
        #[cfg(target_os = "linux")]
        // Blocks are read in pieces of some kilobytes, each of which costs a table walk on small
        // pages. A system without huge pages refuses, which does no harm.
        let _ = memory.advise(memmap2::Advice::HugePage);
        Ok(PagedKv { shape, dtype, num_blocks, memory })
    }

    /// Bytes of one block.
    #[must_use]
    pub fn block_bytes(shape: KvShape, dtype: KvDtype) -> u64 {
        (shape.layers * shape.kv_heads * shape.page_len() * dtype.bytes()) as u64
    }

    /// What it keeps for each token.
    #[must_use]
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> KvDtype {
        self.dtype
    }

    /// Blocks in the pool.
    #[must_use]
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Keys, `[head_dim][32]`, and values, `[32][value_stride]`, of one page.
    #[inline]
    pub(crate) fn page<E: Element>(&self, block: usize, layer: usize, head: usize) -> (&[E], &[E]) {
        self.check::<E>(block, layer, head);
        let (start, len) = (self.shape.page_start(block, layer, head), self.shape.page_len());
        // SAFETY: the page lies in the mapping, which has room for `num_blocks` blocks of elements
        // of this type (checked above); the mapping is aligned to a memory page and initialised.
        let page =
            unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast::<E>().add(start), len) };
        page.split_at(PagedKv::BLOCK * self.shape.head_dim)
    }

    /// The pool, to be written by several threads.
    pub(crate) fn writer<E: Element>(&mut self) -> KvWriter<'_, E> {
        self.check::<E>(0, 0, 0);
        let len = self.num_blocks * self.shape.page_start(1, 0, 0);
        // SAFETY: see `page`; the mapping is borrowed mutably.
        let memory =
            unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast::<E>(), len) };
        KvWriter { shape: self.shape, memory: Disjoint::new(memory) }
    }

    /// One key and one value as f32.
    #[cfg(test)]
    pub(crate) fn get(
        &self,
        block: usize,
        layer: usize,
        head: usize,
        slot: usize,
    ) -> (Vec<f32>, Vec<f32>) {
        fn of<E: Element + Into<f32>>(
            (keys, values): (&[E], &[E]),
            slot: usize,
            shape: KvShape,
        ) -> (Vec<f32>, Vec<f32>) {
            let stride = shape.value_stride();
            let key = keys.chunks(PagedKv::BLOCK).map(|row| row[slot].into());
            let value = values[slot * stride..][..shape.head_dim].iter().map(|&x| x.into());
            (key.collect(), value.collect())
        }
        match self.dtype {
            KvDtype::F16 => of(self.page::<half::f16>(block, layer, head), slot, self.shape),
            KvDtype::F32 => of(self.page::<f32>(block, layer, head), slot, self.shape),
        }
    }

    fn check<E: Element>(&self, block: usize, layer: usize, head: usize) {
        assert!(E::DTYPE == self.dtype, "the pool holds elements of another type");
        let KvShape { layers, kv_heads, .. } = self.shape;
        assert!(block < self.num_blocks && layer < layers && head < kv_heads, "page out of range");
    }
}

/// A KV pool that several threads write, each to blocks of its own.
pub(crate) struct KvWriter<'a, E> {
    shape: KvShape,
    memory: Disjoint<'a, E>,
}

impl<E: Element> KvWriter<'_, E> {
    /// Keys and values of one page, as [`PagedKv::page`] gives them.
    ///
    /// # Safety
    /// Nobody else uses this page meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn page(
        &self,
        block: usize,
        layer: usize,
        head: usize,
    ) -> (&mut [E], &mut [E]) {
        let (start, len) = (self.shape.page_start(block, layer, head), self.shape.page_len());
        // SAFETY: pages do not overlap, and this one is ours by the contract.
        let page = unsafe { self.memory.slice(start, len) };
        page.split_at_mut(PagedKv::BLOCK * self.shape.head_dim)
    }

    /// Stores one key and one value in a slot of the page of a (block, layer, head).
    ///
    /// # Safety
    /// Nobody else uses this page meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn store<L: Lanes>(
        &self,
        lanes: L,
        (block, layer, head): (usize, usize, usize),
        slot: usize,
        key: &[f32],
        value: &[f32],
    ) {
        // SAFETY: the page is ours by the contract.
        let (keys, values) = unsafe { self.page(block, layer, head) };
        let mut column = keys.iter_mut().skip(slot).step_by(PagedKv::BLOCK);
        let mut converted = [E::ZERO; LANES];
        for chunk in key.chunks(LANES) {
            E::store(lanes, lanes.load(&padded(chunk)), &mut converted);
            // The column first: zip would take an element of it too many otherwise.
            converted.iter().zip(column.by_ref()).for_each(|(from, to)| *to = *from);
        }
        let stride = self.shape.value_stride();
        let (row, _) = values[slot * stride..][..stride].as_chunks_mut::<LANES>();
        for (chunk, to) in value.chunks(LANES).zip(row) {
            E::store(lanes, lanes.load(&padded(chunk)), to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape { layers: 2, kv_heads: 3, head_dim: 20 };

    #[test]
    fn pages_tile_the_pool_without_gap_or_overlap() {
        let mut kv = PagedKv::new(SHAPE, KvDtype::F32, 4).unwrap();
        assert_eq!(PagedKv::block_bytes(SHAPE, KvDtype::F32), 2 * 3 * 32 * (20 + 32) * 4);
        let pages =
            || (0..4).flat_map(|b| (0..2).flat_map(move |l| (0..3).map(move |h| (b, l, h))));
        let writer = kv.writer::<f32>();
        for (i, (block, layer, head)) in pages().enumerate() {
            // SAFETY: one page at a time.
            let (keys, values) = unsafe { writer.page(block, layer, head) };
            assert!(keys.iter().chain(values.iter()).all(|&x| x == 0.0), "written twice");
            keys.fill(i as f32 + 1.0);
            values.fill(-(i as f32) - 1.0);
        }
        for (i, (block, layer, head)) in pages().enumerate() {
            let (keys, values) = kv.page::<f32>(block, layer, head);
            assert_eq!((keys.len(), values.len()), (32 * 20, 32 * 32));
            assert!(keys.iter().all(|&x| x == i as f32 + 1.0), "page {i}");
            assert!(values.iter().all(|&x| x == -(i as f32) - 1.0), "page {i}");
        }
    }

    #[test]
    fn a_pool_that_cannot_exist_is_an_error() {
        let huge = KvShape { layers: 1 << 20, kv_heads: 1 << 10, head_dim: 1 << 10 };
        assert!(PagedKv::new(huge, KvDtype::F32, u32::MAX).is_err());
    }
}
