//! The number of replicas that this one recommends: looks at the fleet once a second.

use std::sync::Arc;
use std::time::Duration;

use engine::Snapshot;
use scheduler::cluster::Standing;
use scheduler::{ClusterView, Fleet, Micros, Scaling, ScalingConfig};
use tokio::time::{MissedTickBehavior, interval};

use crate::coordinator::Condition;
use crate::state::{App, Service};

/// How often the fleet is looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// For so long after the first look replicas may still be heard of for the first time.
const FORMING: Micros = Micros(30_000_000);

/// Keeps `inference_desired_replicas` up to date; never returns.
pub async fn watch(app: Arc<App>, service: Arc<Service>, config: ScalingConfig) {
    let clock = service.engine.clock();
    let mut begun: Option<(Micros, Scaling)> = None;
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        // Where nothing is known of the others, what was recommended stays.
        let Some(fleet) = look(&app, &service) else { continue };
        let now = clock.now();
        let seen = Scaling::begin(&config, now, &fleet);
        let (since, scaling) = begun.unwrap_or((now, seen));
        let is_joined = now.minus(since) < FORMING && seen.desired() > scaling.desired();
        let known = if is_joined { seen } else { scaling };
        let next = known.observe(&config, now, &fleet);
        begun = Some((since, next));
        service.metrics.desired_replicas(next.desired());
    }
}

fn look(app: &App, service: &Service) -> Option<Fleet> {
    let cluster = app.cluster();
    match cluster.condition {
        Condition::None => Some(alone(&service.engine.snapshot(), app.is_ready())),
        _ => together(&cluster.view),
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

/// The fleet that the coordinator knows of; those that are missing for a moment still count.
fn together(view: &ClusterView) -> Option<Fleet> {
    let replicas = view.replicas;
    matches!(view.standing, Standing::Fresh | Standing::Doubtful).then_some(Fleet {
        offered_permille: view.offered_permille.into(),
        ready: replicas.ready.saturating_add(replicas.missing),
        starting: replicas.pending,
        draining: replicas.draining,
    })
}

#[cfg(test)]
mod tests {
    use scheduler::cluster::Replicas;

    use super::*;

    #[test]
    fn an_old_view_is_no_view_and_who_is_missing_counts() {
        let replicas = Replicas { pending: 1, ready: 3, draining: 2, missing: 1 };
        let view = ClusterView { replicas, offered_permille: 2_500, ..ClusterView::default() };
        for standing in [Standing::Alone, Standing::Lost] {
            assert_eq!(together(&ClusterView { standing, ..view }), None);
        }
        let fleet = Fleet { offered_permille: 2_500, ready: 4, starting: 1, draining: 2 };
        for standing in [Standing::Fresh, Standing::Doubtful] {
            assert_eq!(together(&ClusterView { standing, ..view }), Some(fleet));
        }
    }
}
