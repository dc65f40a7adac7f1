//! Replay: the recorded inputs into a new gate and a new scheduler, and their decisions compared
//! with the recorded ones, bit for bit.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::panic::{AssertUnwindSafe, catch_unwind};

use scheduler::{
    Admission, CostModel, Deadline, Gate, Micros, Request, RequestId, Scheduler, SchedulerConfig,
    StepPlan, Terminal, Timeline, policy,
};
use serde::de::DeserializeOwned;

use super::event::{Event, Opening, PlanNote, State, encode};
use crate::batch::panic_message;

/// Larger pools are not replayed: they would take gigabytes.
const MAX_BLOCKS: u32 = 1 << 24;

/// Two decisions that should have been one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Whose decision on what.
    pub what: String,
    /// What the record says.
    pub recorded: String,
    /// What came out now.
    pub replayed: String,
}

impl Difference {
    fn new(what: String, recorded: &impl Debug, replayed: &impl Debug) -> Difference {
        let (recorded, replayed) = (format!("{recorded:?}"), format!("{replayed:?}"));
        Difference { what, recorded, replayed }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { what, recorded, replayed } = self;
        write!(f, "{what}\n  recorded: {recorded}\n  replayed: {replayed}")
    }
}

/// Why a replay cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The opening makes no sense.
    #[error("its settings make no sense: {0}")]
    Settings(String),
    /// What comes next does not fit what has been.
    #[error("the record does not fit itself: {0}")]
    Impossible(String),
}

/// What an event led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It was an input; nothing was decided.
    Input,
    /// The decision is the recorded one.
    Same,
    /// It is not.
    Different(Box<Difference>),
}

/// Gate and scheduler, fed from a record.
#[derive(Debug)]
pub struct Replay {
    gate: Gate,
    scheduler: Scheduler,
    cost: CostModel,
    /// Admitted and on their way to the scheduler.
    admitted: BTreeMap<RequestId, Request>,
    /// The step in flight.
    plan: StepPlan,
}

impl Replay {
    /// As it was when the segment began.
    ///
    /// # Errors
    /// [`ReplayError::Settings`].
    pub fn new(opening: &Opening) -> Result<Replay, ReplayError> {
        let settings = opening.gate.scheduler;
        check(&settings)?;
        let policy = || {
            let unknown = || ReplayError::Settings(format!("policy {:?}", opening.policy));
            policy::by_name(&opening.policy).ok_or_else(unknown)
        };
        let (gate, scheduler) = match &opening.state {
            None => (
                Gate::new(opening.gate, policy()?, opening.cost).with_tenants(&opening.tenants),
                Scheduler::new(settings, policy()?, opening.cost).with_tenants(&opening.tenants),
            ),
            Some(state) => (decode(&state.gate)?, decode(&state.scheduler)?),
        };
        Ok(Replay {
            gate,
            scheduler,
            cost: opening.cost,
            admitted: BTreeMap::new(),
            plan: StepPlan::default(),
        })
    }

    /// Repeats one event.
    ///
    /// # Errors
    /// [`ReplayError::Impossible`]; nothing more should be applied then. After a difference the
    /// rest of the record may not fit any more either.
    pub fn apply(&mut self, event: &Event<'_>) -> Result<Applied, ReplayError> {
        let applied = catch_unwind(AssertUnwindSafe(|| self.repeat(event)));
        applied.unwrap_or_else(|panic| Err(ReplayError::Impossible(panic_message(&*panic))))
    }

    /// Repeats a decision and compares it, or takes in an input.
    fn repeat(&mut self, event: &Event<'_>) -> Result<Applied, ReplayError> {
        Ok(match event {
            Event::Admit { now, request, asked, decision } => {
                self.admit(*now, request, *asked, decision)
            }
            Event::RefuseEarly { now, least, sequences, decision } => {
                let early = self.gate.early(*now, least, *sequences);
                let replayed = early.map(|early| self.gate.refuse(*now, least, early));
                let what = || format!("early refusal of request {}", least.id.0);
                compare(what, &Some(*decision), &replayed)
            }
            Event::Finish { now, id, terminal, outputs, first, last, settled } => {
                let replayed = self.gate.finish(*now, *id, *terminal, outputs, *first, *last);
                self.admitted.remove(id);
                let what = || format!("forecast of request {} at its end", id.0);
                compare(what, settled, &replayed)
            }
            Event::Cancel { id, live } => {
                let what = || format!("whether request {} was live", id.0);
                compare(what, live, &self.scheduler.cancel(*id))
            }
            Event::Plan { now, note } => {
                self.plan = self.scheduler.plan(*now);
                compare(|| "plan of a step".into(), note, &PlanNote::of(&self.plan))
            }
            Event::Seal(sums) => {
                self.gate.carry();
                let state = State::of(&self.gate, encode(&self.scheduler));
                compare(|| "state at the end of the segment".into(), sums, &state.sums())
            }
            input => {
                self.take_in(input)?;
                Applied::Input
            }
        })
    }

    /// What has no decision to compare.
    fn take_in(&mut self, event: &Event<'_>) -> Result<(), ReplayError> {
        match event {
            Event::Install { now, base } => {
                let timeline = Timeline::build(*base, &self.scheduler);
                self.gate.install(*now, timeline, self.cost);
                self.gate.update_cache(self.scheduler.take_cache_changes());
            }
            Event::Cluster { now, view } => self.gate.set_cluster(*now, *view),
            Event::TenantLimit { tenant, requests } => {
                self.gate.set_tenant_limit(*tenant, Some(*requests));
            }
            Event::Drain => self.gate.drain(),
            Event::Enqueue { id, request } => {
                let whole = || request.as_deref().cloned();
                let request = self.admitted.remove(id).or_else(whole).ok_or_else(|| {
                    ReplayError::Impossible(format!("request {} was not admitted", id.0))
                })?;
                self.scheduler.enqueue(&request);
            }
            Event::Stop(seq) => {
                self.scheduler.stop(*seq);
            }
            Event::Block { seq, hash } => self.scheduler.know_block(*seq, *hash),
            Event::Complete { now, outcomes } => {
                let plan = std::mem::take(&mut self.plan);
                self.scheduler.complete(*now, &plan, &outcomes.all(&plan));
            }
            Event::Fail => {
                let plan = std::mem::take(&mut self.plan);
                self.scheduler.fail(&plan);
            }
            Event::Cost(cost) => {
                self.cost = *cost;
                self.scheduler.set_cost(*cost);
            }
            Event::Gap(_) | Event::End => {}
            Event::Admit { .. }
            | Event::RefuseEarly { .. }
            | Event::Finish { .. }
            | Event::Cancel { .. }
            | Event::Plan { .. }
            | Event::Seal(_) => unreachable!("decisions are compared"),
        }
        Ok(())
    }

    fn admit(
        &mut self,
        now: Micros,
        recorded: &Request,
        asked: Deadline,
        decision: &Admission,
    ) -> Applied {
        let mut request = recorded.clone();
        request.deadline = asked;
        let replayed = self.gate.admit(now, &mut request);
        let id = request.id;
        let what = || format!("admission of request {}", id.0);
        let applied = compare(what, &(decision, recorded), &(&replayed, &request));
        // What comes next follows the record.
        match (decision, &replayed) {
            (Admission::Admit(_), Admission::Admit(_)) => {
                self.admitted.insert(id, request);
            }
            (Admission::Admit(_), _) => {
                self.admitted.insert(id, recorded.clone());
            }
            (_, Admission::Admit(_)) => {
                let none = vec![0; request.sequences.len()];
                self.gate.finish(now, id, Terminal::Cancelled, &none, None, None);
            }
            _ => {}
        }
        applied
    }
}

fn compare<T: Debug + PartialEq>(what: impl Fn() -> String, recorded: &T, replayed: &T) -> Applied {
    if recorded == replayed {
        return Applied::Same;
    }
    Applied::Different(Box::new(Difference::new(what(), recorded, replayed)))
}

fn decode<T: DeserializeOwned>(state: &[u8]) -> Result<T, ReplayError> {
    postcard::from_bytes(state)
        .map_err(|_| ReplayError::Settings("its state cannot be read".into()))
}

fn check(settings: &SchedulerConfig) -> Result<(), ReplayError> {
    let problem = if settings.slots() == 0 {
        "no sequence fits into a step"
    } else if settings.block_size == 0 {
        "blocks hold nothing"
    } else if settings.num_blocks > MAX_BLOCKS {
        "the KV pool is too large"
    } else {
        return Ok(());
    };
    Err(ReplayError::Settings(problem.to_owned()))
}
