//! Tenants on one replica: what a burst of one costs another that is within its reservation, and
//! how evenly two are served that both want more than their shares.

use std::io::{self, Write};

use scheduler::{
    AdmissionMode, Class, CostModel, KindConfig, Micros, TenantConfig, TenantId, TenantTable,
    policy,
};

use crate::driver::Setup;
use crate::experiment::{Effort, capacity};
use crate::front::Admitting;
use crate::profile::Profile;
use crate::record::{Run, is_met};
use crate::stats::Mean;
use crate::stream::{Stream, merge};
use crate::table::Table;
use crate::target::Target;
use crate::workload::{Job, Workload, by_name};

/// What is reserved for each of the two, per mille.
pub const RESERVED: u32 = 300;

/// Over what time shares are compared.
const WINDOW: Micros = Micros(10_000_000);

const STEADY: TenantId = TenantId(1);
const BURST: TenantId = TenantId(2);

/// A device with what everybody is promised on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The device and the lengths of requests.
    pub workload: Workload,
    /// What each request is promised.
    pub target: Target,
}

/// Who decides, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// The gate with reservations.
    Tenants,
    /// The gate, which does not know whose requests they are.
    Gate,
    /// No admission, and this policy.
    Open(&'static str),
}

impl Rules {
    fn name(self) -> String {
        match self {
            Rules::Tenants => "tenants".into(),
            Rules::Gate => "gate without tenants".into(),
            Rules::Open(policy) => format!("{policy}, no admission"),
        }
    }

    /// All of them; policies that do not exist are left out.
    #[must_use]
    pub fn all() -> Vec<Rules> {
        let open = ["fcfs", "vtc"].into_iter().filter(|name| policy::by_name(name).is_some());
        [Rules::Tenants, Rules::Gate].into_iter().chain(open.map(Rules::Open)).collect()
    }
}

/// How much of its reservation each of the two asks for, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// The steady tenant.
    pub steady: f64,
    /// The bursting one.
    pub burst: f64,
    /// Seconds.
    pub seconds: f64,
}

/// What came of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Requests in time over offered ones: steady, bursting.
    pub in_time: [f64; 2],
    /// Requests of the steady tenant that would have been in time on a device of its own, as fast
    /// as its share, and were not.
    pub lost: usize,
    /// Requests of the steady tenant that would have been in time there.
    pub alone: usize,
    /// Jain's index of what each got of what it was entitled to: mean and least over windows.
    pub jain: [f64; 2],
    /// The largest difference of what the two were served over any time, in seconds of the device.
    pub difference: f64,
}

impl Case {
    /// The case of the workload called `name`.
    #[must_use]
    pub fn new(name: &str, target: Target) -> Option<Case> {
        Some(Case { workload: *by_name(name)?, target })
    }

    fn streams(&self, offer: &Offer) -> [Stream; 2] {
        let capacity = capacity(&self.workload) * f64::from(RESERVED) / 1e3;
        let stream = |tenant, load: f64| Stream {
            class: Class::Latency,
            tenant,
            lengths: self.workload.lengths,
            arrivals: self.workload.arrivals,
            rate: capacity * load,
            target: self.target,
            known: true,
        };
        [stream(STEADY, offer.steady), stream(BURST, offer.burst)]
    }

    /// One outcome a seed.
    #[must_use]
    pub fn run(&self, offer: &Offer, rules: Rules, effort: &Effort) -> Vec<Outcome> {
        let streams = self.streams(offer);
        let profile = &self.workload.profile;
        effort.over_seeds(|seed| {
            let jobs = merge(&streams, offer.seconds, profile, seed);
            let run = setup(profile, rules, seed).run(&jobs);
            let alone = met_alone(&streams[0], offer.seconds, profile, seed);
            outcome(profile, &jobs, &run, &alone)
        })
    }
}

fn setup(profile: &Profile, rules: Rules, seed: u64) -> Setup {
    let gate = Admitting::Gate(AdmissionMode::Deadline, KindConfig::default());
    match rules {
        Rules::Tenants => {
            let tenants = reservations();
            Setup { tenants, ..Setup::new(profile, "deadline", gate, seed) }
        }
        Rules::Gate => Setup::new(profile, "deadline", gate, seed),
        Rules::Open(policy) => Setup::new(profile, policy, Admitting::Cap(usize::MAX), seed),
    }
}

/// The default tenant without a reservation, and the two.
fn reservations() -> TenantTable {
    let reserved =
        |reserved_permille| TenantConfig { reserved_permille, ..TenantConfig::default() };
    let table = TenantTable::new(vec![reserved(0), reserved(RESERVED), reserved(RESERVED)]);
    table.expect("less than the whole device")
}

/// Which requests of the steady tenant the gate would serve in time on a device of its own that is
/// as large and as fast as its share. In order of arrival.
fn met_alone(stream: &Stream, seconds: f64, profile: &Profile, seed: u64) -> Vec<bool> {
    let jobs = merge(&[*stream], seconds, profile, seed);
    let run = setup(&share_of(profile), Rules::Gate, seed).run(&jobs);
    run.of(&jobs).map(|(job, record)| is_met(job, record)).collect()
}

fn share_of(profile: &Profile) -> Profile {
    let slower = |value: u64| value * 1_000 / u64::from(RESERVED);
    let part = |value: u32| (value * RESERVED / 1_000).max(1);
    let CostModel {
        fixed_ns,
        per_seq_ns,
        per_context_token_ps,
        per_prefill_token_ns,
        per_prefill_span_ps,
    } = profile.cost;
    Profile {
        cost: CostModel {
            fixed_ns: slower(fixed_ns),
            per_seq_ns: slower(per_seq_ns),
            per_context_token_ps: slower(per_context_token_ps),
            per_prefill_token_ns: slower(per_prefill_token_ns),
            per_prefill_span_ps: slower(per_prefill_span_ps),
        },
        max_num_seqs: part(profile.max_num_seqs),
        num_blocks: part(profile.num_blocks),
        ..*profile
    }
}

fn outcome(profile: &Profile, jobs: &[Job], run: &Run, alone: &[bool]) -> Outcome {
    let of = |tenant| run.of(jobs).filter(move |(job, _)| job.request.tenant == tenant);
    let share = |tenant| {
        let met = of(tenant).filter(|(job, record)| is_met(job, record)).count();
        met as f64 / of(tenant).count().max(1) as f64
    };
    let steady = of(STEADY).map(|(job, record)| is_met(job, record));
    Outcome {
        in_time: [share(STEADY), share(BURST)],
        lost: steady.zip(alone).filter(|(together, alone)| **alone && !*together).count(),
        alone: alone.iter().filter(|met| **met).count(),
        jain: jain(profile, jobs, run),
        difference: difference(profile, jobs, run),
    }
}

/// Device time that a request adds to a busy device, in seconds.
fn work(profile: &Profile, job: &Job) -> f64 {
    let prompt = job.request.sequences[0].prompt_tokens;
    let context = u64::from(prompt) + u64::from(job.actual / 2);
    let decode = profile.cost.decode_work_ns(context) * u64::from(job.actual - 1) / 1_000;
    (profile.cost.prefill_work(0, prompt).0 + decode) as f64 / 1e6
}

/// Jain's index over windows of arrival: of each tenant the work that was served in time, over what
/// it was entitled to, which is what it asked for or its share, whichever is less.
fn jain(profile: &Profile, jobs: &[Job], run: &Run) -> [f64; 2] {
    let last = jobs.last().map_or(0, |job| job.request.arrival.0 / WINDOW.0) as usize;
    let mut windows = vec![[(0.0, 0.0); 2]; last + 1];
    for (job, record) in run.of(jobs) {
        let place = usize::from(job.request.tenant == BURST);
        let window = &mut windows[(job.request.arrival.0 / WINDOW.0) as usize][place];
        window.0 += work(profile, job);
        window.1 += if is_met(job, record) { work(profile, job) } else { 0.0 };
    }
    let most = WINDOW.0 as f64 / 1e6 * f64::from(RESERVED) / 1e3;
    let index = |window: &[(f64, f64); 2]| {
        let got = window.map(|(asked, served)| (served / asked.min(most).max(1e-9)).min(1.0));
        let squares: f64 = got.iter().map(|x| x * x).sum();
        let sum: f64 = got.iter().sum();
        if squares > 0.0 { sum * sum / (2.0 * squares) } else { 0.0 }
    };
    // The first window warms up, the last one is cut short.
    let inner = windows.get(1..last.max(1)).unwrap_or_default();
    let indices: Vec<f64> = inner.iter().map(index).collect();
    [Mean::of(indices.iter().copied()).mean, indices.iter().copied().fold(1.0, f64::min)]
}

/// How far apart the service of the two drifts over any time while requests come.
fn difference(profile: &Profile, jobs: &[Job], run: &Run) -> f64 {
    let mut served: Vec<(Micros, f64)> = run
        .of(jobs)
        .filter_map(|(job, record)| {
            let sign = if job.request.tenant == STEADY { 1.0 } else { -1.0 };
            Some((record.last?, sign * work(profile, job)))
        })
        .collect();
    served.sort_by_key(|(at, _)| *at);
    let until = jobs.last().map_or(Micros(0), |job| job.request.arrival);
    let (mut sum, mut least, mut most) = (0.0f64, 0.0f64, 0.0f64);
    for (_, work) in served.iter().filter(|(at, _)| *at > WINDOW && *at < until) {
        sum += work;
        (least, most) = (least.min(sum), most.max(sum));
    }
    most - least
}

/// Prints both tables.
///
/// # Errors
/// If `out` cannot be written.
pub fn print(
    cases: &[Case],
    seconds: f64,
    effort: &Effort,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "One tenant within its share (0.8 of it), the other at ten times its own:\n")?;
    let offer = Offer { steady: 0.8, burst: 10.0, seconds };
    print_one(cases, &offer, effort, out)?;
    writeln!(out, "Both above their shares, three and ten times:\n")?;
    print_one(cases, &Offer { steady: 3.0, ..offer }, effort, out)
}

fn print_one(
    cases: &[Case],
    offer: &Offer,
    effort: &Effort,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut table = Table::new(&HEAD);
    for case in cases {
        for rules in Rules::all() {
            let outcomes = case.run(offer, rules, effort);
            let mean = |of: fn(&Outcome) -> f64| Mean::of(outcomes.iter().map(of));
            let sum = |of: fn(&Outcome) -> usize| outcomes.iter().map(of).sum::<usize>();
            table.push(vec![
                case.workload.name.to_owned(),
                case.target.to_string(),
                rules.name(),
                mean(|outcome| outcome.in_time[0]).to_string(),
                format!("{} of {}", sum(|outcome| outcome.lost), sum(|outcome| outcome.alone)),
                mean(|outcome| outcome.in_time[1]).to_string(),
                format!("{:.3}", mean(|outcome| outcome.jain[0]).mean),
                format!("{:.3}", mean(|outcome| outcome.jain[1]).mean),
                format!("{:.1}", mean(|outcome| outcome.difference).mean),
            ]);
        }
    }
    writeln!(out, "{table}")
}

const HEAD: [&str; 9] = [
    "workload",
    "SLO",
    "rules",
    "steady in time",
    "lost of those in time alone on its share",
    "bursting in time",
    "Jain, mean",
    "Jain, least",
    "service difference, s",
];

/// The usual cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    let usual = [
        ("8b-code", Target::Multiple(8.0)),
        ("8b-conv", Target::Tokens(1.5, 60.0)),
        ("70b-conv", Target::Tokens(3.0, 120.0)),
        ("cpu-chat", Target::Tokens(3.0, 160.0)),
    ];
    usual.into_iter().filter_map(|(name, target)| Case::new(name, target)).collect()
}
