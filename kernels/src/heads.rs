//! What happens to the heads between their projection and attention: norms, the rotary embedding,
//! and the way of keys and values into the pool.

use half::f16;

use crate::batch::{Batch, Row};
use crate::cpu::Cpu;
use crate::elementwise::inverse_rms;
use crate::kv::{KvDtype, KvWriter, PagedKv};
use crate::lanes::{Element, Kernel, Lanes, dispatch};
use crate::pool::{Disjoint, Pool};

/// What a layer does to its query and key heads.
#[derive(Clone, Copy, Debug)]
pub struct HeadOps<'a> {
    /// RMS norms of each query head and each key head, before they are turned.
    pub norms: Option<HeadNorms<'a>>,
    /// The rotary embedding.
    pub rotary: Rotary<'a>,
}

/// Weights of the norms of query heads and of key heads (`dim` values each).
#[derive(Clone, Copy, Debug)]
pub struct HeadNorms<'a> {
    /// For query heads.
    pub query: &'a [f32],
    /// For key heads.
    pub key: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

/// Angles of the rotary embedding: `[positions, dim / 2]`, row by row.
#[derive(Clone, Copy, Debug)]
pub struct Rotary<'a> {
    /// Cosines.
    pub cos: &'a [f32],
    /// Sines.
    pub sin: &'a [f32],
    /// Neighbours (2i, 2i + 1) turn together; otherwise halves (i, i + dim / 2) do.
    pub interleaved: bool,
}

/// Queries, keys and values of the rows of a batch, as they come from their projections:
/// `query * dim`, `kv * dim` and `kv * dim` values a row.
#[derive(Debug)]
pub struct Projected<'a> {
    /// Queries.
    pub q: &'a mut [f32],
    /// Keys.
    pub k: &'a mut [f32],
    /// Values.
    pub v: &'a [f32],
}

/// Norms and turns the query and key heads of each row, in place, and stores keys and values in
/// `layer` of the pool.
///
/// # Panics
/// A slice is shorter than the batch or the model needs.
pub fn prepare_heads(
    pool: &Pool,
    kv: &mut PagedKv,
    layer: usize,
    batch: &Batch,
    ops: HeadOps<'_>,
    rows: &mut Projected<'_>,
) {
    let task = Task { layer, batch, ops, cpu: Cpu::detect() };
    match kv.dtype() {
        KvDtype::F16 => task.run::<f16>(pool, kv, rows),
        KvDtype::F32 => task.run::<f32>(pool, kv, rows),
    }
}

struct Task<'a> {
    layer: usize,
    batch: &'a Batch,
    ops: HeadOps<'a>,
    cpu: Cpu,
}

impl Task<'_> {
    fn run<E: Element>(&self, pool: &Pool, kv: &mut PagedKv, rows: &mut Projected<'_>) {
        let (heads, threads) = (self.batch.heads(), pool.threads());
        assert!((kv.shape().kv_heads, kv.shape().head_dim) == (heads.kv, heads.dim), "other heads");
        let (q_width, kv_width) = (heads.query * heads.dim, heads.kv * heads.dim);
        let (q, k, v) = (Disjoint::new(rows.q), Disjoint::new(rows.k), rows.v);
        let writer = &kv.writer::<E>();
        // A thread owns the rows of the blocks that fall to it: no two threads write to one block,
        // even if a caller gives it to two sequences.
        let owner = |row: &Row| row.block % threads;
        let work = |worker: usize| {
            let rows = self.batch.rows().iter().enumerate();
            for (index, &row) in rows.filter(|(_, row)| owner(row) == worker) {
                // SAFETY: each row has one owner.
                let queries = unsafe { q.slice(index * q_width, q_width) };
                // SAFETY: each row has one owner.
                let keys = unsafe { k.slice(index * kv_width, kv_width) };
                let values = &v[index * kv_width..][..kv_width];
                let (layer, ops, dim) = (self.layer, self.ops, heads.dim);
                let row = PrepareRow { writer, layer, row, dim, ops, queries, keys, values };
                dispatch(self.cpu, row);
            }
        };
        match self.batch.rows() {
            // Waking the others would take longer than the work.
            [only] => work(owner(only)),
            _ => pool.run(&work),
        }
    }
}

/// One row, whose block is this thread's own.
struct PrepareRow<'a, E> {
    writer: &'a KvWriter<'a, E>,
    layer: usize,
    row: Row,
    dim: usize,
    ops: HeadOps<'a>,
    queries: &'a mut [f32],
    keys: &'a mut [f32],
    values: &'a [f32],
}

impl<E: Element> Kernel for PrepareRow<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let PrepareRow { writer, layer, row, dim, ops, queries, keys, values } = self;
        let turns = [(queries, ops.norms.map(|n| n.query)), (&mut *keys, ops.norms.map(|n| n.key))];
        for (heads, weight) in turns {
            for head in heads.chunks_exact_mut(dim) {
                if let (Some(weight), Some(norms)) = (weight, ops.norms) {
                    let scale = inverse_rms(lanes, head, norms.eps);
                    head.iter_mut().zip(weight).for_each(|(x, weight)| *x *= scale * weight);
                }
                turn(head, ops.rotary, row.position);
            }
        }
        let pairs = keys.chunks_exact(dim).zip(values.chunks_exact(dim));
        for (head, (key, value)) in pairs.enumerate() {
            let slot = row.position % PagedKv::BLOCK;
            // SAFETY: the block is this thread's own.
            unsafe { writer.store(lanes, (row.block, layer, head), slot, key, value) };
        }
    }
}

/// Turns a head by the angles of its position.
#[inline(always)]
fn turn(head: &mut [f32], rotary: Rotary<'_>, position: usize) {
    let half = head.len() / 2;
    let angles = position * half..(position + 1) * half;
    let angles = rotary.cos[angles.clone()].iter().zip(&rotary.sin[angles]);
    if rotary.interleaved {
        for (pair, (cos, sin)) in head.chunks_exact_mut(2).zip(angles) {
            (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin);
        }
    } else {
        let (low, high) = head.split_at_mut(half);
        for ((a, b), (cos, sin)) in low.iter_mut().zip(high).zip(angles) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::batch::Heads;
    use crate::kv::KvShape;

    const POSITIONS: usize = 80;

    /// One row at a time, in f64: norm, then a turn of each pair.
    fn reference(
        head: &[f32],
        norm: Option<&[f32]>,
        position: usize,
        neighbours: bool,
    ) -> Vec<f64> {
        let mut x: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
        if let Some(weight) = norm {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            x.iter_mut().zip(weight).for_each(|(x, w)| *x *= f64::from(*w) / (mean + 1e-6).sqrt());
        }
        let half = x.len() / 2;
        for i in 0..half {
            let (a, b) = if neighbours { (2 * i, 2 * i + 1) } else { (i, i + half) };
            let (sin, cos) = angle(position, i).sin_cos();
            (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[b] * cos + x[a] * sin);
        }
        x
    }

    fn angle(position: usize, pair: usize) -> f64 {
        position as f64 / (pair + 1) as f64
    }

    fn close(got: &[f32], want: &[f64], tolerance: f64) -> bool {
        got.iter().zip(want).all(|(got, want)| (f64::from(*got) - want).abs() < tolerance)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn heads_are_normed_turned_and_stored_in_their_slots(
            (half, query, kv) in (1_usize..40, 1_usize..4, 1_usize..4),
            starts in prop::collection::vec((0_usize..60, 1_usize..20), 1..4),
            (normed, interleaved, f32_pool) in any::<(bool, bool, bool)>(),
            values in prop::collection::vec(-2_f32..2.0, 97),
            (threads, cpu) in (1_usize..4, prop::sample::select(Cpu::supported())),
        ) {
            let heads = Heads { query: query * kv, kv, dim: 2 * half };
            let dtype = if f32_pool { KvDtype::F32 } else { KvDtype::F16 };
            let shape = KvShape { layers: 2, kv_heads: kv, head_dim: heads.dim };
            let mut pool = PagedKv::new(shape, dtype, 9).unwrap();
            let mut batch = Batch::new(heads, 9, 0);
            for (i, &(start, rows)) in starts.iter().enumerate() {
                batch.push(start as u32, rows, &[3 * i as u32, 3 * i as u32 + 2, 3 * i as u32 + 1]);
            }
            let some = |n: usize, seed: usize| -> Vec<f32> {
                (0..n).map(|i| values[(i * 31 + seed) % values.len()]).collect()
            };
            let q = some(batch.len() * query * kv * heads.dim, 1);
            let k = some(batch.len() * kv * heads.dim, 2);
            let (v, q_norm, k_norm) = (some(k.len(), 3), some(heads.dim, 4), some(heads.dim, 5));
            let table = |f: fn(f64) -> f64| -> Vec<f32> {
                (0..POSITIONS * half).map(|i| f(angle(i / half, i % half)) as f32).collect()
            };
            let norms = normed.then_some(HeadNorms { query: &q_norm, key: &k_norm, eps: 1e-6 });
            let (cos, sin) = (table(f64::cos), table(f64::sin));
            let ops = HeadOps { norms, rotary: Rotary { cos: &cos, sin: &sin, interleaved } };
            let (mut got_q, mut got_k) = (q.clone(), k.clone());
            let task = Task { layer: 1, batch: &batch, ops, cpu };
            let rows = &mut Projected { q: &mut got_q, k: &mut got_k, v: &v };
            match dtype {
                KvDtype::F16 => task.run::<f16>(&Pool::new(threads), &mut pool, rows),
                KvDtype::F32 => task.run::<f32>(&Pool::new(threads), &mut pool, rows),
            }

            let of = |row: usize| batch.rows()[row].position;
            for (i, (got, q)) in got_q.chunks(heads.dim).zip(q.chunks(heads.dim)).enumerate() {
                let norm = normed.then_some(q_norm.as_slice());
                let position = of(i / heads.query);
                let want = reference(q, norm, position, interleaved);
                prop_assert!(close(got, &want, 3e-5), "query {i}");
            }
            for (i, (k, v)) in k.chunks(heads.dim).zip(v.chunks(heads.dim)).enumerate() {
                let want = reference(k, normed.then_some(&k_norm), of(i / kv), interleaved);
                let v: Vec<_> = v.iter().map(|&v| f64::from(v)).collect();
                let row = batch.rows()[i / kv];
                let (key, value) = pool.get(row.block, 1, i % kv, row.position % 32);
                let tolerance = if f32_pool { 3e-5 } else { 1e-2 };
                prop_assert!(close(&key, &want, tolerance), "key {i}");
                prop_assert!(close(&value, &v, tolerance), "value {i}");
            }
        }
    }
}
