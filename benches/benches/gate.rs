//! The gate with 10 to 10,000 requests outstanding: admission, and the timeline that it looks up.
//!
//! Before criterion's own figures it prints the median and the 99th percentile of single calls,
//! which are what a request feels.

mod inside;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use scheduler::{Admission, Gate, Micros, Terminal, Timeline};

use inside::{COST, Inside, request};

const OUTSTANDING: [u64; 4] = [10, 100, 1_000, 10_000];

/// Admissions between two timelines.
const BETWEEN_STEPS: u64 = 20;

/// Times `n` admissions into a gate with `inside` outstanding, each of which is undone untimed.
fn admissions(inside: &mut Inside, n: u64) -> Vec<Duration> {
    let mut times = Vec::with_capacity(n as usize);
    for i in 0..n {
        if i % BETWEEN_STEPS == 0 {
            let timeline = Timeline::build(inside.now, &inside.scheduler);
            inside.gate.install(inside.now, timeline, COST);
        }
        let mut candidate = request(inside.next_id + i, inside.now);
        let start = Instant::now();
        let admission = inside.gate.admit(inside.now, black_box(&mut candidate));
        times.push(start.elapsed());
        if matches!(admission, Admission::Admit(_)) {
            undo(&mut inside.gate, inside.now, candidate.id);
        }
    }
    times
}

fn undo(gate: &mut Gate, now: Micros, id: scheduler::RequestId) {
    gate.finish(now, id, Terminal::Cancelled, &[], None, None);
}

fn timed(n: u64, mut call: impl FnMut()) -> Vec<Duration> {
    let time = |_| {
        let start = Instant::now();
        call();
        start.elapsed()
    };
    (0..n).map(time).collect()
}

fn print_quantiles(what: &str, outstanding: u64, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |per_mille: usize| times[times.len() * per_mille / 1_000];
    println!(
        "{what:<8} {outstanding:>6} outstanding: median {:>9.2?}  p99 {:>9.2?}  n {}",
        at(500),
        at(990),
        times.len()
    );
}

fn quantiles() {
    for outstanding in OUTSTANDING {
        let mut inside = Inside::new(outstanding);
        print_quantiles("admit", outstanding, admissions(&mut inside, 5_000));
        let build = || drop(black_box(Timeline::build(inside.now, &inside.scheduler)));
        print_quantiles("build", outstanding, timed(200, build));
        let timeline = Timeline::build(inside.now, &inside.scheduler);
        let mut copies = vec![timeline; 200];
        let install = || {
            let copy = copies.pop().expect("one for each call");
            inside.gate.install(inside.now, copy, COST);
        };
        print_quantiles("install", outstanding, timed(200, install));
    }
}

fn bench(criterion: &mut Criterion) {
    quantiles();
    let mut group = criterion.benchmark_group("gate");
    for outstanding in OUTSTANDING {
        let mut inside = Inside::new(outstanding);
        group.bench_function(BenchmarkId::new("admit", outstanding), |bencher| {
            bencher.iter_custom(|n| admissions(&mut inside, n).iter().sum());
        });
        group.bench_function(BenchmarkId::new("timeline", outstanding), |bencher| {
            bencher.iter(|| Timeline::build(inside.now, &inside.scheduler));
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
