//! What each subcommand does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::arrivals::{self, Arrival, Process};
use crate::cli::{Cli, Closed, Command, Common, Open, Sweep, Trace};
use crate::client::Client;
use crate::drive::{self, ClosedLoop};
use crate::exchange::{Target, parse_extra};
use crate::outcome::{Record, Slo};
use crate::plot;
use crate::prompt::{Calibration, Form};
use crate::report::{self, Load, Run};
use crate::summary::Summary;

/// Between two runs the server gets this long to forget clients that gave up.
const SETTLE: Duration = Duration::from_secs(2);

/// Carries out one command line.
///
/// # Errors
/// On bad arguments, a server that cannot be reached, or files that cannot be read or written.
pub async fn run(cli: Cli) -> Result<()> {
    let runs = match cli.command {
        Command::Closed(args) => closed(&args).await?,
        Command::Open(args) => open(&args).await?,
        Command::Trace(args) => trace(&args).await?,
        Command::Sweep(args) => sweep(&args).await?,
        Command::Table { files } => read_all(&files)?,
        Command::Plot { files, output } => {
            plot::goodput(&read_all(&files)?, &output)?;
            println!("{}", output.display());
            return Ok(());
        }
    };
    print!("{}", report::tables(&runs));
    Ok(())
}

fn read_all(files: &[PathBuf]) -> Result<Vec<Run>> {
    let runs: Result<Vec<_>> = files.iter().map(|file| report::read(file)).collect();
    Ok(runs?.into_iter().flatten().collect())
}

async fn closed(args: &Closed) -> Result<Vec<Run>> {
    let session = Session::start(&args.common).await?;
    session.closed(&args.concurrency, args.per_slot).await
}

async fn open(args: &Open) -> Result<Vec<Run>> {
    let session = Session::start(&args.common).await?;
    let shape = Shape {
        capacity: args.capacity,
        duration: args.duration,
        burstiness: args.burstiness,
        spread: args.spread,
    };
    session.open(&args.rate, &shape, args.common.slo.slo()).await
}

async fn trace(args: &Trace) -> Result<Vec<Run>> {
    let csv = std::fs::read_to_string(&args.file)
        .with_context(|| format!("reading {}", args.file.display()))?;
    let mut arrivals = arrivals::trace(&csv, args.speed_up)?;
    arrivals.retain(|arrival| args.duration.is_none_or(|limit| arrival.at < limit));
    for arrival in &mut arrivals {
        arrival.prompt_tokens = arrival.prompt_tokens.min(args.prompt_cap);
        arrival.max_tokens = arrival.max_tokens.min(args.output_cap);
    }
    let session = Session::start(&args.common).await?;
    let load = Load::Trace { speed_up: args.speed_up };
    let played = arrivals.last().map(|arrival| arrival.at).unwrap_or_default();
    let run = session.play(&arrivals, played, load, args.common.slo.slo(), 0).await?;
    Ok(vec![run])
}

async fn sweep(args: &Sweep) -> Result<Vec<Run>> {
    let session = Session::start(&args.common).await?;
    let mut runs = session.closed(&args.concurrency, args.per_slot).await?;
    let (first, last) = (runs.first(), runs.last());
    let unloaded = first.and_then(|run| run.summary.e2e_ms).map(|times| times.p50);
    let reached = last.map(|run| run.summary.requests_per_s);
    let capacity = args.capacity.or(reached).filter(|rate| *rate > 0.0);
    let capacity = capacity.context("no request of the closed loop completed: no capacity")?;
    let mut slo = args.common.slo.slo();
    if slo == Slo::default() {
        let unloaded = unloaded.context("no request completed unloaded: give --slo-e2e")?;
        slo.e2e_us = Some((unloaded * 1e3 * args.slo_multiple) as u64);
    }
    eprintln!("capacity {capacity:.2} requests/s; SLO {}", slo.describe());
    tokio::time::sleep(SETTLE).await;
    let shape =
        Shape { capacity: Some(capacity), duration: args.duration, burstiness: 1.0, spread: 0.0 };
    runs.extend(session.open(&args.loads, &shape, slo).await?);
    Ok(runs)
}

/// What random arrivals have in common at all rates.
struct Shape {
    /// Requests a second that count as load 1; without it rates are given as such.
    capacity: Option<f64>,
    duration: Duration,
    burstiness: f64,
    spread: f64,
}

/// A server that has answered, and how its runs are written down.
struct Session<'a> {
    target: Arc<Target>,
    common: &'a Common,
}

impl<'a> Session<'a> {
    async fn start(common: &'a Common) -> Result<Self> {
        let client = Client::new(&common.url, common.api_key.as_deref(), &common.headers)?;
        let model = match &common.model {
            Some(model) => model.clone(),
            None => Target::first_model(&client).await?,
        };
        let mut target = Target {
            client,
            api: common.api,
            model,
            form: Form::Text(Calibration::default()),
            extra: parse_extra(common.extra_body.as_deref())?,
            open_ended: common.open_ended,
            timeout: common.timeout,
        };
        if common.prompt_ids {
            target.form = Form::Ids;
        } else {
            target.calibrate(common.seed).await?;
        }
        Ok(Self { target: Arc::new(target), common })
    }

    async fn closed(&self, concurrency: &[u32], per_slot: u32) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for (number, &concurrency) in (1u64..).zip(concurrency) {
            eprintln!("{}: closed loop, {concurrency} under way", self.common.label);
            let shape = ClosedLoop {
                concurrency,
                per_slot,
                prompt_tokens: self.common.prompt_tokens,
                max_tokens: self.common.max_tokens,
            };
            let records = drive::closed(Arc::clone(&self.target), shape, self.seed(number)).await?;
            let ends = records.iter().map(|record| record.arrival.at + record.ended);
            let elapsed = ends.max().unwrap_or_default();
            let load = Load::Closed { concurrency };
            runs.push(self.keep(&records, elapsed, load, self.common.slo.slo())?);
        }
        Ok(runs)
    }

    async fn open(&self, rates: &[f64], shape: &Shape, slo: Slo) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for (number, &rate) in (100u64..).zip(rates) {
            let multiple = shape.capacity.map(|_| rate);
            let rate = rate * shape.capacity.unwrap_or(1.0);
            let process = Process {
                rate,
                burstiness: shape.burstiness,
                prompt_tokens: self.common.prompt_tokens,
                max_tokens: self.common.max_tokens,
                spread: shape.spread,
            };
            let arrivals = process.draw(shape.duration, self.seed(number))?;
            let load = Load::Open { rate, multiple };
            runs.push(self.play(&arrivals, shape.duration, load, slo, number).await?);
            tokio::time::sleep(SETTLE).await;
        }
        Ok(runs)
    }

    async fn play(
        &self,
        arrivals: &[Arrival],
        offered_for: Duration,
        load: Load,
        slo: Slo,
        number: u64,
    ) -> Result<Run> {
        let label = &self.common.label;
        eprintln!("{label}: {} arrivals over {} s", arrivals.len(), offered_for.as_secs());
        let records = drive::open(Arc::clone(&self.target), arrivals, self.seed(number)).await?;
        self.keep(&records, offered_for, load, slo)
    }

    /// Every run has prompts of its own, the same for every server.
    fn seed(&self, number: u64) -> u64 {
        self.common.seed.wrapping_mul(1_000).wrapping_add(number)
    }

    fn keep(&self, records: &[Record], over: Duration, load: Load, slo: Slo) -> Result<Run> {
        let summary = Summary::of(records, &slo, over);
        let counts = summary.counts;
        ensure!(counts.ended() == counts.sent, "requests without an end: {counts:?}");
        let run = Run {
            label: self.common.label.clone(),
            model: self.target.model.clone(),
            load,
            seed: self.common.seed,
            prompt_tokens: self.common.prompt_tokens,
            max_tokens: self.common.max_tokens,
            timeout_s: self.common.timeout.as_secs_f64(),
            slo,
            summary,
        };
        if let Some(complaint) = records.iter().find_map(|record| record.complaint.as_deref()) {
            eprintln!("{}: {} refused, the first with {complaint}", run.label, counts.refused);
        }
        if let Some(path) = &self.common.json {
            report::append(path, &run)?;
        }
        if let Some(path) = &self.common.requests {
            report::append_requests(path, &run.label, records, &slo)?;
        }
        Ok(run)
    }
}
