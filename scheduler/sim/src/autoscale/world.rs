//! Traffic that rises and falls, replicas that take minutes to start, and clients that retry.

use std::collections::VecDeque;

use clap::ValueEnum;

use super::hpa::Pods;
use super::scaler::{COLD_START, Control, Scaler, Signals, TARGET};
use crate::random::Random;

/// Requests a second that a replica serves.
const SERVES: f64 = 8.0;

/// A gate lets in what it can serve within this many seconds.
const BUDGET: f64 = 1.2;

/// Clients leave after so many seconds.
const TIMEOUT: f64 = 30.0;

/// Attempts of a client, and seconds until the next one.
const ATTEMPTS: usize = 3;
const RETRY_AFTER: usize = 4;

/// Seconds between scrapes, and between synchronisations.
const SCRAPE: u64 = 15;

/// Seconds over which replicas average offered work, and Prometheus refusals.
const AVERAGED: f64 = 30.0;
const MINUTE: f64 = 60.0;

/// How the offered load changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Traffic {
    /// Twelve replicas at 0.8; within a minute a third more; forty minutes later back.
    Incident,
    /// Four replicas; within a minute three times as much; an hour later back.
    Tripling,
    /// Eight replicas; twice as much within twenty minutes, and back as slowly.
    Ramp,
    /// Two waves between five and fifteen replicas' work, three hours each.
    Waves,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Replicas that were asked for, by second.
    pub replicas: Vec<u32>,
    /// Replicas that were needed, by second.
    pub needed: Vec<u32>,
    /// First attempts that were served in the end, over all of them.
    pub served: f64,
    /// The same of those that were served without waiting beyond the budget.
    pub in_time: f64,
    /// The longest wait of somebody who was served, seconds.
    pub longest_wait: f64,
}

impl Traffic {
    /// The fleet that it begins with.
    #[must_use]
    pub const fn replicas(self) -> u32 {
        match self {
            Traffic::Incident => 12,
            Traffic::Tripling => 4,
            Traffic::Ramp => 8,
            Traffic::Waves => 7,
        }
    }

    /// Seconds that are looked at.
    const fn length(self) -> u64 {
        match self {
            Traffic::Waves => 6 * 3_600,
            _ => 3 * 3_600,
        }
    }

    /// Offered load in replicas at second `at`.
    fn load(self, at: u64) -> f64 {
        // A straight line from (from, low) to (to, high).
        let line = |from: f64, to: f64, low: f64, high: f64| {
            let part = ((at as f64 - from) / (to - from)).clamp(0.0, 1.0);
            low + part * (high - low)
        };
        match self {
            Traffic::Incident => line(600.0, 660.0, 9.6, 12.8) - line(3_060.0, 3_360.0, 0.0, 3.2),
            Traffic::Tripling => line(600.0, 660.0, 3.0, 9.0) - line(4_260.0, 4_560.0, 0.0, 6.0),
            Traffic::Ramp => line(600.0, 1_800.0, 6.0, 12.0) - line(5_400.0, 6_600.0, 0.0, 6.0),
            Traffic::Waves => 10.0 - 5.0 * (at as f64 / 10_800.0 * std::f64::consts::TAU).cos(),
        }
    }
}

impl Outcome {
    /// The most replicas over the most that were needed.
    #[must_use]
    pub fn overshoot(&self) -> f64 {
        f64::from(self.peak()) / f64::from(self.most_needed())
    }

    /// The most replicas.
    #[must_use]
    pub fn peak(&self) -> u32 {
        self.replicas.iter().copied().max().unwrap_or(0)
    }

    /// The most that were needed at a time.
    #[must_use]
    pub fn most_needed(&self) -> u32 {
        self.needed.iter().copied().max().unwrap_or(0)
    }

    /// How often it went up after it had gone down while no more were needed than before it went
    /// down.
    #[must_use]
    pub fn flaps(&self) -> usize {
        let mut flaps = 0;
        let mut needed_before_down = None;
        for (pair, needed) in self.replicas.windows(2).zip(&self.needed) {
            if pair[1] < pair[0] {
                needed_before_down = Some(*needed);
            } else if pair[1] > pair[0] {
                flaps += usize::from(needed_before_down.take().is_some_and(|was| *needed <= was));
            }
        }
        flaps
    }

    /// Hours of replicas, starting ones included.
    #[must_use]
    pub fn replica_hours(&self) -> f64 {
        self.replicas.iter().map(|n| f64::from(*n)).sum::<f64>() / 3_600.0
    }

    /// Hours of replicas if there were always exactly as many as needed.
    #[must_use]
    pub fn needed_hours(&self) -> f64 {
        self.needed.iter().map(|n| f64::from(*n)).sum::<f64>() / 3_600.0
    }
}

/// Replicas and clients.
struct World {
    ready: u32,
    /// When those that were asked for will serve.
    starting: VecDeque<u64>,
    /// Requests inside.
    inside: f64,
    /// Attempts to come, by second: those of number 1 and up.
    coming: VecDeque<[f64; ATTEMPTS]>,
    offered: f64,
    attempts: f64,
    refused: f64,
    utilisation: f64,
    total: f64,
    served: f64,
    in_time: f64,
    longest_wait: f64,
}

/// Runs `scaler` under `traffic`, with 3 % noise drawn from `seed`.
#[must_use]
pub fn run(scaler: Scaler, traffic: Traffic, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let mut world = World::new(traffic);
    let mut control = Control::new(scaler, traffic.replicas());
    let mut seen = Signals::default();
    let (mut replicas, mut needed) = (Vec::new(), Vec::new());
    for now in 0..traffic.length() {
        let load = traffic.load(now);
        let arriving = load * SERVES * (1.0 + 0.03 * random.normal().clamp(-3.0, 3.0));
        world.second(now, arriving, scaler.admits());
        control.look(now, world.pods(), world.offered);
        if now % SCRAPE == 0 {
            // The controller sees what was scraped before.
            let asked = control.sync(now, world.pods(), &seen);
            world.resize(now, asked);
            seen = world.signals();
        }
        replicas.push(world.pods().all);
        needed.push((load / TARGET - 1e-9).ceil() as u32);
    }
    let World { total, served, in_time, longest_wait, .. } = world;
    Outcome { replicas, needed, served: served / total, in_time: in_time / total, longest_wait }
}

impl World {
    fn new(traffic: Traffic) -> World {
        let load = traffic.load(0);
        World {
            ready: traffic.replicas(),
            starting: VecDeque::new(),
            inside: 0.0,
            coming: VecDeque::from(vec![[0.0; ATTEMPTS]; RETRY_AFTER]),
            offered: load,
            attempts: load * SERVES,
            refused: 0.0,
            utilisation: load / f64::from(traffic.replicas()),
            total: 0.0,
            served: 0.0,
            in_time: 0.0,
            longest_wait: 0.0,
        }
    }

    fn pods(&self) -> Pods {
        Pods { all: self.ready + self.starting.len() as u32, ready: self.ready }
    }

    fn signals(&self) -> Signals {
        Signals {
            utilisation: self.utilisation,
            waiting: self.waiting() / f64::from(self.ready),
            rejected: self.refused / self.attempts,
            offered: self.offered,
        }
    }

    /// Requests inside that are not being computed.
    fn waiting(&self) -> f64 {
        (self.inside - f64::from(self.ready) * SERVES * 0.2).max(0.0)
    }

    /// Asks for more, or takes away: first those that do not serve yet.
    fn resize(&mut self, now: u64, asked: u32) {
        while self.pods().all < asked {
            self.starting.push_back(now + COLD_START);
        }
        while self.pods().all > asked {
            if self.starting.pop_back().is_none() {
                self.ready -= 1;
            }
        }
    }

    /// A second passes in which `arriving` first attempts come.
    fn second(&mut self, now: u64, arriving: f64, admits: bool) {
        while self.starting.front().is_some_and(|ready| *ready <= now) {
            self.starting.pop_front();
            self.ready += 1;
        }
        let each_second = f64::from(self.ready) * SERVES;
        let mut attempts = self.coming.pop_front().unwrap_or_default();
        attempts[0] += arriving;
        let all: f64 = attempts.iter().sum();
        // Without a gate everybody waits, and those who would wait too long leave and come again.
        let patience = if admits { BUDGET } else { TIMEOUT };
        let room = (each_second * (1.0 + patience) - self.inside).max(0.0);
        let entered = all.min(room);
        let kept_out = 1.0 - entered / all.max(1e-9);
        let mut again = [0.0; ATTEMPTS];
        for (next, attempt) in again[1..].iter_mut().zip(attempts) {
            *next = attempt * kept_out;
        }
        self.coming.push_back(again);
        self.inside += entered;
        let done = self.inside.min(each_second);
        let wait = (self.inside - done) / each_second;
        self.inside -= done;
        self.total += arriving;
        self.served += done;
        if wait <= BUDGET + 1e-9 {
            self.in_time += done;
        }
        self.longest_wait = self.longest_wait.max(wait);
        let refused = if admits { all - entered } else { 0.0 };
        let follow = |mean: &mut f64, value: f64, over: f64| *mean += (value - *mean) / over;
        follow(&mut self.offered, arriving / SERVES, AVERAGED);
        follow(&mut self.attempts, all, MINUTE);
        follow(&mut self.refused, refused, MINUTE);
        follow(&mut self.utilisation, done / each_second, AVERAGED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Traffic; 4] = [Traffic::Incident, Traffic::Tripling, Traffic::Ramp, Traffic::Waves];

    /// The point of the signal: it goes to where it has to be, once, and stays there.
    #[test]
    fn offered_and_desired_replicas_neither_overshoot_nor_flap() {
        for traffic in ALL {
            for scaler in [Scaler::Offered, Scaler::Desired] {
                for seed in 0..5 {
                    let outcome = run(scaler, traffic, seed);
                    let what = format!("{scaler} under {traffic:?}, seed {seed}");
                    assert!(outcome.overshoot() <= 1.3, "{what}: {:.2}", outcome.overshoot());
                    // Kubernetes ignores what is less than a tenth too few, the rule a twentieth.
                    let enough = f64::from(outcome.most_needed()) / 1.1 / 1.05;
                    assert!(f64::from(outcome.peak()) >= enough, "{what}: too few");
                    assert_eq!(outcome.flaps(), 0, "{what}");
                }
            }
        }
    }

    #[test]
    fn the_share_of_refusals_overshoots() {
        let outcome = run(Scaler::TwoMetrics, Traffic::Incident, 1);
        assert!(outcome.overshoot() > 2.0, "{:.2}", outcome.overshoot());
    }

    /// Nothing is lost or made: without refusals everybody is served.
    #[test]
    fn enough_replicas_serve_everybody() {
        let outcome = run(Scaler::Desired, Traffic::Ramp, 1);
        assert!((0.97..=1.0).contains(&outcome.served), "{}", outcome.served);
        assert_eq!(run(Scaler::Desired, Traffic::Ramp, 1), outcome, "the seed decides");
    }
}
