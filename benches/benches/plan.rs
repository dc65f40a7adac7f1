//! The planner: a step of full batches, and of full batches with a queue behind them.

mod inside;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

use inside::Inside;

/// Sequences that run, and that wait besides.
const SIZES: [(u64, u64); 6] =
    [(16, 0), (64, 0), (256, 0), (256, 1_000), (1_024, 0), (1_024, 1_000)];

fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    for (running, waiting) in SIZES {
        let name = BenchmarkId::new(format!("{running} running"), format!("{waiting} waiting"));
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|n| {
                let mut inside = Inside::with_slots(running + waiting, running as u32);
                (0..n).map(|_| inside.step()).sum::<Duration>()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
