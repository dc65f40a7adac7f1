//! What is offered: arrivals, lengths, targets.

use std::sync::LazyLock;

use scheduler::{Class, Deadline, Micros, Request, TenantId};

use crate::profile::{CPU, H100_8B, H100_70B, Profile};
use crate::random::Random;
use crate::stream::Stream;
use crate::target::Target;

/// One request to come, with the length that it will really have.
#[derive(Clone, Debug)]
pub struct Job {
    /// As it reaches the gate. Ids count from zero in order of arrival.
    pub request: Request,
    /// Output tokens of each of its sequences.
    pub actual: u32,
}

/// Where lengths come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// The Azure trace of code completion: long prompts, short outputs.
    Code,
    /// The Azure trace of conversations.
    Conversation,
    /// Log-normal prompts (median 300, sigma 0.9) and outputs (median 150, sigma 0.8).
    LogNormal,
    /// Short log-normal prompts (median 60) and outputs (median 48), sigma 0.7.
    Chat,
}

/// When requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// A Poisson process.
    Poisson,
    /// A part of the Azure trace of code completion, compressed to the rate: bursts.
    Bursty,
}

/// A device with its traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name on the command line.
    pub name: &'static str,
    /// The device.
    pub profile: Profile,
    /// Lengths of prompts and outputs.
    pub lengths: Lengths,
    /// The arrival process.
    pub arrivals: Arrivals,
}

const fn workload(
    name: &'static str,
    profile: Profile,
    lengths: Lengths,
    arrivals: Arrivals,
) -> Workload {
    Workload { name, profile, lengths, arrivals }
}

/// Every workload.
pub const WORKLOADS: [Workload; 9] = [
    workload("8b-code", H100_8B, Lengths::Code, Arrivals::Poisson),
    workload("8b-code-bursty", H100_8B, Lengths::Code, Arrivals::Bursty),
    workload("8b-conv", H100_8B, Lengths::Conversation, Arrivals::Poisson),
    workload("8b-conv-bursty", H100_8B, Lengths::Conversation, Arrivals::Bursty),
    workload("70b-code", H100_70B, Lengths::Code, Arrivals::Poisson),
    workload("70b-conv", H100_70B, Lengths::Conversation, Arrivals::Poisson),
    workload("70b-lognormal", H100_70B, Lengths::LogNormal, Arrivals::Poisson),
    workload("cpu-chat", CPU, Lengths::Chat, Arrivals::Poisson),
    workload("cpu-chat-bursty", CPU, Lengths::Chat, Arrivals::Bursty),
];

/// The workload called `name`.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name)
}

/// Prompts of the traces are cut to this, so that every request fits the smallest context.
const LONGEST_PROMPT: u32 = 7_400;

/// One row of a trace.
#[derive(Clone, Copy, Debug)]
struct Row {
    arrival_ms: f64,
    prompt: u32,
    output: u32,
}

static CODE: LazyLock<Vec<Row>> =
    LazyLock::new(|| rows(include_str!("../data/azure_llm_2023_code.csv")));
static CONVERSATION: LazyLock<Vec<Row>> =
    LazyLock::new(|| rows(include_str!("../data/azure_llm_2023_conv.csv")));

/// Rows of an embedded trace: a broken one is a broken build.
fn rows(csv: &str) -> Vec<Row> {
    let row = |line: &str| {
        let mut fields = line.split(',');
        let arrival_ms = fields.next()?.parse().ok()?;
        let prompt = fields.next()?.parse().ok()?;
        Some(Row { arrival_ms, prompt, output: fields.next()?.parse().ok()? })
    };
    csv.lines().skip(1).map(|line| row(line).expect("an embedded trace is whole")).collect()
}

impl Lengths {
    /// Prompt and output tokens of one request.
    pub(crate) fn draw(self, random: &mut Random) -> (u32, u32) {
        let of_trace = |rows: &[Row], random: &mut Random| {
            let row = rows[random.below(rows.len())];
            (row.prompt.min(LONGEST_PROMPT), row.output.max(1))
        };
        match self {
            Lengths::Code => of_trace(&CODE, random),
            Lengths::Conversation => of_trace(&CONVERSATION, random),
            Lengths::LogNormal => {
                let prompt = random.log_normal(300.0, 0.9, (8, 6_000));
                (prompt, random.log_normal(150.0, 0.8, (1, 2_000)))
            }
            Lengths::Chat => {
                let prompt = random.log_normal(60.0, 0.7, (8, 600));
                (prompt, random.log_normal(48.0, 0.7, (1, 300)))
            }
        }
    }

    /// What clients that do not know the length of their answer allow it to be.
    pub(crate) const fn generous(self) -> u32 {
        match self {
            Lengths::Code | Lengths::Conversation | Lengths::LogNormal => 2_048,
            Lengths::Chat => 512,
        }
    }
}

impl Arrivals {
    /// Times of `n` arrivals at `rate` a second.
    pub(crate) fn times(self, n: usize, rate: f64, random: &mut Random) -> Vec<Micros> {
        let seconds: Vec<f64> = match self {
            Arrivals::Poisson => {
                let mut now = 0.0;
                let mut next = || {
                    now += random.exponential() / rate;
                    now
                };
                (0..n).map(|_| next()).collect()
            }
            Arrivals::Bursty => {
                let n = n.min(CODE.len());
                let from = random.below(CODE.len() - n + 1);
                let part = &CODE[from..from + n];
                let span = part[n - 1].arrival_ms - part[0].arrival_ms;
                let scale = n as f64 / rate / span;
                part.iter().map(|row| (row.arrival_ms - part[0].arrival_ms) * scale).collect()
            }
        };
        seconds.into_iter().map(|at| Micros((at * 1e6) as u64)).collect()
    }
}

impl Workload {
    /// `n` requests at `rate` a second, each with its `target`. With `known` lengths the gate is
    /// told them; otherwise `max_tokens` is generous. Drawn from `seed` alone.
    #[must_use]
    pub fn jobs(&self, n: usize, rate: f64, target: Target, known: bool, seed: u64) -> Vec<Job> {
        let Workload { lengths, arrivals, profile, .. } = *self;
        let stream = Stream {
            class: Class::Latency,
            tenant: TenantId::DEFAULT,
            lengths,
            arrivals,
            rate,
            target,
            known,
        };
        stream.jobs(n, &profile, seed)
    }

    /// All of `n` requests at once and without a deadline: what the device can do.
    #[must_use]
    pub fn backlog(&self, n: usize, seed: u64) -> Vec<Job> {
        let mut jobs = self.jobs(n, 1.0, Target::Seconds(1.0), true, seed);
        for job in &mut jobs {
            job.request.arrival = Micros(0);
            job.request.deadline = Deadline::default();
        }
        jobs
    }
}
