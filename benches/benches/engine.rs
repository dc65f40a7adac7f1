//! What the engine adds to a step: everything but the runner, with 32 sequences that decode and a
//! client that reads, with and without a record.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use engine::{
    Config, FirstToken, Handle, Observer, Outlook, Prompt, RequestReport, SamplingParams,
    StepReport, Submission, record, start,
};
use models::{Chunk, Logits, ModelRunner, RunnerError, RunnerLimits};
use scheduler::{
    AdmissionMode, Class, ClassConfig, ClassTable, Deadline, IsolationConfig, KindConfig, Micros,
    RetryConfig, TenantId, TenantTable,
};

const SEQUENCES: u32 = 32;
const MAX_TOKENS: u32 = 500;

/// Gives the same row to everybody, and keeps the time that this takes.
struct Parrot {
    row: Vec<f32>,
    spent: Arc<AtomicU64>,
}

impl ModelRunner for Parrot {
    fn name(&self) -> &'static str {
        "parrot"
    }

    fn limits(&self) -> RunnerLimits {
        RunnerLimits {
            vocab_size: self.row.len() as u32,
            max_model_len: 2_048,
            block_size: 32,
            num_blocks: 4_096,
            max_batched_tokens: 512,
            max_chunks: SEQUENCES,
        }
    }

    fn run(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), RunnerError> {
        let started = Instant::now();
        logits.clear();
        for _ in chunks.iter().filter(|chunk| chunk.logits == Logits::Last) {
            logits.extend_from_slice(&self.row);
        }
        let spent = started.elapsed().as_nanos() as u64;
        self.spent.fetch_add(spent, Ordering::Relaxed);
        Ok(())
    }
}

/// Adds up the full steps.
#[derive(Default)]
struct Steps(Mutex<(u64, Duration)>);

impl Observer for Steps {
    fn step(&self, report: &StepReport) {
        if report.load.decode_seqs == SEQUENCES {
            let mut steps = self.0.lock().expect("not poisoned");
            steps.0 += 1;
            steps.1 += Duration::from_micros(report.duration.0);
        }
    }

    fn token_gap(&self, _gap: Micros) {}

    fn first_token(&self, _report: &FirstToken) {}

    fn request(&self, _report: &RequestReport) {}
}

/// One burst of 32 requests, read to the end.
fn burst(handle: &Handle, runtime: &tokio::runtime::Runtime) {
    let tokens: Arc<[u32]> = (0..16).collect();
    let submission = Submission {
        class: Class::Throughput,
        tenant: TenantId::DEFAULT,
        arrival: handle.clock().now(),
        deadline: Deadline::default(),
        retry: 0,
        origin: 0,
        cache_salt: None,
        prompts: vec![Prompt { tokens, n: 1 }],
        sampling: SamplingParams {
            temperature: 0.0,
            max_tokens: MAX_TOKENS,
            ignore_eos: true,
            ..SamplingParams::default()
        },
        outlook: Outlook::default(),
        name: "".into(),
    };
    let streams: Vec<_> =
        (0..SEQUENCES).map(|_| handle.submit(submission.clone()).expect("admitted")).collect();
    for mut stream in streams {
        runtime.block_on(async { while stream.recv().await.is_some() {} });
    }
}

fn overhead(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let class = ClassConfig { max_waiting: 1_000, ..ClassConfig::default() };
    let mut group = criterion.benchmark_group("engine step of 32");
    group.sample_size(10);
    let folder = tempfile::tempdir().expect("a folder");
    let options = record::Options {
        path: folder.path().join("record"),
        max_bytes: 256 << 20,
        model: "parrot".into(),
    };
    let cases = [(256, "", None), (49_152, "", None), (49_152, ", recorded", Some(options))];
    for (vocab_size, name, record) in cases {
        let config = Config {
            max_num_seqs: SEQUENCES,
            max_num_batched_tokens: 512,
            classes: ClassTable([class; 2]),
            admission: AdmissionMode::Deadline,
            tenants: TenantTable::default(),
            kinds: KindConfig::default(),
            isolation: IsolationConfig::default(),
            retries: RetryConfig::default(),
            policy: "deadline".into(),
            eos: vec![2],
            // The steps of a burst of equal prompts would be others.
            prefix_caching: false,
            record,
            cost: None,
        };
        let (spent, steps) = (Arc::new(AtomicU64::new(0)), Arc::new(Steps::default()));
        let mut row = vec![0.0; vocab_size];
        row[77] = 1.0;
        let runner = Box::new(Parrot { row, spent: Arc::clone(&spent) });
        let observer: Arc<dyn Observer> = Arc::clone(&steps) as _;
        let handle = start(runner, config, observer, &mut |_| {}).expect("starts");
        group.bench_function(format!("vocabulary {vocab_size}{name}"), |bencher| {
            bencher.iter_custom(|iterations| {
                spent.store(0, Ordering::Relaxed);
                *steps.0.lock().expect("not poisoned") = Default::default();
                burst(&handle, &runtime);
                let (count, all) = *steps.0.lock().expect("not poisoned");
                let runner = Duration::from_nanos(spent.load(Ordering::Relaxed));
                all.saturating_sub(runner).mul_f64(iterations as f64 / count.max(1) as f64)
            });
        });
        handle.shutdown();
    }
    group.finish();
}

criterion_group!(benches, overhead);
criterion_main!(benches);
