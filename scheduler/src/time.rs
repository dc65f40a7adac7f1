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

/// A time or none, in the size of a time: [`Micros::MAX`], "never", is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MaybeMicros(Micros);

impl MaybeMicros {
    /// No time.
    pub const NONE: MaybeMicros = MaybeMicros(Micros::MAX);

    /// `time`, if there is one.
    #[must_use]
    pub fn new(time: Option<Micros>) -> MaybeMicros {
        MaybeMicros(time.unwrap_or(Micros::MAX))
    }

    /// The time, if there is one.
    #[must_use]
    pub fn get(self) -> Option<Micros> {
        Some(self.0).filter(|time| *time < Micros::MAX)
    }

    /// The time becomes `time`, unless there is one already.
    pub(crate) fn get_or_insert(&mut self, time: Micros) {
        self.0 = self.get().unwrap_or(time);
    }
}

/// A span in 32 bits. Spans of 71 minutes (2^32 - 1 microseconds) and more count as that long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Span(u32);

impl Span {
    pub(crate) fn new(span: Micros) -> Span {
        Span(u32::try_from(span.0).unwrap_or(u32::MAX))
    }

    pub(crate) fn micros(self) -> Micros {
        Micros(self.0.into())
    }

    /// The span, unless it may have been longer.
    pub(crate) fn exact(self) -> Option<Micros> {
        (self.0 < u32::MAX).then(|| self.micros())
    }

    /// It becomes `more` microseconds longer.
    pub(crate) const fn extend(&mut self, more: u32) {
        self.0 = self.0.saturating_add(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_or_none_is_what_was_put_in() {
        for time in [None, Some(Micros(0)), Some(Micros(u64::MAX - 1))] {
            assert_eq!(MaybeMicros::new(time).get(), time);
        }
        assert_eq!(MaybeMicros::new(Some(Micros::MAX)), MaybeMicros::NONE);
        let mut time = MaybeMicros::NONE;
        time.get_or_insert(Micros(3));
        time.get_or_insert(Micros(4));
        assert_eq!(time.get(), Some(Micros(3)));
    }

    #[test]
    fn spans_stop_at_71_minutes_and_say_so() {
        let most = Micros(u32::MAX.into());
        assert_eq!(most.0 / 60_000_000, 71);
        for span in [Micros(0), Micros(1), Micros(most.0 - 1)] {
            assert_eq!((Span::new(span).micros(), Span::new(span).exact()), (span, Some(span)));
        }
        for span in [most, Micros(most.0 + 1), Micros::MAX] {
            assert_eq!((Span::new(span).micros(), Span::new(span).exact()), (most, None));
        }
        let mut span = Span::new(Micros(most.0 - 5));
        span.extend(4);
        assert_eq!(span.exact(), Some(Micros(most.0 - 1)));
        span.extend(4);
        assert_eq!((span.micros(), span.exact()), (most, None));
    }
}
