//! One item of attention: up to twelve query vectors over all blocks of their sequence.

use super::product::Product;
use crate::batch::TILE_VECTORS;
use crate::kv::PagedKv;
use crate::lanes::{Element, Kernel, LANES, Lanes};

const BLOCK: usize = PagedKv::BLOCK;
/// Blocks whose scores are softened together: the fewer spans, the fewer maxima and rescalings.
const SPAN_BLOCKS: usize = 4;
/// Keys of a span.
const SPAN: usize = SPAN_BLOCKS * BLOCK;

/// A thread's memory: for each of twelve vectors the scaled query, the scores of a span, and the
/// running maximum, sums and output.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Scratch {
    scores: [[f32; SPAN]; TILE_VECTORS],
    sums: [[f32; LANES]; TILE_VECTORS],
    head_dim: usize,
    /// Width of an output: `head_dim` in whole vectors.
    stride: usize,
    queries: Vec<f32>,
    maxima: [f32; TILE_VECTORS],
    outputs: Vec<f32>,
}

impl Scratch {
    pub(super) fn new(head_dim: usize) -> Scratch {
        let stride = head_dim.next_multiple_of(LANES);
        Scratch {
            head_dim,
            stride,
            queries: vec![0.0; TILE_VECTORS * head_dim],
            scores: [[0.0; SPAN]; TILE_VECTORS],
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
    /// The first keys that the item after this one needs.
    pub(super) after: &'a [E],
}

impl<E: Element> Kernel for Item<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        self.start();
        for index in (0..self.table.len()).step_by(SPAN_BLOCKS) {
            self.span(lanes, index);
        }
        self.finish(lanes);
    }
}

impl<'a, E: Element> Item<'a, E> {
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

    /// Adds a span of the sequence, whose first block has this index, to the running values of the
    /// vectors that see it: those whose position is not before it.
    #[inline(always)]
    fn span<L: Lanes>(&mut self, lanes: L, index: usize) {
        let start = index * BLOCK;
        let first = start.saturating_sub(self.position) * self.query_heads;
        let vectors = self.vectors();
        let end = self.table.len().min(index + SPAN_BLOCKS);
        self.scratch.scores[first..vectors].fill([0.0; SPAN]);
        for block in index..end {
            let ahead = if block + 1 < end { self.page(block + 1).0 } else { self.page(index).1 };
            self.score(lanes, first, block, ahead);
        }
        for vector in first..vectors {
            let seen = self.position + vector / self.query_heads + 1 - start;
            self.soften(lanes, vector, (end - index) * BLOCK, seen.min(SPAN));
        }
        for block in index..end {
            let ahead = if block + 1 < end {
                self.page(block + 1).1
            } else if end < self.table.len() {
                self.page(end).0
            } else {
                self.after
            };
            self.collect(lanes, first, block, ahead);
        }
    }

    /// Keys and values of the block of this index.
    #[inline(always)]
    fn page(&self, index: usize) -> (&'a [E], &'a [E]) {
        self.kv.page(self.table[index] as usize, self.layer, self.kv_head)
    }

    /// Adds the products of the queries from vector `first` on with the keys of a block to their
    /// scores.
    #[inline(always)]
    fn score<L: Lanes>(&mut self, lanes: L, first: usize, index: usize, ahead: &[E]) {
        let (vectors, head_dim) = (self.vectors(), self.scratch.head_dim);
        let product = Product {
            a: &self.scratch.queries[first * head_dim..],
            a_stride: head_dim,
            b: self.page(index).0,
            b_stride: BLOCK,
            depth: head_dim,
            c_stride: SPAN,
            ahead,
        };
        let scores = self.scratch.scores[first..vectors].as_flattened_mut();
        let column = index % SPAN_BLOCKS * BLOCK;
        product.add_to(lanes, vectors - first, BLOCK, &mut scores[column..]);
    }

    /// Adds the values of a block, weighted by the softened scores, to the outputs.
    #[inline(always)]
    fn collect<L: Lanes>(&mut self, lanes: L, first: usize, index: usize, ahead: &[E]) {
        let (vectors, stride) = (self.vectors(), self.scratch.stride);
        let column = index % SPAN_BLOCKS * BLOCK;
        let product = Product {
            a: &self.scratch.scores[first..vectors].as_flattened()[column..],
            a_stride: SPAN,
            b: self.page(index).1,
            b_stride: stride,
            // Keys that the last row sees: the values behind them may not have been written.
            depth: (self.position + self.rows - index * BLOCK).min(BLOCK),
            c_stride: stride,
            ahead,
        };
        let outputs = &mut self.scratch.outputs[first * stride..];
        product.add_to(lanes, vectors - first, stride, outputs);
    }

    /// Turns the scores of the first `seen` of `keys` keys into weights relative to the running
    /// maximum, the others into zeros, and rescales what was summed up before if the maximum has
    /// grown.
    #[inline(always)]
    fn soften<L: Lanes>(&mut self, lanes: L, vector: usize, keys: usize, seen: usize) {
        let Scratch { stride, scores, maxima, sums, outputs, .. } = &mut *self.scratch;
        let scores = &mut scores[vector][..keys];
        if seen < keys {
            scores[seen..].fill(f32::NEG_INFINITY);
        }
        let (scores, _) = scores.as_chunks_mut::<LANES>();
        let before = maxima[vector];
        let mut maximum = lanes.splat(before);
        for part in &*scores {
            maximum = lanes.max(maximum, lanes.load(part));
        }
        let maximum = lanes.largest(maximum);
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
        let shift = lanes.splat(-maximum);
        for part in scores {
            let weights = lanes.exp(lanes.add(lanes.load(part), shift));
            lanes.store(weights, part);
            sum = lanes.add(sum, weights);
        }
        lanes.store(sum, &mut sums[vector]);
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
