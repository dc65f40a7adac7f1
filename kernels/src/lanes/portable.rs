//! Sixteen lanes in a plain array, for machines without AVX2 and as the reference of the others.

use half::f16;

use super::{LANES, Lanes};

/// The plain path.
#[derive(Clone, Copy)]
pub(super) struct Portable;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    core::array::from_fn(|i| f(a[i], b[i]))
}

/// Folds the upper half onto the lower one until one value is left.
#[inline(always)]
fn fold(mut x: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            x[i] = f(x[i], x[i + half]);
        }
        half /= 2;
    }
    x[0]
}

impl Lanes for Portable {
    type F32s = [f32; LANES];

    const TILE: (usize, usize) = (2, 1);

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; LANES] {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> [f32; LANES] {
        *from
    }
    #[inline(always)]
    fn store(self, x: [f32; LANES], to: &mut [f32; LANES]) {
        *to = x;
    }
    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> [f32; LANES] {
        from.map(f16::to_f32)
    }
    #[inline(always)]
    fn store_f16(self, x: [f32; LANES], to: &mut [f16; LANES]) {
        let bound = f16::MAX.to_f32();
        *to = x.map(|x| f16::from_f32(x.clamp(-bound, bound)));
    }
    #[inline(always)]
    fn add(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn mul(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        zip(a, b, |a, b| a / b)
    }
    /// Rounds twice: without the instruction a true `mul_add` is a slow library call.
    #[inline(always)]
    fn fma(self, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        core::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn min(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn round(self, x: [f32; LANES]) -> [f32; LANES] {
        x.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn ldexp(self, x: [f32; LANES], n: [f32; LANES]) -> [f32; LANES] {
        // The exponent field of 2^n, with its bias of 127.
        zip(x, n, |x, n| x * f32::from_bits(((n as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    fn zero_below(self, value: [f32; LANES], x: [f32; LANES], limit: f32) -> [f32; LANES] {
        zip(value, x, |value, x| if x >= limit { value } else { 0.0 })
    }
    #[inline(always)]
    fn sum(self, x: [f32; LANES]) -> f32 {
        fold(x, |a, b| a + b)
    }
    #[inline(always)]
    fn largest(self, x: [f32; LANES]) -> f32 {
        fold(x, f32::max)
    }
}
