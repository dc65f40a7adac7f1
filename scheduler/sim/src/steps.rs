//! What goes into a step: latency work at a fifth of the capacity over an endless backlog of bulk
//! work. Nobody is refused, so that only the scheduler decides.
//!
//! Four rules that need no forecast stand beside ours, each alone: the plain queue, earliest
//! deadline first with full chunks, a batch a quarter as large, a chunk a quarter as large.

use std::io::{self, Write};

use scheduler::{Class, Micros, TenantId};

use crate::driver::Setup;
use crate::experiment::{Effort, capacity};
use crate::front::Admitting;
use crate::profile::Profile;
use crate::record::{Fate, Run};
use crate::stats::{Mean, quantile};
use crate::stream::{Stream, merge};
use crate::table::Table;
use crate::target::Target;
use crate::workload::{Job, Workload, by_name};

/// Devices with the gap that their latency class is promised, in milliseconds.
const CASES: [(&str, f64); 4] =
    [("8b-conv", 30.0), ("70b-conv", 50.0), ("70b-lognormal", 50.0), ("cpu-chat", 40.0)];

/// First tokens of latency work are ordered by this target; it is generous, so that nobody expires.
const TTFT_SECONDS: f64 = 10.0;

/// Bulk work is due within an hour: its time never comes.
const BULK: Target = Target::First(3_600.0);

/// Bulk requests offered, over capacity: the backlog grows.
const BULK_LOAD: f64 = 1.2;

/// A way to fill steps.
#[derive(Clone, Copy, Debug)]
struct Rules {
    name: &'static str,
    policy: &'static str,
    change: fn(&mut Setup),
}

const RULES: [Rules; 6] = [
    Rules { name: "ours", policy: "deadline", change: |_| {} },
    Rules { name: "fcfs", policy: "fcfs", change: |_| {} },
    Rules { name: "edf, full chunk", policy: "edf", change: |_| {} },
    Rules {
        name: "edf, batch a quarter",
        policy: "edf",
        change: |setup| setup.config.max_num_seqs /= 4,
    },
    Rules {
        name: "edf, chunk a quarter",
        policy: "edf",
        change: |setup| {
            let config = &mut setup.config;
            config.max_num_batched_tokens = config.max_num_seqs + config.max_num_batched_tokens / 4;
        },
    },
    Rules {
        name: "edf, a sixteenth of the slots kept",
        policy: "edf",
        change: |setup| {
            let kept = setup.config.max_num_seqs.div_ceil(16);
            setup.config.classes.0[Class::Latency.index()].slots_kept = Some(kept);
        },
    },
];

/// How much is offered, and how thoroughly it is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bench {
    /// Seeds and threads.
    pub effort: Effort,
    /// Latency requests over capacity.
    pub load: f64,
    /// Simulated time of a run.
    pub seconds: f64,
}

/// What a run came to. Times in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    tokens_per_second: f64,
    step: f64,
    ttft: [f64; 2],
    tpot: [f64; 2],
}

impl Bench {
    /// Prints a row for each workload and rule, or only for these.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn print(
        &self,
        workloads: &[String],
        rules: &[String],
        out: &mut impl Write,
    ) -> io::Result<()> {
        let mut table = Table::new(&HEAD);
        let chosen = |name: &str| workloads.is_empty() || workloads.iter().any(|one| one == name);
        let wanted = |name: &str| rules.is_empty() || rules.iter().any(|part| name.contains(part));
        for (name, gap) in CASES.into_iter().filter(|(name, _)| chosen(name)) {
            let workload = *by_name(name).expect("a case names a workload");
            let alone = self.outcomes(&workload, gap, &RULES[0], false);
            table.push(row(name, gap, "bulk alone", &alone, &alone));
            for rules in RULES.iter().filter(|rules| wanted(rules.name)) {
                let both = self.outcomes(&workload, gap, rules, true);
                table.push(row(name, gap, rules.name, &both, &alone));
            }
        }
        writeln!(out, "{table}")
    }

    /// Outcomes of each seed, without or with latency work.
    fn outcomes(&self, workload: &Workload, gap: f64, rules: &Rules, both: bool) -> Vec<Outcome> {
        let capacity = capacity(workload);
        let stream = |class, load: f64, target| Stream {
            class,
            lengths: workload.lengths,
            arrivals: workload.arrivals,
            rate: capacity * load,
            target,
            known: true,
            tenant: TenantId::DEFAULT,
        };
        let latency = Target::Tokens(TTFT_SECONDS, gap);
        // A stream's requests depend on its place: the backlog is the same in both cases.
        let mut streams = vec![stream(Class::Throughput, BULK_LOAD, BULK)];
        if both {
            streams.push(stream(Class::Latency, self.load, latency));
        }
        let micros = |seconds: f64| Micros((seconds * 1e6) as u64);
        let window = (micros(self.seconds / 4.0), micros(self.seconds));
        self.effort.over_seeds(|seed| {
            let jobs = merge(&streams, self.seconds, &workload.profile, seed);
            let jobs = with_backlog(jobs, &workload.profile);
            let all = Admitting::Cap(usize::MAX);
            let mut setup = Setup::new(&workload.profile, rules.policy, all, seed);
            setup.window = Some(window);
            (rules.change)(&mut setup);
            measure(&jobs, &setup.run(&jobs), window)
        })
    }
}

/// The first bulk requests, two for each slot, are there from the beginning.
fn with_backlog(mut jobs: Vec<Job>, profile: &Profile) -> Vec<Job> {
    let bulk = jobs.iter_mut().filter(|job| job.request.class == Class::Throughput);
    for job in bulk.take(2 * profile.max_num_seqs as usize) {
        job.request.arrival = Micros(0);
    }
    jobs.sort_by_key(|job| job.request.arrival);
    for (id, job) in (0..).zip(&mut jobs) {
        job.request.id = scheduler::RequestId(id);
    }
    jobs
}

fn measure(jobs: &[Job], run: &Run, (from, until): (Micros, Micros)) -> Outcome {
    let span = until.minus(from).0 as f64 / 1e6;
    let latency = || {
        run.of(jobs).filter(|(job, record)| {
            let counts = job.request.class == Class::Latency && job.request.arrival >= from;
            counts && matches!(record.fate, Fate::Ended(_))
        })
    };
    let ms = |a: Micros, b: Micros| b.minus(a).0 as f64 / 1e3;
    // Who has no token yet has waited so long at least.
    let first =
        latency().map(|(job, record)| ms(job.request.arrival, record.first.unwrap_or(until)));
    let gaps = latency().filter(|(job, _)| job.actual > 1).filter_map(|(job, record)| {
        Some(ms(record.first?, record.last?) / f64::from(job.actual - 1))
    });
    let (first, gaps): (Vec<f64>, Vec<f64>) = (first.collect(), gaps.collect());
    let quantiles = |values: &[f64]| [0.5, 0.99].map(|q| quantile(values.to_vec(), q));
    Outcome {
        tokens_per_second: run.measured.tokens as f64 / span,
        step: span * 1e3 / run.measured.steps as f64,
        ttft: quantiles(&first),
        tpot: quantiles(&gaps),
    }
}

const HEAD: [&str; 9] = [
    "workload",
    "gap, ms",
    "rules",
    "tok/s",
    "of bulk alone",
    "TTFT p50 / p99, ms",
    "TPOT p50, ms",
    "TPOT p99, ms",
    "step, ms",
];

fn row(name: &str, gap: f64, rules: &str, ours: &[Outcome], alone: &[Outcome]) -> Vec<String> {
    let mean = |of: fn(&Outcome) -> f64| Mean::of(ours.iter().map(of));
    let pairs = ours.iter().zip(alone);
    let share = Mean::of(pairs.map(|(a, b)| a.tokens_per_second / b.tokens_per_second));
    vec![
        name.to_owned(),
        gap.to_string(),
        rules.to_owned(),
        format!("{:.0}", mean(|one| one.tokens_per_second).mean),
        share.to_string(),
        format!("{:.0} / {}", mean(|one| one.ttft[0]).mean, rounded(mean(|one| one.ttft[1]), 0)),
        format!("{:.1}", mean(|one| one.tpot[0]).mean),
        rounded(mean(|one| one.tpot[1]), 1),
        format!("{:.1}", mean(|one| one.step).mean),
    ]
}

fn rounded(mean: Mean, digits: usize) -> String {
    format!("{:.digits$} ±{:.digits$}", mean.mean, mean.half)
}
