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

/// Looks at up to `most` refusals of `run`, spread evenly. Steps take what the cost model says, so
/// that one more request changes nothing but what it causes.
#[must_use]
pub fn false_refusals(setup: &Setup, jobs: &[Job], run: &Run, most: usize) -> FalseRefusals {
    let log: Vec<bool> = run.records().map(|record| record.is_admitted()).collect();
    let shed = |fate: &Fate| matches!(fate, Fate::Shed(_));
    let refused: Vec<usize> = run
        .records()
        .enumerate()
        .filter(|(_, record)| shed(&record.fate))
        .map(|(place, _)| place)
        .collect();
    let replay = |log: Vec<bool>| {
        let admitting = Admitting::Log(log);
        Setup { admitting, noise: 0.0, compared: false, ..setup.clone() }.run(jobs)
    };
    let before = met(jobs, &replay(log.clone()));
    let (mut would_meet, mut costs_nobody, mut seen) = (0, 0, 0);
    let stride = refused.len().div_ceil(most.max(1)).max(1);
    for &place in refused.iter().step_by(stride) {
        let mut with = log.clone();
        with[place] = true;
        let after = met(jobs, &replay(with));
        seen += 1;
        if after[place] {
            would_meet += 1;
            costs_nobody += usize::from(before.iter().zip(&after).all(|(b, a)| !b || *a));
        }
    }
    let share = |count: usize| if seen == 0 { 0.0 } else { count as f64 / seen as f64 };
    FalseRefusals { would_meet: share(would_meet), costs_nobody: share(costs_nobody) }
}

fn met(jobs: &[Job], run: &Run) -> Vec<bool> {
    run.of(jobs).map(|(job, record)| is_met(job, record)).collect()
}
