//! The engine thread: plan, run, complete, over and over.
//!
//! It alone owns runner, scheduler and sequences. Between two steps it takes in what has arrived;
//! when there is nothing to do it sleeps on the channel (`intake.rs`).

mod intake;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use models::{ModelRunner, RunnerError};
use scheduler::{CostModel, Event, Micros, RequestId, SeqOutcome, StepPlan, Terminal, Timeline};

use crate::active::{ActiveRequest, Outbox};
use crate::batch::{Batch, panic_message};
use crate::calibrate::Calibrator;
use crate::observer::{Observer, StepReport};
use crate::prefix::BlockHasher;
use crate::record::RecordedScheduler;
use crate::sampling::Scratch;
use crate::shared::{Command, Live, Shared};
use crate::stream::Update;

/// How long the thread waits for news when work is there but none of it can run.
const STALLED: Duration = Duration::from_millis(1);

/// What the thread is made of.
pub(crate) struct Parts {
    pub(crate) runner: Box<dyn ModelRunner>,
    pub(crate) scheduler: RecordedScheduler,
    pub(crate) cost: CostModel,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) eos: Arc<[u32]>,
    pub(crate) hasher: Option<BlockHasher>,
}

/// The state of the thread.
pub(crate) struct EngineThread {
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    parts: Parts,
    calibrator: Calibrator,
    requests: HashMap<RequestId, ActiveRequest>,
    batch: Batch,
    scratch: Scratch,
    outbox: Outbox,
    /// When the last step ended, or the work began.
    last_step: Micros,
    /// From when the next step is timed: the end of the last one, so that what happens between two
    /// steps counts as well, unless there was nothing to do.
    timed_from: Micros,
}

/// Why the loop ended.
enum Stop {
    Shutdown,
    DeviceLost(String),
}

impl EngineThread {
    pub(crate) fn new(
        shared: Arc<Shared>,
        commands: Receiver<Command>,
        parts: Parts,
    ) -> EngineThread {
        EngineThread {
            shared,
            commands,
            calibrator: Calibrator::new(&parts.cost),
            parts,
            requests: HashMap::new(),
            batch: Batch::default(),
            scratch: Scratch::default(),
            outbox: Outbox::default(),
            last_step: Micros(0),
            timed_from: Micros(0),
        }
    }

    /// The body of the thread. Whatever ends it, nobody is left without an answer.
    pub(crate) fn main(mut self) {
        let why = match catch_unwind(AssertUnwindSafe(|| self.run())) {
            Ok(Stop::Shutdown) => "the server is shutting down".to_owned(),
            Ok(Stop::DeviceLost(message)) => format!("device lost: {message}"),
            Err(panic) => format!("the engine failed: {}", panic_message(&*panic)),
        };
        tracing::info!(reason = why, unfinished = self.requests.len(), "engine thread ends");
        self.close(&why);
    }

    fn run(&mut self) -> Stop {
        loop {
            if self.take_in() {
                return Stop::Shutdown;
            }
            self.keep_record();
            if self.parts.scheduler.is_idle() {
                if !self.rest() {
                    return Stop::Shutdown;
                }
            } else if let Err(message) = self.step() {
                return Stop::DeviceLost(message);
            }
        }
    }

    /// One step. `Err` if the device is lost.
    fn step(&mut self) -> Result<(), String> {
        let now = self.shared.clock.now();
        let plan = self.parts.scheduler.plan(now);
        self.note_plan(now, &plan);
        if plan.chunks.is_empty() {
            self.publish();
            if let Ok(command) = self.commands.recv_timeout(STALLED) {
                self.obey(command);
            }
            self.timed_from = self.shared.clock.now();
            return Ok(());
        }
        let predicted = self.parts.cost.step(&plan.load);
        self.install_timeline(now, self.timed_from.plus(predicted).max(now));
        let requests = &self.requests;
        let ran = self.batch.run(&mut *self.parts.runner, &self.parts.scheduler, &plan, |seq| {
            requests[&seq.request].sequence(seq.index)
        });
        match ran {
            Ok(()) => self.complete(predicted, &plan),
            Err(RunnerError::Step(message)) => self.fail(&plan, &message),
            Err(RunnerError::DeviceLost(message)) => return Err(message),
        }
        Ok(())
    }

    /// Books what the plan decided already.
    fn note_plan(&mut self, now: Micros, plan: &StepPlan) {
        for id in &plan.expired {
            self.end(now, *id, Terminal::Expired, "");
        }
        for seq in &plan.preempted {
            if let Some(request) = self.requests.get_mut(&seq.request) {
                request.preempt();
            }
        }
        for chunk in &plan.chunks {
            if let Some(request) = self.requests.get_mut(&chunk.seq.request) {
                request.schedule(now, chunk, &mut self.outbox);
            }
        }
    }

    /// The step ran: samples, books, reports.
    fn complete(&mut self, predicted: Micros, plan: &StepPlan) {
        let now = self.shared.clock.now();
        let vocab_size = self.parts.runner.limits().vocab_size;
        let sampled = plan.chunks.iter().filter(|chunk| chunk.sample);
        let mut outcomes = Vec::with_capacity(plan.chunks.len());
        for (chunk, row) in sampled.zip(self.batch.rows(vocab_size)) {
            let Some(request) = self.requests.get_mut(&chunk.seq.request) else { continue };
            let observer = &*self.parts.observer;
            let (scratch, outbox) = (&mut self.scratch, &mut self.outbox);
            outcomes.push(request.sample(chunk.seq, now, row, scratch, observer, outbox));
        }
        self.know_blocks(plan);
        let now = self.shared.clock.now();
        let events = self.parts.scheduler.complete(now, plan, &outcomes);
        self.book(now, &events, "the model returned values that are not finite");
        let duration = now.minus(self.timed_from);
        if let Some(cost) = self.calibrator.observe(&plan.load, duration) {
            self.parts.cost = cost;
            self.parts.scheduler.set_cost(cost);
        }
        self.parts.observer.step(&StepReport {
            duration,
            predicted,
            load: plan.load,
            tokens: plan.chunks.iter().map(|chunk| chunk.len).sum(),
            generated: outcomes.iter().filter(|o| !matches!(o, SeqOutcome::Fail(_))).count() as u32,
            counts: self.parts.scheduler.counts(),
        });
        self.finish_step(now);
    }

    /// Tells the scheduler what the blocks are known by that the step has filled with generated
    /// tokens.
    fn know_blocks(&mut self, plan: &StepPlan) {
        let Some(hasher) = &self.parts.hasher else { return };
        for chunk in &plan.chunks {
            let Some(request) = self.requests.get_mut(&chunk.seq.request) else { continue };
            while let Some(hash) = request.know_block(chunk, hasher) {
                self.parts.scheduler.know_block(chunk.seq, hash);
            }
        }
    }

    /// The step failed: so do the requests in it, and nobody else.
    fn fail(&mut self, plan: &StepPlan, message: &str) {
        tracing::error!(chunks = plan.chunks.len(), error = message, "step failed");
        let now = self.shared.clock.now();
        let events = self.parts.scheduler.fail(plan);
        self.book(now, &events, &format!("step failed: {message}"));
        self.finish_step(now);
    }

    /// Books events; `failure` is why those that failed did.
    fn book(&mut self, now: Micros, events: &[Event], failure: &str) {
        for event in events {
            match *event {
                Event::SequenceFinished(seq, reason) => {
                    if let Some(request) = self.requests.get_mut(&seq.request) {
                        request.finish(seq.index, reason, &mut self.outbox);
                    }
                }
                Event::RequestEnded(id, terminal) => self.end(now, id, terminal, failure),
            }
        }
    }

    /// The one place where requests end.
    fn end(&mut self, now: Micros, id: RequestId, terminal: Terminal, failure: &str) {
        let Some(request) = self.requests.remove(&id) else { return };
        let (outputs, first, last) = (request.outputs(), request.first_token, request.last_token);
        let settled = self.shared.front().gate.finish(now, id, terminal, &outputs, first, last);
        self.parts.observer.request(&request.report(now, terminal, failure, settled));
        match terminal {
            Terminal::Expired => request.post(&mut self.outbox, Update::Expired),
            Terminal::Failed => request.post(&mut self.outbox, Update::Failed(failure.to_owned())),
            Terminal::Completed | Terminal::Cancelled => {}
        }
    }

    /// Replays the scheduler forward from `base` for the gate.
    fn install_timeline(&mut self, now: Micros, base: Micros) {
        let timeline = Timeline::build(base, &self.parts.scheduler);
        let changes = self.parts.scheduler.take_cache_changes();
        let cost = self.parts.cost;
        let spent = self.shared.front().gate.install(now, base, timeline, changes, cost);
        // Freed here, after the lock.
        drop(spent);
    }

    /// Begins the next segment of the record when it is time.
    fn keep_record(&mut self) {
        if !self.parts.scheduler.is_segment_due() {
            return;
        }
        let now = self.shared.clock.now();
        let timeline = Timeline::build(now, &self.parts.scheduler);
        let state = self.parts.scheduler.state();
        let changes = self.parts.scheduler.take_cache_changes();
        let mut front = self.shared.front();
        let spent = front.gate.begin_segment(now, timeline, changes, self.parts.cost, state);
        self.parts.scheduler.note_segment(front.gate.newest());
        drop(front);
        drop(spent);
    }

    /// A step has ended, well or not.
    fn finish_step(&mut self, now: Micros) {
        self.last_step = now;
        self.timed_from = now;
        self.publish();
    }

    /// Shows the state to the world, then sends the updates that tell of it.
    fn publish(&mut self) {
        let counts = self.parts.scheduler.counts();
        let progress = (!self.parts.scheduler.is_idle()).then_some(self.last_step);
        *self.shared.live() = Live { counts, cost: self.parts.cost, progress };
        self.outbox.flush();
    }
}
