//! Kernels for AVX-512 with VNNI: 16 output rows in a vector.
//!
//! `vpdpbusd` multiplies 4 unsigned bytes of each lane (the weights of 4 columns) with 4 signed
//! ones (the same 4 activations in every lane) and adds the products to the lane's 32-bit sum. The
//! weights of a block of 32 columns stay in 8 registers while the rows of a tile go by.

use super::product::{STRIP, for_rows, prefetch};
use crate::activations::{BLOCK, Block};
use std::arch::x86_64::*;

const LANES: usize = 16;
/// Vectors of a block: 4 columns each.
const GROUPS: usize = BLOCK / 4;
/// Bytes of the columns of a block, where its scales begin.
const Q4_COLUMNS: usize = LANES * BLOCK / 2;
const Q8_COLUMNS: usize = LANES * BLOCK;

/// Computes the rows of `tile` (8 at most) from as many rows of activations.
///
/// # Safety
/// The machine has AVX-512 F, BW, DQ, VL and VNNI.
pub(super) unsafe fn q4(panel: &[u8], x: &[Block], tile: &mut [[f32; STRIP]]) {
    // SAFETY: the caller's promise.
    unsafe { for_rows!(tile.len(), q4_rows(panel, x, tile)) }
}

/// As [`q4`], for 8-bit weights.
///
/// # Safety
/// As for [`q4`].
pub(super) unsafe fn q8(panel: &[u8], x: &[Block], tile: &mut [[f32; STRIP]]) {
    // SAFETY: the caller's promise.
    unsafe { for_rows!(tile.len(), q8_rows(panel, x, tile)) }
}

/// As [`q4`], for f32 weights.
///
/// # Safety
/// As for [`q4`].
pub(super) unsafe fn f32(panel: &[u8], x: &[f32], tile: &mut [[f32; STRIP]]) {
    // SAFETY: the caller's promise.
    unsafe { for_rows!(tile.len(), f32_rows(panel, x, tile)) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn q4_rows<const M: usize>(panel: &[u8], x: &[Block], tile: &mut [[f32; STRIP]]) {
    let (blocks, _) = panel.as_chunks::<{ Q4_COLUMNS + LANES * 4 }>();
    let stride = blocks.len();
    assert!(x.len() == M * stride, "panel and rows of one width");
    let low = _mm512_set1_epi8(15);
    let mut sums = [_mm512_setzero_ps(); M];
    for (b, block) in blocks.iter().enumerate() {
        prefetch(block);
        let mut w = [_mm512_setzero_si512(); GROUPS];
        for g in 0..GROUPS / 2 {
            let both = load(block, g);
            w[g] = _mm512_and_si512(both, low);
            w[g + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        }
        let scale = halves(block, Q4_COLUMNS);
        let min = halves(block, Q4_COLUMNS + 2 * LANES);
        for (r, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `r < M` and `b < stride`, and `x` has `M * stride` blocks.
            let x = unsafe { x.get_unchecked(r * stride + b) };
            let dot = _mm512_cvtepi32_ps(dot(_mm512_setzero_si512(), &w, x));
            let scale = _mm512_mul_ps(scale, _mm512_set1_ps(x.scale));
            *sum = _mm512_fmadd_ps(dot, scale, *sum);
            *sum = _mm512_fmadd_ps(min, _mm512_set1_ps(x.sum), *sum);
        }
    }
    store(&sums, tile);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn q8_rows<const M: usize>(panel: &[u8], x: &[Block], tile: &mut [[f32; STRIP]]) {
    let (blocks, _) = panel.as_chunks::<{ Q8_COLUMNS + LANES * 2 }>();
    let stride = blocks.len();
    assert!(x.len() == M * stride, "panel and rows of one width");
    let mut sums = [_mm512_setzero_ps(); M];
    for (b, block) in blocks.iter().enumerate() {
        prefetch(block);
        let mut w = [_mm512_setzero_si512(); GROUPS];
        for (g, w) in w.iter_mut().enumerate() {
            *w = load(block, g);
        }
        let scale = halves(block, Q8_COLUMNS);
        for (r, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `r < M` and `b < stride`, and `x` has `M * stride` blocks.
            let x = unsafe { x.get_unchecked(r * stride + b) };
            let dot = _mm512_cvtepi32_ps(dot(_mm512_set1_epi32(x.bias), &w, x));
            let scale = _mm512_mul_ps(scale, _mm512_set1_ps(x.scale));
            *sum = _mm512_fmadd_ps(dot, scale, *sum);
        }
    }
    store(&sums, tile);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn f32_rows<const M: usize>(panel: &[u8], x: &[f32], tile: &mut [[f32; STRIP]]) {
    let (columns, _) = panel.as_chunks::<{ LANES * 4 }>();
    let k = columns.len();
    assert!(x.len() == M * k, "panel and rows of one width");
    let mut sums = [_mm512_setzero_ps(); M];
    for (c, column) in columns.iter().enumerate() {
        // SAFETY: `column` has one vector.
        let w = unsafe { _mm512_loadu_ps(column.as_ptr().cast()) };
        for (r, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `r < M` and `c < k`, and `x` has `M * k` values.
            let x = unsafe { *x.get_unchecked(r * k + c) };
            *sum = _mm512_fmadd_ps(w, _mm512_set1_ps(x), *sum);
        }
    }
    store(&sums, tile);
}

/// `start` plus the dot products of a block's columns with `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn dot(start: __m512i, w: &[__m512i; GROUPS], x: &Block) -> __m512i {
    let mut dot = start;
    for (w, x) in w.iter().zip(x.q.as_chunks::<4>().0) {
        let x = i32::from_ne_bytes(x.map(|q| q as u8));
        dot = _mm512_dpbusd_epi32(dot, *w, _mm512_set1_epi32(x));
    }
    dot
}

/// Vector `g` of a block's columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn load<const N: usize>(block: &[u8; N], g: usize) -> __m512i {
    assert!(64 * g + 64 <= N);
    // SAFETY: in bounds, just checked.
    unsafe { _mm512_loadu_si512(block.as_ptr().add(64 * g).cast()) }
}

/// 16 f16 values from byte `at` of a block on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn halves<const N: usize>(block: &[u8; N], at: usize) -> __m512 {
    assert!(at + 2 * LANES <= N);
    // SAFETY: in bounds, just checked.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(block.as_ptr().add(at).cast()) })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn store<const M: usize>(sums: &[__m512; M], tile: &mut [[f32; STRIP]]) {
    const { assert!(STRIP == LANES) };
    for (sum, row) in sums.iter().zip(tile) {
        // SAFETY: a row of the tile is one vector.
        unsafe { _mm512_storeu_ps(row.as_mut_ptr(), *sum) };
    }
}
