//! Paged attention of one layer with the heads of the demo model (9 query heads, 3 key and value
//! heads of 64), by context, on one thread and on two. Elements are pairs of a query row and a key.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernels::{Attention, Batch, Pool};
use sluice_benches::{HEADS, written_kv};

/// `sequences` chunks of `rows` rows each that end at position `context`.
fn run(c: &mut Criterion, name: &str, sequences: usize, rows: usize, context: usize) {
    let (kv, tables) = written_kv(sequences, context);
    let mut batch = Batch::new(HEADS, kv.num_blocks() as u32, sequences * rows);
    for table in &tables {
        batch.push((context - rows) as u32, rows, table);
    }
    let pairs = sequences * (context - rows + 1..=context).sum::<usize>();
    batch.seal();
    let queries = vec![0.5; batch.len() * HEADS.query * HEADS.dim];
    let mut out = queries.clone();
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(pairs as u64));
    for threads in [1, 2] {
        let pool = Pool::new(threads);
        let mut attention = Attention::new(HEADS, threads);
        group.bench_function(BenchmarkId::new(format!("context {context}"), threads), |b| {
            b.iter(|| attention.run(&pool, &kv, 0, &batch, &queries, &mut out));
        });
    }
}

fn attention(c: &mut Criterion) {
    for context in [128, 512, 2048] {
        run(c, "attention/decode of 1", 1, 1, context);
        run(c, "attention/decode of 16", 16, 1, context);
        run(c, "attention/prefill of 128", 1, 128, context);
    }
}

criterion_group!(benches, attention);
criterion_main!(benches);
