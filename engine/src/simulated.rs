//! The `simulated` runner: takes the time that a cost model says, with seeded noise, and makes
//! tokens up from a seed.
//!
//! The next token of a sequence is a hash of the seed, the position and the last token: it does not
//! depend on how the sequence was cut into chunks or on what else was in the step. With 127 tokens
//! or more in the vocabulary they are printable bytes, so that the byte tokenizer shows text.

use std::time::{Duration, Instant};

use models::{Chunk, Logits, ModelRunner, RunnerError, RunnerLimits};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use scheduler::{CostModel, StepLoad};

/// Settings of the simulated runner.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedOptions {
    /// What a step takes.
    pub cost: CostModel,
    /// Standard deviation of the noise on each step, per mille.
    pub noise_permille: u32,
    /// Seed of noise and tokens.
    pub seed: u64,
    /// Sizes and bounds.
    pub limits: RunnerLimits,
}

/// The simulated runner.
#[derive(Debug)]
pub struct SimulatedRunner {
    options: SimulatedOptions,
    noise: Pcg64Mcg,
}

impl SimulatedRunner {
    /// A runner with these settings.
    #[must_use]
    pub fn new(options: SimulatedOptions) -> SimulatedRunner {
        SimulatedRunner { options, noise: Pcg64Mcg::seed_from_u64(options.seed) }
    }

    /// What a step with this load takes this time.
    fn duration(&mut self, load: &StepLoad) -> Duration {
        let micros = self.options.cost.step(load).0 as f64;
        let deviation = f64::from(self.options.noise_permille.min(1_000)) / 1_000.0;
        let factor = (1.0 + deviation * standard_normal(&mut self.noise)).clamp(0.1, 10.0);
        Duration::from_nanos((micros * 1_000.0 * factor) as u64)
    }

    /// Appends the logits that follow `token` at `position`.
    fn push_row(&self, position: u32, token: u32, logits: &mut Vec<f32>) {
        /// Logits of the made-up candidates: the best one holds two thirds of the mass.
        const CANDIDATES: [f32; 4] = [8.0, 7.0, 6.0, 5.0];
        const OTHERS: f32 = -20.0;
        let row = logits.len();
        let vocab = self.options.limits.vocab_size;
        logits.resize(row + vocab as usize, OTHERS);
        let printable = if vocab > 126 { 32..127 } else { 0..vocab };
        let mut state = mix(self.options.seed ^ mix(u64::from(position) << 32 | u64::from(token)));
        for logit in CANDIDATES {
            let token =
                printable.start + (state % u64::from(printable.end - printable.start)) as u32;
            let entry = &mut logits[row + token as usize];
            *entry = entry.max(logit);
            state = mix(state);
        }
    }
}

impl ModelRunner for SimulatedRunner {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn limits(&self) -> RunnerLimits {
        self.options.limits
    }

    fn run(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), RunnerError> {
        let started = Instant::now();
        logits.clear();
        for chunk in chunks {
            let wanted = match chunk.logits {
                Logits::None => 0,
                Logits::Last => 1,
                Logits::All => chunk.tokens.len(),
            };
            let positions = (chunk.start..).zip(chunk.tokens);
            for (position, &token) in positions.skip(chunk.tokens.len() - wanted) {
                self.push_row(position, token, logits);
            }
        }
        wait_until(started + self.duration(&step_load(chunks)));
        Ok(())
    }
}

/// What a step computes, counted as the scheduler counts it.
pub(crate) fn step_load(chunks: &[Chunk<'_>]) -> StepLoad {
    let mut load = StepLoad::default();
    for chunk in chunks {
        load.add_chunk(chunk.start, chunk.tokens.len() as u32);
    }
    load
}

/// Sleeps for most of the time and spins for the rest: a sleep ends late by the timer's slack.
fn wait_until(end: Instant) {
    const SLACK: Duration = Duration::from_micros(150);
    if let Some(sleep) = end.checked_duration_since(Instant::now() + SLACK) {
        std::thread::sleep(sleep);
    }
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// The finaliser of splitmix64.
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Roughly normal with mean 0 and deviation 1: twelve uniform numbers less their mean.
fn standard_normal(rng: &mut Pcg64Mcg) -> f64 {
    let unit = |bits: u32| f64::from(bits) / 2f64.powi(32);
    (0..12).map(|_| unit(rng.next_u32())).sum::<f64>() - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner(noise_permille: u32) -> SimulatedRunner {
        let cost = CostModel {
            fixed_ns: 1_000_000,
            per_seq_ns: 10_000,
            per_context_token_ps: 500_000,
            per_prefill_token_ns: 3_000,
            per_prefill_span_ps: 1_000,
        };
        let limits = RunnerLimits {
            vocab_size: 257,
            max_model_len: 128,
            block_size: 16,
            num_blocks: 64,
            max_batched_tokens: 128,
            max_chunks: 8,
        };
        SimulatedRunner::new(SimulatedOptions { cost, noise_permille, seed: 5, limits })
    }

    fn chunk<'a>(tokens: &'a [u32], start: usize, logits: Logits) -> Chunk<'a> {
        Chunk { tokens, start: start as u32, blocks: &[0, 1, 2, 3, 4, 5, 6, 7], logits }
    }

    #[test]
    fn rows_do_not_depend_on_chunks_or_company() {
        let tokens: Vec<u32> = (0..40).map(|i| i * 7 % 250).collect();
        let (mut runner, mut whole, mut parts) = (runner(0), Vec::new(), Vec::new());
        runner.run(&[chunk(&tokens, 0, Logits::All)], &mut whole).expect("runs");
        assert_eq!(whole.len(), 40 * 257);
        for (position, row) in whole.chunks(257).enumerate() {
            let one = chunk(&tokens[position..=position], position, Logits::Last);
            let other = chunk(&tokens[..8], 3, Logits::None);
            runner.run(&[other, one, other], &mut parts).expect("runs");
            assert_eq!(parts, row);
            let best = (0..257).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("not empty");
            assert!((32..127).contains(&best), "printable");
        }
    }

    #[test]
    fn a_step_takes_what_the_cost_model_says() {
        let tokens = [1; 10];
        let chunks = [chunk(&tokens, 20, Logits::None), chunk(&tokens[..1], 99, Logits::Last)];
        let load = step_load(&chunks);
        let expected = StepLoad {
            decode_seqs: 1,
            context_tokens: 100,
            prefill_tokens: 10,
            prefill_span: 30 * 30 - 20 * 20,
        };
        assert_eq!(load, expected);
        assert_eq!(runner(0).duration(&load), Duration::from_micros(1_090));
        let mut noisy = runner(100);
        let drawn: Vec<f64> = (0..2_000).map(|_| noisy.duration(&load).as_secs_f64()).collect();
        let mean = drawn.iter().sum::<f64>() / 2_000.0;
        let variance = drawn.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / 2_000.0;
        assert!((mean / 1.090e-3 - 1.0).abs() < 0.01, "{mean}");
        assert!((variance.sqrt() / mean - 0.1).abs() < 0.01, "{variance}");
    }

    #[test]
    fn a_vocabulary_too_small_for_text_is_still_used() {
        let mut runner = runner(0);
        runner.options.limits.vocab_size = 5;
        let mut logits = Vec::new();
        runner.run(&[chunk(&[1, 2, 3], 0, Logits::All)], &mut logits).expect("runs");
        assert_eq!(logits.len(), 15);
    }
}
