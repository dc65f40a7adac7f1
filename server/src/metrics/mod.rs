//! `/metrics`: vLLM's names with vLLM's buckets, and our own series. All of them exist at 0 from
//! the start, and every label has a closed set of values.

mod admission;
pub mod catalogue;
mod coordinator;
mod forecast;
pub mod http;
mod inference;
pub mod observer;
mod recorder;
mod register;
mod scaling;
mod share;
mod tenants;
mod vllm;

use std::fmt::Write;
use std::time::Duration;

use engine::{FirstToken, Refusal, RequestReport, Snapshot, StepReport, TenantUse};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use scheduler::{Class, Micros, TenantId};

use crate::coordinator::Status;
use admission::Admission;
use coordinator::Coordinator;
use forecast::Forecasts;
use http::Http;
use inference::Inference;
use recorder::Recorder;
use register::Registrar;
use scaling::Signals;
use tenants::Tenants;
use vllm::Vllm;

/// The content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What is fixed once the model is loaded.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The model's first name, a label of vLLM's series.
    pub model_name: String,
    /// Longest sequence in tokens; bounds the token histograms.
    pub max_model_len: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks.
    pub num_blocks: u32,
    /// Prompts that begin alike are computed once.
    pub prefix_caching: bool,
    /// The gate decides by forecast, so that being admitted is a promise.
    pub promises: bool,
    /// Tier and reserved share, per mille, of each tenant, in the order of their ids.
    pub tenants: Vec<(&'static str, u32)>,
}

/// All series.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    vllm: Vllm,
    inference: Inference,
    recorder: Recorder,
    admission: Admission,
    coordinator: Coordinator,
    tenants: Tenants,
    forecasts: Forecasts,
    signals: Signals,
    http: Http,
}

impl Metrics {
    /// Registers everything.
    #[must_use]
    pub fn new(facts: &Facts) -> Metrics {
        let mut registrar = Registrar::new(&facts.model_name, facts.max_model_len);
        let vllm = Vllm::new(&mut registrar, facts);
        let inference = Inference::new(&mut registrar, facts.promises);
        let recorder = Recorder::new(&mut registrar);
        let admission = Admission::new(&mut registrar);
        let coordinator = Coordinator::new(&mut registrar);
        let tenants = Tenants::new(&mut registrar, &facts.tenants);
        let forecasts = Forecasts::new(&mut registrar);
        let signals = Signals::new(&mut registrar);
        let http = Http::new(&mut registrar);
        let registry = registrar.finish();
        Metrics {
            registry,
            vllm,
            inference,
            recorder,
            admission,
            coordinator,
            tenants,
            forecasts,
            signals,
            http,
        }
    }

    /// The gate has decided.
    pub fn admission(&self, class: Class, retry: u32, took: Duration, refusal: Option<&Refusal>) {
        self.admission.decided(class, retry, took, refusal);
        if refusal.is_some() {
            self.inference.refused(class);
        }
    }

    /// The coordinator answered a call.
    pub fn coordinator_answered(&self, took: Duration) {
        self.coordinator.answered(took);
    }

    /// How the coordinator fares now.
    pub fn coordinator(&self, status: &Status) {
        self.coordinator.status(status);
    }

    /// The gate has decided on a request of `tenant`.
    pub fn tenant(&self, tenant: TenantId, refused: bool) {
        self.tenants.decided(tenant, refused);
    }

    /// How many requests of each of these tenants may be inside here, of a limit that all replicas
    /// share.
    pub fn tenant_leases(&self, units: impl Iterator<Item = (TenantId, u32)>) {
        self.tenants.leased(units);
    }

    /// What each tenant has inside now, in the order of their ids.
    pub fn tenant_uses(&self, uses: &[TenantUse]) {
        self.tenants.snapshot(uses);
    }

    /// A step ran.
    pub fn step(&self, report: &StepReport) {
        self.vllm.step(report);
        self.inference.step(report);
    }

    /// A token came after this gap.
    pub fn token_gap(&self, gap: Micros) {
        self.vllm.token_gap(gap);
    }

    /// A request has its first token.
    pub fn first_token(&self, report: &FirstToken) {
        self.vllm.first_token(report);
    }

    /// A request ended.
    pub fn request(&self, report: &RequestReport) {
        self.vllm.request(report);
        self.inference.request(report);
        self.forecasts.request(report);
    }

    /// So many replicas there should be.
    pub fn desired_replicas(&self, desired: u32) {
        self.signals.desired(desired);
    }

    /// Prometheus' text, gauges taken from `snapshot`.
    #[must_use]
    pub fn render(&self, snapshot: &Snapshot) -> String {
        self.vllm.snapshot(snapshot);
        self.inference.snapshot(snapshot);
        self.recorder.snapshot(snapshot);
        self.admission.snapshot();
        self.forecasts.snapshot(snapshot);
        self.signals.snapshot(snapshot);
        let mut open = String::with_capacity(32 << 10);
        text::encode(&mut open, &self.registry).expect("a String takes any text");
        classic(&open)
    }
}

/// OpenMetrics to Prometheus' classic format: the encoder for the former writes bounds as vLLM does
/// (`1.0`), the one for the latter does not (`1`). What differs besides is the name of a counter in
/// its `# TYPE` and `# HELP` lines, and the end mark.
fn classic(open: &str) -> String {
    let mut text = String::with_capacity(open.len() + 1_024);
    for line in open.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(keyword), Some(name), Some(rest)) => {
                let total = if catalogue::find(name).is_some() { "" } else { "_total" };
                writeln!(text, "# {keyword} {name}{total} {rest}")
                    .expect("a String takes any text");
            }
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

fn seconds(span: Micros) -> f64 {
    span.0 as f64 / 1e6
}

fn span(from: Micros, to: Micros) -> f64 {
    seconds(to.minus(from))
}

/// The mean gap between the tokens of a request's sequences, taken as equally long.
fn mean_gap(report: &RequestReport) -> Option<Micros> {
    let first = report.first_token?;
    let per_sequence = report.output_tokens / report.num_sequences.max(1);
    let gaps = u64::from(per_sequence.checked_sub(1).filter(|gaps| *gaps > 0)?);
    Some(Micros(report.ended.minus(first).0 / gaps))
}

#[cfg(test)]
mod tests;
