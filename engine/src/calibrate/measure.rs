//! Measuring a runner on a grid of decode and prefill steps: a short one at start, the best of a
//! few runs each, and a thorough one for a profile, the median of many.

use std::time::{Duration, Instant};

use models::{Chunk, Logits, ModelRunner, RunnerError, RunnerLimits};
use scheduler::{CostModel, StepLoad};

use super::fit::{Normal, model, occurrences};
use crate::simulated::step_load;

/// Points that are measured whatever they take: without them there is no model.
const ESSENTIAL: usize = 2;

/// A step of `seqs` equal chunks: `len` tokens each from position `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    seqs: u32,
    start: u32,
    len: u32,
}

/// The points in the order of their worth. Tokens behind a long context show the
/// quadratic prefill term, 16 sequences at a long context the context term.
const GRID: [Point; 8] = [
    Point { seqs: 1, start: 16, len: 1 },
    Point { seqs: 1, start: 0, len: 16 },
    Point { seqs: 4, start: 16, len: 1 },
    Point { seqs: 1, start: 0, len: 64 },
    Point { seqs: 16, start: 16, len: 1 },
    Point { seqs: 16, start: 512, len: 1 },
    Point { seqs: 1, start: 512, len: 32 },
    Point { seqs: 1, start: 512, len: 1 },
];

/// How much to measure, and what counts.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Time that the grid may take in all. A slow model is measured at fewer points.
    budget: Duration,
    /// Runs of each point while time is left.
    rounds: usize,
    /// The median of the runs counts; otherwise the fastest, as noise only ever adds.
    typical: bool,
}

/// At start nobody wants to wait.
const QUICK: Effort = Effort { budget: Duration::from_millis(1_600), rounds: 4, typical: false };

/// What was measured, and the model that fits it.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The model.
    pub cost: CostModel,
    /// The grid, in the order of measurement.
    pub points: Vec<MeasuredPoint>,
    /// Steps that were run.
    pub steps: usize,
}

/// One point of the grid.
#[derive(Clone, Debug)]
pub struct MeasuredPoint {
    /// The point in words.
    pub name: String,
    /// What it took.
    pub measured: Duration,
    /// What the model says.
    pub predicted: Duration,
}

impl MeasuredPoint {
    /// By how much the model is off, in per cent of what was measured.
    #[must_use]
    pub fn error_percent(&self) -> f64 {
        (self.predicted.as_secs_f64() / self.measured.as_secs_f64().max(1e-6) - 1.0) * 100.0
    }
}

impl Measurement {
    /// Mean and largest error of the model, in per cent, both without sign.
    #[must_use]
    pub fn errors_percent(&self) -> (f64, f64) {
        let errors = self.points.iter().map(|point| point.error_percent().abs());
        let mean = errors.clone().sum::<f64>() / self.points.len().max(1) as f64;
        (mean, errors.fold(0.0, f64::max))
    }
}

impl Point {
    /// The nearest point that the runner can take.
    fn within(self, limits: &RunnerLimits) -> Point {
        let seqs = self.seqs.min(limits.max_chunks).min(limits.num_blocks).max(1);
        let positions = (limits.num_blocks / seqs).saturating_mul(limits.block_size);
        let positions = positions.min(limits.max_model_len);
        let len = self.len.min(limits.max_batched_tokens / seqs).min(positions).max(1);
        Point { seqs, len, start: self.start.min(positions.saturating_sub(len)) }
    }

    fn rows(self) -> u32 {
        self.seqs * self.len
    }

    fn describe(self) -> String {
        let Point { seqs, start, len } = self;
        match len {
            1 => format!("decode of {seqs} at context {start}"),
            _ => format!("prefill of {len} behind {start}"),
        }
    }
}

/// What a point costs.
#[derive(Clone, Copy, Debug)]
struct Sample {
    point: Point,
    load: StepLoad,
    took: Duration,
}

/// The points of a thorough measurement: those of the short one, then every power of two of
/// sequences and chunks, at three lengths of context.
fn thorough_grid(limits: &RunnerLimits) -> Vec<Point> {
    let doublings =
        |from: u32, to: u32| (0..32).map(move |i| from << i).take_while(move |&n| n <= to);
    let starts = [16, 512, 2_048];
    let decode = doublings(1, limits.max_chunks.min(1 << 12))
        .flat_map(|seqs| starts.map(|start| Point { seqs, start, len: 1 }));
    let prefill = doublings(16, limits.max_batched_tokens.min(1 << 14))
        .flat_map(|len| starts.map(|start| Point { seqs: 1, start: start & !16, len }));
    let mut grid: Vec<Point> = Vec::new();
    for point in GRID.into_iter().chain(decode).chain(prefill) {
        let point = point.within(limits);
        if !grid.contains(&point) {
            grid.push(point);
        }
    }
    grid
}

/// Measures the runner thoroughly, for about `budget`. Overwrites KV blocks. `progress` gets one
/// line for each point of the first round, and one for each further round.
///
/// # Errors
/// If the runner fails.
pub fn measure_thoroughly(
    runner: &mut dyn ModelRunner,
    budget: Duration,
    progress: &mut dyn FnMut(&str),
) -> Result<Measurement, RunnerError> {
    let grid = thorough_grid(&runner.limits());
    let effort = Effort { budget, rounds: 50, typical: true };
    measure_grid(runner, &grid, &effort, progress)
}

/// Measures the runner, within about two seconds (a single step of a slow model may take longer),
/// and returns its cost model. Overwrites KV blocks. `progress` gets one line for each point.
///
/// # Errors
/// If the runner fails.
pub fn measure(
    runner: &mut dyn ModelRunner,
    progress: &mut dyn FnMut(&str),
) -> Result<CostModel, RunnerError> {
    let limits = runner.limits();
    let mut grid: Vec<Point> = GRID.iter().map(|point| point.within(&limits)).collect();
    grid.dedup();
    Ok(measure_grid(runner, &grid, &QUICK, progress)?.cost)
}

fn measure_grid(
    runner: &mut dyn ModelRunner,
    grid: &[Point],
    effort: &Effort,
    progress: &mut dyn FnMut(&str),
) -> Result<Measurement, RunnerError> {
    let mut logits = Vec::new();
    let mut steps = 0;
    let mut run = |point: Point| {
        steps += 1;
        run_point(runner, point, &mut logits)
    };
    progress("calibrating: warming up");
    run(grid[grid.len().min(ESSENTIAL) - 1])?;
    let samples = survey(grid, effort, &mut run, progress)?;
    let cost = fit(&samples);
    let point = |sample: &Sample| MeasuredPoint {
        name: sample.point.describe(),
        measured: sample.took,
        predicted: Duration::from_micros(cost.step(&sample.load).0),
    };
    Ok(Measurement { cost, points: samples.iter().map(point).collect(), steps })
}

/// Runs the grid in rounds for as long as the budget lasts.
fn survey(
    grid: &[Point],
    effort: &Effort,
    run: &mut dyn FnMut(Point) -> Result<Sample, RunnerError>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Sample>, RunnerError> {
    let mut runs: Vec<Vec<Sample>> = vec![Vec::new(); grid.len()];
    let mut spent = Duration::ZERO;
    let mut per_row = Duration::MAX;
    for round in 0..effort.rounds {
        for (index, &point) in grid.iter().enumerate() {
            let expected = runs[index]
                .last()
                .map_or_else(|| per_row.saturating_mul(point.rows()), |sample| sample.took);
            let essential = round == 0 && index < ESSENTIAL;
            if !essential && spent.saturating_add(expected) > effort.budget {
                continue;
            }
            match (round, index) {
                (0, _) => progress(&format!(
                    "calibrating {}/{}: {}",
                    index + 1,
                    grid.len(),
                    point.describe()
                )),
                (_, 0) => progress(&format!("calibrating: round {}", round + 1)),
                _ => {}
            }
            let sample = run(point)?;
            spent += sample.took;
            per_row = per_row.min(sample.took / point.rows());
            runs[index].push(sample);
        }
    }
    Ok(runs.into_iter().filter_map(|runs| choose(runs, effort.typical)).collect())
}

/// The run that counts.
fn choose(mut runs: Vec<Sample>, typical: bool) -> Option<Sample> {
    runs.sort_unstable_by_key(|sample| sample.took);
    let chosen = if typical { runs.len().saturating_sub(1) / 2 } else { 0 };
    runs.get(chosen).copied()
}

/// Runs one point once. Every sequence has blocks of its own.
fn run_point(
    runner: &mut dyn ModelRunner,
    point: Point,
    logits: &mut Vec<f32>,
) -> Result<Sample, RunnerError> {
    let limits = runner.limits();
    // Scattered tokens, so that the embedding is read as in real use.
    let tokens: Vec<u32> =
        (0..point.rows()).map(|i| i.wrapping_mul(7_919) % limits.vocab_size.max(1)).collect();
    let per_seq = (point.start + point.len).div_ceil(limits.block_size.max(1));
    let blocks: Vec<u32> = (0..per_seq * point.seqs).collect();
    let chunks: Vec<Chunk<'_>> = tokens
        .chunks(point.len as usize)
        .zip(blocks.chunks(per_seq as usize))
        .map(|(tokens, blocks)| Chunk { tokens, blocks, start: point.start, logits: Logits::Last })
        .collect();
    let started = Instant::now();
    runner.run(&chunks, logits)?;
    Ok(Sample { point, load: step_load(&chunks), took: started.elapsed() })
}

/// The model that fits the samples best, in relative error.
fn fit(samples: &[Sample]) -> CostModel {
    let mut normal = Normal::default();
    for sample in samples {
        // A step faster than the clock still counts as one microsecond, the scheduler's unit.
        let nanos = sample.took.as_nanos().max(1_000) as f64;
        normal.add(&occurrences(&sample.load), nanos, nanos.powi(-2));
    }
    model(&normal.solve_non_negative())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RunnerLimits = RunnerLimits {
        vocab_size: 1_000,
        max_model_len: 2_048,
        block_size: 32,
        num_blocks: 512,
        max_batched_tokens: 512,
        max_chunks: 64,
    };
    const PLANTED: CostModel = CostModel {
        fixed_ns: 5_000_000,
        per_seq_ns: 2_500_000,
        per_context_token_ps: 2_000_000,
        per_prefill_token_ns: 2_700_000,
        per_prefill_span_ps: 900_000,
    };

    /// The load of a point, and what it costs by `PLANTED` times `slow`.
    fn synthetic(point: Point, slow: u32) -> Sample {
        let tokens = vec![0; point.len as usize];
        let chunk =
            Chunk { tokens: &tokens, start: point.start, blocks: &[], logits: Logits::Last };
        let load = step_load(&vec![chunk; point.seqs as usize]);
        Sample { point, load, took: Duration::from_micros(PLANTED.step(&load).0) * slow }
    }

    #[test]
    fn planted_coefficients_come_back_despite_slow_outliers() {
        let mut runs = 0;
        let mut run = |point| {
            runs += 1;
            Ok(synthetic(point, if runs % 7 == 0 { 2 } else { 1 }))
        };
        let samples = survey(&GRID, &QUICK, &mut run, &mut |_| {}).expect("no failure");
        let found = fit(&samples);
        let close = |found: u64, planted: u64| found.abs_diff(planted) * 50 < planted;
        assert!(close(found.fixed_ns, PLANTED.fixed_ns), "{found:?}");
        assert!(close(found.per_seq_ns, PLANTED.per_seq_ns), "{found:?}");
        assert!(close(found.per_context_token_ps, PLANTED.per_context_token_ps), "{found:?}");
        assert!(close(found.per_prefill_token_ns, PLANTED.per_prefill_token_ns), "{found:?}");
        assert!(close(found.per_prefill_span_ps, PLANTED.per_prefill_span_ps), "{found:?}");
    }

    #[test]
    fn a_thorough_measurement_takes_the_median_and_tells_its_error() {
        let mut runs = 0;
        let mut run = |point| {
            runs += 1;
            Ok(synthetic(point, if runs % 3 == 0 { 2 } else { 1 }))
        };
        let effort = Effort { budget: Duration::from_secs(500), rounds: 9, typical: true };
        let grid = thorough_grid(&LIMITS);
        let samples = survey(&grid, &effort, &mut run, &mut |_| {}).expect("no failure");
        assert_eq!(samples.len(), grid.len());
        let right = samples.iter().filter(|s| s.took == synthetic(s.point, 1).took).count();
        assert!(right * 10 > samples.len() * 9, "{right} of {}", samples.len());
        let point = |measured, predicted| MeasuredPoint {
            name: String::new(),
            measured: Duration::from_millis(measured),
            predicted: Duration::from_millis(predicted),
        };
        let points = vec![point(100, 90), point(100, 130)];
        let (mean, largest) = Measurement { cost: PLANTED, points, steps: 2 }.errors_percent();
        assert!((mean - 20.0).abs() < 1e-9 && (largest - 30.0).abs() < 1e-9);
    }

    #[test]
    fn the_budget_holds_and_a_slow_model_still_gets_a_model() {
        for slow in [1, 10, 1_000] {
            let mut spent = Duration::ZERO;
            let mut run = |point| {
                let sample = synthetic(point, slow);
                spent += sample.took;
                Ok(sample)
            };
            let samples = survey(&GRID, &QUICK, &mut run, &mut |_| {}).expect("no failure");
            assert!(samples.len() >= ESSENTIAL);
            let essential: Duration =
                GRID[..ESSENTIAL].iter().map(|&point| synthetic(point, slow).took).sum();
            assert!(spent <= QUICK.budget.max(essential) * 3 / 2, "{spent:?}");
            for sample in &samples[..ESSENTIAL] {
                let predicted = Duration::from_micros(fit(&samples).step(&sample.load).0);
                assert!(predicted.abs_diff(sample.took) < sample.took / 4, "{predicted:?}");
            }
        }
    }

    #[test]
    fn points_fit_the_smallest_runner() {
        let tiny = RunnerLimits {
            max_model_len: 20,
            block_size: 16,
            num_blocks: 3,
            max_batched_tokens: 8,
            max_chunks: 5,
            ..LIMITS
        };
        for limits in [tiny, LIMITS] {
            let grid = GRID.map(|point| point.within(&limits));
            for point in grid.into_iter().chain(thorough_grid(&limits)) {
                let blocks = (point.start + point.len).div_ceil(limits.block_size) * point.seqs;
                assert!(blocks <= limits.num_blocks && point.seqs <= limits.max_chunks);
                assert!(point.start + point.len <= limits.max_model_len);
                assert!(point.rows() <= limits.max_batched_tokens);
            }
        }
        assert_eq!(GRID.map(|point| point.within(&LIMITS)), GRID);
    }
}
