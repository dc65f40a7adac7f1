//! The packed layout, and the way into it and out of it.
//!
//! A panel holds `lanes` output rows. Its quantised columns come in blocks of 32, a block in 8
//! groups of 4 columns; a group is one vector, lane `l` of which holds the 4 columns of row `l`:
//!
//! - Q8: byte `[block][group][lane][column]` is the weight plus 128, so that it is unsigned, as the
//!   dot-product instructions want one side to be.
//! - Q4: byte `[block][group % 4][lane][column]` has groups 0..4 in its low and 4..8 in its high
//!   nibble.
//! - F32: float `[column][lane]`.
//!
//! After the columns of a quantised panel come its f16 scales, `[block][lane]`, and for Q4 after
//! each block's scales its minima. A panel starts on a cache line. Rows beyond `n` in the last
//! panel are zero.

use super::{BLOCK, Kind, Weights};
use crate::cpu::{Cpu, Path};
use half::f16;

/// A cache line, so that panels are aligned.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line([u8; 64]);

/// Columns of a group, which one lane of a vector holds.
const GROUP: usize = 4;

/// Where things are in a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) kind: Kind,
    /// Output rows of a panel, 8 or 16.
    pub(super) lanes: usize,
    /// Bytes of the columns of a panel: where the scales start.
    pub(super) columns_len: usize,
    /// Bytes of the scales (and minima) of a panel.
    pub(super) scales_len: usize,
}

/// One panel, as its kernel reads it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panel<'a> {
    pub(super) columns: &'a [u8],
    pub(super) scales: &'a [u8],
}

impl Layout {
    pub(super) fn new(cpu: Cpu, kind: Kind, k: usize) -> Layout {
        let lanes = match (kind, cpu.path()) {
            (Kind::F32, _) | (_, Path::Avx512Vnni) => 16,
            _ => 8,
        };
        let (columns_len, scales_len) = match kind {
            Kind::F32 => (k * lanes * 4, 0),
            Kind::Q4 => (k * lanes / 2, k / BLOCK * lanes * 4),
            Kind::Q8 => (k * lanes, k / BLOCK * lanes * 2),
        };
        Layout { kind, lanes, columns_len, scales_len }
    }

    /// Lines from one panel to the next.
    fn stride(&self) -> usize {
        (self.columns_len + self.scales_len).div_ceil(size_of::<Line>())
    }

    pub(super) fn panel<'a>(&self, data: &'a [Line], panel: usize) -> Panel<'a> {
        let bytes = as_bytes(&data[panel * self.stride()..][..self.stride()]);
        let (columns, scales) = bytes.split_at(self.columns_len);
        Panel { columns, scales: &scales[..self.scales_len] }
    }

    /// Byte offset in the columns of a panel, and whether the high nibble is meant (for Q4).
    fn column(&self, lane: usize, column: usize) -> (usize, bool) {
        let (block, group) = (column / BLOCK, column % BLOCK / GROUP);
        let within = lane * GROUP + column % GROUP;
        match self.kind {
            Kind::F32 => ((column * self.lanes + lane) * 4, false),
            Kind::Q4 => {
                let group_in_block = block * 4 + group % 4;
                (group_in_block * self.lanes * GROUP + within, group >= 4)
            }
            Kind::Q8 => ((block * 8 + group) * self.lanes * GROUP + within, false),
        }
    }

    /// Byte offset of a scale in the scales of a panel; a minimum is `2 * lanes` further on.
    fn scale(&self, lane: usize, block: usize) -> usize {
        let per_lane = if self.kind == Kind::Q4 { 2 } else { 1 };
        2 * (block * self.lanes * per_lane + lane)
    }
}

/// One GGUF block of one row: what all block types are brought to.
struct RowBlock {
    scale: f16,
    min: f16,
    /// Nibbles (Q4), or weights plus 128 (Q8).
    q: [u8; BLOCK],
}

pub(super) fn pack(layout: Layout, n: usize, k: usize, weights: Weights<'_>) -> Vec<Line> {
    weights.check(n, k);
    let panels = n.div_ceil(layout.lanes);
    let mut data = vec![Line([0; 64]); panels * layout.stride()];
    for row in 0..n {
        let start = row / layout.lanes * layout.stride();
        let panel = as_bytes_mut(&mut data[start..][..layout.stride()]);
        let (columns, scales) = panel.split_at_mut(layout.columns_len);
        let lane = row % layout.lanes;
        if let Weights::F32(values) = weights {
            for (column, value) in values[row * k..][..k].iter().enumerate() {
                let at = layout.column(lane, column).0;
                columns[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            }
            continue;
        }
        for block in 0..k / BLOCK {
            let row_block = weights.block(row * (k / BLOCK) + block);
            put_block(layout, columns, scales, (lane, block), &row_block);
        }
    }
    data
}

fn put_block(
    layout: Layout,
    columns: &mut [u8],
    scales: &mut [u8],
    (lane, block): (usize, usize),
    row_block: &RowBlock,
) {
    for (i, &q) in row_block.q.iter().enumerate() {
        let (at, high) = layout.column(lane, block * BLOCK + i);
        columns[at] |= if high { q << 4 } else { q };
    }
    let at = layout.scale(lane, block);
    scales[at..at + 2].copy_from_slice(&row_block.scale.to_ne_bytes());
    if layout.kind == Kind::Q4 {
        let at = at + 2 * layout.lanes;
        scales[at..at + 2].copy_from_slice(&row_block.min.to_ne_bytes());
    }
}

pub(super) fn unpack_row(layout: Layout, data: &[Line], row: usize, out: &mut [f32]) {
    let Panel { columns, scales } = layout.panel(data, row / layout.lanes);
    let lane = row % layout.lanes;
    let half_at = |at: usize| f16::from_ne_bytes([scales[at], scales[at + 1]]).to_f32();
    for (column, out) in out.iter_mut().enumerate() {
        let (at, high) = layout.column(lane, column);
        let scale_at = layout.scale(lane, column / BLOCK);
        *out = match layout.kind {
            Kind::F32 => f32::from_ne_bytes([0, 1, 2, 3].map(|i| columns[at + i])),
            Kind::Q4 => {
                let q = if high { columns[at] >> 4 } else { columns[at] & 15 };
                half_at(scale_at) * f32::from(q) + half_at(scale_at + 2 * layout.lanes)
            }
            Kind::Q8 => half_at(scale_at) * (f32::from(columns[at]) - 128.0),
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
        let nearest = (values[i] * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
        nearest as u8 ^ 0x80
    };
    RowBlock { scale, min: f16::ZERO, q: std::array::from_fn(q) }
}

/// The f16 at the start of a GGUF block (little endian).
fn half(bytes: &[u8]) -> f16 {
    f16::from_le_bytes([bytes[0], bytes[1]])
}

/// GGUF's order: the low nibbles are weights 0..16, the high ones 16..32.
fn nibbles(bytes: &[u8]) -> [u8; BLOCK] {
    std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
}

fn as_bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: a line is plain bytes without padding, and the length is that of the same memory.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

fn as_bytes_mut(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: as in `as_bytes`; the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}
