//! One table of what the kernels reach on this machine, each figure beside the bound that memory
//! sets: `cargo bench --bench kernels`. Best of several runs. Needs the demo model (`make model`).
//!
//! The bound is the measured read bandwidth over the bytes that must be read: the weights once for
//! a step or a product, keys and values once for each sequence. Where a figure is far below it,
//! arithmetic is what limits.

use std::hint::black_box;
use std::time::{Duration, Instant};

use kernels::{Activations, Attention, Batch, KvDtype, Matrix, PagedKv, Pool};
use models::LoadedModel;
use models::cpu::CpuRunner;
use sluice_benches::{CONTEXT, DemoModel, HEADS, floats, q4, written_kv};

const THREADS: [usize; 2] = [1, 2];

/// The shortest of several runs that take about half a second together.
fn best(mut work: impl FnMut()) -> f64 {
    let started = Instant::now();
    let mut best = f64::INFINITY;
    while best.is_infinite() || started.elapsed() < Duration::from_millis(500) {
        let run = Instant::now();
        work();
        best = best.min(run.elapsed().as_secs_f64());
    }
    best
}

/// Bytes a second that `threads` threads read from memory, far beyond the caches.
fn bandwidth(threads: usize) -> f64 {
    let data = vec![1u64; 256 << 17];
    let read = |part: &[u64]| black_box(part.iter().fold(0u64, |sum, value| sum ^ value));
    let seconds = best(|| {
        std::thread::scope(|scope| {
            for part in data.chunks(data.len().div_ceil(threads)) {
                scope.spawn(move || read(part));
            }
        });
    });
    (data.len() * 8) as f64 / seconds
}

fn steps(model: &LoadedModel, bandwidths: &[f64]) {
    println!("\n| step of the demo model | batch | threads | tok/s | memory bound, tok/s |");
    println!("|---|--:|--:|--:|--:|");
    let weights = model.checkpoint.bytes() as f64;
    let token = CpuRunner::block_bytes(&model.config, KvDtype::F16) as f64 / PagedKv::BLOCK as f64;
    for (&threads, &bandwidth) in THREADS.iter().zip(bandwidths) {
        let mut demo = DemoModel::load(model, threads);
        for batch in [1, 4, 8, 16, 32] {
            let rate = batch as f64 / best(|| demo.decode(batch));
            let bytes = weights + batch as f64 * f64::from(CONTEXT) * token;
            let bound = batch as f64 * bandwidth / bytes;
            println!(
                "| decode, context {CONTEXT} | {batch} | {threads} | {rate:.0} | {bound:.0} |"
            );
        }
        let rate = 512.0 / best(|| demo.prefill());
        let bound = 512.0 * bandwidth / weights;
        println!("| prefill 512 | 1 | {threads} | {rate:.0} | {bound:.0} |");
    }
}

fn product(name: &str, matrix: &Matrix, rows: usize, bandwidths: &[f64]) {
    let (n, k) = (matrix.n(), matrix.k());
    for (&threads, &bandwidth) in THREADS.iter().zip(bandwidths) {
        let pool = Pool::new(threads);
        let mut x = Activations::new(rows, k);
        x.fill(&pool, rows, matrix.form(), |row, values| {
            let value = |i: usize| ((row * 31 + i * 17) % 97) as f32 - 48.0;
            values.iter_mut().enumerate().for_each(|(i, v)| *v = value(i));
        });
        let mut out = vec![0.0; rows * n];
        let work = (n * k * rows) as f64;
        let rate = work / best(|| matrix.multiply(&pool, black_box(&x), rows, &mut out)) / 1e9;
        let bound = work * bandwidth / matrix.bytes() as f64 / 1e9;
        println!("| {name} {n}x{k} | {rows} | {threads} | {rate:.0} | {bound:.0} |");
    }
}

/// Alone, a matrix stays in a large cache and may pass the bound; in a whole step, which reads all
/// weights, it cannot.
fn products(bandwidths: &[f64]) {
    println!("\n| product | rows | threads | GMAC/s | memory bound, GMAC/s |");
    println!("|---|--:|--:|--:|--:|");
    let shapes = [
        ("Q4", q4(576, 576)),
        ("Q4", q4(1536, 576)),
        ("Q4", q4(576, 1536)),
        ("Q8 head", Matrix::quantize_q8_0(49_152, 576, &floats(49_152, 576))),
        ("f32", Matrix::from_f32(1536, 576, &floats(1536, 576))),
    ];
    for (name, matrix) in &shapes {
        for rows in [1, 8, 32, 256] {
            // The head is only ever asked for the rows that are sampled.
            if rows <= 32 || matrix.n() < 10_000 {
                product(name, matrix, rows, bandwidths);
            }
        }
    }
}

fn attention(bandwidths: &[f64]) {
    println!("\n| attention, one layer | context | threads | us | memory bound, us |");
    println!("|---|--:|--:|--:|--:|");
    let sequences = 16;
    for context in [128, 512, 2048] {
        let (kv, tables) = written_kv(sequences, context);
        let mut batch = Batch::new(HEADS, kv.num_blocks() as u32, sequences);
        for table in &tables {
            batch.push(context as u32 - 1, 1, table);
        }
        batch.seal();
        let queries = vec![0.5; batch.len() * HEADS.query * HEADS.dim];
        let mut out = queries.clone();
        let bytes = (sequences * context * HEADS.kv * HEADS.dim * 2 * 2) as f64;
        for (&threads, &bandwidth) in THREADS.iter().zip(bandwidths) {
            let pool = Pool::new(threads);
            let mut attention = Attention::new(HEADS, threads);
            let us = 1e6 * best(|| attention.run(&pool, &kv, 0, &batch, &queries, &mut out));
            let bound = 1e6 * bytes / bandwidth;
            println!("| decode of {sequences} | {context} | {threads} | {us:.0} | {bound:.0} |");
        }
    }
}

fn main() {
    let model = DemoModel::open();
    let bandwidths = THREADS.map(bandwidth);
    let [one, two] = bandwidths.map(|bytes| bytes / 1e9);
    println!("read bandwidth: {one:.1} GB/s with 1 thread, {two:.1} GB/s with 2");
    steps(&model, &bandwidths);
    products(&bandwidths);
    attention(&bandwidths);
}
