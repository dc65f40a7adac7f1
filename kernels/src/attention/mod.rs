//! Attention over paged keys and values.
//!
//! Work is cut into items: a few successive rows of one sequence times the query heads that share
//! one key and value head, twelve query vectors at most, so that each key and value loaded serves
//! all of them. An item walks the blocks of its sequence in order, four at a time, and keeps a
//! running maximum, sum and output for each vector (Milakov and Gimelshein, "Online normalizer
//! calculation for softmax").
//!
//! What is computed for a vector depends on its sequence alone, never on the other vectors of its
//! item: blocks are cut at absolute positions, sums run in a fixed order, masked keys count as
//! exact zeros. So a row's result has the same bits however its prefill is cut, whatever else is in
//! the batch, and on any number of threads.

mod item;
mod product;

use half::f16;

use crate::batch::{Batch, Heads, TILE_VECTORS, Tile};
use crate::cpu::Cpu;
use crate::kv::{KvDtype, PagedKv};
use crate::lanes::{Element, dispatch};
use crate::pool::{Disjoint, Pool};

use item::{Item, Scratch};

/// Attention of one model: its heads and the threads' scratch memory.
#[derive(Debug)]
pub struct Attention {
    heads: Heads,
    cpu: Cpu,
    scratch: Vec<Scratch>,
}

impl Attention {
    /// Attention for `heads`, run on pools of up to `threads` threads.
    #[must_use]
    pub fn new(heads: Heads, threads: usize) -> Attention {
        let scratch = (0..threads).map(|_| Scratch::new(heads.dim)).collect();
        Attention { heads, cpu: Cpu::detect(), scratch }
    }

    /// Softmax(Q K^T / sqrt(dim)) V for each row of the batch and each query head. `queries`
    /// and `out` have `query * dim` values a row; keys and values come from `layer` of the pool,
    /// those of the batch's own rows included.
    ///
    /// # Panics
    /// The batch or the pool was made for other heads, or a slice is shorter than the batch.
    pub fn run(
        &mut self,
        pool: &Pool,
        kv: &PagedKv,
        layer: usize,
        batch: &Batch,
        queries: &[f32],
        out: &mut [f32],
    ) {
        let shape = kv.shape();
        assert!(batch.heads() == self.heads, "a batch made for other heads");
        assert!((shape.kv_heads, shape.head_dim) == (self.heads.kv, self.heads.dim), "other heads");
        let len = batch.len() * self.heads.query * self.heads.dim;
        assert!(queries.len() >= len && out.len() >= len, "queries and room for every row");
        assert!(self.scratch.len() >= pool.threads(), "scratch memory for every thread");
        let task = Task { kv, layer, batch, queries, out: Disjoint::new(out), cpu: self.cpu };
        match kv.dtype() {
            KvDtype::F16 => task.run::<f16>(pool, &mut self.scratch),
            KvDtype::F32 => task.run::<f32>(pool, &mut self.scratch),
        }
    }
}

struct Task<'a> {
    kv: &'a PagedKv,
    layer: usize,
    batch: &'a Batch,
    queries: &'a [f32],
    out: Disjoint<'a, f32>,
    cpu: Cpu,
}

impl Task<'_> {
    fn run<E: Element>(&self, pool: &Pool, scratch: &mut [Scratch]) {
        let items = self.batch.tiles().len() * self.items_per_tile();
        // A thread goes through all heads of a tile where there are tiles enough: their keys and
        // values follow each other in memory.
        let enough = self.batch.tiles().len() >= 4 * pool.threads();
        let size = if enough { self.items_per_tile() } else { 1 };
        let scratch = Disjoint::new(scratch);
        pool.for_ranges_with_worker(items, size, |worker, range| {
            // SAFETY: each worker takes one range at a time, and uses the scratch of its number.
            let scratch = &mut unsafe { scratch.slice(worker, 1) }[0];
            range.for_each(|item| self.item::<E>(item, scratch));
        });
    }

    fn items_per_tile(&self) -> usize {
        // Groups of more than twelve heads are cut.
        self.batch.heads().kv * self.batch.heads().group().div_ceil(TILE_VECTORS)
    }

    /// Computes the item of this number: items count the parts of a group, then the key and value
    /// heads, then the tiles.
    fn item<E: Element>(&self, number: usize, scratch: &mut Scratch) {
        let heads = self.batch.heads();
        let (tile, kv_head, part) = self.place(number);
        let first = part * TILE_VECTORS;
        let query_heads = (heads.group() - first).min(TILE_VECTORS);
        let first_head = kv_head * heads.group() + first;
        dispatch(
            self.cpu,
            Item::<E> {
                kv: self.kv,
                layer: self.layer,
                kv_head,
                table: self.batch.table(&tile),
                position: tile.position,
                rows: tile.rows,
                query_heads,
                queries: &self.queries[(tile.first_row * heads.query + first_head) * heads.dim..],
                query_stride: heads.query * heads.dim,
                scratch,
                after: self.first_keys(number + 1),
            },
        );
        for row in 0..tile.rows {
            let start = ((tile.first_row + row) * heads.query + first_head) * heads.dim;
            // SAFETY: tiles cover each row once, and the items of a tile have heads of their own.
            let out = unsafe { self.out.slice(start, query_heads * heads.dim) };
            for (head, out) in out.chunks_exact_mut(heads.dim).enumerate() {
                out.copy_from_slice(&scratch.output(row * query_heads + head)[..heads.dim]);
            }
        }
    }

    /// Tile, key and value head, and part of its group.
    fn place(&self, number: usize) -> (Tile, usize, usize) {
        let parts = self.items_per_tile() / self.batch.heads().kv;
        let (rest, part) = (number / parts, number % parts);
        let kv = self.batch.heads().kv;
        (self.batch.tiles()[rest / kv], rest % kv, part)
    }

    /// The first keys that an item needs; nothing where there is no such item.
    fn first_keys<E: Element>(&self, number: usize) -> &[E] {
        if number == self.batch.tiles().len() * self.items_per_tile() {
            return &[];
        }
        let (tile, kv_head, _) = self.place(number);
        self.kv.page(self.batch.table(&tile)[0] as usize, self.layer, kv_head).0
    }
}

#[cfg(test)]
mod tests;
