//! The Mooncake trace of conversations: what prompts have in common.

use std::sync::{Arc, LazyLock};

use scheduler::{
    BlockHash, Class, Deadline, Micros, OutputLength, Request, RequestId, SequenceSpec, TenantId,
};

use crate::profile::{BLOCK_SIZE, Profile};
use crate::random::Random;
use crate::target::Target;
use crate::workload::Job;

/// Tokens that one id of the trace stands for.
pub const TRACE_BLOCK: u32 = 512;

/// Jobs have so many times fewer tokens than the trace, so that its prompts fit a context of 16
/// thousand tokens.
const SCALE: u32 = 8;

/// One conversation's turn.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Tokens of the prompt, earlier turns included.
    pub prompt: u32,
    /// Tokens of the answer.
    pub output: u32,
    /// What each 512 tokens of the prompt are known by, the last perhaps not full.
    pub blocks: Vec<u32>,
}

/// All turns of the trace in order of arrival. An embedded trace is whole: a broken one is a broken
/// build.
pub static TURNS: LazyLock<Vec<Turn>> = LazyLock::new(|| {
    let lines = include_str!("../data/mooncake_conversation.csv").lines().skip(1);
    lines.map(|line| turn(line).expect("an embedded trace is whole")).collect()
});

fn turn(line: &str) -> Option<Turn> {
    let mut fields = line.split(',').skip(1);
    let prompt = fields.next()?.parse().ok()?;
    let output = fields.next()?.parse().ok()?;
    let mut blocks = Vec::new();
    for run in fields.next()?.split(' ') {
        let (first, count) = run.split_once('+').unwrap_or((run, "1"));
        let first: u32 = first.parse().ok()?;
        blocks.extend(first..first + count.parse::<u32>().ok()?);
    }
    Some(Turn { prompt, output, blocks })
}

/// What part `part` of a block of the trace is known by.
#[must_use]
pub fn hash(block: u32, part: u32) -> BlockHash {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&block.to_be_bytes());
    bytes[4..8].copy_from_slice(&part.to_be_bytes());
    BlockHash(bytes)
}

/// `n` turns in a row, from a place of the trace that `seed` draws: an eighth of their lengths,
/// arriving at `rate` a second at random times, each with its `target`. Their output lengths are
/// known to the gate.
///
/// # Panics
/// If the trace is not that long.
#[must_use]
pub fn jobs(profile: &Profile, n: usize, rate: f64, target: Target, seed: u64) -> Vec<Job> {
    let mut random = Random::new(seed);
    let first = random.below(TURNS.len() - n + 1);
    let mut now = 0.0;
    let job = |(id, turn): (usize, &Turn)| {
        now += random.exponential() / rate;
        let arrival = Micros((now * 1e6) as u64);
        let (prompt_tokens, actual) = ((turn.prompt / SCALE).max(1), (turn.output / SCALE).max(1));
        let output = OutputLength { min: 0, max: actual, predicted: 0, hint: None, exact: true };
        let parts = TRACE_BLOCK / SCALE / BLOCK_SIZE;
        let block = |i: u32| hash(turn.blocks[(i / parts) as usize], i % parts);
        let prefix: Arc<[BlockHash]> = (0..prompt_tokens / BLOCK_SIZE).map(block).collect();
        Job {
            request: Request {
                id: RequestId(id as u64),
                class: Class::Latency,
                tenant: TenantId::DEFAULT,
                borrows: false,
                arrival,
                deadline: target.deadline(arrival, profile.unloaded(prompt_tokens, actual)),
                retry: 0,
                origin: id as u64,
                prefixes: vec![prefix],
                sequences: vec![SequenceSpec { prompt: 0, prompt_tokens, output }],
            },
            actual,
        }
    };
    TURNS[first..first + n].iter().enumerate().map(job).collect()
}

/// All of `n` turns at once and without a deadline: what the device can do.
#[must_use]
pub fn backlog(profile: &Profile, n: usize, seed: u64) -> Vec<Job> {
    let mut jobs = jobs(profile, n, 1.0, Target::Seconds(1.0), seed);
    for job in &mut jobs {
        job.request.arrival = Micros(0);
        job.request.deadline = Deadline::default();
    }
    jobs
}
