//! How good the forecasts are: their error, their band, their margin.

use engine::{RequestReport, Snapshot};
use prometheus_client::metrics::family::Family;
use scheduler::{Class, Micros, Settled, Terminal};

use super::register::{Histograms, Labels, Real, Registrar};
use super::share::LastThousand;
use super::span;

const QUANTITIES: [&str; 2] = ["ttft", "e2e"];
const BASES: [&str; 2] = ["admission", "carried"];

#[derive(Debug)]
pub(crate) struct Forecasts {
    ratio: Histograms,
    coverage: Family<Labels, Real>,
    covered: [LastThousand; 2],
    margin: Family<Labels, Real>,
}

impl Forecasts {
    pub(crate) fn new(r: &mut Registrar) -> Forecasts {
        let this = Forecasts {
            ratio: r.histograms("inference_forecast_ratio"),
            coverage: r.family("inference_forecast_coverage_ratio"),
            covered: Default::default(),
            margin: r.family("inference_admission_margin_ratio"),
        };
        for class in Class::ALL.map(Class::label) {
            this.coverage.get_or_create(&vec![("class", class)]).set(0.0);
            this.margin.get_or_create(&vec![("class", class)]).set(0.0);
            for quantity in QUANTITIES {
                for basis in BASES {
                    drop(this.ratio.get_or_create(&labels(class, quantity, basis)));
                }
            }
        }
        this
    }

    /// A request ended: its first token tells something however that was, its last one only if it
    /// is complete.
    pub(crate) fn request(&self, report: &RequestReport) {
        let Some(settled) = &report.settled else { return };
        let class = report.class.label();
        let first = (settled.forecast.first_token, settled.carried_first);
        let last = (settled.forecast.last_token, settled.carried_last);
        let last_token = report.last_token.filter(|_| report.terminal == Terminal::Completed);
        let quantities = [(report.first_token, first), (last_token, last)];
        for (quantity, (came, (admission, carried))) in QUANTITIES.into_iter().zip(quantities) {
            let Some(came) = came else { continue };
            for (basis, predicted) in BASES.into_iter().zip([admission, carried]) {
                let predicted = span(report.arrival, predicted);
                if predicted > 0.0 {
                    let ratio = span(report.arrival, came) / predicted;
                    self.ratio.get_or_create(&labels(class, quantity, basis)).observe(ratio);
                }
            }
        }
        if let Some(covered) = is_covered(report, settled) {
            let share = self.covered[report.class.index()].observe(covered);
            self.coverage.get_or_create(&vec![("class", class)]).set(share);
        }
    }

    pub(crate) fn snapshot(&self, snapshot: &Snapshot) {
        for class in Class::ALL {
            let margin = f64::from(snapshot.margin_permille[class.index()]) / 1_000.0;
            self.margin.get_or_create(&vec![("class", class.label())]).set(margin);
        }
    }
}

/// Whether the last token came within its band, or the first one where the length was not known.
/// `None` if it cannot be told. A request that expired did not come within anything.
fn is_covered(report: &RequestReport, settled: &Settled) -> Option<bool> {
    if report.terminal == Terminal::Expired {
        return Some(false);
    }
    let within = |came: Option<Micros>, upper| came.map(|came| came <= upper);
    if !settled.exact {
        return within(report.first_token, settled.forecast.upper_first);
    }
    let completed = report.terminal == Terminal::Completed;
    within(report.last_token.filter(|_| completed), settled.forecast.upper_last)
}

fn labels(class: &'static str, quantity: &'static str, basis: &'static str) -> Labels {
    vec![("class", class), ("quantity", quantity), ("basis", basis)]
}
