//! What became of every request of a run.

use scheduler::{Deadline, Micros, RequestId, Rule, Settled, Terminal};

use crate::workload::Job;

/// How a request ended, or why it did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Refused by this rule.
    Shed(Rule),
    /// Refused: not even an idle device could have served it in time.
    Impossible,
    /// Admitted, with its terminal state.
    Ended(Terminal),
}

/// One offered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What became of it.
    pub fate: Fate,
    /// What it was promised, if it was admitted.
    pub promised: Deadline,
    /// When its first token came.
    pub first: Option<Micros>,
    /// When its last token came, if it did.
    pub last: Option<Micros>,
    /// How the gate had forecast it.
    pub settled: Option<Settled>,
}

impl Record {
    pub(crate) const fn refused(fate: Fate) -> Record {
        let promised = Deadline { first_token: None, last_token: None, tpot: None };
        Record { fate, promised, first: None, last: None, settled: None }
    }

    /// It entered.
    #[must_use]
    pub const fn is_admitted(&self) -> bool {
        matches!(self.fate, Fate::Ended(_))
    }

    /// It completed, and `deadline` was met: every target of it.
    #[must_use]
    pub fn meets(&self, deadline: &Deadline, actual: u32) -> bool {
        let (Some(first), Some(last)) = (self.first, self.last) else { return false };
        let Deadline { first_token, last_token, tpot } = *deadline;
        let gaps = u64::from(actual - 1);
        first_token.is_none_or(|due| first <= due)
            && last_token.is_none_or(|due| last <= due)
            && tpot.is_none_or(|tpot| last.minus(first).0 <= tpot.0 * gaps)
    }
}

/// A run from the first arrival to the last end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// By the request's place among the jobs; all of them, when the run is over.
    records: Vec<Option<Record>>,
    /// When the last request ended.
    pub ended: Micros,
    /// Steps that ran.
    pub steps: u64,
    /// Sequences that lost their blocks.
    pub preemptions: u64,
    /// Tokens that were found in the prefix cache.
    pub cached_tokens: u64,
    /// If asked for: by how much the last tokens that the gate forecasts after an admission differ
    /// from those of a timeline built anew, per mille of the time to come.
    pub insertion_errors: Vec<u64>,
    /// Offered work as the gate measured it while requests came, per mille of the device, by step.
    pub offered_permille: Vec<u32>,
    /// What the window of measuring brought, if there is one.
    pub measured: Measured,
}

/// Steps and tokens of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Steps that ended in it.
    pub steps: u64,
    /// Output tokens of all classes.
    pub tokens: u64,
}

impl Run {
    pub(crate) fn new(jobs: usize) -> Run {
        Run {
            records: vec![None; jobs],
            ended: Micros(0),
            steps: 0,
            preemptions: 0,
            cached_tokens: 0,
            insertion_errors: Vec::new(),
            offered_permille: Vec::new(),
            measured: Measured::default(),
        }
    }

    pub(crate) fn book(&mut self, id: RequestId, record: Record) {
        let before = self.records[id.0 as usize].replace(record);
        assert!(before.is_none(), "{id:?} ended twice");
    }

    /// What became of each job.
    ///
    /// # Panics
    /// If one has not ended, which [`crate::Setup::run`] excludes.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().map(|record| record.as_ref().expect("every request has ended"))
    }

    /// Each job with what became of it.
    pub fn of<'a>(&'a self, jobs: &'a [Job]) -> impl Iterator<Item = (&'a Job, &'a Record)> {
        jobs.iter().zip(self.records())
    }

    /// Requests that met every target that they came with.
    #[must_use]
    pub fn met(&self, jobs: &[Job]) -> usize {
        self.of(jobs).filter(|(job, record)| is_met(job, record)).count()
    }

    /// Requests that entered.
    #[must_use]
    pub fn admitted(&self) -> usize {
        self.records().filter(|record| record.is_admitted()).count()
    }
}

/// The request met every target that it came with.
#[must_use]
pub fn is_met(job: &Job, record: &Record) -> bool {
    record.meets(&job.request.deadline, job.actual)
}
