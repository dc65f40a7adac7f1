//! Sixteen f32 lanes, whatever registers they live in, so that each kernel is written once.
//!
//! [`Lanes`] has one implementation for each code path: a zmm register, two ymm registers, or a
//! plain array. A kernel is a type that implements [`Kernel`]; [`dispatch`] compiles its body once
//! for each path, with the path's instructions enabled, and picks one at run time. Every operation
//! works lane by lane in IEEE single precision, and reductions fold halves in a fixed order, so the
//! two vector paths give the same bits; the portable one differs only by rounding products before
//! it adds them.

mod avx2;
mod avx512;
mod portable;

use half::f16;

use crate::cpu::Cpu;
use crate::kv::KvDtype;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// One code path's vectors of sixteen f32. A value of the implementing type proves that the machine
/// has the instructions, which is why the methods are safe.
pub(crate) trait Lanes: Copy {
    /// Sixteen values.
    type F32s: Copy;

    /// Rows and vectors of the largest tile of a matrix product whose accumulators fit in
    /// registers.
    const TILE: (usize, usize);

    fn splat(self, x: f32) -> Self::F32s;
    fn load(self, from: &[f32; LANES]) -> Self::F32s;
    fn store(self, x: Self::F32s, to: &mut [f32; LANES]);
    fn load_f16(self, from: &[f16; LANES]) -> Self::F32s;
    /// Rounds to nearest; values beyond the range of f16 become its largest finite ones.
    fn store_f16(self, x: Self::F32s, to: &mut [f16; LANES]);

    fn add(self, a: Self::F32s, b: Self::F32s) -> Self::F32s;
    fn mul(self, a: Self::F32s, b: Self::F32s) -> Self::F32s;
    fn div(self, a: Self::F32s, b: Self::F32s) -> Self::F32s;
    /// `a * b + c`.
    fn fma(self, a: Self::F32s, b: Self::F32s, c: Self::F32s) -> Self::F32s;
    fn min(self, a: Self::F32s, b: Self::F32s) -> Self::F32s;
    fn max(self, a: Self::F32s, b: Self::F32s) -> Self::F32s;
    /// To the nearest integer, ties to even.
    fn round(self, x: Self::F32s) -> Self::F32s;
    /// `x * 2^n` for integers `n` in -126..=127.
    fn ldexp(self, x: Self::F32s, n: Self::F32s) -> Self::F32s;
    /// `value` where `x >= limit`, else 0.
    fn zero_below(self, value: Self::F32s, x: Self::F32s, limit: f32) -> Self::F32s;
    /// The sum of all lanes: halves are added until one value is left.
    fn sum(self, x: Self::F32s) -> f32;
    /// The largest lane.
    fn largest(self, x: Self::F32s) -> f32;

    /// `e^x` to about one unit in the last place; 0 below -87.3, where the result would be
    /// denormal.
    #[inline(always)]
    fn exp(self, x: Self::F32s) -> Self::F32s {
        const LIMIT: f32 = -87.3;
        let clamped = self.min(self.max(x, self.splat(LIMIT)), self.splat(88.3));
        let n = self.round(self.mul(clamped, self.splat(core::f32::consts::LOG2_E)));
        // ln 2 in two parts, so that `clamped - n ln 2` keeps its low bits.
        let r = self.fma(n, self.splat(-0.693_359_4), clamped);
        let r = self.fma(n, self.splat(2.121_944_4e-4), r);
        // Cephes' minimax polynomial for e^r on [-ln 2 / 2, ln 2 / 2].
        let mut p = self.splat(1.987_569_1e-4);
        for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = self.fma(p, r, self.splat(coefficient));
        }
        let p = self.fma(p, self.mul(r, r), self.add(r, self.splat(1.0)));
        self.zero_below(self.ldexp(p, n), x, LIMIT)
    }
}

/// A kernel: a body that is compiled once for each code path.
pub(crate) trait Kernel {
    type Output;
    /// The body. Must be `#[inline(always)]`, or it is compiled without the path's instructions.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Runs a kernel on the path of `cpu`.
#[inline]
pub(crate) fn dispatch<K: Kernel>(cpu: Cpu, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(lanes) = avx512::Avx512::new(cpu) {
            return lanes.run(kernel);
        }
        if let Some(lanes) = avx2::Avx2::new(cpu) {
            return lanes.run(kernel);
        }
    }
    kernel.run(portable::Portable)
}

/// Asks for the cache line at `address`, which may be any.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction, and it reads nothing that a program could see.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Up to sixteen values, filled up with zeros.
#[inline(always)]
pub(crate) fn padded(values: &[f32]) -> [f32; LANES] {
    match values.first_chunk() {
        Some(whole) => *whole,
        None => {
            let mut padded = [0.0; LANES];
            padded[..values.len()].copy_from_slice(values);
            padded
        }
    }
}

/// What the KV pool is made of: f32 or f16, sixteen at a time.
///
/// # Safety
/// Implementors may have any bit pattern, and their alignment is at most their size.
pub(crate) unsafe trait Element: Copy + Send + Sync {
    const DTYPE: KvDtype;
    const ZERO: Self;
    fn load<L: Lanes>(lanes: L, from: &[Self; LANES]) -> L::F32s;
    fn store<L: Lanes>(lanes: L, x: L::F32s, to: &mut [Self; LANES]);
}

// SAFETY: every bit pattern is an f32.
unsafe impl Element for f32 {
    const DTYPE: KvDtype = KvDtype::F32;
    const ZERO: f32 = 0.0;
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[f32; LANES]) -> L::F32s {
        lanes.load(from)
    }
    #[inline(always)]
    fn store<L: Lanes>(lanes: L, x: L::F32s, to: &mut [f32; LANES]) {
        lanes.store(x, to);
    }
}

// SAFETY: every bit pattern is an f16.
unsafe impl Element for f16 {
    const DTYPE: KvDtype = KvDtype::F16;
    const ZERO: f16 = f16::ZERO;
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[f16; LANES]) -> L::F32s {
        lanes.load_f16(from)
    }
    #[inline(always)]
    fn store<L: Lanes>(lanes: L, x: L::F32s, to: &mut [f16; LANES]) {
        lanes.store_f16(x, to);
    }
}

#[cfg(test)]
mod tests;
