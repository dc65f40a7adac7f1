//! Matrix products by weight type, shape, rows and threads: `cargo bench --bench gemm`.
//!
//! Criterion's throughput is in multiply-accumulates ("elements"), so Gelem/s reads as GMAC/s. The
//! shapes are those of a 135M Llama: projections, feed-forward up and down, output head. At one row
//! a product is bound by the memory that the weights come from; multiply the figure by the bytes of
//! a weight (Q4 0.625, Q8 1.06, f32 4) for the bandwidth.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernels::{Activations, Matrix, Pool};
use sluice_benches::{floats, q4};
use std::hint::black_box;
use std::time::Duration;

const SHAPES: [(usize, usize); 4] = [(576, 576), (1536, 576), (576, 1536), (49_152, 576)];
const ROWS: [usize; 4] = [1, 8, 32, 256];
const THREADS: [usize; 2] = [1, 2];

fn products(criterion: &mut Criterion, name: &str, make: impl Fn(usize, usize) -> Matrix) {
    for (n, k) in SHAPES {
        let matrix = make(n, k);
        for threads in THREADS {
            let pool = Pool::new(threads);
            let mut group = criterion.benchmark_group(format!("{name}/{n}x{k}/{threads}t"));
            // The head is only ever asked for the rows that are sampled.
            for rows in ROWS.into_iter().filter(|rows| rows * n <= 256 * 1536 + 32 * 49_152) {
                let mut x = Activations::new(rows, k);
                x.fill(&pool, rows, matrix.form(), |row, values| {
                    let value = |i: usize| ((row * 31 + i * 17) % 97) as f32 - 48.0;
                    values.iter_mut().enumerate().for_each(|(i, v)| *v = value(i));
                });
                let mut out = vec![0.0; rows * n];
                group.throughput(Throughput::Elements((n * k * rows) as u64));
                group.bench_function(BenchmarkId::from_parameter(rows), |bencher| {
                    bencher.iter(|| matrix.multiply(&pool, black_box(&x), rows, &mut out));
                });
            }
        }
    }
}

fn gemm(criterion: &mut Criterion) {
    products(criterion, "q4", q4);
    products(criterion, "q8", |n, k| Matrix::quantize_q8_0(n, k, &floats(n, k)));
    products(criterion, "f32", |n, k| Matrix::from_f32(n, k, &floats(n, k)));
}

/// What it costs to offer an empty region to the workers and to wait for those that came.
fn fork_join(criterion: &mut Criterion) {
    for threads in [2, 4] {
        let pool = Pool::new(threads);
        let name = format!("fork_join/{threads}t");
        criterion.bench_function(&name, |bencher| bencher.iter(|| pool.run(&|_| ())));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500));
    targets = gemm, fork_join
}
criterion_main!(benches);
