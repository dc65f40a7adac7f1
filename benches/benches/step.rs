//! Whole steps of the demo model on the `cpu` runner, by batch: decode with some 150 tokens of
//! context each, and a prefill of 512 tokens. Elements are tokens, so throughput is tokens per
//! second. Needs the demo model (`make model`).

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sluice_benches::DemoModel;

fn step(c: &mut Criterion) {
    let model = DemoModel::open();
    for threads in [1, 2] {
        let mut demo = DemoModel::load(&model, threads);
        let mut group = c.benchmark_group("step/decode");
        for batch in [1, 4, 8, 16, 32] {
            group.throughput(Throughput::Elements(batch as u64));
            let id = BenchmarkId::new(format!("{threads}t"), batch);
            group.bench_function(id, |b| b.iter(|| demo.decode(batch)));
        }
        group.finish();
        let mut group = c.benchmark_group("step/prefill 512");
        group.throughput(Throughput::Elements(512));
        group.bench_function(format!("{threads}t"), |b| b.iter(|| demo.prefill()));
        group.finish();
    }
}

criterion_group!(benches, step);
criterion_main!(benches);
