//! The one task that talks to the others. Everything else reads what it left behind.
//!
//! It makes one call a tick, one at a time. A call that is late is waited for, while the view ages
//! from tick to tick; one that is too late is given up, and so is its connection. Nothing ever
//! waits for this task but the last call of a replica that goes, and that not for long.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use rand::RngExt;
use scheduler::Micros;
use scheduler::cluster::{Report, Stage};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::address::Target;
use super::agent::Agent;
use super::caps::Caps;
use super::status::{Condition, Status};
use super::{Coordinator, Peer, Redis, Reply, Trouble};
use crate::config::Config;
use crate::state::App;

/// A server that does not answer for so long while we connect is not there.
const CONNECT: Duration = Duration::from_secs(1);

/// The first pause after a failure, and the longest; one that somebody has to mend takes longer.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const DENIED_PAUSE: Duration = Duration::from_secs(5);

/// How long a replica that goes waits for its last call.
const FAREWELL: Duration = Duration::from_millis(200);

/// The task, while it runs.
#[derive(Debug)]
pub struct Running {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Running {
    /// Takes this replica's entry out of the books, if that can be done quickly, and ends.
    pub async fn leave(self) {
        self.stop.send_replace(true);
        // A task that panicked has nothing left to take back.
        let _ = self.task.await;
    }
}

/// Starts the task, unless this replica is to be alone.
///
/// # Errors
/// The address makes no sense.
pub fn start(config: &Config, app: &Arc<App>) -> anyhow::Result<Option<Running>> {
    let password = config.coordinator_password.as_deref();
    let target = config.coordinator.target(password).map_err(|error| anyhow!("{error}"))?;
    if matches!(target, Target::Memory) {
        return Ok(None);
    }
    let cluster = cluster_name(config);
    let link = Redis::new(target, &config.coordinator_prefix, &cluster);
    let nonce: u32 = rand::rng().random();
    let member = format!("{}:{nonce:08x}", replica_name(config));
    let agent = Agent::new(&member, config.coordinator_replicas);
    tracing::info!(coordinator = %config.coordinator, cluster, replica = member, "joining");
    Ok(Some(spawn(Box::new(link), agent, Arc::clone(app))))
}

/// Runs `agent` over `link`.
fn spawn(link: Box<dyn Coordinator>, agent: Agent, app: Arc<App>) -> Running {
    let (stop, mut stopped) = watch::channel(false);
    let status = Status { condition: Condition::Connecting, ..Status::default() };
    let beat = Beat {
        agent,
        app,
        caps: Caps::default(),
        status,
        origin: Instant::now(),
        reason: String::new(),
        split: None,
    };
    let task = tokio::spawn(async move {
        let (mut link, mut beat) = (link, beat);
        tokio::select! {
            () = run(&mut *link, &mut beat) => {}
            // Whoever could stop it is gone: so is the server.
            _ = stopped.wait_for(|stop| *stop) => {}
        }
        if beat.status.condition == Condition::Up {
            let call = beat.agent.leave();
            // Its entry expires by itself if this fails.
            let _ = timeout(FAREWELL, link.tick(&call)).await;
        }
    });
    Running { stop, task }
}

/// Under what name replicas of one model meet, if none is given: what they were started with.
fn cluster_name(config: &Config) -> String {
    let served = config.served_model_name.first().or(config.model.as_ref());
    let name = config.coordinator_cluster.as_ref().or(served);
    name.map_or_else(|| "default".to_owned(), |name| name.replace(['{', '}'], "_"))
}

/// What this replica is called, if nothing is said: its host.
fn replica_name(config: &Config) -> String {
    let host = || std::fs::read_to_string("/etc/hostname").ok();
    let name = config.coordinator_replica.clone().or_else(|| std::env::var("HOSTNAME").ok());
    let name = name.or_else(host).unwrap_or_default();
    let name: String = name.trim().chars().take(64).collect();
    if name.is_empty() { "replica".to_owned() } else { name }
}

/// Connects and calls, for ever.
async fn run(link: &mut dyn Coordinator, beat: &mut Beat) {
    let mut failures = 0;
    loop {
        let trouble = match beat.during(link.connect(), CONNECT).await {
            Some(Ok(peer)) => {
                beat.connected(&peer);
                call(link, beat, &mut failures).await
            }
            Some(Err(trouble)) => trouble,
            None => Trouble::Down("no answer to the connection".to_owned()),
        };
        beat.failed(&trouble);
        let pause = pause(failures, &trouble);
        failures += 1;
        beat.during(sleep(pause), pause).await;
    }
}

/// One call a tick, as long as they are answered.
async fn call(link: &mut dyn Coordinator, beat: &mut Beat, failures: &mut u32) -> Trouble {
    loop {
        let began = Instant::now();
        let sent = beat.now();
        let uses = beat.caps.uses(&beat.app);
        let call = beat.agent.call(sent, &beat.report(), &uses);
        let patience = duration(beat.agent.pace().patience());
        match beat.during(link.tick(&call), patience).await {
            Some(Ok(reply)) => beat.answered(sent, began.elapsed(), &reply),
            Some(Err(trouble)) => return trouble,
            None => return Trouble::Down(format!("no answer within {patience:?}")),
        }
        *failures = 0;
        beat.rest(began).await;
    }
}

/// Full jitter: whoever lost the connection together does not come back together.
fn pause(failures: u32, trouble: &Trouble) -> Duration {
    let longest = match trouble {
        Trouble::Denied(_) => DENIED_PAUSE,
        Trouble::Down(_) => SHORTEST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE),
    };
    longest.mul_f64(rand::rng().random())
}

fn duration(span: Micros) -> Duration {
    Duration::from_micros(span.0)
}

/// What happens once a tick, whether there is an answer or not.
struct Beat {
    agent: Agent,
    app: Arc<App>,
    caps: Caps,
    status: Status,
    origin: Instant,
    /// Why the last call failed.
    reason: String,
    /// Since when half of the others have been missing.
    split: Option<Micros>,
}

impl Beat {
    fn now(&self) -> Micros {
        Micros(u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// What this replica tells the others.
    fn report(&self) -> Report {
        let Some(service) = self.app.service() else { return Report::default() };
        let report = service.engine.report();
        if *self.app.draining().borrow() {
            return Report { stage: Stage::Draining, ..report };
        }
        report
    }

    /// Waits for `what`, and lets the view age meanwhile. `None` if it takes too long.
    async fn during<T>(&mut self, what: impl Future<Output = T>, patience: Duration) -> Option<T> {
        let deadline = Instant::now() + patience;
        let mut what = pin!(what);
        loop {
            let next = deadline.min(Instant::now() + duration(self.agent.pace().tick));
            tokio::select! {
                biased;
                out = &mut what => return Some(out),
                () = sleep_until(next) => {}
            }
            self.publish();
            if Instant::now() >= deadline {
                return None;
            }
        }
    }

    /// Until the next tick, a tenth sooner or later; at once if the others must know now.
    async fn rest(&self, began: Instant) {
        let factor = 0.9 + 0.2 * rand::rng().random::<f64>();
        let next = began + duration(self.agent.pace().tick).mul_f64(factor);
        let mut draining = self.app.draining();
        let is_draining = *draining.borrow_and_update();
        tokio::select! {
            () = sleep_until(next) => {}
            _ = draining.wait_for(|now| *now != is_draining) => {}
        }
    }

    fn connected(&mut self, peer: &Peer) {
        self.agent.connected(self.now(), peer);
        if peer.evicts {
            tracing::warn!(
                "the coordinator may evict keys (maxmemory-policy): replicas may lose sight of \
                 each other; use `noeviction` or a server of its own"
            );
        }
    }

    fn answered(&mut self, sent: Micros, took: Duration, reply: &Reply) {
        if let Some(service) = self.app.service() {
            service.metrics.coordinator_answered(took);
        }
        self.agent.reply(self.now(), sent, reply);
        self.publish();
        let missing = self.status.view.replicas.missing;
        // After an outage of everybody's the first answers lack those who are not back yet.
        let since = self.agent.is_split().then(|| self.split.unwrap_or(sent));
        self.split = since;
        let split = since.is_some_and(|since| sent.minus(since) >= self.agent.pace().life);
        self.become_condition(if split { Condition::Split } else { Condition::Up }, missing);
    }

    fn failed(&mut self, trouble: &Trouble) {
        self.reason = trouble.to_string();
        let condition = match trouble {
            Trouble::Down(_) => Condition::Down,
            Trouble::Denied(_) => Condition::Denied,
        };
        self.become_condition(condition, 0);
    }

    /// One line for each change, none for what goes on.
    fn become_condition(&mut self, condition: Condition, missing: u32) {
        let before = std::mem::replace(&mut self.status.condition, condition);
        if before == condition {
            return;
        }
        self.publish();
        let error = self.reason.as_str();
        match condition {
            Condition::None | Condition::Connecting => {}
            Condition::Up => tracing::info!(replicas = self.agent.known(), "coordinator is up"),
            Condition::Down => {
                tracing::warn!(error, "coordinator is down; this replica goes on by itself");
            }
            Condition::Denied => {
                tracing::error!(
                    error,
                    "coordinator lets nobody in; this replica goes on by itself"
                );
            }
            Condition::Split => {
                tracing::warn!(missing, "half of the replicas are missing; keeping what is known");
            }
        }
    }

    /// Leaves behind what is known now.
    fn publish(&mut self) {
        let now = self.now();
        let own = self.report();
        let before = self.status.view.replicas;
        let view = self.agent.view(now, &own);
        self.status.view = view;
        self.status.age = self.agent.age(now).map(duration);
        if let Some(shared) = self.caps.appear(&self.app) {
            self.agent.share(&shared);
        }
        self.caps.apply(&self.app, self.agent.limits(now));
        if (before.ready, before.pending, before.draining)
            != (view.replicas.ready, view.replicas.pending, view.replicas.draining)
            && self.status.condition == Condition::Up
        {
            let scheduler::cluster::Replicas { ready, pending, draining, .. } = view.replicas;
            tracing::info!(ready, pending, draining, "replicas");
        }
        if let Some(service) = self.app.service() {
            service.engine.set_cluster(view);
            service.metrics.coordinator(&self.status);
        }
        self.app.set_cluster(self.status);
    }
}
