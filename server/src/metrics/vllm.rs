//! Series under vLLM's names.

use engine::{FirstToken, RequestReport, Snapshot, StepReport};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use scheduler::{Micros, Terminal};

use super::register::{Labels, Real, Registrar};
use super::{Facts, seconds, span};

/// Where the KV of prompt tokens comes from.
const COMPUTED: &str = "local_compute";
const CACHED: &str = "local_cache_hit";

#[derive(Debug)]
pub(crate) struct Vllm {
    running: Real,
    waiting: Real,
    kv_usage: Real,
    kv_usage_old: Real,
    preemptions: Counter,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    by_source: Family<Labels, Counter>,
    cache_queries: Counter,
    cache_hits: Counter,
    generation_tokens: Counter,
    success: Family<Labels, Counter>,
    step_tokens: Histogram,
    ttft: Histogram,
    gap: Histogram,
    gap_old: Histogram,
    mean_gap: Histogram,
    e2e: Histogram,
    queue: Histogram,
    inference: Histogram,
    prefill: Histogram,
    decode: Histogram,
    request_prompt: Histogram,
    request_computed: Histogram,
    request_generation: Histogram,
    request_max: Histogram,
    request_n: Histogram,
}

/// The KV pool in labels, as routers read it.
fn describe_cache(r: &mut Registrar, facts: &Facts) {
    let config: Family<Vec<(&'static str, String)>, Real> = r.family("vllm:cache_config_info");
    let tokens = u64::from(facts.block_size) * u64::from(facts.num_blocks);
    let caching = if facts.prefix_caching { "True" } else { "False" };
    config
        .get_or_create(&vec![
            ("block_size", facts.block_size.to_string()),
            ("num_gpu_blocks", facts.num_blocks.to_string()),
            ("kv_cache_size_tokens", tokens.to_string()),
            ("enable_prefix_caching", caching.to_owned()),
        ])
        .set(1.0);
}

impl Vllm {
    pub(crate) fn new(r: &mut Registrar, facts: &Facts) -> Vllm {
        let success: Family<Labels, Counter> = r.family("vllm:request_success_total");
        for reason in ["stop", "length", "abort"] {
            success.get_or_create(&vec![("finished_reason", reason)]).inc_by(0);
        }
        let by_source: Family<Labels, Counter> = r.family("vllm:prompt_tokens_by_source_total");
        for source in [COMPUTED, CACHED] {
            by_source.get_or_create(&vec![("source", source)]).inc_by(0);
        }
        describe_cache(r, facts);
        Vllm {
            running: r.gauge("vllm:num_requests_running"),
            waiting: r.gauge("vllm:num_requests_waiting"),
            kv_usage: r.gauge("vllm:kv_cache_usage_perc"),
            kv_usage_old: r.gauge("vllm:gpu_cache_usage_perc"),
            preemptions: r.counter("vllm:num_preemptions_total"),
            prompt_tokens: r.counter("vllm:prompt_tokens_total"),
            cached_tokens: r.counter("vllm:prompt_tokens_cached_total"),
            by_source,
            cache_queries: r.counter("vllm:prefix_cache_queries_total"),
            cache_hits: r.counter("vllm:prefix_cache_hits_total"),
            generation_tokens: r.counter("vllm:generation_tokens_total"),
            success,
            step_tokens: r.histogram("vllm:iteration_tokens_total"),
            ttft: r.histogram("vllm:time_to_first_token_seconds"),
            gap: r.histogram("vllm:inter_token_latency_seconds"),
            gap_old: r.histogram("vllm:time_per_output_token_seconds"),
            mean_gap: r.histogram("vllm:request_time_per_output_token_seconds"),
            e2e: r.histogram("vllm:e2e_request_latency_seconds"),
            queue: r.histogram("vllm:request_queue_time_seconds"),
            inference: r.histogram("vllm:request_inference_time_seconds"),
            prefill: r.histogram("vllm:request_prefill_time_seconds"),
            decode: r.histogram("vllm:request_decode_time_seconds"),
            request_prompt: r.histogram("vllm:request_prompt_tokens"),
            request_computed: r.histogram("vllm:request_prefill_kv_computed_tokens"),
            request_generation: r.histogram("vllm:request_generation_tokens"),
            request_max: r.histogram("vllm:request_params_max_tokens"),
            request_n: r.histogram("vllm:request_params_n"),
        }
    }

    pub(crate) fn step(&self, report: &StepReport) {
        self.step_tokens.observe(f64::from(report.tokens));
        self.generation_tokens.inc_by(report.generated.into());
        // Only the engine thread counts here, one step after another.
        let counts = &report.counts;
        for (counter, total) in [
            (&self.preemptions, counts.preemptions),
            (&self.cache_queries, counts.cache_queries),
            (&self.cache_hits, counts.cache_hits),
        ] {
            counter.inc_by(total.saturating_sub(counter.get()));
        }
    }

    pub(crate) fn token_gap(&self, gap: Micros) {
        self.gap.observe(seconds(gap));
        self.gap_old.observe(seconds(gap));
    }

    pub(crate) fn first_token(&self, report: &FirstToken) {
        let FirstToken { arrival, scheduled, at, prompt_tokens, cached_tokens } = *report;
        let computed = prompt_tokens.saturating_sub(cached_tokens);
        self.prompt_tokens.inc_by(prompt_tokens.into());
        self.cached_tokens.inc_by(cached_tokens.into());
        for (source, tokens) in [(COMPUTED, computed), (CACHED, cached_tokens)] {
            self.by_source.get_or_create(&vec![("source", source)]).inc_by(tokens.into());
        }
        self.request_computed.observe(computed.into());
        self.queue.observe(span(arrival, scheduled));
        self.prefill.observe(span(scheduled, at));
        self.ttft.observe(span(arrival, at));
    }

    pub(crate) fn request(&self, report: &RequestReport) {
        let [stop, length] = report.finished;
        let aborted = u32::from(report.terminal == Terminal::Cancelled);
        for (reason, count) in [("stop", stop), ("length", length), ("abort", aborted)] {
            let series = self.success.get_or_create(&vec![("finished_reason", reason)]);
            series.inc_by(count.into());
        }
        self.request_n.observe(report.num_sequences.into());
        self.request_max.observe(report.max_tokens.into());
        self.request_prompt.observe(report.prompt_tokens.into());
        self.request_generation.observe(report.output_tokens.into());
        self.times(report);
    }

    /// The times of a complete request.
    fn times(&self, report: &RequestReport) {
        let (Some(scheduled), Some(first)) = (report.scheduled, report.first_token) else { return };
        if report.terminal == Terminal::Completed {
            self.inference.observe(span(scheduled, report.ended));
            self.decode.observe(span(first, report.ended));
            self.e2e.observe(span(report.arrival, report.ended));
            if let Some(gap) = super::mean_gap(report) {
                self.mean_gap.observe(seconds(gap));
            }
        }
    }

    pub(crate) fn snapshot(&self, snapshot: &Snapshot) {
        let counts = &snapshot.counts;
        self.running.set(counts.running.into());
        self.waiting.set(counts.waiting.into());
        let used = counts.num_blocks.saturating_sub(counts.free_blocks);
        let usage = f64::from(used) / f64::from(counts.num_blocks.max(1));
        self.kv_usage.set(usage);
        self.kv_usage_old.set(usage);
    }
}
