//! Lists that grow a little at a time: one that doubled would hold, just after it has grown, twice
//! the memory of what waits.

use alloc::vec::Vec;

/// A list has room for one more in this many.
pub(crate) const PER_ROOM: usize = 128;

/// Room beside `len` items; a few at least, so that short lists do not grow with every item.
const fn room(len: usize) -> usize {
    16 + len / PER_ROOM
}

/// An empty list with room for `len` items and a little more.
pub(crate) fn with_room<T>(len: usize) -> Vec<T> {
    Vec::with_capacity(len + room(len))
}

/// Appends an item.
pub(crate) fn push<T>(list: &mut Vec<T>, item: T) {
    insert(list, list.len(), item);
}

/// Puts an item before the one at `index`.
pub(crate) fn insert<T>(list: &mut Vec<T>, index: usize, item: T) {
    if list.len() == list.capacity() {
        list.reserve_exact(room(list.len()));
    }
    list.insert(index, item);
}

#[cfg(test)]
mod tests {
    use core::mem::size_of;

    use super::*;
    use crate::columns::Row;
    use crate::ledger::Reservation;
    use crate::sequence::Sequence;
    use crate::timeline::Entry;

    /// All that is kept of a waiting request with one sequence, with the room that is left in the
    /// lists, stays within what is promised. What is measured is held in `tests/it/memory.rs`.
    #[test]
    fn a_waiting_request_is_at_most_256_bytes_in_all_lists() {
        let waiting = size_of::<Sequence>();
        let reserved = size_of::<Option<Reservation>>() + size_of::<u32>();
        let forecast = size_of::<Entry>() + size_of::<Row>() + size_of::<(i32, i32)>();
        let each = waiting + reserved + forecast;
        let with_room = (each * (PER_ROOM + 1)).div_ceil(PER_ROOM);
        assert!(with_room <= 256, "{waiting} + {reserved} + {forecast} = {each}, {with_room}");
    }

    #[test]
    fn lists_grow_by_a_128th() {
        let mut list = Vec::new();
        for i in 0..10_000 {
            insert(&mut list, i / 2, i);
            assert!(list.capacity() <= list.len() + room(list.len()));
        }
    }
}
