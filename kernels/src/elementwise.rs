//! RMS norm.

use crate::cpu::Cpu;
use crate::lanes::{Kernel, LANES, Lanes, dispatch, padded};

/// `out = x / sqrt(mean(x^2) + eps) * weight`. The squares are summed in sixteen lanes, so the
/// result is the same on every machine that fuses multiplication and addition.
///
/// # Panics
/// The three slices differ in length.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len(), "slices of different lengths");
    dispatch(Cpu::detect(), Norm { x, weight, eps, out });
}

struct Norm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let scale = inverse_rms(lanes, self.x, self.eps);
        let scaled = self.x.iter().zip(self.weight).map(|(x, weight)| x * scale * weight);
        self.out.iter_mut().zip(scaled).for_each(|(out, scaled)| *out = scaled);
    }
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
pub(crate) fn inverse_rms<L: Lanes>(lanes: L, x: &[f32], eps: f32) -> f32 {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let mut squares = lanes.splat(0.0);
    for chunk in chunks {
        let chunk = lanes.load(chunk);
        squares = lanes.fma(chunk, chunk, squares);
    }
    let tail = lanes.load(&padded(tail));
    squares = lanes.fma(tail, tail, squares);
    1.0 / (lanes.sum(squares) / x.len() as f32 + eps).sqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct InverseRms<'a>(&'a [f32]);
    impl Kernel for InverseRms<'_> {
        type Output = f32;
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) -> f32 {
            inverse_rms(lanes, self.0, 1e-5)
        }
    }

    proptest! {
        #[test]
        fn norm_divides_by_the_root_of_the_mean_square(
            x in prop::collection::vec(-10_f32..10.0, 1..100),
        ) {
            let mean: f64 =
                x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
            let scale = 1.0 / (mean + 1e-5).sqrt();
            for cpu in Cpu::supported() {
                let got = f64::from(dispatch(cpu, InverseRms(&x)));
                prop_assert!((got / scale - 1.0).abs() < 1e-6, "{cpu:?}: {got}, not {scale}");
            }
            let weight: Vec<f32> = (0..x.len()).map(|i| i as f32 - 3.0).collect();
            let mut out = vec![f32::NAN; x.len()];
            rms_norm(&x, &weight, 1e-5, &mut out);
            for ((out, x), weight) in out.iter().zip(&x).zip(weight) {
                let want = f64::from(*x) * scale * f64::from(weight);
                prop_assert!((f64::from(*out) - want).abs() <= want.abs() * 1e-6 + 1e-12);
            }
        }
    }
}
