//! What a record tells of the traffic and of the device: who came when, how long each answer
//! really was, how it went, and what steps took.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use engine::record::{Event, Opening, Reader};
use scheduler::{
    Admission, CostModel, Deadline, Micros, Request, RequestId, Rule, StepLoad, Terminal,
};

/// A recorded run.
#[derive(Debug)]
pub(super) struct Traffic {
    pub(super) opening: Opening,
    /// In order of arrival.
    pub(super) requests: Vec<Offered>,
    /// The last cost model.
    pub(super) cost: CostModel,
    /// What steps took over what `cost` says: mean, and relative deviation.
    pub(super) bias: f64,
    pub(super) noise: f64,
    /// Why reading stopped before the end.
    pub(super) stopped: Option<String>,
}

/// One request of the record.
#[derive(Clone, Debug)]
pub(super) struct Offered {
    /// As it came to the gate, with the lengths that were predicted for it.
    pub(super) request: Request,
    /// What became of it.
    pub(super) outcome: Outcome,
    /// Output tokens of its sequences, as far as they are known.
    outputs: Option<Vec<u32>>,
    pub(super) first: Option<Micros>,
    pub(super) last: Option<Micros>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Shed(Rule),
    /// Not even an idle device could have served it.
    Impossible,
    Ended(Terminal),
    /// The record ends before it does.
    Unfinished,
}

/// Reads `file`, as far as it is whole.
///
/// # Errors
/// It is no record, or one of another version.
pub(super) fn read(file: &Path) -> anyhow::Result<Traffic> {
    let (opening, reader) = Reader::open(file).with_context(|| file.display().to_string())?;
    let mut reading = Reading { cost: Some(opening.cost), ..Reading::default() };
    let mut stopped = None;
    for event in reader {
        match event {
            Ok(event) => reading.take(&event),
            Err(error) => stopped = Some(error.to_string()),
        }
    }
    let cost = reading.cost.unwrap_or(opening.cost);
    let (bias, noise) = spread(&cost, &reading.steps);
    let mut requests = reading.requests;
    requests.sort_by_key(|offered| (offered.request.arrival, offered.request.id));
    Ok(Traffic { opening, requests, cost, bias, noise, stopped })
}

#[derive(Debug, Default)]
struct Reading {
    requests: Vec<Offered>,
    /// Place of admitted requests that have not ended.
    open: BTreeMap<RequestId, usize>,
    planned: Option<(Micros, StepLoad)>,
    steps: Vec<(StepLoad, Micros)>,
    cost: Option<CostModel>,
}

impl Reading {
    fn take(&mut self, event: &Event<'_>) {
        match event {
            Event::Admit { request, asked, decision, .. } => {
                let mut request = request.clone().into_owned();
                request.deadline = *asked;
                let outcome = match decision {
                    Admission::Admit(_) => {
                        self.open.insert(request.id, self.requests.len());
                        Outcome::Unfinished
                    }
                    Admission::Shed(shed) => Outcome::Shed(shed.rule),
                    Admission::Unsatisfiable { .. } | Admission::NeverFits { .. } => {
                        Outcome::Impossible
                    }
                };
                let (outputs, first, last) = (None, None, None);
                self.requests.push(Offered { request, outcome, outputs, first, last });
            }
            Event::Finish { id, terminal, outputs, first, last, .. } => {
                let Some(place) = self.open.remove(id) else { return };
                let offered = &mut self.requests[place];
                offered.outcome = Outcome::Ended(*terminal);
                (offered.first, offered.last) = (*first, *last);
                // Whoever left has seen the answer up to there.
                if matches!(terminal, Terminal::Completed | Terminal::Cancelled) {
                    offered.outputs = Some(outputs.to_vec());
                }
            }
            Event::Plan { now, note } => {
                self.planned = (note.chunks > 0).then_some((*now, note.load));
            }
            Event::Complete { now, .. } => {
                if let Some((from, load)) = self.planned.take() {
                    self.steps.push((load, now.minus(from)));
                }
            }
            Event::Cost(cost) => self.cost = Some(*cost),
            _ => {}
        }
    }
}

/// What steps took over what `cost` says: mean, and relative standard deviation.
fn spread(cost: &CostModel, steps: &[(StepLoad, Micros)]) -> (f64, f64) {
    let predicted: f64 = steps.iter().map(|(load, _)| cost.step(load).0 as f64).sum();
    let took: f64 = steps.iter().map(|(_, took)| took.0 as f64).sum();
    if predicted <= 0.0 || took <= 0.0 {
        return (1.0, 0.0);
    }
    let bias = took / predicted;
    let off = |(load, took): &(StepLoad, Micros)| {
        // A stalled step says nothing of the others.
        (took.0 as f64 / (cost.step(load).0.max(1) as f64 * bias) - 1.0).clamp(-1.0, 1.0)
    };
    let variance = steps.iter().map(|step| off(step).powi(2)).sum::<f64>() / steps.len() as f64;
    (bias, variance.sqrt())
}

impl Offered {
    /// Its length is known: beforehand, or because it finished, or because its client left when it
    /// had so much.
    pub(super) fn is_known(&self) -> bool {
        self.outputs.is_some() || self.request.sequences.iter().all(|spec| spec.output.exact)
    }

    /// Its client left.
    pub(super) fn was_left(&self) -> bool {
        self.outcome == Outcome::Ended(Terminal::Cancelled)
    }

    /// Output tokens of one of its sequences on average: as they were, else as predicted.
    pub(super) fn length(&self) -> u32 {
        let sequences = &self.request.sequences;
        let predicted = sequences.iter().map(|spec| spec.output.predicted);
        let sum: u64 = match &self.outputs {
            Some(outputs) => outputs.iter().map(|tokens| u64::from(*tokens)).sum(),
            None => predicted.map(u64::from).sum(),
        };
        let mean = sum.div_ceil(sequences.len().max(1) as u64);
        let most = sequences.iter().map(|spec| spec.output.max).min().unwrap_or(1);
        u32::try_from(mean).unwrap_or(u32::MAX).clamp(1, most.max(1))
    }

    /// Every target that it came with was met.
    pub(super) fn is_met(&self) -> bool {
        let (Outcome::Ended(Terminal::Completed), Some(first), Some(last)) =
            (self.outcome, self.first, self.last)
        else {
            return false;
        };
        let Deadline { first_token, last_token, tpot } = self.request.deadline;
        let gaps = u64::from(self.length() - 1);
        first_token.is_none_or(|due| first <= due)
            && last_token.is_none_or(|due| last <= due)
            && tpot.is_none_or(|tpot| last.minus(first).0 <= tpot.0.saturating_mul(gaps))
    }
}
