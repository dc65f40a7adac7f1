//! The command line.

use std::io::{Write, stdout};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use scheduler::KindConfig;

use crate::autoscale::Autoscale;
use crate::classes::{self, Offer};
use crate::experiment::{Device, Effort, Rules, Scenario, capacity};
use crate::policies::{self, Compared};
use crate::prefix;
use crate::steps;
use crate::tables::{Bench, Topic};
use crate::target::Target;
use crate::tenants;
use crate::workload::by_name;

/// Drives Sluice's scheduler and gate over virtual time and measures them.
#[derive(Debug, Parser)]
#[command(name = "sluice-sim", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Tables: what the gate achieves, against baselines tuned on the same seeds.
    Admission(Admission),
    /// Tables: scheduling policies and admission policies beside each other.
    Policies(Policies),
    /// Tables: what the prefix cache finds in a trace of conversations, and what the gate gains by
    /// knowing it.
    Prefix(Prefix),
    /// One scenario in detail.
    ///
    /// Example: sluice-sim run --workload 8b-code --slo 1.5s --load 2
    Run(One),
    /// Two classes on one replica: what bulk work beside it costs the latency class.
    Classes(Classes),
    /// Tables: what the burst of one tenant costs another, and how evenly two are served.
    Tenants(Tenants),
    /// What goes into a step: latency work at a fifth of capacity over an endless bulk backlog.
    ///
    /// Example: sluice-sim step --workload cpu-chat --rules ours,fcfs
    Step(Step),
    /// The closed loop with an autoscaler: replicas over time under traffic that rises.
    Autoscale(Autoscale),
}

#[derive(Debug, Args)]
struct Tenants {
    /// Only these workloads.
    #[arg(long, value_delimiter = ',')]
    workload: Vec<String>,
    /// How long requests come.
    #[arg(long, default_value_t = 300.0)]
    seconds: f64,
    #[command(flatten)]
    runs: Runs,
}

#[derive(Debug, Args)]
struct Classes {
    /// Only these workloads.
    #[arg(long, value_delimiter = ',')]
    workload: Vec<String>,
    /// What latency work is promised: instead of the usual ones.
    #[arg(long)]
    slo: Vec<Target>,
    /// What throughput work is promised.
    #[arg(long)]
    bulk_slo: Vec<Target>,
    /// Latency requests over capacity.
    #[arg(long, default_value_t = 1.0)]
    load: f64,
    /// Throughput requests over capacity.
    #[arg(long, default_value_t = 1.0)]
    bulk_load: f64,
    /// Only rules whose name contains one of these.
    #[arg(long, value_delimiter = ',')]
    rules: Vec<String>,
    /// How long requests come; the first tenth of them warms up.
    #[arg(long, default_value_t = 660.0)]
    seconds: f64,
    #[command(flatten)]
    runs: Runs,
}

#[derive(Debug, Args)]
struct Step {
    /// Only these workloads.
    #[arg(long, value_delimiter = ',')]
    workload: Vec<String>,
    /// Latency requests over capacity.
    #[arg(long, default_value_t = 0.2)]
    load: f64,
    /// Only rules whose name contains one of these.
    #[arg(long, value_delimiter = ',')]
    rules: Vec<String>,
    /// Simulated time of a run; a quarter of it warms up.
    #[arg(long, default_value_t = 480.0)]
    seconds: f64,
    #[command(flatten)]
    runs: Runs,
}

#[derive(Debug, Args)]
struct Admission {
    /// Which tables; all of them by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    table: Vec<Topic>,
    /// Only these workloads.
    #[arg(long, value_delimiter = ',')]
    workload: Vec<String>,
    /// Multiples of capacity.
    #[arg(long, value_delimiter = ',', default_values_t = [0.5, 1.0, 1.5, 2.0])]
    loads: Vec<f64>,
    /// Two seeds and 600 requests: a look.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Policies {
    /// Which tables; all of them by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    table: Vec<Compared>,
    /// Only these workloads.
    #[arg(long, value_delimiter = ',')]
    workload: Vec<String>,
    /// Multiples of capacity.
    #[arg(long, value_delimiter = ',', default_values_t = [0.5, 1.0, 2.0])]
    loads: Vec<f64>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Prefix {
    /// Multiples of capacity.
    #[arg(long, value_delimiter = ',', default_values_t = [1.0, 2.0])]
    loads: Vec<f64>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct One {
    /// The device and its traffic: 8b-code, 70b-conv, cpu-chat-bursty ...
    #[arg(long)]
    workload: String,
    /// The last token within a multiple of the unloaded time (4x) or seconds (1.5s), or first
    /// token and mean gap (1s+30ms).
    #[arg(long)]
    slo: Target,
    /// Offered requests over capacity.
    #[arg(long, default_value_t = 1.0)]
    load: f64,
    /// The gate does not know output lengths.
    #[arg(long)]
    learned: bool,
    /// Standard deviation of a step's time, relative.
    #[arg(long, default_value_t = 0.05)]
    noise: f64,
    /// True over predicted time of a step.
    #[arg(long, default_value_t = 1.0)]
    bias: f64,
    /// The cost model follows the steps.
    #[arg(long)]
    corrected: bool,
    /// Judges the refusals by running the log again. Steps take what the model says there.
    #[arg(long)]
    refusals: bool,
    /// Searches for whom to let in if all arrivals were known, so many changes long. Steps take
    /// what the model says there.
    #[arg(long, value_name = "CHANGES")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    hindsight: Option<u32>,
    #[command(flatten)]
    common: Common,
}

/// How often everything is run.
#[derive(Clone, Copy, Debug, Args)]
struct Runs {
    /// Seeds; intervals are over them.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 101)]
    first_seed: u64,
    /// Runs at a time.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

impl Runs {
    fn effort(self, requests: usize) -> Effort {
        let Runs { seeds, first_seed, threads } = self;
        Effort { first_seed, seeds, requests, threads: threads.into() }
    }
}

/// What the tables of admission and of policies have in common.
#[derive(Debug, Args)]
struct Common {
    #[command(flatten)]
    runs: Runs,
    /// Requests of a run; the first tenth warms up.
    #[arg(long, default_value_t = 2_500)]
    requests: usize,
    /// Strength k of the rule by kind.
    #[arg(long, default_value_t = f64::from(KindConfig::default().strength_permille) / 1e3)]
    strength: f64,
    /// Weight of fairness between prompt lengths.
    #[arg(long, default_value_t = f64::from(KindConfig::default().fairness_permille) / 1e3)]
    fairness: f64,
    /// Fixed multiple of the target that a forecast may use; learned by default.
    #[arg(long)]
    safety: Option<f64>,
}

impl Common {
    fn bench(&self, loads: Vec<f64>, only: Vec<String>) -> Result<Bench> {
        ensure!(self.requests >= 20, "--requests must be at least 20");
        let share = |name: &str, value: f64| -> Result<u32> {
            ensure!((0.0..=1.0).contains(&value), "--{name} must be between 0 and 1");
            Ok((value * 1e3) as u32)
        };
        check_workloads(&only)?;
        check_loads(&loads)?;
        Ok(Bench {
            effort: self.runs.effort(self.requests),
            loads,
            only,
            rules: Rules {
                kinds: KindConfig {
                    strength_permille: share("strength", self.strength)?,
                    fairness_permille: share("fairness", self.fairness)?,
                },
                safety_permille: self.safety.map(|safety| share("safety", safety)).transpose()?,
            },
        })
    }
}

fn check_workloads(names: &[String]) -> Result<()> {
    for name in names {
        by_name(name).with_context(|| format!("no workload is called `{name}`"))?;
    }
    Ok(())
}

fn check_loads(loads: &[f64]) -> Result<()> {
    ensure!(loads.iter().all(|load| *load > 0.0), "--loads must be above 0");
    Ok(())
}

/// What was asked for, above its tables.
fn write_command(out: &mut impl Write) -> Result<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    writeln!(out, "`sluice-sim {}`\n", given.join(" "))?;
    Ok(())
}

/// Does what the command line says.
///
/// # Errors
/// On arguments that make no sense, and if standard output cannot be written.
pub fn run(cli: Cli) -> Result<()> {
    let mut out = stdout().lock();
    match cli.command {
        Command::Admission(admission) => admission.run(&mut out),
        Command::Tenants(tenants) => tenants.run(&mut out),
        Command::Policies(policies) => policies.run(&mut out),
        Command::Prefix(Prefix { loads, common }) => {
            let bench = common.bench(loads, Vec::new())?;
            prefix::print(&bench.effort, &bench.loads, &mut out)?;
            Ok(())
        }
        Command::Run(one) => one.run(&mut out),
        Command::Classes(classes) => classes.run(&mut out),
        Command::Step(step) => step.run(&mut out),
        Command::Autoscale(autoscale) => autoscale.run(&mut out),
    }
}

impl Admission {
    fn run(self, out: &mut impl Write) -> Result<()> {
        let mut bench = self.common.bench(self.loads, self.workload)?;
        if self.quick {
            bench.effort = Effort { seeds: 2, requests: 600, ..bench.effort };
        }
        write_command(out)?;
        let topics = if self.table.is_empty() { Topic::value_variants() } else { &self.table };
        for topic in topics {
            let name = topic.to_possible_value().context("every table has a name")?;
            writeln!(out, "## {}\n", name.get_name())?;
            bench.print(*topic, out)?;
        }
        Ok(())
    }
}

impl Tenants {
    fn run(self, out: &mut impl Write) -> Result<()> {
        ensure!(self.seconds >= 30.0, "--seconds must be at least 30");
        check_workloads(&self.workload)?;
        let mut cases = tenants::cases();
        let chosen = |name: &str| self.workload.iter().any(|one| one == name);
        cases.retain(|case| self.workload.is_empty() || chosen(case.workload.name));
        tenants::print(&cases, self.seconds, &self.runs.effort(0), out)?;
        Ok(())
    }
}

impl Classes {
    fn run(self, out: &mut impl Write) -> Result<()> {
        ensure!(self.load > 0.0 && self.bulk_load > 0.0, "loads must be above 0");
        ensure!(self.seconds >= 60.0, "--seconds must be at least 60");
        check_workloads(&self.workload)?;
        let cases = classes::cases(&self.workload, &self.slo, &self.bulk_slo);
        let mut variants = classes::variants();
        let chosen = |name: &str| self.rules.iter().any(|part| name.contains(part));
        variants.retain(|variant| self.rules.is_empty() || chosen(variant.name));
        let Classes { load, bulk_load, seconds, .. } = self;
        let offer = Offer { latency: load, throughput: bulk_load, seconds };
        classes::print(&cases, &variants, &offer, &self.runs.effort(0), out)?;
        Ok(())
    }
}

impl Step {
    fn run(self, out: &mut impl Write) -> Result<()> {
        ensure!(self.load > 0.0 && self.load < 1.0, "--load must be between 0 and 1");
        ensure!(self.seconds >= 60.0, "--seconds must be at least 60");
        check_workloads(&self.workload)?;
        let Step { seconds, load, .. } = self;
        let bench = steps::Bench { effort: self.runs.effort(0), load, seconds };
        bench.print(&self.workload, &self.rules, out)?;
        Ok(())
    }
}

impl Policies {
    fn run(self, out: &mut impl Write) -> Result<()> {
        let bench = self.common.bench(self.loads, self.workload)?;
        write_command(out)?;
        let tables = if self.table.is_empty() { Compared::value_variants() } else { &self.table };
        for compared in tables {
            policies::print(&bench, *compared, out)?;
        }
        Ok(())
    }
}

impl One {
    fn run(self, out: &mut impl Write) -> Result<()> {
        ensure!(
            self.load > 0.0 && self.bias > 0.0 && self.noise >= 0.0,
            "a factor is not positive"
        );
        let bench = self.common.bench(Vec::new(), vec![self.workload.clone()])?;
        let workload = *by_name(&self.workload).context("checked above")?;
        let scenario = Scenario {
            workload,
            target: self.slo,
            load: self.load,
            known: !self.learned,
            capacity: capacity(&workload),
        };
        let device = Device { noise: self.noise, bias: self.bias, corrected: self.corrected };
        bench.detail(&scenario, device, self.refusals, out)?;
        if let Some(changes) = self.hindsight {
            bench.hindsight(&scenario, changes, out)?;
        }
        Ok(())
    }
}
