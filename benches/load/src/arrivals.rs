//! When requests arrive and how long they are: random processes and recorded traces.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rand::SeedableRng;
use rand_distr::{Distribution, Gamma, LogNormal};
use rand_pcg::Pcg64Mcg;

/// More arrivals than this in one run are a mistake in the arguments, not a workload.
pub const MAX_ARRIVALS: usize = 1_000_000;

/// One request of an open-loop schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When it arrives, counted from the start of the run.
    pub at: Duration,
    /// Length of its prompt, in tokens.
    pub prompt_tokens: u32,
    /// How many tokens it asks for.
    pub max_tokens: u32,
}

/// Random arrivals: how even they are, and how long the requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Process {
    /// Mean requests a second.
    pub rate: f64,
    /// Deviation of the gaps over their mean: 1 is a Poisson process, more comes in bursts (gaps of
    /// a Gamma distribution).
    pub burstiness: f64,
    /// Median length of a prompt, in tokens.
    pub prompt_tokens: u32,
    /// Median length of an answer, in tokens.
    pub max_tokens: u32,
    /// Deviation of the logarithms of both lengths: 0 makes them all equal. Lengths are cut at
    /// four times their median.
    pub spread: f64,
}

impl Process {
    /// Arrivals over `duration`, drawn from `seed` alone, so that two servers meet the very same.
    ///
    /// # Errors
    /// If the rate or the burstiness is not positive and finite, the spread is negative, or the
    /// schedule would exceed [`MAX_ARRIVALS`].
    pub fn draw(&self, duration: Duration, seed: u64) -> Result<Vec<Arrival>> {
        let Process { rate, burstiness, spread, .. } = *self;
        ensure!(rate.is_finite() && rate > 0.0, "--rate must be above 0 (it is {rate})");
        let shape = burstiness.powi(-2);
        let gaps = Gamma::new(shape, 1.0 / (rate * shape))
            .with_context(|| format!("--burstiness must be above 0 (it is {burstiness})"))?;
        ensure!(spread.is_finite() && spread >= 0.0, "--spread must be 0 or more (it is {spread})");
        let factor = LogNormal::new(0.0, spread)?;
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut arrivals = Vec::new();
        let mut seconds = 0.0;
        loop {
            seconds += gaps.sample(&mut rng);
            if seconds >= duration.as_secs_f64() {
                return Ok(arrivals);
            }
            ensure!(
                arrivals.len() < MAX_ARRIVALS,
                "more than {MAX_ARRIVALS} arrivals: lower --rate"
            );
            let mut length = |median: u32| {
                let tokens = f64::from(median) * factor.sample(&mut rng).min(4.0);
                (tokens.round() as u32).max(1)
            };
            arrivals.push(Arrival {
                at: Duration::from_secs_f64(seconds),
                prompt_tokens: length(self.prompt_tokens),
                max_tokens: length(self.max_tokens),
            });
        }
    }
}

/// Reads a trace: CSV whose first line names its columns. Known forms are
/// `arrival_ms,prompt_tokens,output_tokens`, the same with `arrival_s`, and the Azure LLM trace's
/// `TIMESTAMP,ContextTokens,GeneratedTokens` (`2023-11-16 18:15:46.6805900`).
/// Times are counted from the first row and divided by `speed_up`; rows must be in order.
///
/// # Errors
/// On an unknown header, an unreadable row (named by its line), rows out of order, a `speed_up`
/// that is not positive, or more than [`MAX_ARRIVALS`] rows.
pub fn trace(csv: &str, speed_up: f64) -> Result<Vec<Arrival>> {
    ensure!(speed_up.is_finite() && speed_up > 0.0, "--speed-up must be above 0");
    let mut lines = csv.lines().enumerate().map(|(n, line)| (n + 1, line.trim()));
    let (_, header) = lines.next().context("the trace is empty")?;
    let columns = Columns::find(header)?;
    let mut arrivals: Vec<Arrival> = Vec::new();
    let mut first = None;
    for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
        let (seconds, prompt_tokens, max_tokens) =
            columns.read(line).with_context(|| format!("line {number} of the trace: `{line}`"))?;
        let since_first = seconds - *first.get_or_insert(seconds);
        ensure!(since_first >= 0.0, "line {number} of the trace is earlier than the first row");
        let at = Duration::try_from_secs_f64(since_first / speed_up)
            .with_context(|| format!("line {number} of the trace: time out of range"))?;
        ensure!(
            arrivals.last().is_none_or(|last| last.at <= at),
            "line {number} of the trace is earlier than the row before: sort it by time"
        );
        ensure!(arrivals.len() < MAX_ARRIVALS, "the trace exceeds {MAX_ARRIVALS} rows");
        arrivals.push(Arrival { at, prompt_tokens, max_tokens });
    }
    ensure!(!arrivals.is_empty(), "the trace has a header and no rows");
    Ok(arrivals)
}

/// How a column writes a time, turned into seconds.
type ReadTime = fn(&str) -> Result<f64>;

/// Where the three values stand, and how the time is written.
struct Columns {
    time: usize,
    prompt: usize,
    output: usize,
    seconds: ReadTime,
}

impl Columns {
    fn find(header: &str) -> Result<Self> {
        let names: Vec<&str> = header.split(',').map(str::trim).collect();
        let position = |wanted: &[&str]| names.iter().position(|name| wanted.contains(name));
        let times: [(&str, ReadTime); 3] = [
            ("arrival_s", |text| Ok(text.parse()?)),
            ("arrival_ms", |text| Ok(text.parse::<f64>()? / 1e3)),
            ("TIMESTAMP", seconds_of_timestamp),
        ];
        let time = times.iter().find_map(|(name, read)| Some((position(&[name])?, *read)));
        let prompt = position(&["prompt_tokens", "ContextTokens"]);
        let output = position(&["output_tokens", "GeneratedTokens"]);
        match (time, prompt, output) {
            (Some((time, seconds)), Some(prompt), Some(output)) => {
                Ok(Self { time, prompt, output, seconds })
            }
            _ => bail!(
                "unknown trace columns `{header}`: expected arrival_ms (or arrival_s), \
                 prompt_tokens, output_tokens, or TIMESTAMP, ContextTokens, GeneratedTokens"
            ),
        }
    }

    fn read(&self, line: &str) -> Result<(f64, u32, u32)> {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let cell = |at: usize| cells.get(at).copied().context("a column is missing");
        let seconds = (self.seconds)(cell(self.time)?)?;
        ensure!(seconds.is_finite(), "the time is not a number");
        let prompt_tokens: u32 = cell(self.prompt)?.parse()?;
        let max_tokens: u32 = cell(self.output)?.parse()?;
        ensure!(prompt_tokens > 0 && max_tokens > 0, "lengths must be at least 1");
        Ok((seconds, prompt_tokens, max_tokens))
    }
}

/// Seconds since the epoch of `2023-11-16 18:15:46.6805900` (any number of decimals, UTC).
fn seconds_of_timestamp(text: &str) -> Result<f64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let time = humantime::parse_rfc3339_weak(whole)?;
    let seconds = time.duration_since(std::time::UNIX_EPOCH)?.as_secs_f64();
    Ok(seconds + format!("0.{}", fraction.trim_end_matches('Z')).parse::<f64>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_a_function_of_the_seed_and_have_their_rate_and_burstiness() {
        for burstiness in [1.0, 3.0] {
            let (prompt_tokens, max_tokens) = (128, 64);
            let process = Process { rate: 5.0, burstiness, prompt_tokens, max_tokens, spread: 0.0 };
            let draw = |seed| process.draw(Duration::from_secs(2_000), seed).unwrap();
            assert_eq!(draw(1), draw(1));
            assert_ne!(draw(1), draw(2));
            let arrivals = draw(3);
            // 10,000 expected, with a deviation of 100 times the burstiness: five of them.
            assert!(arrivals.len().abs_diff(10_000) as f64 <= 500.0 * burstiness);
            assert!(arrivals.is_sorted_by_key(|arrival| arrival.at));
            assert!(arrivals.iter().all(|a| (a.prompt_tokens, a.max_tokens) == (128, 64)));
            let gaps: Vec<f64> =
                arrivals.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64()).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((variance.sqrt() / mean / burstiness - 1.0).abs() < 0.1);
        }
    }

    #[test]
    fn lengths_spread_around_their_medians_within_bounds() {
        let (prompt_tokens, max_tokens) = (128, 64);
        let process =
            Process { rate: 5.0, burstiness: 1.0, prompt_tokens, max_tokens, spread: 0.7 };
        let arrivals = process.draw(Duration::from_secs(1_000), 1).unwrap();
        let mut lengths: Vec<u32> = arrivals.iter().map(|arrival| arrival.max_tokens).collect();
        lengths.sort_unstable();
        assert!((58..=70).contains(&lengths[lengths.len() / 2]));
        // The upper decile of this log-normal is 2.45 times its median.
        assert!((140..=175).contains(&lengths[lengths.len() * 9 / 10]));
        assert!(lengths[0] >= 1 && lengths[lengths.len() - 1] <= 256);
        let negative = Process { spread: -1.0, ..process };
        assert!(negative.draw(Duration::from_secs(1), 1).is_err());
        let never = Process { burstiness: 0.0, ..process };
        assert!(never.draw(Duration::from_secs(1), 1).is_err());
    }

    #[test]
    fn all_forms_of_a_trace_give_the_same_arrivals() {
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
            2023-11-16 18:15:46.5000000,374,44\n2023-11-16 18:15:50.5000000,396,109\n";
        let milliseconds = "arrival_ms,prompt_tokens,output_tokens\n7,374,44\n4007,396,109\n\n";
        let seconds = "output_tokens,arrival_s,prompt_tokens\n44,0.25,374\n109,4.25,396";
        let expected = [
            Arrival { at: Duration::ZERO, prompt_tokens: 374, max_tokens: 44 },
            Arrival { at: Duration::from_secs(2), prompt_tokens: 396, max_tokens: 109 },
        ];
        for csv in [azure, milliseconds, seconds] {
            assert_eq!(trace(csv, 2.0).unwrap(), expected, "{csv}");
        }
    }

    #[test]
    fn a_bad_trace_names_its_line() {
        let cases = [
            ("", "empty"),
            ("a,b,c\n1,2,3", "unknown trace columns"),
            ("arrival_s,prompt_tokens,output_tokens\n", "no rows"),
            ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,x,1", "line 3"),
            ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n2,1,1\n1,1,1", "line 4"),
            ("arrival_s,prompt_tokens,output_tokens\n0,1", "line 2"),
            ("arrival_s,prompt_tokens,output_tokens\n0,1,0", "line 2"),
            ("arrival_s,prompt_tokens,output_tokens\nnan,1,1", "line 2"),
        ];
        for (csv, expected) in cases {
            let error = format!("{:#}", trace(csv, 1.0).unwrap_err());
            assert!(error.contains(expected), "{csv:?} gave {error}");
        }
    }
}
