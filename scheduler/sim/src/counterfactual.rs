//! Refusals that were wrong: the log of a run again, with just one more request admitted.

use crate::driver::Setup;
use crate::front::Admitting;
use crate::record::{Fate, Run, is_met};
use crate::workload::Job;

/// Of the refusals looked at, the shares that were wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FalseRefusals {
    /// The request would have met its deadline, perhaps at somebody else's cost.
    pub would_meet: f64,
    /// It would have met its deadline and nobody else would have missed theirs.
    pub costs_nobody: f64,
}

/// Looks at up to `most` refusals of a run, spread evenly. Steps take what the cost model says,
/// in that run and in those that repeat its log: so the log alone gives the very same run, and one
/// more request changes nothing but what it causes.
#[must_use]
pub fn false_refusals(setup: &Setup, jobs: &[Job], most: usize) -> FalseRefusals {
    let setup = Setup { noise: 0.0, ..setup.clone() };
    let run = setup.run(jobs);
    let before = met(jobs, &run);
    let log: Vec<bool> = run.records().map(|record| record.is_admitted()).collect();
    let shed = |fate: &Fate| matches!(fate, Fate::Shed(_));
    let refused: Vec<usize> = run
        .records()
        .enumerate()
        .filter(|(_, record)| shed(&record.fate))
        .map(|(place, _)| place)
        .collect();
    let (mut would_meet, mut costs_nobody, mut seen) = (0, 0, 0);
    let stride = refused.len().div_ceil(most.max(1)).max(1);
    for &place in refused.iter().step_by(stride) {
        let mut with = log.clone();
        with[place] = true;
        let after = met(jobs, &replay(&setup, jobs, with));
        seen += 1;
        if after[place] {
            would_meet += 1;
            costs_nobody += usize::from(before.iter().zip(&after).all(|(b, a)| !b || *a));
        }
    }
    let share = |count: usize| if seen == 0 { 0.0 } else { count as f64 / seen as f64 };
    FalseRefusals { would_meet: share(would_meet), costs_nobody: share(costs_nobody) }
}

/// Which requests were in time.
pub(crate) fn met(jobs: &[Job], run: &Run) -> Vec<bool> {
    run.of(jobs).map(|(job, record)| is_met(job, record)).collect()
}

/// The run in which those enter that `log` says, by their place among the jobs.
pub(crate) fn replay(setup: &Setup, jobs: &[Job], log: Vec<bool>) -> Run {
    Setup { admitting: Admitting::Log(log), compared: false, ..setup.clone() }.run(jobs)
}

#[cfg(test)]
mod tests {
    use scheduler::{AdmissionMode, KindConfig};

    use super::*;
    use crate::profile::CPU;
    use crate::{Stream, Target, merge};

    #[test]
    fn the_log_alone_gives_the_very_same_run() {
        for (seed, target) in [(1, Target::Multiple(4.0)), (2, Target::Seconds(8.0))] {
            let jobs = merge(&[Stream::chats(8.0, target)], 120.0, &CPU, seed);
            let gate = Admitting::Gate(AdmissionMode::Deadline, KindConfig::default());
            let setup = Setup { noise: 0.0, ..Setup::new(&CPU, "deadline", gate, seed) };
            let run = setup.run(&jobs);
            let log: Vec<bool> = run.records().map(|record| record.is_admitted()).collect();
            let refused = log.iter().filter(|admitted| !**admitted).count();
            assert!(refused > 100 && refused < jobs.len() - 100, "{refused} of {}", jobs.len());
            let times = |run: &Run| run.records().map(|r| (r.first, r.last)).collect::<Vec<_>>();
            assert_eq!(times(&replay(&setup, &jobs, log)), times(&run));
        }
    }
}
