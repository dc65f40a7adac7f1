//! Sampling one token from a row of 49,152 logits that fall off as a language model's do.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use engine::SamplingParams;
use engine::sampling::{Sampler, Scratch};

const VOCAB: u32 = 49_152;

/// Roughly normal logits with a deviation of 3 and a dozen that stand out.
fn row() -> Vec<f32> {
    let mut state = 1u32;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0
    };
    let normal = |_| 3.0 * ((0..12).map(|_| uniform()).sum::<f32>() - 6.0);
    let mut row: Vec<f32> = (0..VOCAB).map(normal).collect();
    for rank in 0..12 {
        row[4_001 * rank] = 20.0 - rank as f32;
    }
    row
}

fn sampling(criterion: &mut Criterion) {
    let row = row();
    let base = SamplingParams { temperature: 0.8, seed: 1, ..SamplingParams::default() };
    let settings = [
        ("greedy", SamplingParams { temperature: 0.0, ..base.clone() }),
        ("temperature", base.clone()),
        ("top_k", SamplingParams { top_k: 50, ..base.clone() }),
        ("top_p", SamplingParams { top_p: 0.95, ..base.clone() }),
        ("top_p hot", SamplingParams { top_p: 0.95, temperature: 2.0, ..base.clone() }),
        ("min_p", SamplingParams { min_p: 0.05, ..base.clone() }),
        ("logprobs", SamplingParams { temperature: 0.0, logprobs: Some(5), ..base }),
    ];
    let mut group = criterion.benchmark_group("sampling");
    for (name, params) in settings {
        let mut sampler = Sampler::new(Arc::new(params), Arc::from([2]), &[1], 0);
        let mut scratch = Scratch::default();
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                || row.clone(),
                |row| black_box(sampler.sample(row, &mut scratch)),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, sampling);
criterion_main!(benches);
