//! Time as the scheduler knows it: whole microseconds, handed in by the caller.

/// A point in time or a span, in microseconds since an origin that the caller chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Micros(pub u64);

impl Micros {
    /// The largest time; used for "never".
    pub const MAX: Micros = Micros(u64::MAX);

    /// From whole milliseconds, saturating.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Micros {
        Micros(ms.saturating_mul(1_000))
    }

    /// Sum that stops at [`Micros::MAX`].
    #[must_use]
    pub const fn plus(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }

    /// Difference that stops at zero.
    #[must_use]
    pub const fn minus(self, other: Micros) -> Micros {
        Micros(self.0.saturating_sub(other.0))
    }

    /// Whole milliseconds, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000
    }
}
