//! Memory for packed weights, on huge pages where the system grants them.
//!
//! Decoding one sequence reads every weight once a step, which is bound by memory. With pages of
//! 4 KiB it is bound by page walks too (prefetchers stop at the end of a page): one core here read
//! 27 GB/s with them and 35 GB/s with pages of 2 MiB. A matrix is often smaller than that, so
//! matrices are cut from slabs.

use std::alloc;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A cache line, which is what matrices are aligned to.
const LINE: usize = 64;
/// A huge page, which is what slabs are aligned to.
const PAGE: usize = 2 << 20;
/// Bytes of a slab, unless a matrix needs more. What is never cut from it is never touched.
const SLAB: usize = 16 << 20;

/// Zeroed bytes, part of a slab that lives as long as any part of it.
#[derive(Debug)]
pub(super) struct Storage {
    slab: Arc<Slab>,
    start: usize,
    len: usize,
}

#[derive(Debug)]
struct Slab {
    data: NonNull<u8>,
    layout: alloc::Layout,
}

// SAFETY: a slab is memory without an owner's thread; its parts do not overlap, and each belongs to
// one `Storage`, whose borrows guard it.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

/// The slab that parts are cut from, and how much of it is taken.
static CURRENT: Mutex<(Weak<Slab>, usize)> = Mutex::new((Weak::new(), 0));

impl Storage {
    /// `len` bytes, all zero, aligned to a cache line.
    pub(super) fn zeroed(len: usize) -> Storage {
        let (slab, start) = take(len.next_multiple_of(LINE));
        // SAFETY: `take` handed out these bytes of the slab to us alone.
        unsafe { slab.data.add(start).write_bytes(0, len) };
        Storage { slab, start, len }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: these bytes are ours, initialised by `zeroed`, and live as long as the slab.
        unsafe { NonNull::slice_from_raw_parts(self.slab.data.add(self.start), self.len).as_ref() }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the borrow is exclusive.
        unsafe { NonNull::slice_from_raw_parts(self.slab.data.add(self.start), self.len).as_mut() }
    }
}

/// Takes `len` bytes of the current slab, or of a new one if they do not fit.
fn take(len: usize) -> (Arc<Slab>, usize) {
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let (slab, used) = &mut *current;
    if let Some(slab) = slab.upgrade().filter(|slab| len <= slab.layout.size() - *used) {
        let start = *used;
        *used += len;
        return (slab, start);
    }
    let new = Arc::new(Slab::new(len.next_multiple_of(PAGE).max(SLAB)));
    // A large matrix fills its slab: go on with whichever has more room left.
    if new.layout.size() - len >= slab.upgrade().map_or(0, |slab| slab.layout.size() - *used) {
        *current = (Arc::downgrade(&new), len);
    }
    (new, 0)
}

impl Slab {
    fn new(len: usize) -> Slab {
        let layout = alloc::Layout::from_size_align(len, PAGE).expect("sizes of matrices fit");
        // SAFETY: the size is not zero.
        let data = unsafe { alloc::alloc(layout) };
        let data = NonNull::new(data).unwrap_or_else(|| alloc::handle_alloc_error(layout));
        #[cfg(target_os = "linux")]
        // SAFETY: advice on memory of our own. A refusal leaves small pages, which work as well.
        unsafe {
            libc::madvise(data.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
        }
        Slab { data, layout }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no part of it is left.
        unsafe { alloc::dealloc(self.data.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_zeroed_and_apart() {
        let sizes = [1, 64, 1000, SLAB - PAGE, 3 * PAGE, SLAB + 1, 0, 77];
        let mut parts: Vec<_> = sizes.into_iter().map(Storage::zeroed).collect();
        for (i, part) in parts.iter_mut().enumerate() {
            assert_eq!(part.bytes().as_ptr().addr() % LINE, 0);
            assert!(part.bytes().iter().all(|&byte| byte == 0));
            part.bytes_mut().fill(i as u8 + 1);
        }
        for (i, part) in parts.iter().enumerate() {
            assert_eq!(part.bytes().len(), sizes[i]);
            assert!(part.bytes().iter().all(|&byte| byte == i as u8 + 1));
        }
    }
}
