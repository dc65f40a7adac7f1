//! The gate with 10 to 10,000 requests outstanding: admission, refusal, and the timeline that they
//! are looked up in.
//!
//! Before criterion's own figures it prints the median and the 99th percentile of single calls,
//! which are what a request feels, how many refusals a core can give in a second, and what a
//! waiting request takes of memory.

mod inside;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use scheduler::{Admission, Deadline, Micros, Rule, Terminal, Timeline};

use inside::{Inside, SLOTS};

const OUTSTANDING: [u64; 4] = [10, 100, 1_000, 10_000];

/// Admissions between two timelines.
const BETWEEN_STEPS: u64 = 20;

/// Tenants of the last admissions.
const TENANTS: u8 = 8;

/// Calls that each quantile is taken from.
const ADMISSIONS: u64 = 5_000;
const BUILDS: u64 = 500;
const REFUSALS: u64 = 20_000;

/// Times `n` admissions through the gate's lock, as the server takes it. Each is undone untimed.
fn admissions(inside: &Inside, n: u64) -> Vec<Duration> {
    let mut times = Vec::with_capacity(n as usize);
    for i in 0..n {
        if i % BETWEEN_STEPS == 0 {
            inside.install();
        }
        let mut candidate = inside.candidate(i);
        let start = Instant::now();
        let admission = inside.gate().admit(inside.now, &mut candidate);
        times.push(start.elapsed());
        assert!(matches!(black_box(admission), Admission::Admit(_)), "{admission:?}");
        let (now, id) = (inside.now, candidate.id);
        inside.gate().finish(now, id, Terminal::Cancelled, &[], None, None);
    }
    times
}

fn timed(n: u64, mut call: impl FnMut() -> Duration) -> Vec<Duration> {
    (0..n).map(|_| call()).collect()
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
        let inside = Inside::new(outstanding);
        print_quantiles("admit", outstanding, admissions(&inside, ADMISSIONS));
        let build = || {
            let start = Instant::now();
            black_box(Timeline::build(inside.now, &inside.scheduler));
            start.elapsed()
        };
        print_quantiles("build", outstanding, timed(BUILDS, build));
        print_quantiles("install", outstanding, timed(BUILDS, || inside.install()));
    }
    for outstanding in [1_000, 10_000] {
        let inside = Inside::with_tenants(outstanding, TENANTS);
        print_quantiles("tenants", outstanding, admissions(&inside, ADMISSIONS));
    }
}

/// Refuses as fast as it can: requests that are looked up and miss their own deadline.
fn storm(outstanding: u64) {
    let inside = Inside::new(outstanding);
    let late = |i: u64| {
        let mut request = inside.candidate(i);
        // Alone on the device it would take a tenth of that.
        request.sequences[0].output.max = 10;
        let last_token = Some(inside.now.plus(Micros(2_000_000)));
        request.deadline = Deadline { last_token, ..Deadline::default() };
        request
    };
    let mut candidates: Vec<_> = (1..=REFUSALS).map(late).collect();
    let start = Instant::now();
    for candidate in &mut candidates {
        let admission = inside.gate().admit(inside.now, candidate);
        let refused = matches!(admission, Admission::Shed(shed) if shed.rule == Rule::Own);
        assert!(refused, "{admission:?}");
    }
    let per_second = REFUSALS as f64 / start.elapsed().as_secs_f64();
    println!("refuse   {outstanding:>6} outstanding: {per_second:>9.0} a second");
}

/// What a request that waits takes of memory in scheduler, gate and timeline: what is allocated,
/// so that the room which lists keep for the next ones counts.
fn memory() {
    let bytes = |outstanding: u64| {
        let mut inside = None;
        let resting = allocation_counter::measure(|| {
            inside = Some(Inside::new(outstanding));
        });
        let inside = inside.expect("it was measured");
        let timeline =
            allocation_counter::measure(|| drop(Timeline::build(inside.now, &inside.scheduler)));
        (resting.bytes_current, timeline.bytes_max as i64)
    };
    let full = u64::from(SLOTS);
    let without = bytes(full);
    for waiting in [1_000, 10_000] {
        let with = bytes(full + waiting);
        let each = |with: i64, without: i64| (with - without) / waiting as i64;
        println!(
            "memory   {waiting:>6} waiting: {} bytes each, {} more while a timeline is built",
            each(with.0, without.0),
            each(with.1, without.1),
        );
    }
}

fn bench(criterion: &mut Criterion) {
    quantiles();
    storm(1_000);
    memory();
    let mut group = criterion.benchmark_group("gate");
    for outstanding in OUTSTANDING {
        let inside = Inside::new(outstanding);
        group.bench_function(BenchmarkId::new("admit", outstanding), |bencher| {
            bencher.iter_custom(|n| admissions(&inside, n).iter().sum());
        });
        group.bench_function(BenchmarkId::new("timeline", outstanding), |bencher| {
            bencher.iter(|| Timeline::build(inside.now, &inside.scheduler));
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
