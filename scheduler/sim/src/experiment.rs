//! One scenario over several seeds, and the best static cap for it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use scheduler::{AdmissionMode, KindConfig};

use crate::counterfactual::{FalseRefusals, false_refusals};
use crate::driver::Setup;
use crate::front::Admitting;
use crate::hindsight::{self, Outcome};
use crate::score::Score;
use crate::stats::Mean;
use crate::target::Target;
use crate::workload::{Job, Workload};

/// Requests that measure what a device can do.
const BACKLOG: usize = 3_000;

/// Caps that are tried: requests inside, waiting or running.
const CAPS: [usize; 12] = [2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256];

/// Refusals of a run that are looked at.
const REFUSALS: usize = 60;

/// Requests a second of a device that is never idle: what load 1 means.
#[must_use]
pub fn capacity(workload: &Workload) -> f64 {
    let all = Admitting::Cap(usize::MAX);
    let setup = Setup { noise: 0.0, ..Setup::new(&workload.profile, "fcfs", all, 0) };
    let run = setup.run(&workload.backlog(BACKLOG, 5));
    BACKLOG as f64 / (run.ended.0 as f64 / 1e6)
}

/// Which seeds, how many requests each, on how many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// The first seed.
    pub first_seed: u64,
    /// How many seeds.
    pub seeds: u64,
    /// Requests of a run.
    pub requests: usize,
    /// Runs at a time.
    pub threads: usize,
}

impl Effort {
    /// `work` for each seed, in order.
    pub fn over_seeds<T: Send>(&self, work: impl Fn(u64) -> T + Sync) -> Vec<T> {
        let next = AtomicUsize::new(0);
        let seeds: Vec<u64> = (self.first_seed..self.first_seed + self.seeds).collect();
        let worker = || {
            let mut done = Vec::new();
            while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                done.push((*seed, work(*seed)));
            }
            done
        };
        let mut results: Vec<(u64, T)> = thread::scope(|scope| {
            let others: Vec<_> = (1..self.threads).map(|_| scope.spawn(worker)).collect();
            let mut results = worker();
            for other in others {
                results.extend(other.join().expect("a run does not panic"));
            }
            results
        });
        results.sort_by_key(|(seed, _)| *seed);
        results.into_iter().map(|(_, result)| result).collect()
    }
}

/// A workload at a load, with a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scenario {
    /// The device and its traffic.
    pub workload: Workload,
    /// What each request is promised.
    pub target: Target,
    /// Offered requests over [`capacity`].
    pub load: f64,
    /// The gate knows output lengths.
    pub known: bool,
    /// Requests a second at load 1.
    pub capacity: f64,
}

/// The settings of the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Whom to refuse first.
    pub kinds: KindConfig,
    /// A fixed multiple of the target that a forecast may use, per mille; otherwise it is learned.
    pub safety_permille: Option<u32>,
}

/// The device and its cost model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// Standard deviation of a step's time, relative.
    pub noise: f64,
    /// True over predicted time of a step.
    pub bias: f64,
    /// The cost model follows.
    pub corrected: bool,
}

/// 5 % noise, no bias.
pub const TRUE_MODEL: Device = Device { noise: 0.05, bias: 1.0, corrected: false };

impl Scenario {
    /// What is offered with `seed`.
    #[must_use]
    pub fn jobs(&self, requests: usize, seed: u64) -> Vec<Job> {
        self.workload.jobs(requests, self.capacity * self.load, self.target, self.known, seed)
    }

    fn setup(&self, device: Device, policy: &'static str, rule: Admitting, seed: u64) -> Setup {
        let Device { noise, bias, corrected } = device;
        let setup = Setup::new(&self.workload.profile, policy, rule, seed);
        Setup { noise, bias, corrected, ..setup }
    }

    /// The gate with these settings.
    #[must_use]
    pub fn gate(&self, effort: &Effort, device: Device, rules: Rules) -> Vec<Score> {
        effort.over_seeds(|seed| {
            let jobs = self.jobs(effort.requests, seed);
            let run = self.gated(device, rules, seed).run(&jobs);
            Score::new(&jobs, &run)
        })
    }

    fn gated(&self, device: Device, rules: Rules, seed: u64) -> Setup {
        let rule = Admitting::Gate(AdmissionMode::Deadline, rules.kinds);
        let mut setup = self.setup(device, "deadline", rule, seed);
        for class in &mut setup.config.classes.0 {
            class.safety_permille = rules.safety_permille;
        }
        setup
    }

    /// First come, first served, and nobody is refused.
    #[must_use]
    pub fn plain(&self, effort: &Effort, device: Device) -> Vec<Score> {
        effort.over_seeds(|seed| {
            let jobs = self.jobs(effort.requests, seed);
            let rule = Admitting::Cap(usize::MAX);
            let run = self.setup(device, "fcfs", rule, seed).run(&jobs);
            Score::new(&jobs, &run)
        })
    }

    /// At most `cap` requests inside, earliest deadline first, hopeless ones expire, and clients
    /// whose answer is late leave.
    #[must_use]
    pub fn capped(&self, effort: &Effort, device: Device, cap: usize) -> Vec<Score> {
        effort.over_seeds(|seed| {
            let jobs = self.jobs(effort.requests, seed);
            let setup = self.setup(device, "deadline", Admitting::Cap(cap), seed);
            let run = Setup { impatient: true, ..setup }.run(&jobs);
            Score::new(&jobs, &run)
        })
    }

    /// The cap with the best attainment on these very seeds.
    #[must_use]
    pub fn best_cap(&self, effort: &Effort, device: Device) -> (usize, Vec<Score>) {
        let tried = CAPS.map(|cap| (cap, self.capped(effort, device, cap)));
        let of = |scores: &[Score]| attainment(scores).mean;
        let best = tried.into_iter().max_by(|(_, a), (_, b)| of(a).total_cmp(&of(b)));
        best.expect("there are caps")
    }

    /// Refusals of the gate that were wrong.
    #[must_use]
    pub fn false_refusals(&self, effort: &Effort, rules: Rules) -> Vec<FalseRefusals> {
        effort.over_seeds(|seed| {
            let jobs = self.jobs(effort.requests, seed);
            false_refusals(&self.gated(TRUE_MODEL, rules, seed), &jobs, REFUSALS)
        })
    }

    /// The gate, and what a search with all arrivals known finds from there.
    #[must_use]
    pub fn hindsight(&self, effort: &Effort, rules: Rules, changes: u32) -> Vec<[Outcome; 2]> {
        effort.over_seeds(|seed| {
            let jobs = self.jobs(effort.requests, seed);
            hindsight::search(&self.gated(TRUE_MODEL, rules, seed), &jobs, changes)
        })
    }
}

/// Requests in time over offered ones.
#[must_use]
pub fn attainment(scores: &[Score]) -> Mean {
    Mean::of(scores.iter().map(|score| score.attainment))
}

/// By how much the attainment of `ours` exceeds that of `theirs`, seed by seed.
#[must_use]
pub fn gain(ours: &[Score], theirs: &[Score]) -> Mean {
    Mean::of(ours.iter().zip(theirs).map(|(ours, theirs)| ours.attainment - theirs.attainment))
}
