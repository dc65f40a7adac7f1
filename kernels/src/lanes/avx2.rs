//! Sixteen lanes in two ymm registers.
#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::*;

use half::f16;

use crate::cpu::{Cpu, Path};

use super::{Kernel, LANES, Lanes};

/// Proof that the machine has the instructions of [`Path::Avx2`].
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// The lower and the upper eight lanes.
#[derive(Clone, Copy)]
pub(super) struct Pair(__m256, __m256);

impl Avx2 {
    /// The proof, if `cpu` is of this path.
    #[inline]
    pub(super) fn new(cpu: Cpu) -> Option<Avx2> {
        (cpu.path() == Path::Avx2).then_some(Avx2(()))
    }

    /// Runs a kernel compiled with these instructions.
    #[inline]
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn compiled<K: Kernel>(lanes: Avx2, kernel: K) -> K::Output {
            kernel.run(lanes)
        }
        // SAFETY: `self` exists only where all of these instructions do.
        unsafe { compiled(self, kernel) }
    }
}

// SAFETY, for every block below: `self` proves that the instructions exist (see `new`), and loads
// and stores go through references to sixteen values.
impl Lanes for Avx2 {
    type F32s = Pair;

    const TILE: (usize, usize) = (6, 1);

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        // SAFETY: see the impl.
        let x = unsafe { _mm256_set1_ps(x) };
        Pair(x, x)
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Pair {
        // SAFETY: see the impl.
        unsafe { Pair(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from[8..].as_ptr())) }
    }
    #[inline(always)]
    fn store(self, x: Pair, to: &mut [f32; LANES]) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), x.0);
            _mm256_storeu_ps(to[8..].as_mut_ptr(), x.1);
        }
    }
    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> Pair {
        // SAFETY: see the impl; `f16` is a transparent u16.
        unsafe {
            Pair(
                _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from[8..].as_ptr().cast())),
            )
        }
    }
    #[inline(always)]
    fn store_f16(self, x: Pair, to: &mut [f16; LANES]) {
        let bound = f16::MAX.to_f32_const();
        let x = self.min(self.max(x, self.splat(-bound)), self.splat(bound));
        // SAFETY: see the impl; `f16` is a transparent u16.
        unsafe {
            let (low, high) = to.split_at_mut(8);
            let halves = _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(x.0);
            _mm_storeu_si128(low.as_mut_ptr().cast(), halves);
            let halves = _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(x.1);
            _mm_storeu_si128(high.as_mut_ptr().cast(), halves);
        }
    }
    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see the impl.
        unsafe { Pair(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see the impl.
        unsafe { Pair(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see the impl.
        unsafe { Pair(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        // SAFETY: see the impl.
        unsafe { Pair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }
    #[inline(always)]
    fn min(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see the impl.
        unsafe { Pair(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see the impl.
        unsafe { Pair(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn round(self, x: Pair) -> Pair {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: see the impl.
        unsafe { Pair(_mm256_round_ps::<NEAREST>(x.0), _mm256_round_ps::<NEAREST>(x.1)) }
    }
    #[inline(always)]
    fn ldexp(self, x: Pair, n: Pair) -> Pair {
        let scale = |x: __m256, n: __m256| {
            // SAFETY: see the impl. The shift builds 2^n from its exponent field, bias 127.
            unsafe {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased)))
            }
        };
        Pair(scale(x.0, n.0), scale(x.1, n.1))
    }
    #[inline(always)]
    fn zero_below(self, value: Pair, x: Pair, limit: f32) -> Pair {
        let keep = |value: __m256, x: __m256| {
            // SAFETY: see the impl.
            unsafe {
                let mask = _mm256_cmp_ps::<_CMP_GE_OQ>(x, _mm256_set1_ps(limit));
                _mm256_and_ps(mask, value)
            }
        };
        Pair(keep(value.0, x.0), keep(value.1, x.1))
    }
    #[inline(always)]
    fn sum(self, x: Pair) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let x = _mm256_add_ps(x.0, x.1);
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
    }
    #[inline(always)]
    fn largest(self, x: Pair) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let x = _mm256_max_ps(x.0, x.1);
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }
    }
}
