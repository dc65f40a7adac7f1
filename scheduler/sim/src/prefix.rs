//! The tables of `sluice-sim prefix`: what the prefix cache finds, beside an independent model of
//! it, and what the gate gains by knowing.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::sync::Arc;

use scheduler::{
    AdmissionMode, BlockHash, Class, Deadline, FinishReason, KindConfig, Micros, OutputLength,
    Request, RequestId, Scheduler, SchedulerConfig, SeqOutcome, SequenceSpec, TenantId, policy,
};

use crate::driver::Setup;
use crate::experiment::{Effort, attainment};
use crate::front::Admitting;
use crate::mooncake::{TRACE_BLOCK, TURNS, Turn, backlog, hash, jobs};
use crate::profile::H100_8B;
use crate::score::Score;
use crate::stats::Mean;
use crate::table::Table;
use crate::target::Target;
use crate::workload::Job;

/// Pools that are tried, in blocks of 512 tokens; the last one holds everything.
const POOLS: [u32; 7] = [1_000, 3_000, 10_000, 30_000, 60_000, 120_000, 300_000];

/// The promise in the second table.
const TARGET: Target = Target::Tokens(1.0, 30.0);

/// Full blocks of prompts that were found in the cache, of all that there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Found.
    pub found: u64,
    /// Looked for.
    pub all: u64,
}

impl Hits {
    /// Found over looked for.
    #[must_use]
    pub fn share(self) -> f64 {
        self.found as f64 / self.all.max(1) as f64
    }
}

/// Blocks that a prompt may find: one token at least is computed.
const fn findable(turn: &Turn) -> usize {
    ((turn.prompt - 1) / TRACE_BLOCK) as usize
}

const fn full_blocks(turn: &Turn) -> usize {
    (turn.prompt / TRACE_BLOCK) as usize
}

/// Turns one after another through the scheduler, with a pool of `num_blocks`. Those that do not
/// fit it are left out.
///
/// # Panics
/// If the scheduler does not run what is alone.
#[must_use]
pub fn scheduler_hits(turns: &[Turn], num_blocks: u32) -> Hits {
    let config = SchedulerConfig {
        num_blocks,
        block_size: TRACE_BLOCK,
        max_num_batched_tokens: 1 << 20,
        max_model_len: 1 << 20,
        ..H100_8B.config()
    };
    let policy = policy::by_name("fcfs").expect("it exists");
    let mut scheduler = Scheduler::new(config, policy, H100_8B.cost);
    let mut hits = Hits::default();
    for (id, turn) in turns.iter().enumerate() {
        if config.blocks_for(turn.prompt) > num_blocks {
            continue;
        }
        let full = turn.blocks.iter().take(full_blocks(turn));
        let prefix: Arc<[BlockHash]> = full.map(|block| hash(*block, 0)).collect();
        let output = OutputLength { min: 1, max: 1, predicted: 1, hint: None, exact: true };
        scheduler.enqueue(&Request {
            id: RequestId(id as u64),
            class: Class::Throughput,
            tenant: TenantId::DEFAULT,
            borrows: false,
            arrival: Micros(0),
            deadline: Deadline::default(),
            retry: 0,
            origin: 0,
            prefixes: vec![prefix],
            sequences: vec![SequenceSpec { prompt: 0, prompt_tokens: turn.prompt, output }],
        });
        let plan = scheduler.plan(Micros(0));
        let chunk = plan.chunks[0];
        assert!(chunk.sample, "a whole prompt fits into a step");
        hits.found += u64::from(chunk.start / TRACE_BLOCK);
        hits.all += full_blocks(turn) as u64;
        let last = [SeqOutcome::Finish(chunk.seq, FinishReason::Length)];
        scheduler.complete(Micros(0), &plan, &last);
    }
    hits
}

/// The same by a model that knows nothing of tables and references: contents with the time of
/// their last use, of which the oldest go, of one prompt the deepest first.
#[must_use]
pub fn model_hits(turns: &[Turn], num_blocks: u32) -> Hits {
    let capacity = num_blocks as usize;
    let mut used: HashMap<u32, (usize, usize)> = HashMap::new();
    let mut order: BTreeSet<((usize, usize), u32)> = BTreeSet::new();
    let mut hits = Hits::default();
    for (now, turn) in turns.iter().enumerate() {
        let taken = turn.prompt.div_ceil(TRACE_BLOCK) as usize;
        if taken > capacity {
            continue;
        }
        let full = &turn.blocks[..full_blocks(turn)];
        let cached = full.iter().take(findable(turn)).take_while(|block| used.contains_key(block));
        let found = cached.count();
        // What it uses itself is not given up for it.
        for block in &full[..found] {
            order.remove(&(used[block], *block));
        }
        while order.len() + taken > capacity {
            let Some((_, oldest)) = order.pop_first() else { break };
            used.remove(&oldest);
        }
        for (depth, block) in full.iter().enumerate() {
            let at = (now, capacity - depth);
            if let Some(before) = used.insert(*block, at) {
                order.remove(&(before, *block));
            }
            order.insert((at, *block));
        }
        hits.found += found as u64;
        hits.all += full.len() as u64;
    }
    hits
}

/// How the cache is used in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Not at all.
    Off,
    /// The gate takes every prompt for new.
    Blind,
    /// The gate counts what need not be computed.
    Known,
}

/// One run of the gate over turns of the trace on an H100 with the 8B model, with the share of
/// prompt tokens that were found in the cache.
#[must_use]
pub fn run(jobs: &[Job], cache: Use, seed: u64) -> (Score, f64) {
    let rule = Admitting::Gate(AdmissionMode::Deadline, KindConfig::default());
    let mut setup = Setup::new(&H100_8B, "deadline", rule, seed);
    setup.blind = cache == Use::Blind;
    let mut jobs = jobs.to_vec();
    if cache == Use::Off {
        jobs.iter_mut().for_each(|job| job.request.prefixes.clear());
    }
    let run = setup.run(&jobs);
    let admitted = run.of(&jobs).filter(|(_, record)| record.is_admitted());
    let prompt = |job: &Job| u64::from(job.request.sequences[0].prompt_tokens);
    let tokens: u64 = admitted.map(|(job, _)| prompt(job)).sum();
    (Score::new(&jobs, &run), run.cached_tokens as f64 / tokens.max(1) as f64)
}

/// Requests a second of a device that is never idle and uses its cache: what load 1 means.
#[must_use]
pub fn capacity(n: usize) -> f64 {
    let all = Admitting::Cap(usize::MAX);
    let setup = Setup { noise: 0.0, ..Setup::new(&H100_8B, "fcfs", all, 0) };
    let run = setup.run(&backlog(&H100_8B, n, 5));
    n as f64 / (run.ended.0 as f64 / 1e6)
}

/// Prints both tables.
///
/// # Errors
/// If `out` cannot be written.
pub fn print(effort: &Effort, loads: &[f64], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "## hits\n\n{}", hits_table())?;
    writeln!(out, "## gate\n\n{}", gate_table(effort, loads))
}

fn hits_table() -> Table {
    let mut table =
        Table::new(&["blocks of 512 tokens", "scheduler", "independent LRU", "unbounded"]);
    let percent = |hits: Hits| format!("{:.2} %", hits.share() * 100.0);
    let unbounded = percent(model_hits(&TURNS, u32::MAX));
    for pool in POOLS {
        let (ours, model) = (scheduler_hits(&TURNS, pool), model_hits(&TURNS, pool));
        table.push(vec![pool.to_string(), percent(ours), percent(model), unbounded.clone()]);
    }
    table
}

fn gate_table(effort: &Effort, loads: &[f64]) -> Table {
    let mut table =
        Table::new(&["load", "cache", "in time, of offered", "kept, of admitted", "cached tokens"]);
    let capacity = capacity(effort.requests);
    let cases = [
        (Use::Off, "off"),
        (Use::Blind, "on, the gate blind to it"),
        (Use::Known, "on, known to the gate"),
    ];
    for load in loads {
        for (cache, name) in cases {
            let results = effort.over_seeds(|seed| {
                let jobs = jobs(&H100_8B, effort.requests, capacity * load, TARGET, seed);
                run(&jobs, cache, seed)
            });
            let (scores, cached): (Vec<Score>, Vec<f64>) = results.into_iter().unzip();
            table.push(vec![
                load.to_string(),
                name.to_owned(),
                attainment(&scores).to_string(),
                Mean::of(scores.iter().map(|score| score.kept)).to_string(),
                Mean::of(cached.into_iter()).to_string(),
            ]);
        }
    }
    table
}
