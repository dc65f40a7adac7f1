//! One replica over virtual time: scheduler and gate as the engine thread drives them.
//!
//! Plan a step, build the timeline at its predicted end, install it; what arrives during the step
//! is offered to the gate; complete the step; take in what was admitted. A step takes what the cost
//! model says, times noise and a bias that the model does not know.

use std::collections::BTreeMap;

use scheduler::{
    Class, CostModel, Deadline, Event, FinishReason, IsolationConfig, Micros, Request, RequestId,
    Rule, Scheduler, SchedulerConfig, SeqId, SeqOutcome, StepPlan, TenantTable, Terminal, Timeline,
    policy,
};

use crate::front::{Admitting, Decision, Front};
use crate::profile::Profile;
use crate::random::Random;
use crate::record::{Fate, Record, Run};
use crate::workload::Job;

/// How a replica is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What steps are predicted to cost.
    pub cost: CostModel,
    /// Limits.
    pub config: SchedulerConfig,
    /// The scheduling policy, by name.
    pub policy: &'static str,
    /// Who decides at arrival.
    pub admitting: Admitting,
    /// How the gate keeps classes apart.
    pub isolation: IsolationConfig,
    /// Who is told from whom.
    pub tenants: TenantTable,
    /// Clients leave when their answer is late.
    pub impatient: bool,
    /// Standard deviation of a step's time around the truth, relative; cut at three of them.
    pub noise: f64,
    /// The true time of a step over the predicted one, on average.
    pub bias: f64,
    /// The cost model follows the steps: one factor over all its terms, an exponential mean. (The
    /// engine refits each term.)
    pub corrected: bool,
    /// Of the noise.
    pub seed: u64,
    /// The gate is not told what of a prompt is cached.
    pub blind: bool,
    /// Compares the gate's forecasts with a timeline built anew after each admission.
    pub compared: bool,
    /// When measuring begins and the run ends, if it does not end by itself.
    pub window: Option<(Micros, Micros)>,
}

impl Setup {
    /// A replica with 5 % noise, unbiased.
    ///
    /// # Panics
    /// Later, if there is no policy of that name.
    #[must_use]
    pub fn new(profile: &Profile, policy: &'static str, admitting: Admitting, seed: u64) -> Setup {
        Setup {
            cost: profile.cost,
            config: profile.config(),
            policy,
            admitting,
            isolation: IsolationConfig::default(),
            tenants: TenantTable::default(),
            impatient: false,
            noise: 0.05,
            bias: 1.0,
            corrected: false,
            seed,
            blind: false,
            compared: false,
            window: None,
        }
    }

    /// Runs until every job has ended.
    ///
    /// # Panics
    /// If scheduler or gate break one of their invariants, or ids are not the places of the jobs.
    #[must_use]
    pub fn run(&self, jobs: &[Job]) -> Run {
        Driver::new(self, jobs).run()
    }
}

/// How fast a corrected cost model follows, a step.
const FOLLOWS: f64 = 0.02;

/// A request inside.
struct Live<'a> {
    job: &'a Job,
    /// As admitted.
    deadline: Deadline,
    tokens: Vec<u32>,
    first: Option<Micros>,
}

struct Driver<'a> {
    setup: &'a Setup,
    jobs: &'a [Job],
    /// Jobs that have arrived.
    arrived: usize,
    scheduler: Scheduler,
    front: Front,
    cost: CostModel,
    /// True over predicted time of the model as it was given, as far as it is known.
    factor: f64,
    now: Micros,
    live: BTreeMap<RequestId, Live<'a>>,
    run: Run,
}

impl<'a> Driver<'a> {
    fn new(setup: &'a Setup, jobs: &'a [Job]) -> Driver<'a> {
        let Setup { cost, config, .. } = *setup;
        let policy = policy::by_name(setup.policy).expect("a policy that exists");
        Driver {
            setup,
            jobs,
            arrived: 0,
            scheduler: Scheduler::new(config, policy, cost).with_tenants(&setup.tenants),
            front: Front::new(&setup.admitting, config, setup.isolation, setup.policy, cost)
                .with_tenants(&setup.tenants),
            cost,
            factor: 1.0,
            now: Micros(0),
            live: BTreeMap::new(),
            run: Run::new(jobs.len()),
        }
    }

    fn run(mut self) -> Run {
        loop {
            if self.setup.window.is_some_and(|(_, until)| self.now >= until) {
                self.break_off();
                break;
            }
            if self.scheduler.is_idle() {
                let Some(next) = self.jobs.get(self.arrived) else { break };
                self.now = self.now.max(next.request.arrival);
                if let Some(request) = self.offer_next() {
                    self.scheduler.enqueue(&request);
                }
                continue;
            }
            if self.setup.impatient {
                self.let_the_late_leave();
            }
            let plan = self.scheduler.plan(self.now);
            for id in &plan.expired {
                self.end(*id, Terminal::Expired);
            }
            if !plan.chunks.is_empty() {
                self.step(&plan);
            }
        }
        assert!(self.live.is_empty());
        self.run.ended = self.now;
        let counts = self.scheduler.counts();
        self.run.preemptions = counts.preemptions;
        self.run.cached_tokens = counts.cache_hits;
        self.run
    }

    fn step(&mut self, plan: &StepPlan) {
        let predicted = self.cost.step(&plan.load);
        let base = self.now.plus(predicted);
        let changes = self.scheduler.take_cache_changes();
        let scheduler = &self.scheduler;
        self.front.install(self.now, self.cost, || Timeline::build(base, scheduler), changes);
        if let Some(gate) = self.front.gate().filter(|_| self.arrived < self.jobs.len()) {
            self.run.offered_permille.push(gate.demand(self.now).offered_permille);
        }
        let end = self.now.plus(self.true_time(&plan.load));
        let mut admitted = Vec::new();
        while self.jobs.get(self.arrived).is_some_and(|job| job.request.arrival < end) {
            let Some(request) = self.offer_next() else { continue };
            admitted.push(request);
            if self.setup.compared {
                self.compare_with_rebuild(base, &admitted);
            }
        }
        self.follow(plan, end.minus(self.now));
        self.now = end;
        self.run.steps += 1;
        self.measure(plan);
        self.complete(plan);
        admitted.iter().for_each(|request| self.scheduler.enqueue(request));
    }

    /// Counts what the step brings if measuring has begun.
    fn measure(&mut self, plan: &StepPlan) {
        if self.setup.window.is_some_and(|(from, _)| self.now >= from) {
            let tokens = plan.chunks.iter().filter(|chunk| chunk.sample).count();
            self.run.measured.tokens += tokens as u64;
            self.run.measured.steps += 1;
        }
    }

    /// The window is over: whoever is inside leaves, and nobody comes any more.
    fn break_off(&mut self) {
        let inside: Vec<RequestId> = self.live.keys().copied().collect();
        for id in inside {
            assert!(self.scheduler.cancel(id), "what is live is in the scheduler");
            self.end(id, Terminal::Cancelled);
        }
        for job in &self.jobs[self.arrived..] {
            self.run.book(job.request.id, Record::refused(Fate::Shed(Rule::Bound)));
        }
    }

    /// How long a step really takes. The noise belongs to the number of the step.
    fn true_time(&self, load: &scheduler::StepLoad) -> Micros {
        let Setup { seed, noise, bias, .. } = *self.setup;
        let mut random = Random::new(seed.wrapping_mul(31).wrapping_add(self.run.steps));
        let noise = 1.0 + noise * random.normal().clamp(-3.0, 3.0);
        Micros((self.setup.cost.step(load).0 as f64 * bias * noise) as u64)
    }

    /// Corrects the cost model after a step.
    fn follow(&mut self, plan: &StepPlan, took: Micros) {
        if !self.setup.corrected {
            return;
        }
        let given = self.setup.cost;
        let ratio = took.0 as f64 / given.step(&plan.load).0.max(1) as f64;
        self.factor += FOLLOWS * (ratio - self.factor);
        let scaled = |value: u64| (value as f64 * self.factor) as u64;
        self.cost = CostModel {
            fixed_ns: scaled(given.fixed_ns),
            per_seq_ns: scaled(given.per_seq_ns),
            per_context_token_ps: scaled(given.per_context_token_ps),
            per_prefill_token_ns: scaled(given.per_prefill_token_ns),
            per_prefill_span_ps: scaled(given.per_prefill_span_ps),
        };
        self.scheduler.set_cost(self.cost);
    }

    fn offer_next(&mut self) -> Option<Request> {
        let jobs = self.jobs;
        let job = &jobs[self.arrived];
        let mut request = job.request.clone();
        assert_eq!(request.id.0 as usize, self.arrived, "ids are the places of the jobs");
        self.arrived += 1;
        if self.setup.blind {
            request.prefixes.clear();
        }
        let decision = self.front.offer(&mut request, job.actual, self.live.len());
        request.prefixes.clone_from(&job.request.prefixes);
        self.check_bounds();
        let fate = match decision {
            Decision::Admitted(forecast) => {
                assert!(forecast.is_none_or(|forecast| request.arrival <= forecast.first_token));
                let tokens = vec![0; request.sequences.len()];
                let deadline = request.deadline;
                self.live.insert(request.id, Live { job, deadline, tokens, first: None });
                return Some(request);
            }
            Decision::Shed(rule) => Fate::Shed(rule),
            Decision::Impossible => Fate::Impossible,
        };
        self.run.book(request.id, Record::refused(fate));
        None
    }

    fn check_bounds(&self) {
        let Some(gate) = self.front.gate() else { return };
        for class in Class::ALL {
            let most = self.setup.config.classes.get(class).max_waiting;
            assert!(gate.waiting(class) <= most, "no more than {most} wait");
        }
    }

    /// Compares the gate's forecasts with those of a timeline that knows `admitted` from the build.
    fn compare_with_rebuild(&mut self, base: Micros, admitted: &[Request]) {
        let Some(gate) = self.front.gate() else { return };
        admitted.iter().for_each(|request| self.scheduler.enqueue(request));
        let rebuilt: BTreeMap<RequestId, Micros> = Timeline::build(base, &self.scheduler)
            .forecasts()
            .map(|(id, _, last)| (id, last))
            .collect();
        admitted.iter().for_each(|request| assert!(self.scheduler.cancel(request.id)));
        for (id, _, last) in gate.timeline().forecasts() {
            let to_come = rebuilt[&id].minus(base).0.max(1);
            let off = last.0.abs_diff(rebuilt[&id].0) * 1_000 / to_come;
            self.run.insertion_errors.push(off);
        }
    }

    fn complete(&mut self, plan: &StepPlan) {
        let sampled = plan.chunks.iter().filter(|chunk| chunk.sample);
        let outcomes: Vec<SeqOutcome> = sampled.map(|chunk| self.token(chunk.seq)).collect();
        for event in self.scheduler.complete(self.now, plan, &outcomes) {
            if let Event::RequestEnded(id, terminal) = event {
                self.end(id, terminal);
            }
        }
    }

    fn token(&mut self, seq: SeqId) -> SeqOutcome {
        let live = self.live.get_mut(&seq.request).expect("only live sequences run");
        live.first.get_or_insert(self.now);
        let tokens = &mut live.tokens[seq.index as usize];
        *tokens += 1;
        if *tokens == live.job.actual {
            SeqOutcome::Finish(seq, FinishReason::Stop)
        } else {
            SeqOutcome::Continue(seq)
        }
    }

    /// Clients whose answer cannot be in time any more go away.
    fn let_the_late_leave(&mut self) {
        let late = |live: &Live<'_>| {
            let Deadline { first_token, last_token, tpot } = live.job.request.deadline;
            let gaps = u64::from(live.job.actual - 1);
            let paced = |(first, tpot): (Micros, Micros)| first.plus(Micros(tpot.0 * gaps));
            let last = last_token.or_else(|| live.first.or(first_token).zip(tpot).map(paced));
            let first = first_token.filter(|_| live.first.is_none());
            last.into_iter().chain(first).any(|due| due < self.now)
        };
        let gone: Vec<RequestId> =
            self.live.iter().filter(|(_, live)| late(live)).map(|(id, _)| *id).collect();
        for id in gone {
            assert!(self.scheduler.cancel(id), "what is live is in the scheduler");
            self.end(id, Terminal::Cancelled);
        }
    }

    fn end(&mut self, id: RequestId, terminal: Terminal) {
        let live = self.live.remove(&id).expect("a request ends once");
        let last = (terminal == Terminal::Completed).then_some(self.now);
        let settled = self.front.finish(self.now, id, terminal, &live.tokens, live.first, last);
        let record = Record {
            fate: Fate::Ended(terminal),
            promised: live.deadline,
            first: live.first,
            last,
            settled,
        };
        self.run.book(id, record);
        let Some(gate) = self.front.gate() else { return };
        assert_eq!(gate.num_reserved(), self.live.len());
        if self.live.is_empty() {
            let outstanding = Class::ALL.map(|class| gate.outstanding(class));
            assert_eq!(outstanding, [Micros(0); 2], "the ledger is empty when nobody is inside");
        }
    }
}
