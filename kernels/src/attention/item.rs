//! One item of attention: up to twelve query vectors over all blocks of their sequence.

use std::marker::PhantomData;

use super::product::Product;
use crate::batch::TILE_VECTORS;
use crate::kv::PagedKv;
use crate::lanes::{Element, Kernel, LANES, Lanes};

const BLOCK: usize = PagedKv::BLOCK;

/// A thread's memory: for each of twelve vectors the scaled query, the scores of a block, and the
/// running maximum, sums and output.
#[derive(Debug)]
pub(super) struct Scratch {
    head_dim: usize,
    /// Width of an output: `head_dim` in whole vectors.
    stride: usize,
    queries: Vec<f32>,
    scores: Vec<[f32; BLOCK]>,
    maxima: [f32; TILE_VECTORS],
    sums: [[f32; LANES]; TILE_VECTORS],
    outputs: Vec<f32>,
}

impl Scratch {
    pub(super) fn new(head_dim: usize) -> Scratch {
        let stride = head_dim.next_multiple_of(LANES);
        Scratch {
            head_dim,
            stride,
            queries: vec![0.0; TILE_VECTORS * head_dim],
            scores: vec![[0.0; BLOCK]; TILE_VECTORS],
            maxima: [0.0; TILE_VECTORS],
            sums: [[0.0; LANES]; TILE_VECTORS],
            outputs: vec![0.0; TILE_VECTORS * stride],
        }
    }

    /// The output of a vector.
    pub(super) fn output(&self, vector: usize) -> &[f32] {
        &self.outputs[vector * self.stride..][..self.stride]
    }
}

/// Query vectors of `rows` successive rows from `position` on, `query_heads` of each.
pub(super) struct Item<'a, E> {
    pub(super) kv: &'a PagedKv,
    pub(super) layer: usize,
    pub(super) kv_head: usize,
    pub(super) table: &'a [u32],
    pub(super) position: usize,
    pub(super) rows: usize,
    pub(super) query_heads: usize,
    /// The first query vector; those of a row follow each other, rows are `query_stride` apart.
    pub(super) queries: &'a [f32],
    pub(super) query_stride: usize,
    pub(super) scratch: &'a mut Scratch,
    pub(super) element: PhantomData<E>,
}

impl<E: Element> Kernel for Item<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        self.start();
        for index in 0..self.table.len() {
            self.block(lanes, index);
        }
        self.finish(lanes);
    }
}

impl<E: Element> Item<'_, E> {
    fn vectors(&self) -> usize {
        self.rows * self.query_heads
    }

    /// Copies the queries, scaled by `1 / sqrt(head_dim)`, and clears the running values.
    #[inline(always)]
    fn start(&mut self) {
        let vectors = self.vectors();
        let Scratch { head_dim, stride, .. } = *self.scratch;
        let scale = 1.0 / (head_dim as f32).sqrt();
        let width = self.query_heads * head_dim;
        let rows = self.scratch.queries.chunks_exact_mut(width).take(self.rows);
        for (row, to) in rows.enumerate() {
            let from = &self.queries[row * self.query_stride..][..width];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from * scale);
        }
        self.scratch.outputs[..vectors * stride].fill(0.0);
        self.scratch.maxima[..vectors].fill(f32::NEG_INFINITY);
        self.scratch.sums[..vectors].fill([0.0; LANES]);
    }

    /// Adds the block of this index in the sequence to the running values of the vectors that see
    /// it: those whose position is not before it.
    #[inline(always)]
    fn block<L: Lanes>(&mut self, lanes: L, index: usize) {
        let start = index * BLOCK;
        let first = start.saturating_sub(self.position) * self.query_heads;
        let vectors = self.vectors();
        // Keys that the last row sees: those behind it may not have been written.
        let depth = (self.position + self.rows - start).min(BLOCK);
        let Scratch { head_dim, stride, .. } = *self.scratch;
        let block = self.table[index] as usize;
        let (keys, values) = self.kv.page::<E>(block, self.layer, self.kv_head);

        self.scratch.scores[first..vectors].fill([0.0; BLOCK]);
        let product = Product {
            a: &self.scratch.queries[first * head_dim..],
            a_stride: head_dim,
            b: keys,
            b_stride: BLOCK,
            depth: head_dim,
            c_stride: BLOCK,
        };
        let scores = self.scratch.scores[first..vectors].as_flattened_mut();
        product.add_to(lanes, vectors - first, BLOCK, scores);
        for vector in first..vectors {
            let position = self.position + vector / self.query_heads;
            self.soften(lanes, vector, (position + 1 - start).min(BLOCK));
        }
        let product = Product {
            a: self.scratch.scores[first..vectors].as_flattened(),
            a_stride: BLOCK,
            b: values,
            b_stride: stride,
            depth,
            c_stride: stride,
        };
        let outputs = &mut self.scratch.outputs[first * stride..];
        product.add_to(lanes, vectors - first, stride, outputs);
    }

    /// Turns the scores of the first `seen` keys into weights relative to the running maximum, the
    /// others into zeros, and rescales what was summed up before if the maximum has grown.
    #[inline(always)]
    fn soften<L: Lanes>(&mut self, lanes: L, vector: usize, seen: usize) {
        let Scratch { stride, scores, maxima, sums, outputs, .. } = &mut *self.scratch;
        let scores = &mut scores[vector];
        scores[seen..].fill(f32::NEG_INFINITY);
        let (halves, _) = scores.as_chunks_mut::<LANES>();
        let [low, high] = halves else { unreachable!("a block is two vectors") };
        let (mut a, mut b) = (lanes.load(low), lanes.load(high));

        let before = maxima[vector];
        let maximum = before.max(lanes.largest(lanes.max(a, b)));
        let shift = lanes.splat(-maximum);
        (a, b) = (lanes.exp(lanes.add(a, shift)), lanes.exp(lanes.add(b, shift)));
        lanes.store(a, low);
        lanes.store(b, high);

        let mut sum = lanes.load(&sums[vector]);
        if maximum > before {
            let factor = lanes.exp(lanes.splat(before - maximum));
            sum = lanes.mul(sum, factor);
            let (output, _) = outputs[vector * *stride..][..*stride].as_chunks_mut::<LANES>();
            for part in output {
                lanes.store(lanes.mul(lanes.load(part), factor), part);
            }
            maxima[vector] = maximum;
        }
        lanes.store(lanes.add(sum, lanes.add(a, b)), &mut sums[vector]);
    }

    /// Divides the outputs by their sums.
    #[inline(always)]
    fn finish<L: Lanes>(&mut self, lanes: L) {
        let vectors = self.vectors();
        let Scratch { stride, sums, outputs, .. } = &mut *self.scratch;
        for (output, sum) in outputs.chunks_exact_mut(*stride).zip(&sums[..vectors]) {
            let sum = lanes.splat(lanes.sum(lanes.load(sum)));
            let (output, _) = output.as_chunks_mut::<LANES>();
            for part in output {
                lanes.store(lanes.div(lanes.load(part), sum), part);
            }
        }
    }
}
