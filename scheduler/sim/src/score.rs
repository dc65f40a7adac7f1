//! Measures of a run. The first tenth of the requests warms up and does not count.

use scheduler::{Micros, Request, Rule};

use crate::record::{Fate, Record, Run, is_met};
use crate::stats::quantile;
use crate::workload::Job;

/// `|actual / forecast - 1|` of times from arrival.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// At the median.
    pub median: f64,
    /// At the 90 % quantile.
    pub most: f64,
}

/// Refused shares by the quartile of the prompt length, shortest first.
pub type Quartiles = [f64; 4];

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Requests in time over offered ones.
    pub attainment: f64,
    /// Requests in time over admitted ones.
    pub kept: f64,
    /// Promises that were given up for others, over admitted ones.
    pub displaced: f64,
    /// Output tokens a second of requests in time.
    pub goodput: f64,
    /// Of the last token, against the forecast carried to its end.
    pub carried_e2e: Errors,
    /// Of the first token, against the forecast carried to its end.
    pub carried_ttft: Errors,
    /// Of the last token, against the forecast at admission.
    pub admission_e2e: Errors,
    /// Of the first token, against the forecast at admission.
    pub admission_ttft: Errors,
    /// First tokens that came by the upper bound shown at admission, which nine in ten should.
    pub covered_ttft: f64,
    /// The same of last tokens.
    pub covered_e2e: f64,
    /// Refused over offered, by the quartile of the prompt.
    pub refused: Quartiles,
    /// Refused over offered, by rule.
    pub by_rule: [f64; Rule::ALL.len()],
}

impl Score {
    /// Of `run`, which was offered `jobs`.
    #[must_use]
    pub fn new(jobs: &[Job], run: &Run) -> Score {
        Score::of(jobs, run, |_| true)
    }

    /// Of the requests of `run` that are `chosen`, such as those of a class.
    #[must_use]
    pub fn of(jobs: &[Job], run: &Run, chosen: impl Fn(&Request) -> bool) -> Score {
        let warm = jobs.len() / 10;
        let of_all = run.of(jobs).skip(warm);
        let counted: Vec<(&Job, &Record)> =
            of_all.filter(|(job, _)| chosen(&job.request)).collect();
        let met = counted.iter().filter(|(job, record)| is_met(job, record));
        let tokens: u64 = met.clone().map(|(job, _)| u64::from(job.actual)).sum();
        let met = met.count() as f64;
        let admitted = counted.iter().filter(|(_, record)| record.is_admitted()).count();
        let by_rule = Rule::ALL.map(|rule| {
            let by_it = counted.iter().filter(|(_, record)| record.fate == Fate::Shed(rule));
            by_it.count() as f64 / counted.len() as f64
        });
        let arrival = |place: Option<&Job>| place.map_or(0, |job| job.request.arrival.0);
        let span = arrival(jobs.last()) - arrival(jobs.get(warm));
        let displaced = |record: &Record| record.settled.is_some_and(|settled| settled.displaced);
        let displaced = counted.iter().filter(|(_, record)| displaced(record)).count() as f64;
        Score {
            displaced: displaced / admitted as f64,
            attainment: met / counted.len() as f64,
            kept: met / admitted as f64,
            goodput: tokens as f64 / (span as f64 / 1e6),
            carried_e2e: errors(&counted, |r| Some((r.last?, r.settled?.carried_last))),
            carried_ttft: errors(&counted, |r| Some((r.first?, r.settled?.carried_first))),
            admission_e2e: errors(&counted, |r| Some((r.last?, r.settled?.forecast.last_token))),
            admission_ttft: errors(&counted, |r| Some((r.first?, r.settled?.forecast.first_token))),
            covered_ttft: covered(&counted, |r| Some((r.first?, r.settled?.forecast.upper_first))),
            covered_e2e: covered(&counted, |r| Some((r.last?, r.settled?.forecast.upper_last))),
            refused: refused_by_prompt(&counted),
            by_rule,
        }
    }
}

/// Of those for whom `times` has the actual and the forecast time.
fn errors(
    counted: &[(&Job, &Record)],
    times: impl Fn(&Record) -> Option<(Micros, Micros)>,
) -> Errors {
    let error = |(job, record): &(&Job, &Record)| {
        let (actual, forecast) = times(record)?;
        let since = |time: Micros| time.minus(job.request.arrival).0.max(1) as f64;
        Some((since(actual) / since(forecast) - 1.0).abs())
    };
    let errors: Vec<f64> = counted.iter().filter_map(error).collect();
    Errors { median: quantile(errors.clone(), 0.5), most: quantile(errors, 0.9) }
}

/// The share of those for whom `times` has an actual time and its bound that came by the bound.
fn covered(
    counted: &[(&Job, &Record)],
    times: impl Fn(&Record) -> Option<(Micros, Micros)>,
) -> f64 {
    let all: Vec<bool> =
        counted.iter().filter_map(|(_, record)| times(record)).map(|(t, by)| t <= by).collect();
    all.iter().filter(|by| **by).count() as f64 / all.len() as f64
}

fn refused_by_prompt(counted: &[(&Job, &Record)]) -> Quartiles {
    let prompt = |job: &Job| f64::from(job.request.sequences[0].prompt_tokens);
    let prompts: Vec<f64> = counted.iter().map(|(job, _)| prompt(job)).collect();
    let cuts = [0.25, 0.5, 0.75].map(|q| quantile(prompts.clone(), q));
    let mut shares = [(0.0, 0.0); 4];
    for (job, record) in counted {
        let quartile = cuts.iter().filter(|cut| prompt(job) > **cut).count();
        shares[quartile].0 += 1.0;
        if !record.is_admitted() {
            shares[quartile].1 += 1.0;
        }
    }
    shares.map(|(offered, refused)| refused / f64::max(offered, 1.0))
}
