//! The measurement at start: a short grid of decode and prefill steps, the best of a few runs each.

use std::time::{Duration, Instant};

use models::{Chunk, Logits, ModelRunner, RunnerError, RunnerLimits};
use scheduler::{CostModel, StepLoad};

use super::fit::{Normal, model, occurrences};
use crate::simulated::step_load;

/// Time that the grid may take in all. A slow model is measured at fewer points.
const BUDGET: Duration = Duration::from_millis(1_600);
/// Runs of each point while time is left; the fastest counts, as noise only ever adds.
const ROUNDS: usize = 4;
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
    load: StepLoad,
    took: Duration,
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
    let mut logits = Vec::new();
    let mut run = |point: Point| run_point(runner, point, &mut logits);
    progress("calibrating: warming up");
    run(grid[grid.len().min(ESSENTIAL) - 1])?;
    let samples = survey(&grid, &mut run, progress)?;
    Ok(fit(&samples))
}

/// Runs the grid in rounds for as long as the budget lasts.
fn survey(
    grid: &[Point],
    run: &mut dyn FnMut(Point) -> Result<Sample, RunnerError>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Sample>, RunnerError> {
    let mut best: Vec<Option<Sample>> = vec![None; grid.len()];
    let mut spent = Duration::ZERO;
    let mut per_row = Duration::MAX;
    for round in 0..ROUNDS {
        for (index, &point) in grid.iter().enumerate() {
            let expected = best[index]
                .map_or_else(|| per_row.saturating_mul(point.rows()), |sample| sample.took);
            let essential = round == 0 && index < ESSENTIAL;
            if !essential && spent.saturating_add(expected) > BUDGET {
                continue;
            }
            if round == 0 {
                progress(&format!(
                    "calibrating {}/{}: {}",
                    index + 1,
                    grid.len(),
                    point.describe()
                ));
            }
            let sample = run(point)?;
            spent += sample.took;
            per_row = per_row.min(sample.took / point.rows());
            if best[index].is_none_or(|known| sample.took < known.took) {
                best[index] = Some(sample);
            }
        }
    }
    Ok(best.into_iter().flatten().collect())
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
    Ok(Sample { load: step_load(&chunks), took: started.elapsed() })
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
        Sample { load, took: Duration::from_micros(PLANTED.step(&load).0) * slow }
    }

    #[test]
    fn planted_coefficients_come_back_despite_slow_outliers() {
        let mut runs = 0;
        let mut run = |point| {
            runs += 1;
            Ok(synthetic(point, if runs % 7 == 0 { 2 } else { 1 }))
        };
        let samples = survey(&GRID, &mut run, &mut |_| {}).expect("no failure");
        let found = fit(&samples);
        let close = |found: u64, planted: u64| found.abs_diff(planted) * 50 < planted;
        assert!(close(found.fixed_ns, PLANTED.fixed_ns), "{found:?}");
        assert!(close(found.per_seq_ns, PLANTED.per_seq_ns), "{found:?}");
        assert!(close(found.per_context_token_ps, PLANTED.per_context_token_ps), "{found:?}");
        assert!(close(found.per_prefill_token_ns, PLANTED.per_prefill_token_ns), "{found:?}");
        assert!(close(found.per_prefill_span_ps, PLANTED.per_prefill_span_ps), "{found:?}");
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
            let samples = survey(&GRID, &mut run, &mut |_| {}).expect("no failure");
            assert!(samples.len() >= ESSENTIAL);
            let essential: Duration =
                GRID[..ESSENTIAL].iter().map(|&point| synthetic(point, slow).took).sum();
            assert!(spent <= BUDGET.max(essential) * 3 / 2, "{spent:?}");
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
            for point in GRID.map(|point| point.within(&limits)) {
                let blocks = (point.start + point.len).div_ceil(limits.block_size) * point.seqs;
                assert!(blocks <= limits.num_blocks && point.seqs <= limits.max_chunks);
                assert!(point.start + point.len <= limits.max_model_len);
                assert!(point.rows() <= limits.max_batched_tokens);
            }
        }
        assert_eq!(GRID.map(|point| point.within(&LIMITS)), GRID);
    }
}
