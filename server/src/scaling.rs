//! The number of replicas that this one recommends: looks at the fleet once a second.

use std::sync::Arc;
use std::time::Duration;

use engine::Snapshot;
use scheduler::{Fleet, Scaling, ScalingConfig};
use tokio::time::{MissedTickBehavior, interval};

use crate::state::{App, Service};

/// How often the fleet is looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// Keeps `inference_desired_replicas` up to date; never returns.
pub async fn watch(app: Arc<App>, service: Arc<Service>, config: ScalingConfig) {
    let clock = service.engine.clock();
    let look = || alone(&service.engine.snapshot(), app.is_ready());
    let mut scaling = Scaling::begin(&config, clock.now(), &look());
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        scaling = scaling.observe(&config, clock.now(), &look());
        service.metrics.desired_replicas(scaling.desired());
    }
}

/// The fleet of a replica that knows of no other.
fn alone(snapshot: &Snapshot, ready: bool) -> Fleet {
    Fleet {
        offered_permille: snapshot.demand.offered_permille.into(),
        ready: ready.into(),
        starting: 0,
        draining: snapshot.draining.into(),
    }
}
