//! Products of packed matrices with rows of activations.
//!
//! The unit of work is a strip of 16 output columns times a chunk of rows. Strips are handed to the
//! threads by a counter, all matrices of a call in one parallel region. Within a strip the rows go
//! by in tiles of 8, so that the strip's weights, some kilobytes, stay in the first-level cache; a
//! chunk is as many rows as the second-level cache holds beside them.

use super::{Kind, Matrix, portable};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::activations::{Activations, BLOCK, Block};
use crate::cpu::{Path, multiversion};
use crate::pool::{Disjoint, Pool};
use std::ops::Range;

/// Output columns of a strip: the most lanes that a panel has.
pub(super) const STRIP: usize = 16;
/// Rows of activations in a tile.
pub(super) const TILE_ROWS: usize = 8;
/// Bytes of activations that a thread works on at a time: a part of a second-level cache.
const CHUNK_BYTES: usize = 256 << 10;

/// The results of a tile: `[row][column of the strip]`.
pub(super) type Tile = [[f32; STRIP]; TILE_ROWS];

/// One product of several that read the same activations.
#[derive(Debug)]
pub struct Product<'a> {
    /// The weights.
    pub matrix: &'a Matrix,
    /// `n` values that are added to every row.
    pub bias: Option<&'a [f32]>,
    /// Where the rows go: `rows * n` values, row-major.
    pub out: &'a mut [f32],
}

/// What becomes of a result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sink {
    Store,
    Add,
}

impl Matrix {
    /// `out[r * n ..][..n] = x[r] * W^T` for the first `rows` rows.
    pub fn multiply(&self, pool: &Pool, x: &Activations, rows: usize, out: &mut [f32]) {
        run(pool, x, rows, &mut [Product { matrix: self, bias: None, out }], Sink::Store);
    }

    /// Like [`Matrix::multiply`], added to what `out` holds (the residual).
    pub fn multiply_add(&self, pool: &Pool, x: &Activations, rows: usize, out: &mut [f32]) {
        run(pool, x, rows, &mut [Product { matrix: self, bias: None, out }], Sink::Add);
    }

    /// Several products of the same activations in one parallel region (query, key and value).
    pub fn multiply_many(pool: &Pool, x: &Activations, rows: usize, products: &mut [Product<'_>]) {
        run(pool, x, rows, products, Sink::Store);
    }

    /// `out = silu(x * gate^T) * (x * up^T)`, where `silu(v) = v / (1 + exp(-v))`: the first half
    /// of a gated feed-forward layer. Both matrices have the same shape.
    pub fn multiply_silu(
        gate: &Matrix,
        up: &Matrix,
        pool: &Pool,
        x: &Activations,
        rows: usize,
        out: &mut [f32],
    ) {
        assert_eq!((gate.n, gate.k), (up.n, up.k), "gate and up are of one shape");
        check(gate, x, rows, out.len());
        let out = Disjoint::new(out);
        for_strips(pool, x, rows, gate.strips(), |strip, rows| {
            let mut tiles = [[[0.0; STRIP]; TILE_ROWS]; 2];
            let columns = gate.columns(strip);
            for row in rows.clone().step_by(TILE_ROWS) {
                let m = TILE_ROWS.min(rows.end - row);
                gate.tile(strip, x, row, m, &mut tiles[0]);
                up.tile(strip, x, row, m, &mut tiles[1]);
                let [gates, ups] = &mut tiles;
                silu_times(gate.cpu, &mut gates[..m], &ups[..m]);
                for (r, tile_row) in gates[..m].iter().enumerate() {
                    // SAFETY: this strip and these rows are handed out once.
                    let out =
                        unsafe { out.slice((row + r) * gate.n + columns.start, columns.len()) };
                    finish(tile_row, None, out, Sink::Store);
                }
            }
        });
    }

    fn strips(&self) -> usize {
        self.n.div_ceil(STRIP)
    }

    fn columns(&self, strip: usize) -> Range<usize> {
        strip * STRIP..self.n.min((strip + 1) * STRIP)
    }

    /// Computes `m` rows of `x` from row `row` on, for one strip.
    fn tile(&self, strip: usize, x: &Activations, row: usize, m: usize, tile: &mut Tile) {
        let panels = STRIP / self.layout.lanes;
        let last = self.n.div_ceil(self.layout.lanes);
        for half in 0..panels {
            let index = strip * panels + half;
            if index < last {
                let panel = self.layout.panel(self.data.bytes(), index);
                let rows = Rows { x, row, m };
                self.panel_tile(panel, rows, tile, half * self.layout.lanes);
            }
        }
    }

    fn panel_tile(&self, panel: &[u8], rows: Rows<'_>, tile: &mut Tile, column: usize) {
        let tile = &mut tile[..rows.m];
        match (self.cpu.path(), self.kind()) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Cpu` of this path exists only where its features do (so in all of these).
            (Path::Avx512Vnni, Kind::F32) => unsafe { avx512::f32(panel, rows.floats(), tile) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            (Path::Avx512Vnni, Kind::Q4) => unsafe { avx512::q4(panel, rows.blocks(), tile) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            (Path::Avx512Vnni, Kind::Q8) => unsafe { avx512::q8(panel, rows.blocks(), tile) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            (Path::Avx2, Kind::F32) => unsafe { avx2::f32(panel, rows.floats(), tile) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            (Path::Avx2, Kind::Q4) => unsafe { avx2::q4(panel, rows.blocks(), tile, column) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            (Path::Avx2, Kind::Q8) => unsafe { avx2::q8(panel, rows.blocks(), tile, column) },
            (_, Kind::F32) => portable::f32(panel, rows.floats(), tile),
            (_, Kind::Q4) => portable::q4(panel, rows.blocks(), tile),
            (_, Kind::Q8) => portable::q8(panel, rows.blocks(), tile),
        }
    }
}

/// Calls a kernel whose number of rows is a constant, so that its sums stay in registers.
#[cfg(target_arch = "x86_64")]
macro_rules! for_rows {
    ($m:expr, $kernel:ident($($arg:expr),*)) => {
        match $m {
            1 => $kernel::<1>($($arg),*),
            2 => $kernel::<2>($($arg),*),
            3 => $kernel::<3>($($arg),*),
            4 => $kernel::<4>($($arg),*),
            5 => $kernel::<5>($($arg),*),
            6 => $kernel::<6>($($arg),*),
            7 => $kernel::<7>($($arg),*),
            _ => $kernel::<8>($($arg),*),
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use for_rows;

/// Fetches what lies 8 KiB beyond a block into the cache. The processor's own prefetchers keep up
/// while one row streams by, but not with the gaps that the arithmetic of several rows leaves: the
/// output head at 8 rows ran at half the speed without (78 against 150 GMAC/s on one core here).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn prefetch<const N: usize>(block: &[u8; N]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in 0..N.div_ceil(64) {
        let ahead = block.as_ptr().wrapping_add((8 << 10) + 64 * line);
        // SAFETY: a prefetch is a hint for which any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
    }
}

/// Some rows of activations.
#[derive(Clone, Copy)]
struct Rows<'a> {
    x: &'a Activations,
    row: usize,
    m: usize,
}

impl<'a> Rows<'a> {
    fn floats(&self) -> &'a [f32] {
        let cols = self.x.cols();
        &self.x.floats()[self.row * cols..][..self.m * cols]
    }

    fn blocks(&self) -> &'a [Block] {
        let per_row = self.x.cols() / BLOCK;
        &self.x.blocks()[self.row * per_row..][..self.m * per_row]
    }
}

fn check(matrix: &Matrix, x: &Activations, rows: usize, out_len: usize) {
    assert_eq!(matrix.k, x.cols(), "activations of another width");
    assert!(rows <= x.rows(), "{rows} rows of {}", x.rows());
    assert!(out_len >= rows * matrix.n, "{out_len} outputs for {rows} rows of {}", matrix.n);
}

fn run(pool: &Pool, x: &Activations, rows: usize, products: &mut [Product<'_>], sink: Sink) {
    let mut parts = Vec::with_capacity(products.len());
    let mut strips = 0;
    for product in products {
        check(product.matrix, x, rows, product.out.len());
        assert!(product.bias.is_none_or(|bias| bias.len() == product.matrix.n), "bias of n values");
        strips += product.matrix.strips();
        parts.push((strips, product.matrix, product.bias, Disjoint::new(product.out)));
    }
    for_strips(pool, x, rows, strips, |strip, rows| {
        let part = parts.iter().position(|part| strip < part.0).expect("strips count all parts");
        let (end, matrix, bias, out) = &parts[part];
        let strip = strip - (end - matrix.strips());
        let columns = matrix.columns(strip);
        let bias = bias.map(|bias| &bias[columns.clone()]);
        let mut tile = [[0.0; STRIP]; TILE_ROWS];
        for row in rows.clone().step_by(TILE_ROWS) {
            let m = TILE_ROWS.min(rows.end - row);
            matrix.tile(strip, x, row, m, &mut tile);
            for (r, values) in tile[..m].iter().enumerate() {
                let start = (row + r) * matrix.n + columns.start;
                // SAFETY: this strip and these rows are handed out once.
                let out = unsafe { out.slice(start, columns.len()) };
                finish(values, bias, out, sink);
            }
        }
    });
}

/// The last strip may be narrower; all others take the way whose width the compiler knows.
#[inline(always)]
fn finish(values: &[f32; STRIP], bias: Option<&[f32]>, out: &mut [f32], sink: Sink) {
    let mut values = *values;
    if let Some(bias) = bias {
        values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    }
    let part = out.len();
    match (sink, <&mut [f32; STRIP]>::try_from(&mut *out)) {
        (Sink::Store, Ok(out)) => *out = values,
        (Sink::Store, Err(_)) => out.copy_from_slice(&values[..part]),
        (Sink::Add, Ok(out)) => out.iter_mut().zip(values).for_each(|(out, value)| *out += value),
        (Sink::Add, Err(_)) => out.iter_mut().zip(values).for_each(|(out, value)| *out += value),
    }
}

/// Hands out each strip with each chunk of rows once; chunks in order, so that all threads work on
/// the same activations.
fn for_strips(
    pool: &Pool,
    x: &Activations,
    rows: usize,
    strips: usize,
    task: impl Fn(usize, Range<usize>) + Sync,
) {
    if rows == 0 || strips == 0 {
        return;
    }
    let chunk = (CHUNK_BYTES / x.row_bytes().max(1)).next_multiple_of(TILE_ROWS);
    let chunks = rows.div_ceil(chunk);
    pool.for_ranges(strips * chunks, pool.share(strips), |range| {
        for item in range {
            let start = item / strips * chunk;
            task(item % strips, start..rows.min(start + chunk));
        }
    });
}

multiversion! {
    /// `gates = silu(gates) * ups`.
    fn silu_times(gates: &mut [[f32; STRIP]], ups: &[[f32; STRIP]]) {
        for (gates, ups) in gates.iter_mut().zip(ups) {
            for (gate, up) in gates.iter_mut().zip(ups) {
                *gate = *gate / (1.0 + exp(-*gate)) * up;
            }
        }
    }
}

/// `e^x` within 2 units in the last place, in a form that compilers vectorise: `2^i * e^f` with
/// `|f| <= ln(2) / 2`, after Cephes' `expf`. Clamped to the range where the result is a normal
/// number.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    let x = if x > -87.3 { x } else { -87.3 };
    let x = if x < 88.3 { x } else { 88.3 };
    let shifted = x * std::f32::consts::LOG2_E + MAGIC;
    let whole = shifted - MAGIC;
    let f = x - whole * 0.693_359_4 + whole * 2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * f + 1.398_199_9e-3;
    let p = p * f + 8.333_452e-3;
    let p = p * f + 4.166_579_6e-2;
    let p = p * f + 1.666_666_5e-1;
    let p = p * f + 0.5;
    let p = p * (f * f) + f + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(MAGIC.to_bits()).wrapping_add(127);
    p * f32::from_bits(exponent << 23)
}
