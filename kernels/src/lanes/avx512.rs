//! Sixteen lanes in one zmm register.
#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::*;

use half::f16;

use crate::cpu::{Cpu, Path};

use super::{Kernel, LANES, Lanes};

/// Proof that the machine has the instructions of [`Path::Avx512Vnni`].
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// The proof, if `cpu` is of this path.
    #[inline]
    pub(super) fn new(cpu: Cpu) -> Option<Avx512> {
        (cpu.path() == Path::Avx512Vnni).then_some(Avx512(()))
    }

    /// Runs a kernel compiled with these instructions.
    #[inline]
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn compiled<K: Kernel>(lanes: Avx512, kernel: K) -> K::Output {
            kernel.run(lanes)
        }
        // SAFETY: `self` exists only where all of these instructions do.
        unsafe { compiled(self, kernel) }
    }
}

// SAFETY, for every block below: `self` proves that the instructions exist (see `new`), and loads
// and stores go through references to sixteen values.
impl Lanes for Avx512 {
    type F32s = __m512;

    const TILE: (usize, usize) = (12, 2);

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: __m512, to: &mut [f32; LANES]) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> __m512 {
        // SAFETY: see the impl; `f16` is a transparent u16.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn store_f16(self, x: __m512, to: &mut [f16; LANES]) {
        let bound = f16::MAX.to_f32_const();
        let x = self.min(self.max(x, self.splat(-bound)), self.splat(bound));
        // SAFETY: see the impl; `f16` is a transparent u16.
        unsafe {
            let halves = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(x);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), halves);
        }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, x: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
    }
    #[inline(always)]
    fn ldexp(self, x: __m512, n: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_scalef_ps(x, n) }
    }
    #[inline(always)]
    fn zero_below(self, value: __m512, x: __m512, limit: f32) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let keep = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_set1_ps(limit));
            _mm512_maskz_mov_ps(keep, value)
        }
    }
    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
    }
    #[inline(always)]
    fn largest(self, x: __m512) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let x = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }
    }
}
