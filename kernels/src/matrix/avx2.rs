//! Kernels for AVX2, FMA and F16C: 8 output rows in a vector (two vectors for f32 weights).
//!
//! `vpmaddubsw` multiplies unsigned bytes (the weights) with signed ones (the activations) and adds
//! neighbours to 16 bits. Nibbles leave room to add up a whole block of 32 columns in 16 bits:
//! 8 groups of at most 2 * 15 * 127 are 30,480. For 8-bit weights a single group fills the 16 bits,
//! and the sign moves from the weight to the activation.

use super::product::{STRIP, for_rows, prefetch};
use crate::activations::{BLOCK, Block};
use std::arch::x86_64::*;

const LANES: usize = 8;
/// Vectors of a block: 4 columns each.
const GROUPS: usize = BLOCK / 4;
/// Bytes of the columns of a block, where its scales begin.
const Q4_COLUMNS: usize = LANES * BLOCK / 2;
const Q8_COLUMNS: usize = LANES * BLOCK;

/// Computes 8 columns, from `column` on, of the rows of `tile` (8 at most) from as many rows of
/// activations.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
pub(super) unsafe fn q4(panel: &[u8], x: &[Block], tile: &mut [[f32; STRIP]], column: usize) {
    // SAFETY: the caller's promise.
    unsafe { for_rows!(tile.len(), q4_rows(panel, x, tile, column)) }
}

/// As [`q4`], for 8-bit weights.
///
/// # Safety
/// As for [`q4`].
pub(super) unsafe fn q8(panel: &[u8], x: &[Block], tile: &mut [[f32; STRIP]], column: usize) {
    // SAFETY: the caller's promise.
    unsafe { for_rows!(tile.len(), q8_rows(panel, x, tile, column)) }
}

/// As [`q4`], for f32 weights and all 16 columns.
///
/// # Safety
/// As for [`q4`].
pub(super) unsafe fn f32(panel: &[u8], x: &[f32], tile: &mut [[f32; STRIP]]) {
    // Sums of 4 rows are what 16 registers hold.
    let k = x.len() / tile.len();
    for (x, tile) in x.chunks(4 * k).zip(tile.chunks_mut(4)) {
        // SAFETY: the caller's promise.
        unsafe { for_rows!(tile.len(), f32_rows(panel, x, tile)) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q4_rows<const M: usize>(panel: &[u8], x: &[Block], tile: &mut [[f32; STRIP]], column: usize) {
    let (blocks, _) = panel.as_chunks::<{ Q4_COLUMNS + LANES * 4 }>();
    let stride = blocks.len();
    assert!(x.len() == M * stride, "panel and rows of one width");
    let nibble = _mm256_set1_epi8(15);
    let ones = _mm256_set1_epi16(1);
    let mut sums = [_mm256_setzero_ps(); M];
    for (b, block) in blocks.iter().enumerate() {
        if M > 1 {
            prefetch(block);
        }
        // SAFETY: `r < M` and `b < stride`, and `x` has `M * stride` blocks.
        let row = |r: usize| unsafe { x.get_unchecked(r * stride + b) };
        let mut dots = [_mm256_setzero_si256(); M];
        for g in 0..GROUPS / 2 {
            let both = load(block, g);
            let low = _mm256_and_si256(both, nibble);
            let high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
            for (r, dot) in dots.iter_mut().enumerate() {
                let low = _mm256_maddubs_epi16(low, group(row(r), g));
                let high = _mm256_maddubs_epi16(high, group(row(r), g + GROUPS / 2));
                *dot = _mm256_add_epi16(*dot, _mm256_add_epi16(low, high));
            }
        }
        let scale = halves(block, Q4_COLUMNS);
        let min = halves(block, Q4_COLUMNS + 2 * LANES);
        for (r, (sum, dot)) in sums.iter_mut().zip(dots).enumerate() {
            let dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(dot, ones));
            let scale = _mm256_mul_ps(scale, _mm256_set1_ps(row(r).scale));
            *sum = _mm256_fmadd_ps(dot, scale, *sum);
            *sum = _mm256_fmadd_ps(min, _mm256_set1_ps(row(r).sum), *sum);
        }
    }
    store(&sums, tile, column);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q8_rows<const M: usize>(panel: &[u8], x: &[Block], tile: &mut [[f32; STRIP]], column: usize) {
    let (blocks, _) = panel.as_chunks::<{ Q8_COLUMNS + LANES * 2 }>();
    let stride = blocks.len();
    assert!(x.len() == M * stride, "panel and rows of one width");
    let offset = _mm256_set1_epi8(-128);
    let ones = _mm256_set1_epi16(1);
    let mut sums = [_mm256_setzero_ps(); M];
    for (b, block) in blocks.iter().enumerate() {
        if M > 1 {
            prefetch(block);
        }
        // SAFETY: `r < M` and `b < stride`, and `x` has `M * stride` blocks.
        let row = |r: usize| unsafe { x.get_unchecked(r * stride + b) };
        let mut dots = [_mm256_setzero_si256(); M];
        for g in 0..GROUPS {
            let w = _mm256_xor_si256(load(block, g), offset);
            let size = _mm256_abs_epi8(w);
            for (r, dot) in dots.iter_mut().enumerate() {
                let x = _mm256_sign_epi8(group(row(r), g), w);
                let pairs = _mm256_maddubs_epi16(size, x);
                *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(pairs, ones));
            }
        }
        let scale = halves(block, Q8_COLUMNS);
        for (r, (sum, dot)) in sums.iter_mut().zip(dots).enumerate() {
            let scale = _mm256_mul_ps(scale, _mm256_set1_ps(row(r).scale));
            *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, *sum);
        }
    }
    store(&sums, tile, column);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn f32_rows<const M: usize>(panel: &[u8], x: &[f32], tile: &mut [[f32; STRIP]]) {
    let (columns, _) = panel.as_chunks::<{ STRIP * 4 }>();
    let k = columns.len();
    assert!(x.len() == M * k, "panel and rows of one width");
    let mut sums = [[_mm256_setzero_ps(); 2]; M];
    for (c, column) in columns.iter().enumerate() {
        // SAFETY: `column` has two vectors.
        let w = unsafe {
            [
                _mm256_loadu_ps(column.as_ptr().cast()),
                _mm256_loadu_ps(column.as_ptr().add(32).cast()),
            ]
        };
        for (r, [first, second]) in sums.iter_mut().enumerate() {
            // SAFETY: `r < M` and `c < k`, and `x` has `M * k` values.
            let x = _mm256_set1_ps(unsafe { *x.get_unchecked(r * k + c) });
            *first = _mm256_fmadd_ps(w[0], x, *first);
            *second = _mm256_fmadd_ps(w[1], x, *second);
        }
    }
    store(&sums.map(|sums| sums[0]), tile, 0);
    store(&sums.map(|sums| sums[1]), tile, LANES);
}

/// Vector `g` of a block's columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load<const N: usize>(block: &[u8; N], g: usize) -> __m256i {
    assert!(32 * g + 32 <= N);
    // SAFETY: in bounds, just checked.
    unsafe { _mm256_loadu_si256(block.as_ptr().add(32 * g).cast()) }
}

/// 4 activations in every lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn group(x: &Block, group: usize) -> __m256i {
    let x = x.q.as_chunks::<4>().0[group].map(|q| q as u8);
    _mm256_set1_epi32(i32::from_ne_bytes(x))
}

/// 8 f16 values from byte `at` of a block on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn halves<const N: usize>(block: &[u8; N], at: usize) -> __m256 {
    assert!(at + 2 * LANES <= N);
    // SAFETY: in bounds, just checked.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(block.as_ptr().add(at).cast()) })
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store<const M: usize>(sums: &[__m256; M], tile: &mut [[f32; STRIP]], column: usize) {
    assert!(column + LANES <= STRIP);
    for (sum, row) in sums.iter().zip(tile) {
        // SAFETY: a row of the tile has 8 more columns from `column` on.
        unsafe { _mm256_storeu_ps(row.as_mut_ptr().add(column), *sum) };
    }
}
