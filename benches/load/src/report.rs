//! Results on disk (one JSON object a line, one line a run) and on the terminal (Markdown tables).

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::outcome::{End, Record, Slo};
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
    append_bytes(path, &line)
}

/// What became of one request, as it is written down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestLine {
    /// The label of its run.
    pub label: String,
    /// When it was to arrive, in seconds from the start of the run.
    pub at_s: f64,
    /// Prompt length: the server's count, or what was asked for.
    pub prompt_tokens: u32,
    /// Output tokens asked for.
    pub max_tokens: u32,
    /// Output tokens received.
    pub output_tokens: u64,
    /// HTTP status, if an answer came.
    pub status: Option<u16>,
    /// Its answer came to its end.
    pub completed: bool,
    /// And within every limit.
    pub met: bool,
    /// Arrival to first token.
    pub ttft_ms: Option<f64>,
    /// Mean time per output token after the first.
    pub tpot_ms: Option<f64>,
    /// Arrival to its end, whatever that was.
    pub ended_ms: f64,
}

impl RequestLine {
    fn of(label: &str, record: &Record, slo: &Slo) -> Self {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Self {
            label: label.to_owned(),
            at_s: record.arrival.at.as_secs_f64(),
            prompt_tokens: record.prompt_tokens.unwrap_or(record.arrival.prompt_tokens),
            max_tokens: record.arrival.max_tokens,
            output_tokens: record.output_tokens(),
            status: record.status,
            completed: record.end == End::Completed,
            met: slo.met(record),
            ttft_ms: record.first_text.map(ms),
            tpot_ms: record.tpot().map(ms),
            ended_ms: ms(record.ended),
        }
    }
}

/// Appends the requests of a run to `path`, one line each, in order of arrival.
///
/// # Errors
/// If the file cannot be written.
pub fn append_requests(path: &Path, label: &str, records: &[Record], slo: &Slo) -> Result<()> {
    let mut records: Vec<&Record> = records.iter().collect();
    records.sort_by_key(|record| record.arrival.at);
    let mut lines = Vec::new();
    for record in records {
        serde_json::to_writer(&mut lines, &RequestLine::of(label, record, slo))?;
        lines.push(b'\n');
    }
    append_bytes(path, &lines)
}

fn append_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(bytes))
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
    use super::*;
    use crate::arrivals::Arrival;

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
    fn requests_are_written_in_order_of_arrival_with_what_became_of_them() {
        let record = |at: u64, end, first: u64| {
            let at = Duration::from_secs(at);
            let mut record = Record::new(Arrival { at, prompt_tokens: 128, max_tokens: 64 });
            (record.end, record.ended) = (end, Duration::from_millis(900));
            record.text_at(Duration::from_millis(first));
            record.text_at(Duration::from_millis(first + 50));
            record
        };
        let records = [
            record(2, End::Completed, 300),
            record(0, End::Completed, 100),
            record(1, End::Broken, 100),
        ];
        let slo = Slo { ttft_us: Some(200_000), ..Slo::default() };
        let path = std::env::temp_dir().join(format!("sluice-lines-{}.jsonl", std::process::id()));
        append_requests(&path, "a", &records, &slo).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let lines: Vec<RequestLine> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let shown: Vec<_> = lines.iter().map(|line| (line.at_s, line.met, line.ttft_ms)).collect();
        assert_eq!(
            shown,
            [(0.0, true, Some(100.0)), (1.0, false, Some(100.0)), (2.0, false, Some(300.0))]
        );
        assert_eq!((lines[0].tpot_ms, lines[0].ended_ms), (Some(50.0), 900.0));
        assert_eq!((lines[0].prompt_tokens, lines[0].output_tokens), (128, 2));
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
