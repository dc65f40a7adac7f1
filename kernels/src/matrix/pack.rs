//! The packed layout, and the way into it and out of it.
//!
//! A panel holds `lanes` output rows. Its quantised columns come in blocks of 32: first the
//! weights, then the f16 scale of each lane, then for Q4 the f16 minimum of each lane. The weights
//! of a block are cut into groups of 4 columns (1 on the portable path), which is what one lane of
//! a vector holds: `[group][lane][column]`.
//!
//! - Q8: bytes, each the weight plus 128, so that it is unsigned, as the dot-product instructions
//!   want one side to be.
//! - Q4: nibbles; the low ones hold the first half of the groups, the high ones the second.
//! - F32: floats, `[column][lane]`.
//!
//! A product reads all of it in ascending order, which is what the processor's prefetchers follow.
//! Rows beyond `n` in the last panel are zero.

use super::storage::Storage;
use super::{BLOCK, Kind, Weights};
use crate::activations::nearest;
use crate::cpu::{Cpu, Path};
use half::f16;

/// Where things are in a panel. Offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) kind: Kind,
    /// Output rows of a panel, 8 or 16.
    pub(super) lanes: usize,
    /// Columns of a group.
    group: usize,
    /// Weights and scales of one block; unused for F32.
    block_len: usize,
    panel_len: usize,
}

impl Layout {
    pub(super) fn new(cpu: Cpu, kind: Kind, k: usize) -> Layout {
        let (lanes, group) = match cpu.path() {
            Path::Avx512Vnni => (16, 4),
            Path::Avx2 if kind == Kind::F32 => (16, 1),
            Path::Avx2 => (8, 4),
            Path::Portable => (16, 1),
        };
        let block_len = match kind {
            Kind::F32 => BLOCK * lanes * 4,
            Kind::Q4 => BLOCK * lanes / 2 + lanes * 4,
            Kind::Q8 => BLOCK * lanes + lanes * 2,
        };
        let panel_len = if kind == Kind::F32 { k * lanes * 4 } else { k / BLOCK * block_len };
        Layout { kind, lanes, group, block_len, panel_len }
    }

    pub(super) fn panel<'a>(&self, data: &'a [u8], panel: usize) -> &'a [u8] {
        &data[panel * self.panel_len..][..self.panel_len]
    }

    /// Where a weight is in its panel, and whether its high nibble is meant (for Q4).
    fn column(&self, lane: usize, column: usize) -> (usize, bool) {
        if self.kind == Kind::F32 {
            return ((column * self.lanes + lane) * 4, false);
        }
        let (block, column) = (column / BLOCK, column % BLOCK);
        let high = self.kind == Kind::Q4 && column >= BLOCK / 2;
        let column = if high { column - BLOCK / 2 } else { column };
        let group = column / self.group * self.lanes * self.group;
        (block * self.block_len + group + lane * self.group + column % self.group, high)
    }

    /// Where a scale is in its panel; a minimum is `2 * lanes` further on.
    fn scale(&self, lane: usize, block: usize) -> usize {
        let columns = if self.kind == Kind::Q4 { BLOCK / 2 } else { BLOCK } * self.lanes;
        block * self.block_len + columns + 2 * lane
    }
}

/// One block of one row: what all block types are brought to.
struct RowBlock {
    scale: f16,
    min: f16,
    /// 32 weights plus 128 (Q8), or in the first half 32 nibbles, in GGUF's order and in ours: the
    /// low ones are the columns 0..16, the high ones 16..32 (Q4).
    q: [u8; BLOCK],
}

pub(super) fn pack(layout: Layout, n: usize, k: usize, weights: Weights<'_>) -> Storage {
    weights.check(n, k);
    let mut data = Storage::zeroed(n.div_ceil(layout.lanes) * layout.panel_len);
    let panels = data.bytes_mut().chunks_exact_mut(layout.panel_len);
    for (panel, first) in panels.zip((0..n).step_by(layout.lanes)) {
        for row in first..n.min(first + layout.lanes) {
            if let Weights::F32(values) = weights {
                put_floats(layout, panel, row - first, &values[row * k..][..k]);
                continue;
            }
            for block in 0..k / BLOCK {
                let weights = weights.block(row * (k / BLOCK) + block);
                put_block(layout, panel, row - first, block, &weights);
            }
        }
    }
    data
}

fn put_floats(layout: Layout, panel: &mut [u8], lane: usize, values: &[f32]) {
    for (column, value) in values.iter().enumerate() {
        let at = layout.column(lane, column).0;
        panel[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
}

fn put_block(layout: Layout, panel: &mut [u8], lane: usize, block: usize, weights: &RowBlock) {
    let bytes = if layout.kind == Kind::Q4 { BLOCK / 2 } else { BLOCK };
    for (column, &q) in weights.q[..bytes].iter().enumerate() {
        panel[layout.column(lane, block * BLOCK + column).0] = q;
    }
    let at = layout.scale(lane, block);
    panel[at..at + 2].copy_from_slice(&weights.scale.to_ne_bytes());
    if layout.kind == Kind::Q4 {
        let at = at + 2 * layout.lanes;
        panel[at..at + 2].copy_from_slice(&weights.min.to_ne_bytes());
    }
}

pub(super) fn unpack_row(layout: Layout, data: &[u8], row: usize, out: &mut [f32]) {
    let panel = layout.panel(data, row / layout.lanes);
    let lane = row % layout.lanes;
    let half_at = |at: usize| f16::from_ne_bytes([panel[at], panel[at + 1]]).to_f32();
    for (column, out) in out.iter_mut().enumerate() {
        let (at, high) = layout.column(lane, column);
        let scale_at = layout.scale(lane, column / BLOCK);
        *out = match layout.kind {
            Kind::F32 => f32::from_ne_bytes([0, 1, 2, 3].map(|i| panel[at + i])),
            Kind::Q4 => {
                let q = if high { panel[at] >> 4 } else { panel[at] & 15 };
                half_at(scale_at) * f32::from(q) + half_at(scale_at + 2 * layout.lanes)
            }
            Kind::Q8 => half_at(scale_at) * (f32::from(panel[at]) - 128.0),
        };
    }
}

impl Weights<'_> {
    fn check(&self, n: usize, k: usize) {
        let (len, want) = match self {
            Weights::F32(values) | Weights::QuantizeQ8_0(values) => (values.len(), n * k),
            Weights::Q4_0(blocks) => (blocks.len(), n * (k / BLOCK) * 18),
            Weights::Q4_1(blocks) => (blocks.len(), n * (k / BLOCK) * 20),
            Weights::Q8_0(blocks) => (blocks.len(), n * (k / BLOCK) * 34),
        };
        assert_eq!(len, want, "weights of {n} rows and {k} columns");
        let whole = self.kind() == Kind::F32 || k.is_multiple_of(BLOCK);
        assert!(k > 0 && whole, "{k} columns are no multiple of {BLOCK}");
    }

    fn block(&self, index: usize) -> RowBlock {
        match self {
            Weights::F32(_) => unreachable!("f32 weights have no blocks"),
            Weights::QuantizeQ8_0(values) => quantize_q8_0(&values[index * BLOCK..][..BLOCK]),
            Weights::Q4_0(blocks) => {
                let bytes = &blocks[index * 18..][..18];
                let scale = half(bytes);
                // Exact: a power of two, far from the end of f16's range for any real scale.
                let min = f16::from_f32(-8.0 * scale.to_f32());
                RowBlock { scale, min, q: nibbles(&bytes[2..]) }
            }
            Weights::Q4_1(blocks) => {
                let bytes = &blocks[index * 20..][..20];
                RowBlock { scale: half(bytes), min: half(&bytes[2..]), q: nibbles(&bytes[4..]) }
            }
            Weights::Q8_0(blocks) => {
                let bytes = &blocks[index * 34..][..34];
                let q = std::array::from_fn(|i| bytes[2 + i] ^ 0x80);
                RowBlock { scale: half(bytes), min: f16::ZERO, q }
            }
        }
    }
}

/// The scale is rounded to f16 before the weights are divided by it.
fn quantize_q8_0(values: &[f32]) -> RowBlock {
    let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let scale = f16::from_f32(largest / 127.0).min(f16::MAX);
    let inverse = if scale > f16::ZERO { 1.0 / scale.to_f32() } else { 0.0 };
    let q = |i: usize| {
        let nearest = nearest(values[i] * inverse);
        (nearest + 128) as u8
    };
    RowBlock { scale, min: f16::ZERO, q: std::array::from_fn(q) }
}

/// The f16 at the start of a GGUF block (little endian).
fn half(bytes: &[u8]) -> f16 {
    f16::from_le_bytes([bytes[0], bytes[1]])
}

/// The 16 bytes of nibbles of a GGUF block.
fn nibbles(bytes: &[u8]) -> [u8; BLOCK] {
    std::array::from_fn(|i| if i < BLOCK / 2 { bytes[i] } else { 0 })
}
