//! Attention against plain f64 arithmetic, and the bits of a row against everything else that may
//! be in its batch.

use proptest::prelude::*;

use super::*;
use crate::kv::{KvShape, KvWriter};
use crate::lanes::{Kernel, Lanes};

/// A number in -1..1 that looks random.
fn noise(seed: usize) -> f32 {
    let x = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// The model and the contents of a pool in which sequence `s` has the blocks `table(s)`.
#[derive(Clone, Copy, Debug)]
struct Case {
    heads: Heads,
    dtype: KvDtype,
    cpu: Cpu,
}

const LAYER: usize = 1;
const SEQUENCES: usize = 3;
/// Blocks that each sequence may use.
const BLOCKS: usize = 5;

/// Blocks of a sequence, scattered over the pool.
fn table(sequence: usize) -> Vec<u32> {
    (0..BLOCKS).map(|i| ((i * 7 + sequence * BLOCKS * 7) % (SEQUENCES * BLOCKS)) as u32).collect()
}

impl Case {
    fn key(self, sequence: usize, position: usize, head: usize, d: usize) -> f32 {
        let seed = ((sequence * 1000 + position) * 64 + head) * 1024 + d;
        self.rounded(4.0 * noise(seed))
    }

    fn value(self, sequence: usize, position: usize, head: usize, d: usize) -> f32 {
        self.rounded(noise(usize::MAX / 2 + ((sequence * 1000 + position) * 64 + head) * 1024 + d))
    }

    /// The queries of a row.
    fn query_row(self, sequence: usize, position: usize) -> Vec<f32> {
        let seed = usize::MAX / 4 + (sequence * 1000 + position) * 65536;
        (0..self.heads.query * self.heads.dim).map(|i| noise(seed + i)).collect()
    }

    fn rounded(self, x: f32) -> f32 {
        match self.dtype {
            KvDtype::F16 => f16::from_f32(x).to_f32(),
            KvDtype::F32 => x,
        }
    }

    /// A pool with all keys and values of all sequences, but of the first one only `written`: the
    /// others are what an earlier owner of the block may have left.
    fn pool(self, written: usize) -> PagedKv {
        let Heads { kv, dim, .. } = self.heads;
        let shape = KvShape { layers: 2, kv_heads: kv, head_dim: dim };
        let mut pool = PagedKv::new(shape, self.dtype, (SEQUENCES * BLOCKS) as u32).unwrap();
        for sequence in 0..SEQUENCES {
            for position in 0..BLOCKS * PagedKv::BLOCK {
                for head in 0..kv {
                    let stale = sequence == 0 && position >= written;
                    let of = |x: f32| if stale { f32::NAN } else { x };
                    let key: Vec<_> =
                        (0..dim).map(|d| of(self.key(sequence, position, head, d))).collect();
                    let value: Vec<_> =
                        (0..dim).map(|d| of(self.value(sequence, position, head, d))).collect();
                    let block = table(sequence)[position / PagedKv::BLOCK] as usize;
                    let page = (block, LAYER, head);
                    let slot = position % PagedKv::BLOCK;
                    match self.dtype {
                        KvDtype::F16 => store(pool.writer::<f16>(), page, slot, &key, &value),
                        KvDtype::F32 => store(pool.writer::<f32>(), page, slot, &key, &value),
                    }
                }
            }
        }
        pool
    }

    /// Attention of the rows of `chunks`: (sequence, start, rows).
    fn run(self, threads: usize, kv: &PagedKv, chunks: &[(usize, usize, usize)]) -> Vec<Vec<f32>> {
        let mut batch = Batch::new(self.heads, kv.num_blocks() as u32, 0);
        let mut queries = Vec::new();
        for &(sequence, start, rows) in chunks {
            batch.push(start as u32, rows, &table(sequence));
            queries.extend((start..start + rows).flat_map(|p| self.query_row(sequence, p)));
        }
        batch.seal();
        let width = self.heads.query * self.heads.dim;
        let mut out = vec![f32::NAN; batch.len() * width];
        let mut attention = Attention::new(self.heads, threads);
        attention.cpu = self.cpu;
        attention.run(&Pool::new(threads), kv, LAYER, &batch, &queries, &mut out);
        out.chunks_exact(width).map(<[f32]>::to_vec).collect()
    }

    /// The same in f64, a row at a time.
    fn reference(self, sequence: usize, position: usize) -> Vec<f64> {
        let Heads { dim, .. } = self.heads;
        let queries = self.query_row(sequence, position);
        let mut out = Vec::new();
        for (head, query) in queries.chunks_exact(dim).enumerate() {
            let head = head / self.heads.group();
            let score = |key: usize| -> f64 {
                let dot = |d| f64::from(query[d]) * f64::from(self.key(sequence, key, head, d));
                (0..dim).map(dot).sum::<f64>() / (dim as f64).sqrt()
            };
            let scores: Vec<_> = (0..=position).map(score).collect();
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<_> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            out.extend((0..dim).map(|d| {
                let part = |(key, w): (usize, &f64)| {
                    w * f64::from(self.value(sequence, key, head, d)) / sum
                };
                weights.iter().enumerate().map(part).sum::<f64>()
            }));
        }
        out
    }
}

fn store<E: Element>(
    writer: KvWriter<'_, E>,
    page: (usize, usize, usize),
    slot: usize,
    key: &[f32],
    value: &[f32],
) {
    struct Store<'a, E>(KvWriter<'a, E>, (usize, usize, usize), usize, &'a [f32], &'a [f32]);
    impl<E: Element> Kernel for Store<'_, E> {
        type Output = ();
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            // SAFETY: a test writes alone.
            unsafe { self.0.store(lanes, self.1, self.2, self.3, self.4) }
        }
    }
    dispatch(Cpu::detect(), Store(writer, page, slot, key, value));
}

fn cases() -> impl Strategy<Value = Case> {
    let heads = (1_usize..4, 1_usize..15, prop::sample::select(vec![2, 16, 20, 64, 80, 96, 128]));
    let heads = heads.prop_map(|(kv, group, dim)| Heads { query: kv * group, kv, dim });
    let dtype = prop::sample::select(vec![KvDtype::F16, KvDtype::F32]);
    let cpu = prop::sample::select(Cpu::supported());
    (heads, dtype, cpu).prop_map(|(heads, dtype, cpu)| Case { heads, dtype, cpu })
}

/// Cuts `0..len` at the given places.
fn cut(len: usize, at: &[usize]) -> Vec<(usize, usize)> {
    let mut at: Vec<_> = at.iter().map(|place| place % len).chain([0, len]).collect();
    at.sort_unstable();
    at.dedup();
    at.windows(2).map(|pair| (pair[0], pair[1] - pair[0])).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn attention_is_softmax_of_scaled_scores_times_values(
        case in cases(),
        chunks in prop::collection::vec((0..SEQUENCES, 0_usize..140, 1_usize..20), 1..4),
    ) {
        let got = case.run(2, &case.pool(usize::MAX), &chunks);
        let rows = chunks.iter().flat_map(|&(sequence, start, rows)| {
            (start..start + rows).map(move |position| (sequence, position))
        });
        for ((sequence, position), got) in rows.zip(got) {
            let want = case.reference(sequence, position);
            for (got, want) in got.iter().zip(want) {
                prop_assert!((f64::from(*got) - want).abs() < 3e-6, "{got} {want} at {position}");
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_in_any_batch(
        case in cases(),
        len in 1_usize..BLOCKS * PagedKv::BLOCK,
        cuts in prop::collection::vec(0_usize..1000, 0..6),
        others in prop::collection::vec((1..SEQUENCES, 0_usize..140, 1_usize..20), 0..4),
        threads in 1_usize..4,
    ) {
        let kv = case.pool(len);
        let whole = case.run(1, &kv, &[(0, 0, len)]);
        let mut chunks: Vec<_> =
            cut(len, &cuts).into_iter().map(|(start, rows)| (0, start, rows)).collect();
        let alone: Vec<_> = chunks.iter().flat_map(|&chunk| case.run(1, &kv, &[chunk])).collect();
        prop_assert!(alone == whole);
        chunks.extend(others);
        prop_assert!(case.run(threads, &kv, &chunks)[..len] == whole);
    }
}

#[test]
fn both_vector_paths_give_the_same_bits() {
    let heads = Heads { query: 9, kv: 3, dim: 64 };
    let run = |cpu: Cpu| {
        let case = Case { heads, dtype: KvDtype::F16, cpu };
        case.run(1, &case.pool(usize::MAX), &[(0, 0, 70), (1, 100, 1)])
    };
    let supported = Cpu::supported();
    let vector_paths = &supported[..supported.len() - 1];
    for pair in vector_paths.windows(2) {
        assert!(run(pair[0]) == run(pair[1]), "{pair:?}");
    }
}
