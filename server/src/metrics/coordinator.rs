//! How the coordinator fares, and who else is there.

use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use super::register::{Labels, Real, Registrar};
use crate::coordinator::{Condition, Status};

const STATES: [&str; 4] = ["ready", "pending", "draining", "missing"];

#[derive(Debug)]
pub(crate) struct Coordinator {
    up: Real,
    age: Real,
    peers: Family<Labels, Real>,
    tick: Histogram,
}

impl Coordinator {
    pub(crate) fn new(r: &mut Registrar) -> Coordinator {
        let this = Coordinator {
            up: r.gauge("inference_coordinator_up"),
            age: r.gauge("inference_coordinator_view_age_seconds"),
            peers: r.family("inference_coordinator_peers"),
            tick: r.histogram("inference_coordinator_tick_seconds"),
        };
        // A replica that is alone has nothing that could be down.
        this.up.set(1.0);
        this.set_peers([1, 0, 0, 0]);
        this
    }

    fn set_peers(&self, counts: [u32; 4]) {
        for (state, count) in STATES.into_iter().zip(counts) {
            self.peers.get_or_create(&vec![("state", state)]).set(count.into());
        }
    }

    /// A call was answered.
    pub(crate) fn answered(&self, took: Duration) {
        self.tick.observe(took.as_secs_f64());
    }

    pub(crate) fn status(&self, status: &Status) {
        let up = matches!(status.condition, Condition::None | Condition::Up | Condition::Split);
        self.up.set(if up { 1.0 } else { 0.0 });
        self.age.set(status.age.unwrap_or_default().as_secs_f64());
        let replicas = &status.view.replicas;
        self.set_peers([replicas.ready, replicas.pending, replicas.draining, replicas.missing]);
    }
}
