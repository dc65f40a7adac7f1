//! Kernels in plain Rust, in the shape that compilers vectorise.

use super::pack::Panel;
use super::product::STRIP;
use crate::activations::{BLOCK, Block};
use half::f16;

/// Lanes of a quantised panel on this path.
const LANES: usize = 8;
/// Bytes of a group of columns: 4 columns of all lanes.
const GROUP: usize = 4 * LANES;

/// The f16 scales or minima of one block.
fn halves(bytes: &[u8]) -> [f32; LANES] {
    std::array::from_fn(|lane| f16::from_ne_bytes([bytes[2 * lane], bytes[2 * lane + 1]]).to_f32())
}

/// `dots[lane] += ` the dot product of 4 columns of each lane with `x`.
#[inline(always)]
fn dot(dots: &mut [i32; LANES], columns: impl Iterator<Item = u8>, x: &[i8]) {
    let mut products = [0i32; GROUP];
    for (i, (product, w)) in products.iter_mut().zip(columns).enumerate() {
        *product = i32::from(w) * i32::from(x[i % 4]);
    }
    for (lane, dot) in dots.iter_mut().enumerate() {
        *dot += products[4 * lane..][..4].iter().sum::<i32>();
    }
}

/// The panel's 8 columns, from `column` of the tile's rows on. `x` holds the rows one after another.
pub(super) fn q4(panel: Panel<'_>, x: &[Block], tile: &mut [[f32; STRIP]], column: usize) {
    let blocks = panel.columns.chunks_exact(BLOCK * LANES / 2);
    let scales = panel.scales.chunks_exact(4 * LANES);
    for (tile_row, x) in tile.iter_mut().zip(x.chunks_exact(blocks.len())) {
        let mut sums = [0.0; LANES];
        for ((columns, scales), x) in blocks.clone().zip(scales.clone()).zip(x) {
            let mut dots = [0; LANES];
            for (group, columns) in columns.chunks_exact(GROUP).enumerate() {
                dot(&mut dots, columns.iter().map(|q| q & 15), &x.q[4 * group..][..4]);
                dot(&mut dots, columns.iter().map(|q| q >> 4), &x.q[16 + 4 * group..][..4]);
            }
            let (scale, min) = (halves(scales), halves(&scales[2 * LANES..]));
            for lane in 0..LANES {
                sums[lane] += dots[lane] as f32 * (scale[lane] * x.scale) + min[lane] * x.sum;
            }
        }
        tile_row[column..column + LANES].copy_from_slice(&sums);
    }
}

/// As [`q4`], for 8-bit weights.
pub(super) fn q8(panel: Panel<'_>, x: &[Block], tile: &mut [[f32; STRIP]], column: usize) {
    let blocks = panel.columns.chunks_exact(BLOCK * LANES);
    let scales = panel.scales.chunks_exact(2 * LANES);
    for (tile_row, x) in tile.iter_mut().zip(x.chunks_exact(blocks.len())) {
        let mut sums = [0.0; LANES];
        for ((columns, scales), x) in blocks.clone().zip(scales.clone()).zip(x) {
            let mut dots = [x.bias; LANES];
            for (group, columns) in columns.chunks_exact(GROUP).enumerate() {
                dot(&mut dots, columns.iter().copied(), &x.q[4 * group..][..4]);
            }
            let scale = halves(scales);
            for lane in 0..LANES {
                sums[lane] += dots[lane] as f32 * (scale[lane] * x.scale);
            }
        }
        tile_row[column..column + LANES].copy_from_slice(&sums);
    }
}

/// The panel's 16 columns. `x` holds rows of `k` values.
pub(super) fn f32(panel: Panel<'_>, x: &[f32], k: usize, tile: &mut [[f32; STRIP]]) {
    let columns = panel.columns.as_chunks::<{ 4 * STRIP }>().0;
    for (tile_row, x) in tile.iter_mut().zip(x.chunks_exact(k)) {
        *tile_row = [0.0; STRIP];
        for (column, x) in columns.iter().zip(x) {
            for (sum, w) in tile_row.iter_mut().zip(column.as_chunks().0) {
                *sum += f32::from_ne_bytes(*w) * x;
            }
        }
    }
}
