//! Whole steps of the demo model on the `cpu` runner, by batch: decode with some 150 tokens of
//! context each, and a prefill of 512 tokens. Elements are tokens, so throughput is tokens per
//! second. Needs the demo model (`make model`).

use std::path::Path;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernels::KvDtype;
use models::cpu::{CpuOptions, CpuRunner, WeightType};
use models::{Chunk, Logits, ModelRunner};

/// Blocks that each sequence may use.
const BLOCKS_EACH: u32 = 16;
/// Tokens that a decoding sequence has before it.
const CONTEXT: u32 = 150;

fn load(threads: usize) -> CpuRunner {
    let home = std::env::var("HOME").unwrap_or_default();
    let path = Path::new(&home).join(".cache/sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let model = models::open(&path.to_string_lossy())
        .expect("the demo model is in the cache (fetch it with `make model`)");
    let options = CpuOptions {
        threads,
        weights: WeightType::Auto,
        kv_dtype: KvDtype::F16,
        num_blocks: 32 * BLOCKS_EACH,
        max_model_len: BLOCKS_EACH * 32,
        max_batched_tokens: 512,
        max_chunks: 32,
    };
    CpuRunner::load(&model.config, &model.checkpoint, options, &mut |_, _| {})
        .expect("the demo model can be loaded")
}

fn step(c: &mut Criterion) {
    let tokens: Vec<u32> = (0..512).map(|i| 100 + i * 7919 % 20_000).collect();
    let tables: Vec<Vec<u32>> =
        (0..32).map(|i| (i * BLOCKS_EACH..(i + 1) * BLOCKS_EACH).collect()).collect();
    for threads in [1, 2] {
        let mut runner = load(threads);
        let mut logits = Vec::new();
        // Real keys and values: blocks that nobody has written take no memory to read.
        for blocks in &tables {
            let context = &tokens[..CONTEXT as usize];
            let chunk = Chunk { tokens: context, start: 0, blocks, logits: Logits::None };
            runner.run(&[chunk], &mut logits).expect("the step is valid");
        }
        let mut bench = |name: &str, batch: usize, chunks: &[Chunk<'_>]| {
            let mut group = c.benchmark_group(format!("step/{name}"));
            let rows: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
            group.throughput(Throughput::Elements(rows as u64));
            let id = BenchmarkId::new(format!("{batch}"), format!("{threads} threads"));
            group.bench_function(id, |b| {
                b.iter(|| runner.run(chunks, &mut logits).expect("the step is valid"));
            });
        };
        for batch in [1, 4, 8, 16, 32] {
            let chunk = |i: usize| Chunk {
                tokens: &tokens[i..=i],
                start: CONTEXT,
                blocks: &tables[i],
                logits: Logits::Last,
            };
            bench("decode", batch, &(0..batch).map(chunk).collect::<Vec<_>>());
        }
        let blocks = &tables[0];
        let prefill = Chunk { tokens: &tokens, start: 0, blocks, logits: Logits::Last };
        bench("prefill 512", 1, &[prefill]);
    }
}

criterion_group!(benches, step);
criterion_main!(benches);
