//! Two classes on one replica: what the latency class loses to bulk work beside it, and what
//! becomes of the promises given to that.

use std::io::{self, Write};

use scheduler::{AdmissionMode, Class, IsolationConfig, KindConfig, Rule, TenantId};

use crate::driver::Setup;
use crate::experiment::{Effort, capacity};
use crate::front::Admitting;
use crate::score::Score;
use crate::stats::{Mean, digits};
use crate::stream::{Stream, merge};
use crate::table::Table;
use crate::target::Target;
use crate::workload::{Workload, by_name};

/// A device with its traffic and what each class is promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The device and the lengths of both classes.
    pub workload: Workload,
    /// What latency work is promised.
    pub latency: Target,
    /// What throughput work is promised.
    pub throughput: Target,
}

/// Who decides and in what order.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Its name in tables.
    pub name: &'static str,
    policy: &'static str,
    /// Nobody is refused.
    open: bool,
    isolation: IsolationConfig,
}

const NOTHING: IsolationConfig =
    IsolationConfig { latency_share_permille: 0, displacement_permille: 0 };

const fn variant(name: &'static str, isolation: IsolationConfig) -> Variant {
    Variant { name, policy: "deadline", open: false, isolation }
}

/// Baselines, each part of isolation, and all of it.
#[must_use]
pub fn variants() -> Vec<Variant> {
    let all = IsolationConfig::default();
    let open = |name, policy| Variant { name, policy, open: true, isolation: NOTHING };
    vec![
        open("first come, first served", "fcfs"),
        open("earliest deadline first", "edf"),
        Variant { policy: "edf", ..variant("gate over edf: deadlines alone", NOTHING) },
        variant("gate, steps and slots by class", NOTHING),
        variant("and displacement", IsolationConfig { latency_share_permille: 0, ..all }),
        variant("and expected work", IsolationConfig { displacement_permille: 0, ..all }),
        variant("all", all),
    ]
}

/// Both classes in one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Both {
    /// Of latency work.
    pub latency: Score,
    /// Of throughput work.
    pub throughput: Score,
}

/// How much is offered, for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// Latency requests over capacity.
    pub latency: f64,
    /// Throughput requests over capacity.
    pub throughput: f64,
    /// How long requests come.
    pub seconds: f64,
}

impl Case {
    /// The case of a workload called `name`.
    #[must_use]
    pub fn new(name: &str, latency: Target, throughput: Target) -> Option<Case> {
        Some(Case { workload: *by_name(name)?, latency, throughput })
    }

    fn streams(&self, offer: &Offer, capacity: f64) -> [Stream; 2] {
        let stream = |class, load: f64, target| Stream {
            class,
            tenant: TenantId::DEFAULT,
            lengths: self.workload.lengths,
            arrivals: self.workload.arrivals,
            rate: capacity * load,
            target,
            known: true,
        };
        [
            stream(Class::Latency, offer.latency, self.latency),
            stream(Class::Throughput, offer.throughput, self.throughput),
        ]
    }

    /// Scores by class, one a seed.
    #[must_use]
    pub fn run(&self, offer: &Offer, variant: &Variant, effort: &Effort) -> Vec<Both> {
        let streams = self.streams(offer, capacity(&self.workload));
        let profile = &self.workload.profile;
        effort.over_seeds(|seed| {
            let jobs = merge(&streams, offer.seconds, profile, seed);
            let admitting = match variant.open {
                true => Admitting::Cap(usize::MAX),
                false => Admitting::Gate(AdmissionMode::Deadline, KindConfig::default()),
            };
            let setup = Setup::new(profile, variant.policy, admitting, seed);
            let run = Setup { isolation: variant.isolation, ..setup }.run(&jobs);
            let of = |class| Score::of(&jobs, &run, |request| request.class == class);
            Both { latency: of(Class::Latency), throughput: of(Class::Throughput) }
        })
    }
}

/// Prints a row for each case and variant, below one for the latency class alone.
///
/// # Errors
/// If `out` cannot be written.
pub fn print(
    cases: &[Case],
    variants: &[Variant],
    offer: &Offer,
    effort: &Effort,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut table = Table::new(&HEAD);
    for case in cases {
        let slos = format!("{} / {}", case.latency, case.throughput);
        let alone = Offer { throughput: 0.0, ..*offer };
        let gate = variant("latency class alone", IsolationConfig::default());
        let alone_scores = case.run(&alone, &gate, effort);
        let base = mean(&alone_scores, |both| both.latency.attainment).mean;
        let mut row = |name: &str, scores: &[Both]| {
            let latency = mean(scores, |both| both.latency.attainment);
            table.push(vec![
                case.workload.name.to_owned(),
                slos.clone(),
                name.to_owned(),
                latency.to_string(),
                digits(latency.mean / base, 2),
                digits(mean(scores, |both| both.latency.kept).mean, 3),
                mean(scores, |both| both.throughput.attainment).to_string(),
                mean(scores, |both| both.throughput.kept).to_string(),
                digits(mean(scores, |both| both.throughput.displaced).mean, 3),
                rules(scores),
                digits(mean(scores, |both| both.latency.goodput + both.throughput.goodput).mean, 0),
            ]);
        };
        row(gate.name, &alone_scores);
        for variant in variants {
            row(variant.name, &case.run(offer, variant, effort));
        }
    }
    writeln!(out, "{table}")
}

const HEAD: [&str; 11] = [
    "workload",
    "SLO",
    "rules",
    "latency in time",
    "of alone",
    "latency kept",
    "bulk in time",
    "bulk kept",
    "displaced",
    "latency refused: own harm kind",
    "tok/s in time",
];

/// Devices with what their latency class is promised, several forms each.
const USUAL: [(&str, &[Target]); 5] = [
    ("8b-code", &[Target::Tokens(1.5, 30.0), Target::Seconds(1.5), Target::Multiple(4.0)]),
    ("8b-conv", &[Target::Tokens(1.5, 30.0), Target::Multiple(4.0)]),
    ("70b-code", &[Target::Tokens(1.5, 70.0), Target::Seconds(1.5), Target::Multiple(4.0)]),
    ("70b-conv", &[Target::Tokens(1.5, 70.0), Target::Multiple(4.0)]),
    ("cpu-chat", &[Target::Tokens(1.5, 80.0), Target::Multiple(4.0)]),
];

const BULK: [Target; 2] = [Target::Seconds(60.0), Target::First(60.0)];

/// The usual cases, or only these workloads and targets.
#[must_use]
pub fn cases(workloads: &[String], latency: &[Target], throughput: &[Target]) -> Vec<Case> {
    let bulk = if throughput.is_empty() { &BULK } else { throughput };
    let chosen = |name: &str| workloads.is_empty() || workloads.iter().any(|one| one == name);
    let of_workload = |(name, usual): (&str, &[Target])| {
        let targets = if latency.is_empty() { usual } else { latency };
        let pairs = targets.iter().flat_map(|target| bulk.iter().map(|bulk| (*target, *bulk)));
        pairs.filter_map(|(target, bulk)| Case::new(name, target, bulk)).collect::<Vec<_>>()
    };
    USUAL.into_iter().filter(|(name, _)| chosen(name)).flat_map(of_workload).collect()
}

fn mean(scores: &[Both], of: impl Fn(&Both) -> f64) -> Mean {
    Mean::of(scores.iter().map(of))
}

/// Shares of latency work refused by the rules for forecasts.
fn rules(scores: &[Both]) -> String {
    let of = |rule: Rule| {
        let place = Rule::ALL.iter().position(|one| *one == rule).unwrap_or(0);
        digits(mean(scores, |both| both.latency.by_rule[place]).mean, 2)
    };
    [Rule::Own, Rule::Harm, Rule::Kind].map(of).join(" ")
}
