//! Every series that the server exports: name, kind, labels, help. The only place where a metric is
//! named; registration looks names up here, and documents, dashboards and manifests are checked
//! against it.

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The name as it is exported (counters with `_total`; histograms without `_bucket`).
    pub name: &'static str,
    /// What it measures and with which buckets.
    pub kind: Kind,
    /// Labels beyond the constant `model_name` of the `vllm:` metrics.
    pub labels: &'static [&'static str],
    /// One line.
    pub help: &'static str,
}

/// What a metric is.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size.
    Histogram(Buckets),
}

/// Upper bounds of a histogram.
#[derive(Clone, Copy, Debug)]
pub enum Buckets {
    /// These.
    Fixed(&'static [f64]),
    /// 1, 2, 5, 10, 20, 50, ... up to the longest sequence.
    Tokens,
}

/// Prefix of the metrics that carry vLLM's names and the label `model_name`.
pub const VLLM: &str = "vllm:";

// vLLM's own bounds, so that its dashboards and routers read ours.
const TTFT: Kind = fixed(&[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
]);
const GAP: Kind = fixed(&[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
]);
const LATENCY: Kind = fixed(&[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
]);
const STEP_TOKENS: Kind = fixed(&[
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
]);
const CHOICES: Kind = fixed(&[1.0, 2.0, 5.0, 10.0, 20.0]);
const TOKENS: Kind = Kind::Histogram(Buckets::Tokens);
// Ours.
const DECISION: Kind = fixed(&[
    0.000_001,
    0.000_002_5,
    0.000_005,
    0.000_01,
    0.000_025,
    0.000_05,
    0.000_1,
    0.000_25,
    0.000_5,
    0.001,
    0.002_5,
    0.01,
]);
const RATIO: Kind = fixed(&[
    0.1, 0.25, 0.5, 0.7, 0.8, 0.85, 0.9, 0.94, 0.96, 0.98, 0.99, 1.0, 1.01, 1.02, 1.04, 1.06, 1.1,
    1.15, 1.2, 1.25, 1.3, 1.5, 2.0, 3.0, 5.0, 10.0,
]);
const RETRY_AFTER: Kind = fixed(&[1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0, 45.0, 60.0]);
const TICK: Kind = fixed(&[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
]);
const STEP: Kind = fixed(&[
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
]);

const fn fixed(bounds: &'static [f64]) -> Kind {
    Kind::Histogram(Buckets::Fixed(bounds))
}

const fn entry(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Entry {
    Entry { name, kind, labels, help }
}

/// All of them.
pub const CATALOGUE: &[Entry] = &[
    entry("vllm:num_requests_running", Kind::Gauge, &[], "Sequences that run"),
    entry("vllm:num_requests_waiting", Kind::Gauge, &[], "Sequences that wait"),
    entry("vllm:kv_cache_usage_perc", Kind::Gauge, &[], "Share of KV blocks in use, 0 to 1"),
    entry("vllm:gpu_cache_usage_perc", Kind::Gauge, &[], "Old name of kv_cache_usage_perc"),
    entry(
        "vllm:cache_config_info",
        Kind::Gauge,
        &["block_size", "num_gpu_blocks", "kv_cache_size_tokens", "enable_prefix_caching"],
        "The KV pool; always 1",
    ),
    entry("vllm:num_preemptions_total", Kind::Counter, &[], "Preempted sequences"),
    entry(
        "vllm:prompt_tokens_total",
        Kind::Counter,
        &[],
        "Prompt tokens, once the first token came",
    ),
    entry(
        "vllm:prompt_tokens_cached_total",
        Kind::Counter,
        &[],
        "Prompt tokens that were found in the prefix cache",
    ),
    entry(
        "vllm:prompt_tokens_by_source_total",
        Kind::Counter,
        &["source"],
        "Prompt tokens by where their KV came from: local_compute or local_cache_hit",
    ),
    entry(
        "vllm:prefix_cache_queries_total",
        Kind::Counter,
        &[],
        "Tokens of sequences that started, which were looked for in the prefix cache",
    ),
    entry(
        "vllm:prefix_cache_hits_total",
        Kind::Counter,
        &[],
        "Those of them that were found there",
    ),
    entry("vllm:generation_tokens_total", Kind::Counter, &[], "Tokens generated"),
    entry(
        "vllm:request_success_total",
        Kind::Counter,
        &["finished_reason"],
        "Sequences that ended by stop or length, and requests that were aborted",
    ),
    entry("vllm:iteration_tokens_total", STEP_TOKENS, &[], "Tokens computed in a step"),
    entry("vllm:time_to_first_token_seconds", TTFT, &[], "Arrival to first token"),
    entry("vllm:inter_token_latency_seconds", GAP, &[], "Gap between tokens of a sequence"),
    entry("vllm:time_per_output_token_seconds", GAP, &[], "Old name of inter_token_latency"),
    entry("vllm:request_time_per_output_token_seconds", GAP, &[], "Mean gap of a request"),
    entry("vllm:e2e_request_latency_seconds", LATENCY, &[], "Arrival to end"),
    entry("vllm:request_queue_time_seconds", LATENCY, &[], "Arrival to first chunk planned"),
    entry("vllm:request_inference_time_seconds", LATENCY, &[], "First chunk planned to end"),
    entry("vllm:request_prefill_time_seconds", LATENCY, &[], "First chunk planned to first token"),
    entry("vllm:request_decode_time_seconds", LATENCY, &[], "First token to end"),
    entry("vllm:request_prompt_tokens", TOKENS, &[], "Prompt tokens of a request"),
    entry(
        "vllm:request_prefill_kv_computed_tokens",
        TOKENS,
        &[],
        "Prompt tokens of a request that were computed, not found in the prefix cache",
    ),
    entry("vllm:request_generation_tokens", TOKENS, &[], "Tokens generated for a request"),
    entry("vllm:request_params_max_tokens", TOKENS, &[], "max_tokens of a request"),
    entry("vllm:request_params_n", CHOICES, &[], "Sequences of a request"),
    entry(
        "inference_requests_total",
        Kind::Counter,
        &["outcome", "class"],
        "Requests by terminal state: completed, shed, expired, cancelled or failed",
    ),
    entry(
        "inference_admission_accepted_total",
        Kind::Counter,
        &["class", "attempt"],
        "Requests that the gate took, first attempts and retries apart",
    ),
    entry(
        "inference_admission_rejected_total",
        Kind::Counter,
        &["reason", "class", "attempt"],
        "Requests that the gate did not take",
    ),
    entry(
        "inference_admission_shed_total",
        Kind::Counter,
        &["rule", "class"],
        "Requests that were shed, by the rule that said no: bound, own, harm, kind or expected",
    ),
    entry(
        "inference_admission_rejected_ratio",
        Kind::Gauge,
        &[],
        "Share of the first attempts of the last minute that were shed for want of capacity",
    ),
    entry(
        "inference_admission_offered_replicas",
        Kind::Gauge,
        &[],
        "Work of the first attempts of the last half minute, over what this replica can do",
    ),
    entry(
        "inference_desired_replicas",
        Kind::Gauge,
        &[],
        "Replicas that there should be: up at once, down slowly",
    ),
    entry("inference_queue_depth", Kind::Gauge, &["class"], "Sequences that wait, by class"),
    entry("inference_admission_decision_seconds", DECISION, &[], "Time to decide and reserve"),
    entry("inference_retry_after_seconds", RETRY_AFTER, &[], "Retry-After of shed requests"),
    entry(
        "inference_forecast_ratio",
        RATIO,
        &["class", "quantity", "basis"],
        "Actual time over predicted time, from arrival",
    ),
    entry(
        "inference_forecast_coverage_ratio",
        Kind::Gauge,
        &["class"],
        "Share of the last thousand requests that came within the upper bound of their forecast",
    ),
    entry(
        "inference_admission_margin_ratio",
        Kind::Gauge,
        &["class"],
        "What forecasts with known lengths are multiplied by before they meet a deadline",
    ),
    entry(
        "inference_slo_met_total",
        Kind::Counter,
        &["class"],
        "Completed requests that kept every target",
    ),
    entry(
        "inference_slo_missed_total",
        Kind::Counter,
        &["class"],
        "Admitted requests that missed a target, expired or failed",
    ),
    entry(
        "inference_promises_broken_total",
        Kind::Counter,
        &["class"],
        "Requests that the gate admitted by forecast and that were late or expired",
    ),
    entry(
        "inference_promises_displaced_total",
        Kind::Counter,
        &["class"],
        "Ended requests whose promise the gate had given up for others, within their budget",
    ),
    entry(
        "inference_outstanding_work_seconds",
        Kind::Gauge,
        &["class"],
        "Predicted device time of admitted, unfinished requests",
    ),
    entry(
        "inference_coordinator_up",
        Kind::Gauge,
        &[],
        "1 while calls to the coordinator are answered, or if there is none, else 0",
    ),
    entry(
        "inference_coordinator_view_age_seconds",
        Kind::Gauge,
        &[],
        "Age of the last answer of the coordinator",
    ),
    entry(
        "inference_coordinator_peers",
        Kind::Gauge,
        &["state"],
        "Replicas, this one included: ready, pending, draining; and missing ones",
    ),
    entry(
        "inference_coordinator_tick_seconds",
        TICK,
        &[],
        "Time until the coordinator answered a call",
    ),
    entry(
        "inference_tenant_accepted_total",
        Kind::Counter,
        &["tier"],
        "Requests that the gate took, by the tier of their tenants",
    ),
    entry(
        "inference_tenant_rejected_total",
        Kind::Counter,
        &["tier"],
        "Requests that the gate did not take, by the tier of their tenants",
    ),
    entry(
        "inference_tenant_outstanding_work_seconds",
        Kind::Gauge,
        &["tier"],
        "Predicted device time of a tier's admitted, unfinished requests",
    ),
    entry(
        "inference_tenant_share_ratio",
        Kind::Gauge,
        &["tier"],
        "Share of a full device that a tier's requests of the last ten seconds take",
    ),
    entry(
        "inference_tenant_reserved_ratio",
        Kind::Gauge,
        &["tier"],
        "Share of the device that is kept for a tier",
    ),
    entry(
        "inference_coordinator_lease_units",
        Kind::Gauge,
        &["tier"],
        "Requests that may be inside here of tenants whose limit all replicas share, by tier",
    ),
    entry("inference_step_seconds", STEP, &["kind"], "Duration of a step"),
    entry(
        "inference_engine_step_age_seconds",
        Kind::Gauge,
        &[],
        "Age of the last step while there is work, 0 when idle",
    ),
    entry("inference_recorder_bytes_total", Kind::Counter, &[], "Bytes written by --record"),
    entry(
        "inference_recorder_lost_events_total",
        Kind::Counter,
        &[],
        "Events missing in the record, as the disk was too slow",
    ),
    entry("inference_recorder_up", Kind::Gauge, &[], "1 while --record writes, else 0"),
    entry(
        "http_requests_total",
        Kind::Counter,
        &["handler", "method", "status"],
        "HTTP requests answered, by status group such as 2xx",
    ),
];

/// The entry called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static Entry> {
    CATALOGUE.iter().find(|entry| entry.name == name)
}
