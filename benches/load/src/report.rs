//! Results on disk (one JSON object a line, one line a run) and on the terminal (Markdown tables).

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::outcome::Slo;
use crate::summary::{Percentiles, Summary};

/// How load was offered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum Load {
    /// A closed loop.
    Closed {
        /// Requests under way at any time.
        concurrency: u32,
    },
    /// Poisson arrivals.
    Open {
        /// Mean rate, in requests a second.
        rate: f64,
        /// The same as a multiple of the capacity, if one was given.
        multiple: Option<f64>,
    },
    /// A recorded trace.
    Trace {
        /// How many times faster than recorded.
        speed_up: f64,
    },
}

impl Load {
    fn describe(&self) -> String {
        match self {
            Self::Closed { concurrency } => format!("c={concurrency}"),
            Self::Open { rate, multiple: Some(multiple) } => format!("{multiple}x ({rate:.2}/s)"),
            Self::Open { rate, multiple: None } => format!("{rate:.2}/s"),
            Self::Trace { speed_up } => format!("trace x{speed_up}"),
        }
    }

    /// Sorts rows that belong together next to each other.
    fn order(&self) -> (u8, f64) {
        match self {
            Self::Closed { concurrency } => (0, f64::from(*concurrency)),
            // By multiple: two measurements of one capacity differ a little.
            Self::Open { rate, multiple } => (1, multiple.unwrap_or(*rate)),
            Self::Trace { speed_up } => (2, *speed_up),
        }
    }
}

/// One run against one server: what was offered and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Which server, in the words of whoever started the run.
    pub label: String,
    /// The model's name at that server.
    pub model: String,
    /// How load was offered.
    #[serde(flatten)]
    pub load: Load,
    /// Seed of arrivals and prompts.
    pub seed: u64,
    /// Prompt length asked for, in tokens (traces have their own).
    pub prompt_tokens: u32,
    /// Answer length asked for, in tokens (traces have their own).
    pub max_tokens: u32,
    /// The client's patience, in seconds.
    pub timeout_s: f64,
    /// What requests were judged by.
    pub slo: Slo,
    /// The figures.
    #[serde(flatten)]
    pub summary: Summary,
}

/// Appends `run` to `path` as one line, so that an interrupted series keeps what it has.
///
/// # Errors
/// If the file cannot be written.
pub fn append(path: &Path, run: &Run) -> Result<()> {
    let mut line = serde_json::to_vec(run)?;
    line.push(b'\n');
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(&line))
        .with_context(|| format!("writing {}", path.display()))
}

/// Reads the runs of `path`.
///
/// # Errors
/// If the file cannot be read or a line is not a run (named by its number).
pub fn read(path: &Path) -> Result<Vec<Run>> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut runs = Vec::new();
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let run = serde_json::from_str(&line?)
            .with_context(|| format!("{}, line {}", path.display(), number + 1))?;
        runs.push(run);
    }
    Ok(runs)
}

/// Markdown tables of closed loops and of everything else, servers side by side under each load.
#[must_use]
pub fn tables(runs: &[Run]) -> String {
    let mut runs: Vec<&Run> = runs.iter().collect();
    runs.sort_by(|a, b| a.load.order().partial_cmp(&b.load.order()).unwrap_or(a.seed.cmp(&b.seed)));
    let (closed, open): (Vec<&Run>, Vec<&Run>) =
        runs.into_iter().partition(|run| matches!(run.load, Load::Closed { .. }));
    let mut out = String::new();
    if !closed.is_empty() {
        out.push_str(THROUGHPUT_HEAD);
        closed.iter().for_each(|run| throughput_row(&mut out, run));
    }
    if !open.is_empty() {
        let gap = if closed.is_empty() { "" } else { "\n" };
        out.push_str(gap);
        out.push_str(OVERLOAD_HEAD);
        open.iter().for_each(|run| overload_row(&mut out, run));
    }
    out
}

const THROUGHPUT_HEAD: &str = "\
| load | server | output tok/s | req/s | TTFT p50 | ITL p50 | E2E p50 | E2E p99 | not completed |\n\
|---|---|--:|--:|--:|--:|--:|--:|--:|\n";

fn throughput_row(out: &mut String, run: &Run) {
    let s = &run.summary;
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "| {} | {} | {:.1} | {:.2} | {} | {} | {} | {} | {} |",
        run.load.describe(),
        run.label,
        s.output_tokens_per_s,
        s.requests_per_s,
        time(s.ttft_ms, |p| p.p50),
        time(s.itl_ms, |p| p.p50),
        time(s.e2e_ms, |p| p.p50),
        time(s.e2e_ms, |p| p.p99),
        s.counts.sent - s.counts.completed,
    );
}

const OVERLOAD_HEAD: &str = "\
| load | server | sent | done | shed | expired | timed out | errors | met / offered | \
met / admitted | goodput tok/s | wasted tok | TTFT p50 | E2E p50 | E2E p99 | shed p50 | \
shed p99 |\n\
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";

fn overload_row(out: &mut String, run: &Run) {
    let s = &run.summary;
    let c = &s.counts;
    let _ = writeln!(
        out,
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.1} | {} | {} | {} | {} | {} | {} |",
        run.load.describe(),
        run.label,
        c.sent,
        c.completed,
        c.shed,
        c.expired,
        c.timed_out,
        c.refused + c.broken + c.unreachable,
        percent(s.attainment_offered),
        percent(s.attainment_admitted),
        s.goodput_tokens_per_s,
        s.wasted_tokens,
        time(s.ttft_ms, |p| p.p50),
        time(s.e2e_ms, |p| p.p50),
        time(s.e2e_ms, |p| p.p99),
        time(s.shed_ms, |p| p.p50),
        time(s.shed_ms, |p| p.p99),
    );
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

/// Milliseconds below a second, seconds above.
fn time(percentiles: Option<Percentiles>, pick: fn(&Percentiles) -> f64) -> String {
    match percentiles.as_ref().map(pick) {
        None => "-".to_owned(),
        Some(ms) if ms < 10.0 => format!("{ms:.1} ms"),
        Some(ms) if ms < 1_000.0 => format!("{ms:.0} ms"),
        Some(ms) => format!("{:.2} s", ms / 1e3),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::arrivals::Arrival;
    use crate::outcome::{End, Record};

    pub(crate) fn run(label: &str, load: Load) -> Run {
        let arrival = Arrival { at: Duration::ZERO, prompt_tokens: 128, max_tokens: 64 };
        let mut record = Record::new(arrival);
        (record.end, record.status) = (End::Completed, Some(200));
        record.text_at(Duration::from_millis(100));
        record.text_at(Duration::from_millis(150));
        Run {
            label: label.to_owned(),
            model: "m".to_owned(),
            load,
            seed: 1,
            prompt_tokens: 128,
            max_tokens: 64,
            timeout_s: 30.0,
            slo: Slo { e2e_us: Some(2_400_000), ..Slo::default() },
            summary: Summary::of(&[record], &Slo::default(), Duration::from_secs(1)),
        }
    }

    #[test]
    fn runs_survive_the_way_to_disk_and_back() {
        let path = std::env::temp_dir().join(format!("sluice-load-{}.jsonl", std::process::id()));
        let runs = [
            run("a", Load::Closed { concurrency: 8 }),
            run("b", Load::Open { rate: 2.5, multiple: Some(0.5) }),
            run("c", Load::Trace { speed_up: 4.0 }),
        ];
        runs.iter().for_each(|run| append(&path, run).unwrap());
        let back = read(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(back.unwrap(), runs);
    }

    #[test]
    fn servers_stand_side_by_side_under_each_load() {
        let open = |rate| Load::Open { rate, multiple: None };
        let runs = [run("a", open(2.0)), run("a", open(1.0)), run("b", open(1.0))];
        let table = tables(&runs);
        let rows: Vec<String> = table.lines().skip(2).map(|line| line[..14].to_owned()).collect();
        assert_eq!(rows, ["| 1.00/s | a |", "| 1.00/s | b |", "| 2.00/s | a |"]);
        let columns = |line: &str| line.matches('|').count();
        assert!(table.lines().all(|line| columns(line) == columns(OVERLOAD_HEAD) / 2));
    }
}
