//! Each request that reaches the gate ends in one log line, and lines, counters and answers agree.

use std::collections::BTreeMap;
use std::time::Duration;

use harness::{Reply, Server};
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// A prompt of 100 tokens takes a tenth of a second.
const SLOW: &str = "[simulated]\nnoise_permille = 0\n[simulated.cost]\nfixed_ns = 1_000_000\n\
    per_seq_ns = 500_000\nper_prefill_token_ns = 1_000_000\n";

/// One slot and a queue of three: whatever comes at once beyond them is shed.
fn narrow() -> Server {
    let config = format!("max_num_seqs = 1\n[class.latency]\nmax_waiting = 3\n{SLOW}");
    let args = ["--runner", "simulated", "--admission", "none", "--log-format", "json"];
    Server::configured(&config, &args)
}

/// The lines of a JSON log with this message.
fn lines(log: &str, message: &str) -> Vec<Value> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == message).collect()
}

/// The log once it holds `count` refusals, in lines of their own or in summaries.
async fn settled(server: &Server, ended: usize, refused: u64) -> (Vec<Value>, Vec<Value>, u64) {
    for _ in 0..3_000 {
        let log = server.log();
        let (ends, lone) = (lines(&log, "request ended"), lines(&log, "request refused"));
        let summed = lines(&log, "more requests were refused");
        let summed: u64 = summed.iter().filter_map(|line| line["count"].as_u64()).sum();
        if ends.len() >= ended && lone.len() as u64 + summed >= refused {
            return (ends, lone, summed);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("lines are missing:\n{}", server.log());
}

/// Completed, shed in a storm, and left by its client: everything adds up.
#[tokio::test]
async fn offered_is_accepted_and_rejected_and_each_has_its_line() {
    let server = std::sync::Arc::new(narrow());
    let mut clients = JoinSet::new();
    for number in 0..100u32 {
        let server = std::sync::Arc::clone(&server);
        clients.spawn(async move {
            let prompt: Vec<u32> = (0..100).map(|i| 40 + (number + i) % 80).collect();
            let body = json!({"prompt": prompt, "max_tokens": 4, "ignore_eos": true});
            let name = format!("x-request-id: burst-{number}");
            server.post_with("/v1/completions", &body, &[&name]).await
        });
    }
    let replies: Vec<Reply> = clients.join_all().await;
    let served = replies.iter().filter(|reply| reply.status == 200).count();
    let refused = replies.iter().filter(|reply| reply.status == 429).count();
    assert!(served + refused == 100 && served > 0 && refused > 20, "{served} and {refused}");
    // One more, whose client leaves after its first token.
    let body = json!({"prompt": [50], "max_tokens": 1_000, "ignore_eos": true, "stream": true});
    let headers = ["content-type: application/json", "x-request-id: leaver"];
    let exchange = server.begin(Method::POST, "/v1/completions", body.to_string(), &headers).await;
    server
        .metrics_where("generating", |scrape| {
            scrape.sum("vllm:generation_tokens_total", &[]) > 4.0 * served as f64
        })
        .await;
    drop(exchange);
    let scrape = server.idle().await;

    let (ends, lone, summed) = settled(&server, served + 1, refused as u64).await;
    assert_eq!(ends.len(), served + 1);
    assert_eq!(lone.len() as u64 + summed, refused as u64);
    let count = |name, labels: &[&str]| scrape.sum(name, labels) as usize;
    assert_eq!(count("inference_admission_accepted_total", &[]), served + 1);
    assert_eq!(count("inference_admission_rejected_total", &[]), refused);
    assert_eq!(count("inference_admission_shed_total", &["rule=\"bound\""]), refused);
    assert_eq!(count("inference_retry_after_seconds_count", &[]), refused);
    assert_eq!(count("inference_requests_total", &[]), 101);
    assert_eq!(count("inference_requests_total", &["outcome=\"cancelled\""]), 1);
    let ratio = scrape.sum("inference_admission_rejected_ratio", &[]);
    assert!((ratio - refused as f64 / 101.0).abs() < 1e-6, "{ratio}");
    assert_eq!(scrape.sum("inference_promises_broken_total", &[]), 0.0, "nothing was promised");

    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for line in ends.iter().chain(&lone) {
        *names.entry(line["request_id"].as_str().unwrap()).or_default() += 1;
    }
    assert!(names.values().all(|count| *count == 1), "{names:?}");
    check_members(&ends, &lone);
}

fn check_members(ends: &[Value], lone: &[Value]) {
    for line in ends {
        assert_eq!((&line["level"], &line["class"]), (&json!("INFO"), &json!("latency")), "{line}");
        let left = line["request_id"] == "leaver";
        let expected =
            if left { ("cancelled", "the client left") } else { ("completed", "length") };
        assert_eq!(line["outcome"], expected.0, "{line}");
        assert_eq!(line["reason"], expected.1, "{line}");
        assert!(left || (line["prompt_tokens"] == 100 && line["output_tokens"] == 4), "{line}");
        for member in ["queue_ms", "ttft_ms", "e2e_ms", "predicted_ttft_ms", "predicted_e2e_ms"] {
            assert!(line[member].is_u64(), "{member} in {line}");
        }
    }
    for line in lone {
        assert_eq!((&line["outcome"], &line["reason"]), (&json!("shed"), &json!("queue_full")));
        for member in ["position", "retry_after_ms", "retry", "prompt_tokens"] {
            assert!(line[member].is_u64(), "{member} in {line}");
        }
        assert!(line.get("predicted_ms").is_none(), "no forecast was the reason: {line}");
    }
}

/// What is still running when the server ends has its line as well.
#[tokio::test]
async fn the_last_lines_are_written_before_the_end() {
    let config = format!("grace = \"1ms\"\nshutdown_delay = \"0s\"\n{SLOW}");
    let mut server = Server::configured(&config, &["--runner", "simulated", "--slo-tpot", "none"]);
    let body = json!({"prompt": [50], "max_tokens": 4_000, "ignore_eos": true, "stream": true});
    let headers = ["content-type: application/json", "x-request-id: \"last\""];
    let exchange = server.begin(Method::POST, "/v1/completions", body.to_string(), &headers).await;
    server.terminate();
    assert!(server.wait().success());
    drop(exchange);
    // The process is gone; what it wrote is still being read.
    while !server.log().contains(" ended\n") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let log = server.log();
    let ends: Vec<&str> = log.lines().filter(|line| line.contains("request ended")).collect();
    assert_eq!(ends.len(), 1, "{log}");
    assert!(ends[0].contains(r#"request_id="\"last\"""#), "names are quoted: {}", ends[0]);
}
