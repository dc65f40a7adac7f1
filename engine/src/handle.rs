//! The handle that the server holds: submit, watch, drain.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, TrySendError};
use scheduler::cluster::{Report, Stage};
use scheduler::{
    Admission, Class, ClassTable, ClusterView, CostModel, Counts, Demand, Forecast, Micros,
    Quantity, RequestId, Rule, Shed, ShedReason, Slo, TenantId, Terminal,
};
use tokio::sync::{Semaphore, mpsc};

use crate::clock::Clock;
use crate::prefix::BlockHasher;
use crate::record::RecordStatus;
use crate::shared::{Command, Front, Shared, Start};
use crate::stream::{Departure, Mail, Room, TokenStream};
use crate::submission::{Bounds, Outline, Prompt, Refusal, Submission};

/// A view of the engine for `/health`, `/metrics` and the start line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Sequences and blocks, as of the last step.
    pub counts: Counts,
    /// Outstanding work by class.
    pub outstanding: [Micros; 2],
    /// Sequences that wait, by class.
    pub waiting: [u32; 2],
    /// What was asked for lately, in devices.
    pub demand: Demand,
    /// The gate's margins by class, per mille.
    pub margin_permille: [u32; 2],
    /// Age of the last completed step while there is work; zero when idle.
    pub step_age: Micros,
    /// The thread lives and the device is there.
    pub alive: bool,
    /// Draining has begun.
    pub draining: bool,
    /// How the record fares, if there is one.
    pub record: Option<RecordStatus>,
}

/// What a tenant has inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantUse {
    /// Predicted device time of its admitted, unfinished requests.
    pub outstanding: Micros,
    /// The share of a full device that its requests of the last ten seconds take, per mille.
    pub share_permille: u32,
}

/// Submits work to the engine. Cheap to clone. The engine ends when the last handle and the last
/// stream are gone, or at [`Handle::shutdown`].
#[derive(Clone, Debug)]
pub struct Handle(pub(crate) Arc<Inner>);

/// What handles and streams hold on to.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: Sender<Command>,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
    pub(crate) next_id: AtomicU64,
    pub(crate) bounds: Bounds,
    /// What blocks are known by, unless nothing is shared.
    pub(crate) hasher: Option<BlockHasher>,
}

impl Inner {
    /// Tells the engine thread that a client does not want something any more.
    pub(crate) fn leave(&self, departure: Departure) {
        self.send_mail(|mail| mail.departures.push(departure));
    }

    fn send_mail(&self, change: impl FnOnce(&mut Mail)) {
        if self.shared.mailbox.put(change) {
            // If the channel is full, the thread has a reason to wake up already; if it is closed,
            // there is nobody to wake.
            let _ = self.commands.try_send(Command::Wake);
        }
    }

    /// Decides and hands over, under the gate's lock.
    fn admit(&self, front: &mut Front, mut start: Box<Start>) -> Result<(Forecast, Room), Refusal> {
        if !front.alive {
            return Err(Refusal::EngineDead);
        }
        let now = self.shared.clock.now();
        let forecast = match front.gate.admit(now, &mut start.request) {
            Admission::Admit(forecast) => forecast,
            Admission::Shed(shed) => return Err(Refusal::Shed(shed)),
            Admission::Unsatisfiable { quantity, predicted, budget } => {
                return Err(Refusal::Unsatisfiable { quantity, predicted, budget });
            }
            Admission::NeverFits { needed, available } => {
                return Err(Refusal::NeverFits { needed, available });
            }
        };
        let (id, class) = (start.request.id, start.request.class);
        let sequences = start.request.sequences.len();
        let Err(error) = self.commands.try_send(Command::Start(start)) else {
            return Ok((forecast, self.room(front, class)));
        };
        let none = vec![0; sequences];
        let _ = front.gate.finish(now, id, Terminal::Cancelled, &none, None, None);
        Err(match error {
            TrySendError::Disconnected(_) => Refusal::EngineDead,
            TrySendError::Full(_) => Refusal::Shed(channel_full(sequences as u32)),
        })
    }

    /// What is left of the queue of a class.
    fn room(&self, front: &Front, class: Class) -> Room {
        let places = self.bounds.classes.get(class).max_waiting;
        Room {
            places,
            free: places.saturating_sub(front.gate.waiting(class)),
            outstanding: front.gate.outstanding(class),
        }
    }
}

/// More requests on their way to the thread than the queue bounds allow: it cannot keep up.
fn channel_full(position: u32) -> Shed {
    Shed {
        reason: ShedReason::QueueFull,
        rule: Rule::Bound,
        quantity: Quantity::FirstToken,
        retry_after: Micros::from_millis(1_000),
        should_retry: true,
        predicted: Micros(0),
        budget: Micros(0),
        position,
    }
}

impl Handle {
    /// The engine's clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.0.shared.clock
    }

    /// Admission and hand-over: microseconds, never blocks on the engine.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn submit(&self, submission: Submission) -> Result<TokenStream, Refusal> {
        let inner = &self.0;
        let id = RequestId(inner.next_id.fetch_add(1, Ordering::Relaxed));
        let mut request = submission.request(id, &inner.bounds)?;
        let salt = submission.cache_salt.as_deref();
        let root = inner.hasher.as_ref().map(|hasher| hasher.root(salt));
        if let Some((hasher, root)) = inner.hasher.as_ref().zip(root) {
            let chain = |prompt: &Prompt| hasher.chain(root, &prompt.tokens);
            request.prefixes = submission.prompts.iter().map(chain).collect();
        }
        let choices = request.sequences.len();
        // Room for every update that can come, so that the engine thread never waits for a client.
        let room: usize = request.sequences.iter().map(|seq| seq.output.max as usize + 2).sum();
        let (updates, receiver) = mpsc::channel(room.min(Semaphore::MAX_PERMITS));
        let start = Box::new(Start {
            request,
            name: submission.name,
            prompts: submission.prompts,
            root,
            sampling: Arc::new(submission.sampling),
            updates,
        });
        let (forecast, room) = inner.admit(&mut inner.shared.front(), start)?;
        Ok(TokenStream::new(id, (forecast, room), receiver, Arc::clone(inner), choices))
    }

    /// The refusal that a request would get whatever its tokens are, before they are known:
    /// microseconds. `None` says nothing: it may still be refused when it is submitted.
    #[must_use]
    pub fn refuse_early(&self, outline: &Outline<'_>) -> Option<Shed> {
        let inner = &self.0;
        let id = RequestId(inner.next_id.fetch_add(1, Ordering::Relaxed));
        let least = outline.least(id, &inner.bounds);
        if least.sequences.is_empty() {
            return None;
        }
        let mut front = inner.shared.front();
        if !front.alive {
            return None;
        }
        let now = inner.shared.clock.now();
        front.gate.refuse_early(now, &least, outline.num_sequences())
    }

    /// The state now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let live = *self.0.shared.live();
        let now = self.0.shared.clock.now();
        let front = self.0.shared.front();
        Snapshot {
            counts: live.counts,
            outstanding: Class::ALL.map(|class| front.gate.outstanding(class)),
            waiting: Class::ALL.map(|class| front.gate.waiting(class)),
            demand: front.gate.demand(now),
            margin_permille: Class::ALL.map(|class| front.gate.margin_permille(class)),
            step_age: live.progress.map_or(Micros(0), |progress| now.minus(progress)),
            alive: front.alive,
            draining: front.draining,
            record: front.gate.record_status(),
        }
    }

    /// What the other replicas should know of this one.
    #[must_use]
    pub fn report(&self) -> Report {
        let live = *self.0.shared.live();
        let now = self.0.shared.clock.now();
        let front = self.0.shared.front();
        let gone = front.draining || !front.alive;
        let Counts { waiting, running, free_blocks, num_blocks, .. } = live.counts;
        let free = u64::from(free_blocks) * 1_000 / u64::from(num_blocks.max(1));
        Report {
            stage: if gone { Stage::Draining } else { Stage::Ready },
            load: front.gate.load(now),
            waiting,
            running,
            free_kv_permille: u32::try_from(free).unwrap_or(1_000),
            step_age: live.progress.map_or(Micros(0), |progress| now.minus(progress)),
        }
    }

    /// Tenants that may have so many requests inside at most, as they were configured.
    #[must_use]
    pub fn tenant_limits(&self) -> Vec<(TenantId, u32)> {
        let tenants = &self.0.bounds.tenants;
        let ids = (0..tenants.len()).filter_map(|index| u8::try_from(index).ok()).map(TenantId);
        ids.filter_map(|id| Some((id, tenants.get(id).max_requests?))).collect()
    }

    /// Requests of each of these tenants that are inside, and how many were refused so far because
    /// the tenant was over its budget.
    #[must_use]
    pub fn tenant_uses(&self, tenants: &[TenantId]) -> Vec<(u32, u64)> {
        let front = self.0.shared.front();
        let uses = tenants.iter().map(|tenant| {
            (front.gate.tenant_requests(*tenant), front.gate.tenant_refused(*tenant))
        });
        uses.collect()
    }

    /// From now on so many requests of a tenant may be inside.
    pub fn set_tenant_limit(&self, tenant: TenantId, requests: u32) {
        self.0.shared.front().gate.set_tenant_limit(tenant, requests);
    }

    /// Tells the gate of the other replicas.
    pub fn set_cluster(&self, view: ClusterView) {
        let mut front = self.0.shared.front();
        let now = self.0.shared.clock.now();
        front.gate.set_cluster(now, view);
    }

    /// The class settings in force (with `auto` targets filled in).
    #[must_use]
    pub fn classes(&self) -> ClassTable {
        self.0.bounds.classes
    }

    /// What each tenant has inside, in the order of their ids.
    #[must_use]
    pub fn tenants(&self) -> Vec<TenantUse> {
        let now = self.0.shared.clock.now();
        let front = self.0.shared.front();
        let count = self.0.bounds.tenants.len();
        let of = |tenant: TenantId| TenantUse {
            outstanding: front.gate.tenant_outstanding(tenant),
            share_permille: front.gate.tenant_share(now, tenant),
        };
        (0..=u8::MAX).take(count).map(|id| of(TenantId(id))).collect()
    }

    /// What a request of `tenant` in `class` is promised unless it brings its own targets.
    #[must_use]
    pub fn slo(&self, tenant: TenantId, class: Class) -> Slo {
        self.0.bounds.slo(tenant, class)
    }

    /// The cost model in force.
    #[must_use]
    pub fn cost(&self) -> CostModel {
        self.0.shared.live().cost
    }

    /// Sheds everything new; what was admitted goes on.
    pub fn drain(&self) {
        let mut front = self.0.shared.front();
        front.draining = true;
        front.gate.drain();
    }

    /// Ends the thread: what is still running fails. Returns when the thread has ended.
    pub fn shutdown(&self) {
        self.0.send_mail(|mail| mail.shutdown = true);
        // The lock is held while joining, so that a second caller waits as well.
        let mut thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // The thread catches its own panics; there is nothing to learn from the result.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;
    use scheduler::{AdmissionMode, ClassConfig, Gate, GateConfig, SchedulerConfig, TenantTable};

    use super::*;
    use crate::record::RecordedGate;
    use crate::shared::Live;
    use crate::{Outlook, SamplingParams};

    #[test]
    fn a_full_channel_sheds_and_keeps_no_reservation() {
        let class = ClassConfig { max_waiting: 100, ..ClassConfig::default() };
        let settings = SchedulerConfig {
            num_blocks: 100,
            block_size: 16,
            max_num_seqs: 4,
            max_num_batched_tokens: 64,
            max_model_len: 100,
            classes: ClassTable([class; 2]),
        };
        let cost = CostModel {
            fixed_ns: 1_000_000,
            per_seq_ns: 1_000_000,
            per_context_token_ps: 0,
            per_prefill_token_ns: 1_000_000,
            per_prefill_span_ps: 0,
        };
        let policy = scheduler::policy::by_name("fcfs").expect("shipped");
        let config = GateConfig::new(AdmissionMode::None, settings);
        let live = Live { counts: Counts::default(), cost, progress: None };
        let gate = RecordedGate::new(Gate::new(config, policy, cost), None);
        let shared = Shared::new(Clock::start(), gate, live);
        let (commands, receiver) = bounded(1);
        let handle = Handle(Arc::new(Inner {
            shared: Arc::new(shared),
            commands,
            thread: Mutex::new(None),
            next_id: AtomicU64::new(0),
            hasher: None,
            bounds: Bounds {
                max_model_len: 100,
                vocab_size: 10,
                classes: settings.classes,
                tenants: TenantTable::default(),
            },
        }));
        let submission = Submission {
            class: Class::Latency,
            tenant: TenantId::DEFAULT,
            arrival: Micros(0),
            deadline: scheduler::Deadline::default(),
            retry: 0,
            origin: 0,
            prompts: vec![Prompt { tokens: Arc::from([1, 2]), n: 2 }],
            cache_salt: None,
            sampling: SamplingParams::default(),
            outlook: Outlook::default(),
            name: "".into(),
        };
        let stream = handle.submit(submission.clone()).expect("room for one");
        let outstanding = handle.snapshot().outstanding;
        assert!(outstanding[0] > Micros(0));
        let refusal = handle.submit(submission.clone()).expect_err("no room for two");
        assert!(matches!(refusal, Refusal::Shed(shed) if shed.reason == ShedReason::QueueFull));
        assert_eq!(handle.snapshot().outstanding, outstanding);
        drop(receiver);
        let refusal = handle.submit(submission).expect_err("nobody is there");
        assert!(matches!(refusal, Refusal::EngineDead));
        assert_eq!(handle.snapshot().outstanding, outstanding);
        drop(stream);
    }
}
