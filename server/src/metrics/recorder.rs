//! How the record of `--record` fares.

use engine::Snapshot;
use prometheus_client::metrics::counter::Counter;

use super::register::{Real, Registrar};

#[derive(Debug)]
pub(crate) struct Recorder {
    bytes: Counter,
    lost: Counter,
    up: Real,
}

impl Recorder {
    pub(crate) fn new(r: &mut Registrar) -> Recorder {
        Recorder {
            bytes: r.counter("inference_recorder_bytes_total"),
            lost: r.counter("inference_recorder_lost_events_total"),
            up: r.gauge("inference_recorder_up"),
        }
    }

    pub(crate) fn snapshot(&self, snapshot: &Snapshot) {
        let Some(record) = snapshot.record else { return };
        // Two scrapes at once may come in either order.
        let raise = |counter: &Counter, to: u64| {
            counter.inc_by(to.saturating_sub(counter.get()));
        };
        raise(&self.bytes, record.bytes);
        raise(&self.lost, record.lost);
        self.up.set(if record.failed { 0.0 } else { 1.0 });
    }
}
