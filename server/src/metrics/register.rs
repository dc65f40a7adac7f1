//! From the catalogue to live instruments.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use super::catalogue::{self, Buckets, Entry, Kind, VLLM};

/// Labels of one series; values come from closed sets.
pub(crate) type Labels = Vec<(&'static str, &'static str)>;
/// A gauge of real numbers.
pub(crate) type Real = Gauge<f64, AtomicU64>;
/// Histograms that share their bounds.
pub(crate) type Histograms = Family<Labels, Histogram, Bounds>;

/// Makes histograms with these bounds.
#[derive(Clone, Debug)]
pub(crate) struct Bounds(Vec<f64>);

impl MetricConstructor<Histogram> for Bounds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

/// Registers metrics by their name in the catalogue.
#[derive(Debug)]
pub(crate) struct Registrar {
    registry: Registry,
    model_name: String,
    max_model_len: u32,
}

impl Registrar {
    pub(crate) fn new(model_name: &str, max_model_len: u32) -> Registrar {
        Registrar {
            registry: Registry::default(),
            model_name: model_name.to_owned(),
            max_model_len,
        }
    }

    pub(crate) fn finish(self) -> Registry {
        self.registry
    }

    pub(crate) fn counter(&mut self, name: &str) -> Counter {
        self.add(name, Counter::default())
    }

    pub(crate) fn gauge(&mut self, name: &str) -> Real {
        self.add(name, Real::default())
    }

    /// Counters or gauges by whatever labels their owner has.
    pub(crate) fn family<F: Metric + Clone + Default>(&mut self, name: &str) -> F {
        self.add(name, F::default())
    }

    pub(crate) fn histogram(&mut self, name: &str) -> Histogram {
        let bounds = self.bounds(name);
        self.add(name, bounds.new_metric())
    }

    pub(crate) fn histograms(&mut self, name: &str) -> Histograms {
        let bounds = self.bounds(name);
        self.add(name, Family::new_with_constructor(bounds))
    }

    fn bounds(&self, name: &str) -> Bounds {
        match entry(name).kind {
            Kind::Histogram(Buckets::Fixed(bounds)) => Bounds(bounds.to_vec()),
            Kind::Histogram(Buckets::Tokens) => Bounds(one_two_five(self.max_model_len)),
            Kind::Counter | Kind::Gauge => unreachable!("{name} is no histogram"),
        }
    }

    fn add<M: Metric + Clone>(&mut self, name: &str, metric: M) -> M {
        let entry = entry(name);
        // The encoder appends what counters end in.
        let name = match entry.kind {
            Kind::Counter => entry.name.trim_end_matches("_total"),
            Kind::Gauge | Kind::Histogram(_) => entry.name,
        };
        if name.starts_with(VLLM) {
            let label = ("model_name".into(), self.model_name.clone().into());
            let registry = self.registry.sub_registry_with_labels([label].into_iter());
            registry.register(name, entry.help, metric.clone());
        } else {
            self.registry.register(name, entry.help, metric.clone());
        }
        metric
    }
}

fn entry(name: &str) -> &'static Entry {
    catalogue::find(name).expect("every metric is in the catalogue")
}

/// 1, 2, 5, 10, 20, 50, ... up to `max`.
fn one_two_five(max: u32) -> Vec<f64> {
    let decades = (0..).map(|exponent| 10_f64.powi(exponent));
    let bounds = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|mantissa| mantissa * decade));
    bounds.take_while(|bound| *bound <= f64::from(max.max(1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_bounds_stop_at_the_longest_sequence() {
        assert_eq!(one_two_five(1), [1.0]);
        assert_eq!(one_two_five(60), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(one_two_five(8_192).last(), Some(&5_000.0));
    }
}
