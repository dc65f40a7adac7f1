//! Rows of activations in the form that a matrix product reads.

use crate::cpu::{Cpu, multiversion};
use crate::matrix::Matrix;
use crate::pool::{Disjoint, Pool};

/// Activations per quantised block, as in GGUF.
pub(crate) const BLOCK: usize = 32;

/// 32 activations as int8: `x = scale * q`. The sums belong to the weights' minimum or offset.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub(crate) struct Block {
    pub(crate) q: [i8; BLOCK],
    pub(crate) scale: f32,
    /// `scale` times the sum of `q`.
    pub(crate) sum: f32,
    /// -128 times the sum of `q`: what offsetting the weights by 128 adds to a dot product.
    pub(crate) bias: i32,
}

/// Which forms of its rows an [`Activations`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Single precision, for f32 matrices.
    F32,
    /// int8 in blocks of 32, for quantised matrices.
    Int8,
    /// Both, where matrices of both kinds read the same rows.
    Both,
}

impl Form {
    /// The form that all of `matrices` can read ([`Form::F32`] for none).
    #[must_use]
    pub fn of(matrices: &[&Matrix]) -> Form {
        let f32 = matrices.iter().any(|matrix| matrix.form() == Form::F32);
        let int8 = matrices.iter().any(|matrix| matrix.form() == Form::Int8);
        match (f32, int8) {
            (true, true) => Form::Both,
            (false, true) => Form::Int8,
            (_, false) => Form::F32,
        }
    }

    fn has_f32(self) -> bool {
        self != Form::Int8
    }

    fn has_int8(self) -> bool {
        self != Form::F32
    }
}

/// Up to `rows` rows of `cols` activations: f32, or int8 in blocks of 32 with a scale each,
/// whichever the matrices that they are multiplied with need.
#[derive(Debug)]
pub struct Activations {
    cpu: Cpu,
    rows: usize,
    cols: usize,
    form: Form,
    /// Row-major; empty until a form with f32 is asked for.
    floats: Vec<f32>,
    /// Row-major; empty until a form with int8 is asked for.
    blocks: Vec<Block>,
    /// One row for each thread, to quantise from.
    scratch: Vec<f32>,
}

impl Activations {
    /// Room for `rows` rows of `cols` values. Memory is taken when a form is first filled.
    #[must_use]
    pub fn new(rows: usize, cols: usize) -> Activations {
        let (floats, blocks, scratch) = (Vec::new(), Vec::new(), Vec::new());
        Activations { cpu: Cpu::detect(), rows, cols, form: Form::F32, floats, blocks, scratch }
    }

    /// Most rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Fills the first `rows` rows on all threads: `write(row, values)` writes the `cols` values of
    /// one row (what `values` holds before is unspecified), which are then kept in `form`.
    pub fn fill(
        &mut self,
        pool: &Pool,
        rows: usize,
        form: Form,
        write: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let mut nothing = vec![(); pool.threads()];
        self.fill_with(pool, rows, form, &mut nothing, |(), row, values| write(row, values));
    }

    /// Like [`Activations::fill`], with a scratch value for each thread (at least
    /// [`Pool::threads`] of them).
    pub fn fill_with<S: Send>(
        &mut self,
        pool: &Pool,
        rows: usize,
        form: Form,
        scratch: &mut [S],
        write: impl Fn(&mut S, usize, &mut [f32]) + Sync,
    ) {
        assert!(rows <= self.rows, "{rows} rows in a buffer of {}", self.rows);
        self.prepare(form, pool.threads());
        let (cpu, cols, blocks_per_row) = (self.cpu, self.cols, self.cols / BLOCK);
        let floats = Disjoint::new(&mut self.floats);
        let blocks = Disjoint::new(&mut self.blocks);
        let own_rows = Disjoint::new(&mut self.scratch);
        let scratch = Disjoint::new(scratch);
        pool.for_ranges_with_worker(rows, pool.share(rows), |worker, range| {
            // SAFETY: each worker runs one range at a time and touches its own scratch only.
            let scratch = unsafe { &mut scratch.slice(worker, 1)[0] };
            for row in range {
                let values = if form.has_f32() {
                    // SAFETY: each row is handed out once.
                    unsafe { floats.slice(row * cols, cols) }
                } else {
                    // SAFETY: as for `scratch`.
                    unsafe { own_rows.slice(worker * cols, cols) }
                };
                write(scratch, row, values);
                if form.has_int8() {
                    // SAFETY: each row is handed out once.
                    let out = unsafe { blocks.slice(row * blocks_per_row, blocks_per_row) };
                    quantize(cpu, values, out);
                }
            }
        });
    }

    /// Stores row `row` in the form that `matrix` reads. Rows stored for matrices of another kind
    /// are lost.
    pub fn set_row(&mut self, row: usize, values: &[f32], matrix: &Matrix) {
        assert!(row < self.rows && values.len() == self.cols, "row of another shape");
        self.prepare(matrix.form(), 0);
        if self.form.has_f32() {
            self.floats[row * self.cols..][..self.cols].copy_from_slice(values);
        } else {
            let blocks = self.cols / BLOCK;
            quantize(self.cpu, values, &mut self.blocks[row * blocks..][..blocks]);
        }
    }

    fn prepare(&mut self, form: Form, threads: usize) {
        self.form = form;
        if form.has_f32() {
            self.floats.resize(self.rows * self.cols, 0.0);
        }
        if form.has_int8() {
            assert!(self.cols.is_multiple_of(BLOCK), "int8 rows are multiples of {BLOCK} values");
            self.blocks.resize(self.rows * self.cols / BLOCK, Block::default());
            let scratch = self.scratch.len().max(threads * self.cols);
            self.scratch.resize(scratch, 0.0);
        }
    }

    /// Bytes that a product reads of one row, about.
    pub(crate) fn row_bytes(&self) -> usize {
        if self.form == Form::Int8 { self.cols / BLOCK * size_of::<Block>() } else { self.cols * 4 }
    }

    /// The f32 rows, row-major.
    pub(crate) fn floats(&self) -> &[f32] {
        assert!(self.form.has_f32(), "these activations were filled as int8 only");
        &self.floats
    }

    /// The int8 rows, row-major.
    pub(crate) fn blocks(&self) -> &[Block] {
        assert!(self.form.has_int8(), "these activations were filled as f32 only");
        &self.blocks
    }
}

multiversion! {
    /// Quantises a row to int8 blocks, symmetric, nearest, ties to even.
    pub(crate) fn quantize(values: &[f32], out: &mut [Block]) {
        for (values, block) in values.as_chunks::<BLOCK>().0.iter().zip(out) {
            *block = quantize_block(values);
        }
    }
}

/// Not-a-number and infinities spoil the block that they are in, but `q` stays within -127..=127.
#[inline(always)]
fn quantize_block(values: &[f32; BLOCK]) -> Block {
    let mut largest = [0.0f32; 8];
    for chunk in values.as_chunks::<8>().0 {
        for (largest, value) in largest.iter_mut().zip(chunk) {
            *largest = if value.abs() > *largest { value.abs() } else { *largest };
        }
    }
    let max = |a: f32, b: f32| if b > a { b } else { a };
    let [a, b, c, d, e, f, g, h] = largest;
    let largest = max(max(max(a, b), max(c, d)), max(max(e, f), max(g, h)));
    let scale = largest / 127.0;
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    let mut block = Block { scale, ..Block::default() };
    let mut sum = 0;
    for (q, value) in block.q.iter_mut().zip(values) {
        let nearest = nearest(value * inverse);
        *q = nearest as i8;
        sum += nearest;
    }
    block.sum = scale * sum as f32;
    block.bias = -128 * sum;
    block
}

/// The nearest integer in -127..=127, ties to even: adding 1.5 * 2^23 leaves the
/// integer in the low bits of the float, which every instruction set does in one addition.
#[inline(always)]
pub(crate) fn nearest(x: f32) -> i32 {
    const MAGIC: f32 = 12_582_912.0;
    // Comparisons that a single instruction makes, with not-a-number going to the bound.
    let x = if x > -127.0 { x } else { -127.0 };
    let x = if x < 127.0 { x } else { 127.0 };
    (x + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn blocks_hold_the_nearest_of_255_levels() {
        let values: [f32; BLOCK] = std::array::from_fn(|i| (i as f32 - 11.5) * 0.25);
        let block = quantize_block(&values);
        for (value, q) in values.iter().zip(block.q) {
            assert!((value - block.scale * f32::from(q)).abs() <= 0.501 * block.scale);
        }
        assert_eq!(block.q[31], 127);
    }

    #[test]
    fn values_that_are_no_numbers_stay_within_their_block() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE / 8.0] {
            let block = quantize_block(&[bad; BLOCK]);
            assert!(block.q.iter().all(|&q| (-127..=127).contains(&q)), "{bad}");
        }
        assert_eq!(quantize_block(&[0.0; BLOCK]), Block::default());
    }

    proptest! {
        #[test]
        fn every_path_quantises_to_the_same_bits(
            values in prop::collection::vec(-1e3f32..1e3, 96), scale in -20i32..20,
        ) {
            let values: Vec<f32> = values.iter().map(|v| v * 2f32.powi(scale)).collect();
            let mut want = vec![Block::default(); 3];
            for (values, block) in values.as_chunks().0.iter().zip(&mut want) {
                *block = quantize_block(values);
                let sum: i32 = block.q.iter().map(|&q| i32::from(q)).sum();
                prop_assert_eq!(block.bias, -128 * sum);
            }
            for cpu in Cpu::supported() {
                let mut got = vec![Block::default(); 3];
                quantize(cpu, &values, &mut got);
                prop_assert_eq!(&got, &want, "{:?}", cpu);
            }
        }
    }
}
