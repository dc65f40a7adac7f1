//! The `cpu` runner on whole models: what a sequence gets does not depend on anything but itself.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod demo;
mod tiny;

use std::hash::{DefaultHasher, Hash, Hasher};

use kernels::KvDtype;
use sluice_models::cpu::{CpuOptions, CpuRunner, WeightType};
use sluice_models::testing::Random;
use sluice_models::{Chunk, LoadedModel, Logits, ModelRunner};

fn below(random: &mut Random, bound: usize) -> usize {
    (random.bits() % bound as u64) as usize
}

const BLOCK: usize = 32;
/// Blocks that each sequence may use.
const BLOCKS_EACH: usize = 4;

fn options(threads: usize, weights: WeightType) -> CpuOptions {
    CpuOptions {
        threads,
        weights,
        kv_dtype: KvDtype::F16,
        num_blocks: 80,
        max_model_len: (BLOCKS_EACH * BLOCK) as u32,
        max_batched_tokens: 256,
        max_chunks: 32,
    }
}

fn load(model: &LoadedModel, options: CpuOptions) -> CpuRunner {
    CpuRunner::load(&model.config, &model.checkpoint, options, &mut |_, _| {}).unwrap()
}

/// Blocks of the sequence of this number, none of which another one has.
fn table(sequence: usize) -> Vec<u32> {
    (0..BLOCKS_EACH).map(|i| ((sequence * BLOCKS_EACH + i) * 7 % 80) as u32).collect()
}

fn chunk<'a>(tokens: &'a [u32], start: usize, blocks: &'a [u32], logits: Logits) -> Chunk<'a> {
    Chunk { tokens, start: start as u32, blocks, logits }
}

/// One number for each row of logits: equal rows have equal numbers.
fn fingerprints(logits: &[f32], vocab: usize) -> Vec<u64> {
    let row = |row: &[f32]| {
        assert!(row.iter().all(|x| x.is_finite()), "logits that are no numbers");
        let mut hasher = DefaultHasher::new();
        row.iter().for_each(|x| x.to_bits().hash(&mut hasher));
        hasher.finish()
    };
    logits.chunks_exact(vocab).map(row).collect()
}

/// The fingerprints of all rows of a sequence that is run alone and whole.
fn alone(runner: &mut CpuRunner, tokens: &[u32]) -> Vec<u64> {
    let (mut logits, blocks) = (Vec::new(), table(0));
    runner.run(&[chunk(tokens, 0, &blocks, Logits::All)], &mut logits).unwrap();
    fingerprints(&logits, runner.limits().vocab_size as usize)
}

/// The fingerprints of all rows of all sequences, run together in chunks of random lengths, each
/// step a random selection of them.
fn ragged(
    runner: &mut CpuRunner,
    sequences: &[Vec<u32>],
    longest_chunk: usize,
    random: &mut Random,
) -> Vec<Vec<u64>> {
    let vocab = runner.limits().vocab_size as usize;
    let tables: Vec<_> = (0..sequences.len()).map(table).collect();
    let mut rows: Vec<Vec<u64>> = vec![Vec::new(); sequences.len()];
    let mut logits = Vec::new();
    while rows.iter().zip(sequences).any(|(rows, tokens)| rows.len() < tokens.len()) {
        let (mut chunks, mut owners) = (Vec::new(), Vec::new());
        for (owner, tokens) in sequences.iter().enumerate() {
            let start = rows[owner].len();
            let len = below(random, longest_chunk + 1).min(tokens.len() - start);
            if len > 0 {
                let tokens = &tokens[start..start + len];
                chunks.push(chunk(tokens, start, &tables[owner], Logits::All));
                owners.extend(std::iter::repeat_n(owner, len));
            }
        }
        runner.run(&chunks, &mut logits).unwrap();
        for (owner, row) in owners.into_iter().zip(fingerprints(&logits, vocab)) {
            rows[owner].push(row);
        }
    }
    rows
}

/// Checks that sixteen sequences of mixed lengths get, row by row, the bits that they get alone.
fn ragged_equals_alone(model: &LoadedModel, weights: WeightType, longest: usize, seed: u64) {
    let mut random = Random(seed);
    let vocab = model.config.vocab_size;
    let sequences: Vec<Vec<u32>> = (0..16)
        .map(|_| {
            let len = 1 + below(&mut random, longest);
            (0..len).map(|_| below(&mut random, vocab) as u32).collect()
        })
        .collect();
    let mut single = load(model, options(1, weights));
    let expected: Vec<_> = sequences.iter().map(|tokens| alone(&mut single, tokens)).collect();
    for threads in [1, 2, 3] {
        let mut runner = load(model, options(threads, weights));
        let got = ragged(&mut runner, &sequences, 15, &mut random);
        assert!(got == expected, "{threads} threads, seed {seed}");
    }
}
