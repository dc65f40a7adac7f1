//! Signals for an autoscaler.

use engine::Snapshot;
use prometheus_client::metrics::family::Family;
use scheduler::Class;

use super::register::{Labels, Real, Registrar};

#[derive(Debug)]
pub(crate) struct Signals {
    offered: Real,
    desired: Real,
    queue: Family<Labels, Real>,
}

impl Signals {
    pub(crate) fn new(r: &mut Registrar) -> Signals {
        let this = Signals {
            offered: r.gauge("inference_admission_offered_replicas"),
            desired: r.gauge("inference_desired_replicas"),
            queue: r.family("inference_queue_depth"),
        };
        // Whoever scales by it must not read 0 replicas before it is known.
        this.desired(1);
        for class in Class::ALL {
            this.queue.get_or_create(&vec![("class", class.label())]).set(0.0);
        }
        this
    }

    pub(crate) fn desired(&self, replicas: u32) {
        self.desired.set(replicas.into());
    }

    pub(crate) fn snapshot(&self, snapshot: &Snapshot) {
        self.offered.set(f64::from(snapshot.demand.offered_permille) / 1e3);
        for class in Class::ALL {
            let waiting = snapshot.waiting[class.index()];
            self.queue.get_or_create(&vec![("class", class.label())]).set(waiting.into());
        }
    }
}
