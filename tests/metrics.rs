//! The numbers say what happened, under the names that dashboards and routers look for.

use std::collections::BTreeSet;

use harness::Server;
use serde_json::json;
use server::metrics::catalogue::CATALOGUE;

#[tokio::test]
async fn every_series_is_there_from_the_start() {
    let server = Server::simulated(&[]);
    let scrape = server.metrics().await;
    let names: BTreeSet<&str> =
        scrape.0.keys().map(|key| key.split('{').next().unwrap_or(key)).collect();
    // A histogram is exported as three series.
    let metric = |name: &str| {
        let suffixes = ["_bucket", "_sum", "_count"];
        let stem = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
        let is_histogram = |stem: &&str| names.contains(format!("{stem}_bucket").as_str());
        stem.filter(is_histogram).unwrap_or(name).to_owned()
    };
    let exported: BTreeSet<String> = names.iter().map(|name| metric(name)).collect();
    let catalogue: BTreeSet<String> = CATALOGUE.iter().map(|entry| entry.name.to_owned()).collect();
    assert_eq!(exported, catalogue);
    for reason in ["slo_miss", "queue_full", "kv_pressure", "expired", "draining"] {
        let label = format!("reason=\"{reason}\"");
        assert_eq!(scrape.sum("inference_admission_rejected_total", &[&label]), 0.0);
    }
    assert!(scrape.is_idle());
}

#[tokio::test]
async fn ten_answers_of_ten_tokens_are_counted_exactly() {
    // Gaps of a fifth of a millisecond are at the mercy of whatever else the machine does.
    let server = Server::simulated(&["--slo-tpot", "none"]);
    let prompt: Vec<u32> = (40..60).collect();
    for _ in 0..10 {
        let body = json!({"prompt": prompt, "max_tokens": 10, "ignore_eos": true});
        assert_eq!(server.post("/v1/completions", &body).await.status, 200);
    }
    let scrape = server.idle().await;
    for (name, labels, expected) in [
        ("vllm:prompt_tokens_total", "", 200.0),
        ("vllm:generation_tokens_total", "", 100.0),
        ("vllm:request_success_total", "finished_reason=\"length\"", 10.0),
        ("vllm:time_to_first_token_seconds_count", "", 10.0),
        ("vllm:inter_token_latency_seconds_count", "", 90.0),
        ("vllm:e2e_request_latency_seconds_count", "", 10.0),
        ("vllm:request_prompt_tokens_sum", "", 200.0),
        ("vllm:request_generation_tokens_sum", "", 100.0),
        ("inference_requests_total", "outcome=\"completed\"", 10.0),
        ("inference_admission_accepted_total", "class=\"latency\"", 10.0),
        ("inference_slo_met_total", "class=\"latency\"", 10.0),
        ("inference_admission_decision_seconds_count", "", 10.0),
        ("http_requests_total", "handler=\"/v1/completions\"", 10.0),
    ] {
        assert_eq!(scrape.sum(name, &[labels]), expected, "{name}{{{labels}}}");
    }
}

#[tokio::test]
async fn the_text_is_what_a_prometheus_expects() {
    let server = Server::simulated(&["--served-model-name", "m\"1"]);
    let reply = server.get("/metrics").await;
    assert!(reply.header("content-type").starts_with("text/plain"), "{reply:?}");
    let text = reply.text();
    assert!(text.contains("model_name=\"m\\\"1\""), "labels are escaped");
    assert!(text.contains("le=\"1.0\"") && !text.contains("le=\"1\""), "vLLM's spelling of bounds");
    assert!(text.contains("le=\"+Inf\""));
}
