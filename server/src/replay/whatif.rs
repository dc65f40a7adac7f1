//! What would other settings have done with the recorded traffic?
//!
//! Other settings let other requests run, so recorded steps cannot be repeated: the traffic is
//! offered to the simulator, whose steps take what the recorded cost model says, with the recorded
//! deviation. The recorded settings are simulated as well: how far that column is from what really
//! happened is how far the other can be trusted.

use std::fmt;
use std::path::Path;

use anyhow::{Context, bail};
use scheduler::{ClassConfig, Deadline, Micros, Request, RequestId, Rule, Terminal, policy};
use sim::{Admitting, Fate, Job, Run, Setup};

use super::traffic::{self, Offered, Outcome, Traffic};

/// Settings instead of the recorded ones; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) policy: Option<String>,
    pub(super) admission: Option<scheduler::AdmissionMode>,
    /// Of the latency class: arrival to first token, mean gap, arrival to last token.
    pub(super) ttft: Option<Option<Micros>>,
    pub(super) tpot: Option<Option<Micros>>,
    pub(super) e2e: Option<Option<Micros>>,
    /// Of both classes.
    pub(super) safety: Option<Option<u32>>,
}

/// What came out.
#[derive(Debug)]
pub(super) struct WhatIf {
    traffic: Traffic,
    recorded: Column,
    simulated: Column,
    changed: Column,
}

/// One way of running the traffic.
#[derive(Clone, Debug, Default, PartialEq)]
struct Column {
    admitted: usize,
    /// By rule, and at last those that are impossible.
    refused: [usize; Rule::ALL.len() + 1],
    completed: usize,
    expired: usize,
    met: usize,
    /// Requests that count for attainment.
    counted: usize,
    /// Output tokens a second of requests in time.
    goodput: f64,
    /// Milliseconds to the first token of completed requests: median and 90 % quantile.
    ttft: [f64; 2],
}

/// What one request came to.
struct Line {
    outcome: Outcome,
    met: bool,
    ttft: Option<Micros>,
}

/// Runs the traffic of `file` as recorded and with `changes`.
///
/// # Errors
/// It is no record, or nobody came.
pub(super) fn run(file: &Path, changes: &Changes) -> anyhow::Result<WhatIf> {
    let traffic = traffic::read(file)?;
    if traffic.requests.is_empty() {
        bail!("{}: no request is recorded", file.display());
    }
    let recorded = Column::new(&traffic, &traffic.requests.iter().map(line).collect::<Vec<_>>());
    let simulate = |changes: &Changes| -> anyhow::Result<Column> {
        let jobs = jobs(&traffic, changes);
        let run = setup(&traffic, changes)?.run(&jobs);
        Ok(Column::new(&traffic, &lines(&jobs, &run)))
    };
    let (simulated, changed) = (simulate(&Changes::default())?, simulate(changes)?);
    Ok(WhatIf { recorded, simulated, changed, traffic })
}

fn setup(traffic: &Traffic, changes: &Changes) -> anyhow::Result<Setup> {
    let gate = traffic.opening.gate;
    let name = changes.policy.as_deref().unwrap_or(&traffic.opening.policy);
    let known = policy::NAMES.into_iter().find(|known| *known == name);
    let mode = changes.admission.unwrap_or(gate.mode);
    let mut config = gate.scheduler;
    let [latency, throughput] = &mut config.classes.0;
    latency.slo.ttft = changes.ttft.unwrap_or(latency.slo.ttft);
    latency.slo.tpot = changes.tpot.unwrap_or(latency.slo.tpot);
    latency.slo.e2e = changes.e2e.unwrap_or(latency.slo.e2e);
    for class in [latency, throughput] {
        class.safety_permille = changes.safety.unwrap_or(class.safety_permille);
    }
    Ok(Setup {
        cost: traffic.cost,
        config,
        policy: known.with_context(|| format!("there is no policy {name:?}"))?,
        admitting: Admitting::Gate(mode, gate.kinds),
        isolation: gate.isolation,
        tenants: traffic.opening.tenants.clone(),
        impatient: false,
        noise: traffic.noise,
        bias: traffic.bias,
        corrected: false,
        seed: 0,
        blind: false,
        compared: false,
        window: None,
    })
}

/// The traffic as the simulator takes it: numbered by arrival, with the targets of `changes`.
fn jobs(traffic: &Traffic, changes: &Changes) -> Vec<Job> {
    let classes = &traffic.opening.gate.scheduler.classes;
    let numbered = (0..).zip(&traffic.requests);
    numbered
        .map(|(place, offered)| {
            let mut request = offered.request.clone();
            request.id = RequestId(place);
            if request.class == scheduler::Class::Latency {
                request.deadline = targets(&request, classes.get(request.class), changes);
            }
            Job { request, actual: offered.length() }
        })
        .collect()
}

/// Targets of the class are replaced; those that the client set itself stay.
fn targets(request: &Request, class: &ClassConfig, changes: &Changes) -> Deadline {
    let after = |span: Option<Micros>| span.map(|span| request.arrival.plus(span));
    let Deadline { first_token, last_token, tpot } = request.deadline;
    let instead = |own, of_class, changed: Option<Option<Micros>>| match changed {
        Some(changed) if own == of_class => changed,
        _ => own,
    };
    Deadline {
        first_token: instead(first_token, after(class.slo.ttft), changes.ttft.map(after)),
        last_token: instead(last_token, after(class.slo.e2e), changes.e2e.map(after)),
        tpot: instead(tpot, class.slo.tpot, changes.tpot),
    }
}

fn line(offered: &Offered) -> Line {
    let first = offered.first.filter(|_| offered.outcome == Outcome::Ended(Terminal::Completed));
    Line {
        outcome: offered.outcome,
        met: offered.is_met(),
        ttft: first.map(|first| first.minus(offered.request.arrival)),
    }
}

fn lines(jobs: &[Job], run: &Run) -> Vec<Line> {
    run.of(jobs)
        .map(|(job, record)| Line {
            outcome: match record.fate {
                Fate::Shed(rule) => Outcome::Shed(rule),
                Fate::Impossible => Outcome::Impossible,
                Fate::Ended(terminal) => Outcome::Ended(terminal),
            },
            met: sim::is_met(job, record),
            ttft: record.first.map(|first| first.minus(job.request.arrival)),
        })
        .collect()
}

impl Column {
    fn new(traffic: &Traffic, lines: &[Line]) -> Column {
        let mut column = Column::default();
        let mut tokens = 0;
        for (offered, line) in traffic.requests.iter().zip(lines) {
            match line.outcome {
                Outcome::Shed(rule) => {
                    let place = Rule::ALL.iter().position(|other| *other == rule);
                    column.refused[place.unwrap_or_default()] += 1;
                }
                Outcome::Impossible => column.refused[Rule::ALL.len()] += 1,
                Outcome::Ended(_) | Outcome::Unfinished => column.admitted += 1,
            }
            column.completed += usize::from(line.outcome == Outcome::Ended(Terminal::Completed));
            column.expired += usize::from(line.outcome == Outcome::Ended(Terminal::Expired));
            if !offered.was_left() {
                column.counted += 1;
                column.met += usize::from(line.met);
                let sequences = offered.request.sequences.len() as u64;
                tokens += u64::from(line.met) * u64::from(offered.length()) * sequences;
            }
        }
        column.goodput = tokens as f64 / traffic.seconds();
        let first: Vec<f64> =
            lines.iter().filter_map(|line| Some(line.ttft?.0 as f64 / 1e3)).collect();
        column.ttft = [0.5, 0.9].map(|q| sim::stats::quantile(first.clone(), q));
        column
    }

    fn attainment(&self) -> f64 {
        self.met as f64 / self.counted.max(1) as f64
    }
}

impl Traffic {
    /// From the first arrival to the last.
    fn seconds(&self) -> f64 {
        let arrival = |offered: Option<&Offered>| offered.map_or(0, |o| o.request.arrival.0);
        let span = arrival(self.requests.last()) - arrival(self.requests.first());
        span.max(1) as f64 / 1e6
    }
}

impl fmt::Display for WhatIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = [&self.recorded, &self.simulated, &self.changed];
        let mut row = |name: &str, of: &dyn Fn(&Column) -> String| {
            let [recorded, simulated, changed] = columns.map(of);
            writeln!(f, "  {name:<24}{recorded:>12}{simulated:>12}{changed:>12}")
        };
        let headings = ["recorded", "simulated", "what if"];
        let offered = self.traffic.requests.len();
        row("", &|column| {
            let place = columns.iter().position(|other| std::ptr::eq(*other, column));
            headings[place.unwrap_or_default()].to_owned()
        })?;
        row("offered", &|_| offered.to_string())?;
        row("admitted", &|column| column.admitted.to_string())?;
        let reasons = Rule::ALL.map(Rule::label).into_iter().chain(["impossible"]);
        for (i, reason) in reasons.enumerate() {
            row(&format!("refused: {reason}"), &|column| column.refused[i].to_string())?;
        }
        row("completed", &|column| column.completed.to_string())?;
        row("expired", &|column| column.expired.to_string())?;
        row("in time", &|column| column.met.to_string())?;
        row("attainment over offered", &|column| format!("{:.3}", column.attainment()))?;
        row("goodput, tokens/s", &|column| format!("{:.1}", column.goodput))?;
        row("TTFT median, ms", &|column| format!("{:.0}", column.ttft[0]))?;
        row("TTFT 90 %, ms", &|column| format!("{:.0}", column.ttft[1]))?;
        let Traffic { requests, bias, noise, stopped, .. } = &self.traffic;
        let unknown = requests.iter().filter(|offered| !offered.is_known()).count();
        let left = requests.iter().filter(|offered| offered.was_left()).count();
        writeln!(
            f,
            "  Steps take {bias:.2} times the last recorded cost model, +- {:.0} %.",
            noise * 100.0
        )?;
        writeln!(f, "  {unknown} requests never finished: their lengths are predictions.")?;
        writeln!(
            f,
            "  {left} clients left: their answers end there, and do not count as in time."
        )?;
        match stopped {
            Some(problem) => writeln!(f, "  The record was read up to here: {problem}"),
            None => Ok(()),
        }
    }
}
