//! Notices that the machine has changed its clock.

/// Steps in a row that must agree.
const STEPS: usize = 8;
/// What each of them must be off by at least, to the same side.
const OFF: f64 = 1.08;
/// Steps with more leverage than this tell of the shape of the model, not of the clock.
const FAMILIAR: f64 = 0.15;

/// The latest ratios of actual to predicted cost, of steps of a kind that was well known.
#[derive(Clone, Debug, Default)]
pub(super) struct Shift {
    ratios: [f64; STEPS],
    len: usize,
}

impl Shift {
    /// One step. Returns by what factor steps take longer than they did, once enough agree: their
    /// median.
    pub(super) fn observe(&mut self, ratio: f64, leverage: f64) -> Option<f64> {
        if leverage > FAMILIAR {
            return None;
        }
        let agrees = |other: f64| (ratio > 1.0) == (other > 1.0);
        if !(OFF.recip()..OFF).contains(&ratio)
            && self.ratios[..self.len].iter().all(|&r| agrees(r))
        {
            self.ratios[self.len] = ratio;
            self.len += 1;
        } else {
            self.len = 0;
        }
        if self.len < STEPS {
            return None;
        }
        self.len = 0;
        self.ratios.sort_unstable_by(f64::total_cmp);
        Some(self.ratios[STEPS / 2])
    }
}
