//! Who queues with whom: sequences of one class that are within their tenants' reservations, or
//! those of one class that borrow. Who runs is overtaken by other lines only.

use crate::class::Class;

/// A class, within reservations or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Line {
    pub(crate) class: Class,
    /// More than its tenant's reservation is for.
    pub(crate) borrows: bool,
}

impl Line {
    /// Every line; without tenants nobody is in the last two.
    pub(crate) const ALL: [Line; 4] = [
        Line { class: Class::Latency, borrows: false },
        Line { class: Class::Throughput, borrows: false },
        Line { class: Class::Latency, borrows: true },
        Line { class: Class::Throughput, borrows: true },
    ];

    /// Position in [`Line::ALL`].
    pub(crate) const fn index(self) -> usize {
        self.class.index() + if self.borrows { 2 } else { 0 }
    }
}
