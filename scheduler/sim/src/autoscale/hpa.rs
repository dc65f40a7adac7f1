//! Kubernetes' horizontal pod autoscaler, `autoscaling/v2`, as its documentation and its controller
//! describe it: a proposal from each metric, the largest of them, stabilisation over windows, and
//! policies that bound how much may change in a period.
//!
//! <https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/>

/// Proposals that differ by less than this from what there is are ignored.
const TOLERANCE: f64 = 0.1;

/// A metric as it is now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Metric {
    /// Type `Pods` or `Resource`: the mean over ready pods, and what it should be.
    PerPod {
        /// The mean over ready pods.
        mean: f64,
        /// What it should be.
        target: f64,
    },
    /// Type `External` with an `AverageValue`, as KEDA makes them: a sum, and what each pod should
    /// have of it.
    Total {
        /// The sum.
        total: f64,
        /// The part of a pod.
        target: f64,
    },
}

/// How much may change in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Stabilisation window, seconds.
    pub window: u64,
    /// Change in a period, percent.
    pub percent: f64,
    /// The period, seconds.
    pub period: u64,
}

/// Bounds and policies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Fewest pods.
    pub min: u32,
    /// Most pods.
    pub max: u32,
    /// Towards more.
    pub up: Policy,
    /// Towards fewer.
    pub down: Policy,
}

/// Pods as the controller sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pods {
    /// All that were asked for.
    pub all: u32,
    /// Those that are ready.
    pub ready: u32,
}

/// A controller with its memory.
#[derive(Clone, Debug)]
pub struct Hpa {
    settings: Settings,
    /// Proposals of the past, with their times.
    proposals: Vec<(u64, u32)>,
    /// Changes of the past: time, and by how many.
    changes: Vec<(u64, i64)>,
}

impl Metric {
    /// How many pods it asks for.
    #[must_use]
    pub fn proposal(&self, pods: Pods) -> u32 {
        let near = |ratio: f64| (ratio - 1.0).abs() <= TOLERANCE;
        match *self {
            Metric::Total { total, target } => {
                let ratio = total / (target * f64::from(pods.all));
                if near(ratio) { pods.all } else { (total / target).ceil() as u32 }
            }
            Metric::PerPod { mean, target } => {
                let ratio = mean / target;
                if pods.ready == pods.all || ratio <= 1.0 {
                    let proposed = (ratio * f64::from(pods.ready)).ceil() as u32;
                    return if near(ratio) { pods.all } else { proposed };
                }
                // Towards more, pods that are not ready count as if they had nothing.
                let damped = ratio * f64::from(pods.ready) / f64::from(pods.all);
                let proposed = (damped * f64::from(pods.all)).ceil() as u32;
                if near(damped) || damped < 1.0 { pods.all } else { proposed.max(pods.all) }
            }
        }
    }
}

impl Hpa {
    /// Without memory.
    #[must_use]
    pub const fn new(settings: Settings) -> Hpa {
        Hpa { settings, proposals: Vec::new(), changes: Vec::new() }
    }

    /// One synchronisation: how many pods there should be.
    pub fn sync(&mut self, now: u64, pods: Pods, metrics: &[Metric]) -> u32 {
        let proposal = metrics.iter().map(|metric| metric.proposal(pods)).max();
        let proposed = self.stabilised(now, pods.all, proposal.unwrap_or(pods.all));
        let Settings { min, max, .. } = self.settings;
        let bounded = proposed.clamp(min, max);
        let next = if bounded > pods.all {
            bounded.min(self.most(now, pods.all))
        } else {
            bounded.max(self.least(now, pods.all))
        };
        if next != pods.all {
            self.changes.push((now, i64::from(next) - i64::from(pods.all)));
        }
        next
    }

    /// Towards more no further than the least proposal of its window, towards fewer no further than
    /// the largest one.
    fn stabilised(&mut self, now: u64, current: u32, proposal: u32) -> u32 {
        let Settings { up, down, .. } = self.settings;
        self.proposals.push((now, proposal));
        self.proposals.retain(|(at, _)| at + up.window.max(down.window) > now);
        let within = |window: u64| {
            let recent = self.proposals.iter().filter(move |(at, _)| at + window > now);
            recent.map(|(_, proposal)| *proposal)
        };
        let at_least = within(up.window).min().unwrap_or(proposal).min(proposal);
        let at_most = within(down.window).max().unwrap_or(proposal).max(proposal);
        current.max(at_least).min(at_most)
    }

    fn most(&self, now: u64, current: u32) -> u32 {
        let Policy { percent, period, .. } = self.settings.up;
        let before = f64::from(current) - self.changed(now, period);
        (before * (1.0 + percent / 100.0)).ceil() as u32
    }

    fn least(&self, now: u64, current: u32) -> u32 {
        let Policy { percent, period, .. } = self.settings.down;
        let before = f64::from(current) - self.changed(now, period);
        (before * (1.0 - percent / 100.0)) as u32
    }

    /// What has changed in the last `period` seconds.
    fn changed(&self, now: u64, period: u64) -> f64 {
        let recent = self.changes.iter().filter(|(at, _)| at + period > now);
        recent.map(|(_, change)| *change as f64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings {
        min: 2,
        max: 40,
        up: Policy { window: 30, percent: 100.0, period: 60 },
        down: Policy { window: 300, percent: 20.0, period: 120 },
    };

    #[test]
    fn proposals_are_those_of_the_documentation() {
        let pods = |all, ready| Pods { all, ready };
        let mean = |mean, target| Metric::PerPod { mean, target };
        assert_eq!(mean(200.0, 100.0).proposal(pods(3, 3)), 6);
        assert_eq!(mean(50.0, 100.0).proposal(pods(4, 4)), 2);
        assert_eq!(mean(105.0, 100.0).proposal(pods(4, 4)), 4, "within the tolerance");
        assert_eq!(mean(200.0, 100.0).proposal(pods(6, 3)), 6, "three pods are on their way");
        assert_eq!(mean(300.0, 100.0).proposal(pods(6, 3)), 9);
        let total = |total, target| Metric::Total { total, target };
        assert_eq!(total(12.8, 0.8).proposal(pods(12, 12)), 16);
        assert_eq!(total(12.8, 0.8).proposal(pods(16, 12)), 16, "ready or not");
    }

    #[test]
    fn it_waits_for_its_windows_and_goes_no_faster_than_its_policies() {
        let mut hpa = Hpa::new(SETTINGS);
        let mut all = 4;
        let mut sync = |now: u64, total: f64| {
            let pods = Pods { all, ready: all };
            all = hpa.sync(now, pods, &[Metric::Total { total, target: 1.0 }]);
            all
        };
        assert_eq!(sync(0, 4.0), 4);
        assert_eq!(sync(15, 30.0), 4, "the window still holds a proposal of 4");
        assert_eq!(sync(30, 30.0), 8, "double at most");
        assert_eq!(sync(45, 30.0), 8);
        assert_eq!(sync(90, 30.0), 16);
        assert_eq!(sync(105, 10.0), 16, "down only after five minutes");
        assert_eq!(sync(389, 10.0), 16);
        assert_eq!(sync(390, 10.0), 12, "by a fifth");
        assert_eq!(sync(405, 10.0), 12);
        assert_eq!(sync(510, 10.0), 10);
    }
}
