//! The tables of `sluice-sim policies`: scheduling policies beside each other, and admission
//! policies, each on the same traffic.

use std::io::{self, Write};

use clap::ValueEnum;
use scheduler::{AdmissionMode, KindConfig, Micros, TenantId, policy};

use crate::experiment::{Scenario, capacity};
use crate::front::Admitting;
use crate::record::{Record, is_met};
use crate::score::Score;
use crate::stats::{Mean, quantile};
use crate::table::Table;
use crate::tables::Bench;
use crate::target::Target;
use crate::workload::by_name;
use crate::{Job, Run, Setup};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compared {
    /// Who runs next, with nobody refused and with the gate.
    Scheduling,
    /// Who is refused.
    Admission,
    /// A tenant that sends a fifth of the requests beside one that sends the rest.
    Tenants,
}

const CASES: [(&str, Target); 2] =
    [("8b-conv", Target::Tokens(1.0, 30.0)), ("8b-code", Target::Multiple(4.0))];

const SCHEDULING: [&str; 9] = [
    "workload, SLO",
    "load",
    "policy",
    "in time",
    "TTFT mean, s",
    "TTFT p99, s",
    "gate: in time",
    "gate: TTFT mean, s",
    "gate: TTFT p99, s",
];

const ADMISSION: [&str; 7] =
    ["workload, SLO", "load", "policy", "in time", "of admitted", "refused", "tok/s in time"];

const TENANTS: [&str; 8] = [
    "workload, SLO",
    "load",
    "policy",
    "light: in time",
    "light: TTFT p99, s",
    "heavy: in time",
    "heavy: TTFT p99, s",
    "Jain",
];

/// One request in so many is of the light tenant.
const LIGHT: u64 = 5;

/// Caps that are tried.
const CAPS: [u32; 8] = [4, 8, 16, 32, 48, 64, 96, 192];

/// The bucket holds what the device does in so many seconds.
const BURST_SECONDS: f64 = 4.0;

/// Prints the table.
///
/// # Errors
/// If `out` cannot be written.
pub fn print(bench: &Bench, compared: Compared, out: &mut impl Write) -> io::Result<()> {
    let head: &[&str] = match compared {
        Compared::Scheduling => &SCHEDULING,
        Compared::Admission => &ADMISSION,
        Compared::Tenants => &TENANTS,
    };
    let mut table = Table::new(head);
    let chosen = |name: &str| bench.only.is_empty() || bench.only.iter().any(|o| o == name);
    for (name, target) in CASES.iter().filter(|(name, _)| chosen(name)) {
        let workload = *by_name(name).expect("a case names a workload");
        let capacity = capacity(&workload);
        for load in &bench.loads {
            let scenario =
                Scenario { workload, target: *target, load: *load, known: true, capacity };
            let rows = match compared {
                Compared::Scheduling => scheduling(bench, &scenario),
                Compared::Admission => admission(bench, &scenario),
                Compared::Tenants => tenants(bench, &scenario),
            };
            for row in rows {
                let case = [format!("{name}, {target}"), load.to_string()];
                table.push(case.into_iter().chain(row).collect());
            }
        }
    }
    writeln!(out, "{table}")
}

/// What a run came to.
struct Outcome {
    score: Score,
    /// Seconds from arrival to the first token of those that had one: mean and 99 % quantile.
    ttft: [f64; 2],
}

impl Outcome {
    fn new(jobs: &[Job], run: &Run) -> Outcome {
        let warm = jobs.len() / 10;
        let counted = run.of(jobs).skip(warm);
        let ttft: Vec<f64> =
            counted.filter_map(|(job, record)| seconds_to_first(job, record)).collect();
        let mean = ttft.iter().sum::<f64>() / ttft.len() as f64;
        Outcome { score: Score::new(jobs, run), ttft: [mean, quantile(ttft, 0.99)] }
    }
}

fn outcomes(
    bench: &Bench,
    scenario: &Scenario,
    policy: &'static str,
    mode: AdmissionMode,
) -> Vec<Outcome> {
    bench.effort.over_seeds(|seed| {
        let jobs = scenario.jobs(bench.effort.requests, seed);
        let rule = Admitting::Gate(mode, KindConfig::default());
        let run = Setup::new(&scenario.workload.profile, policy, rule, seed).run(&jobs);
        Outcome::new(&jobs, &run)
    })
}

fn mean(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> Mean {
    Mean::of(outcomes.iter().map(of))
}

fn scheduling(bench: &Bench, scenario: &Scenario) -> Vec<Vec<String>> {
    let row = |name: &'static str| {
        let modes = [AdmissionMode::None, AdmissionMode::Deadline];
        let cells = modes.into_iter().flat_map(|mode| {
            let outcomes = outcomes(bench, scenario, name, mode);
            [
                mean(&outcomes, |outcome| outcome.score.attainment).to_string(),
                format!("{:.2}", mean(&outcomes, |outcome| outcome.ttft[0]).mean),
                format!("{:.2}", mean(&outcomes, |outcome| outcome.ttft[1]).mean),
            ]
        });
        [format!("`{name}`")].into_iter().chain(cells).collect()
    };
    policy::NAMES.into_iter().map(row).collect()
}

fn admission(bench: &Bench, scenario: &Scenario) -> Vec<Vec<String>> {
    let row = |mode: AdmissionMode| {
        let outcomes = outcomes(bench, scenario, policy::NAMES[0], mode);
        let attainment = mean(&outcomes, |outcome| outcome.score.attainment);
        let refused = |outcome: &Outcome| outcome.score.by_rule.iter().sum();
        let cells = vec![
            format!("`{mode}`"),
            attainment.to_string(),
            format!("{:.3}", mean(&outcomes, |outcome| outcome.score.kept).mean),
            format!("{:.3}", mean(&outcomes, refused).mean),
            format!("{:.0}", mean(&outcomes, |outcome| outcome.score.goodput).mean),
        ];
        (attainment.mean, cells)
    };
    let caps = CAPS.map(|requests| row(AdmissionMode::QueueCap { requests }));
    let best = caps.into_iter().max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, cells)| cells);
    let rate = tokens_a_second(scenario);
    let bucket =
        AdmissionMode::TokenBucket { rate: rate as u32, burst: (rate * BURST_SECONDS) as u32 };
    let saturation = AdmissionMode::Saturation { queue: 5, kv_permille: 800 };
    let article = AdmissionMode::Article { permille: 800 };
    let mut rows = vec![row(AdmissionMode::None).1];
    rows.extend(best);
    rows.extend([bucket, saturation, article, AdmissionMode::Deadline].map(|mode| row(mode).1));
    rows
}

/// Tokens of prompts and answers that the device does in a second.
fn tokens_a_second(scenario: &Scenario) -> f64 {
    const REQUESTS: usize = 2_000;
    let jobs = scenario.workload.backlog(REQUESTS, 5);
    let tokens = |job: &Job| u64::from(job.request.sequences[0].prompt_tokens + job.actual);
    jobs.iter().map(tokens).sum::<u64>() as f64 / REQUESTS as f64 * scenario.capacity
}

/// Of one run, by tenant, the light one first.
struct Shares {
    in_time: [f64; 2],
    /// Seconds to the first token, at the 99 % quantile.
    ttft: [f64; 2],
    /// Jain's index of what each tenant was served over what it was entitled to.
    jain: f64,
}

impl Shares {
    /// Service is tokens, output counting twice, of what had ended when the last request came. Each
    /// tenant is entitled to what it asks for, up to half of all service and what the other leaves.
    fn new(jobs: &[Job], run: &Run) -> Shares {
        let end = jobs.last().map_or(Micros(0), |job| job.request.arrival);
        let light = |job: &Job| job.request.tenant == TenantId(1);
        let of = |tenant: usize| run.of(jobs).filter(move |(job, _)| light(job) == (tenant == 0));
        let tokens = |job: &Job| f64::from(job.request.sequences[0].prompt_tokens + 2 * job.actual);
        let demand = [0, 1].map(|i| of(i).map(|(job, _)| tokens(job)).sum::<f64>());
        let served = [0, 1].map(|i| {
            let ended = of(i).filter(|(_, record)| record.last.is_some_and(|last| last <= end));
            ended.map(|(job, _)| tokens(job)).sum::<f64>()
        });
        let all = served[0] + served[1];
        let light_share = demand[0].min(f64::max(all / 2.0, all - demand[1]));
        let x = [served[0] / light_share, served[1] / (all - light_share)];
        let ttft = |i| of(i).filter_map(|(job, record)| seconds_to_first(job, record)).collect();
        let met = |i| of(i).filter(|(job, record)| is_met(job, record)).count() as f64;
        Shares {
            in_time: [0, 1].map(|i| met(i) / of(i).count() as f64),
            ttft: [0, 1].map(|i| quantile(ttft(i), 0.99)),
            jain: (x[0] + x[1]).powi(2) / (2.0 * (x[0].powi(2) + x[1].powi(2))),
        }
    }
}

fn tenants(bench: &Bench, scenario: &Scenario) -> Vec<Vec<String>> {
    let row = |name: &'static str| {
        let shares = bench.effort.over_seeds(|seed| {
            let mut jobs = scenario.jobs(bench.effort.requests, seed);
            for job in &mut jobs {
                job.request.tenant = TenantId(u8::from(job.request.id.0 % LIGHT == 0));
            }
            let rule = Admitting::Gate(AdmissionMode::None, KindConfig::default());
            let run = Setup::new(&scenario.workload.profile, name, rule, seed).run(&jobs);
            Shares::new(&jobs, &run)
        });
        let mean = |of: fn(&Shares) -> f64| Mean::of(shares.iter().map(of)).mean;
        vec![
            format!("`{name}`"),
            format!("{:.3}", mean(|shares| shares.in_time[0])),
            format!("{:.2}", mean(|shares| shares.ttft[0])),
            format!("{:.3}", mean(|shares| shares.in_time[1])),
            format!("{:.2}", mean(|shares| shares.ttft[1])),
            format!("{:.3}", mean(|shares| shares.jain)),
        ]
    };
    policy::NAMES.into_iter().map(row).collect()
}

fn seconds_to_first(job: &Job, record: &Record) -> Option<f64> {
    Some(record.first?.minus(job.request.arrival).0 as f64 / 1e6)
}
