//! How many requests could have been in time if all arrivals had been known.
//!
//! A search over whom to let in, one change at a time from the log of a run. What it finds is a
//! lower bound of the best: a gate that is far below it leaves something to be won, one that is
//! close to it does not.

use scheduler::Micros;

use crate::counterfactual::{met, replay};
use crate::driver::Setup;
use crate::profile::unloaded;
use crate::random::Random;
use crate::workload::Job;

/// Parts of the requests, by their work, that refusals are counted in.
pub const PARTS: usize = 8;

/// How often one change is mended before it is given up.
const MENDED: usize = 3;

/// Shares of the offered requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// In time.
    pub in_time: f64,
    /// Refused of each part, that with the least work first.
    pub refused: [f64; PARTS],
}

/// The run, and what was found from it by `changes` changes. Steps take what the cost model says.
///
/// # Panics
/// If there are no jobs.
#[must_use]
pub fn search(setup: &Setup, jobs: &[Job], changes: u32) -> [Outcome; 2] {
    let setup = Setup { noise: 0.0, ..setup.clone() };
    let run = setup.run(jobs);
    let mut let_in: Vec<bool> = run.records().map(|record| record.is_admitted()).collect();
    let mut in_time = met(jobs, &run);
    let before = outcome(&setup, jobs, &let_in, &in_time);
    let mut random = Random::new(setup.seed);
    for _ in 0..changes {
        let one = random.below(jobs.len());
        if !let_in[one]
            && let Some(better) = changed(&setup, jobs, &let_in, count(&in_time), one)
        {
            (let_in, in_time) = better;
        }
    }
    [before, outcome(&setup, jobs, &let_in, &in_time)]
}

/// With `one` more let in, and up to a few of those that are late then refused instead, those with
/// the most work first: if as many as `least` are in time.
fn changed(
    setup: &Setup,
    jobs: &[Job],
    let_in: &[bool],
    least: usize,
    one: usize,
) -> Option<(Vec<bool>, Vec<bool>)> {
    let mut with = let_in.to_vec();
    with[one] = true;
    let mut best = None;
    for _ in 0..MENDED {
        let in_time = met(jobs, &replay(setup, jobs, with.clone()));
        if count(&in_time) >= least {
            best = Some((with.clone(), in_time.clone()));
        }
        let late = (0..jobs.len()).filter(|i| with[*i] && !in_time[*i]);
        let Some(largest) = late.max_by_key(|i| work(setup, &jobs[*i])) else { break };
        with[largest] = false;
    }
    best
}

/// The time that a request takes alone on the device.
fn work(setup: &Setup, job: &Job) -> Micros {
    let prompt = job.request.sequences[0].prompt_tokens;
    unloaded(&setup.cost, setup.config.max_num_batched_tokens, prompt, job.actual)
}

fn outcome(setup: &Setup, jobs: &[Job], let_in: &[bool], in_time: &[bool]) -> Outcome {
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|i| work(setup, &jobs[*i]));
    let share = |part: usize| {
        let part = &order[part * order.len() / PARTS..(part + 1) * order.len() / PARTS];
        part.iter().filter(|i| !let_in[**i]).count() as f64 / part.len().max(1) as f64
    };
    Outcome {
        in_time: count(in_time) as f64 / jobs.len() as f64,
        refused: core::array::from_fn(share),
    }
}

fn count(of: &[bool]) -> usize {
    of.iter().filter(|is| **is).count()
}

#[cfg(test)]
mod tests {
    use scheduler::{AdmissionMode, KindConfig};

    use super::*;
    use crate::profile::CPU;
    use crate::{Admitting, Stream, Target, merge};

    #[test]
    fn a_search_never_loses_and_finds_what_a_queue_missed() {
        let jobs = merge(&[Stream::chats(8.0, Target::Multiple(4.0))], 20.0, &CPU, 3);
        let found = |admitting| search(&Setup::new(&CPU, "deadline", admitting, 3), &jobs, 150);
        let [gate, better] = found(Admitting::Gate(AdmissionMode::Deadline, KindConfig::default()));
        assert!(gate.in_time > 0.1 && better.in_time >= gate.in_time, "{gate:?} {better:?}");
        let [nobody, some] = found(Admitting::Cap(0));
        assert_eq!((nobody.in_time, nobody.refused), (0.0, [1.0; PARTS]));
        assert!(some.in_time > 0.1, "{some:?}");
        assert!(some.in_time <= 1.0 - some.refused.iter().sum::<f64>() / PARTS as f64 + 0.01);
    }
}
