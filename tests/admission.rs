//! What a client sees when the server says no.

use std::sync::Arc;

use harness::{Reply, Server};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// A slow simulated machine: a prompt of 100 tokens takes a tenth of a second, so that a handful of
/// requests is more than a second can hold.
const SLOW: &str = "[simulated]\nnoise_permille = 0\n[simulated.cost]\nfixed_ns = 1_000_000\n\
    per_seq_ns = 500_000\nper_prefill_token_ns = 1_000_000\n";

fn slow(config: &str, args: &[&str]) -> Arc<Server> {
    let args = [&["--runner", "simulated"], args].concat();
    Arc::new(Server::configured(&format!("{config}\n{SLOW}"), &args))
}

/// A request whose prompt is `tokens` token ids, none shared with another `number`.
fn request(number: u32, tokens: u32) -> Value {
    let prompt: Vec<u32> = (0..tokens).map(|i| 40 + (number * 7 + i * (number + 1)) % 80).collect();
    json!({"prompt": prompt, "max_tokens": 4, "ignore_eos": true})
}

/// Sends `count` requests at once with these headers.
async fn burst(server: &Arc<Server>, count: u32, headers: &'static [&'static str]) -> Vec<Reply> {
    let mut clients = JoinSet::new();
    for number in 0..count {
        let (server, body) = (Arc::clone(server), request(number, 100));
        clients.spawn(async move { server.post_with("/v1/completions", &body, headers).await });
    }
    clients.join_all().await
}

/// The contract of a refusal for load that every official client reads.
fn check_retry(reply: &Reply) {
    let seconds: u64 = reply.header("retry-after").parse().unwrap();
    let millis: u64 = reply.header("retry-after-ms").parse().unwrap();
    assert!((1..=60).contains(&seconds), "retry-after {seconds}");
    assert!((1..=seconds * 1_000).contains(&millis), "retry-after-ms {millis}, {seconds} s");
    assert!(["true", "false"].contains(&reply.header("x-should-retry")));
    assert_eq!(reply.error()["type"], "overloaded_error");
}

#[tokio::test]
async fn a_burst_is_shed_to_what_the_deadline_can_hold() {
    let server = slow("", &["--slo-tpot", "none"]);
    let replies = burst(&server, 40, &["x-slo-ttft-ms: 1000"]).await;
    let (served, shed): (Vec<&Reply>, Vec<&Reply>) =
        replies.iter().partition(|reply| reply.status == 200);
    // Ten prompts take a second; the margin and the step structure leave some of that.
    assert!((3..=12).contains(&served.len()), "{} of 40 were served", served.len());
    for reply in &shed {
        assert_eq!(reply.status, 429, "{}", reply.text());
        check_retry(reply);
        let error = reply.error();
        assert_eq!(error["code"], "slo_miss", "{error}");
        for (member, header) in [
            ("code", "x-sluice-reason"),
            ("rule", "x-sluice-rule"),
            ("quantity", "x-sluice-quantity"),
            ("predicted_ms", "x-sluice-predicted-ms"),
            ("budget_ms", "x-sluice-budget-ms"),
            ("position", "x-sluice-queue-position"),
        ] {
            let said = error[member].to_string();
            assert_eq!(reply.header(header), said.trim_matches('"'), "{header}: {error}");
        }
        assert_eq!(error["budget_ms"], 1_000, "{error}");
    }
    let scrape = server.idle().await;
    let reasons = ["reason=\"slo_miss\"", "class=\"latency\"", "attempt=\"first\""];
    assert_eq!(scrape.sum("inference_admission_rejected_total", &reasons), shed.len() as f64);
    assert_eq!(scrape.sum("inference_admission_accepted_total", &[]), served.len() as f64);
}

#[tokio::test]
async fn the_same_burst_waits_where_nothing_is_refused() {
    let server = slow("", &["--admission", "none", "--scheduling-policy", "fcfs"]);
    let replies = burst(&server, 20, &["x-slo-ttft-ms: 1000"]).await;
    let statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [200; 20]);
    let scrape = server.idle().await;
    assert!(scrape.sum("inference_slo_missed_total", &[]) > 0.0, "a FIFO queue is late");
}

#[tokio::test]
async fn what_an_idle_server_cannot_do_is_no_reason_to_retry() {
    let server = slow("", &[]);
    let body = request(1, 200);
    for header in ["x-slo-ttft-ms: 100", "x-request-deadline-ms: 100"] {
        let reply = server.post_with("/v1/completions", &body, &[header]).await;
        assert_eq!(reply.status, 400, "{header}: {}", reply.text());
        assert_eq!(reply.error()["code"], "deadline_unsatisfiable");
        assert_eq!(reply.header("x-should-retry"), "false");
        assert_eq!(reply.header("retry-after"), "");
    }
    let within = ["x-slo-ttft-ms: 5000"];
    assert_eq!(server.post_with("/v1/completions", &body, &within).await.status, 200);
}

#[tokio::test]
async fn a_deadline_that_has_passed_is_refused_and_not_promoted() {
    let server = slow("", &[]);
    let headers = ["x-request-deadline-ms: 0"];
    let reply = server.post_with("/v1/completions", &request(1, 4), &headers).await;
    assert_eq!((reply.status, &reply.error()["code"]), (429, &json!("expired")));
    check_retry(&reply);
}

#[tokio::test]
async fn a_full_queue_refuses_and_says_so() {
    let config = "max_num_seqs = 1\n[class.latency]\nmax_waiting = 2";
    let server = slow(config, &["--admission", "none", "--scheduling-policy", "fcfs"]);
    let replies = burst(&server, 12, &[]).await;
    let shed: Vec<&Reply> = replies.iter().filter(|reply| reply.status != 200).collect();
    assert!((8..=10).contains(&shed.len()), "one runs, two wait, {} were shed", shed.len());
    for reply in shed {
        assert_eq!((reply.status, &reply.error()["code"]), (429, &json!("queue_full")));
        check_retry(reply);
    }
}

#[tokio::test]
async fn the_status_of_a_refusal_is_the_operators_choice() {
    let config = "max_num_seqs = 1\n[class.latency]\nmax_waiting = 1";
    let server = slow(config, &["--admission", "none", "--overload-status", "529"]);
    let replies = burst(&server, 6, &[]).await;
    assert!(replies.iter().any(|reply| reply.status == 529));
    assert!(replies.iter().all(|reply| [200, 529].contains(&reply.status)));
}

#[tokio::test]
async fn bulk_work_waits_where_interactive_work_is_refused() {
    let server = slow("", &["--slo-tpot", "none"]);
    let replies = burst(&server, 40, &["x-sluice-class: throughput"]).await;
    assert!(replies.iter().all(|reply| reply.status == 200), "a minute holds all of it");
    let scrape = server.idle().await;
    let throughput = ["class=\"throughput\""];
    assert_eq!(scrape.sum("inference_admission_accepted_total", &throughput), 40.0);
}

#[tokio::test]
async fn retries_are_counted_apart() {
    let server = Server::simulated(&[]);
    let body = json!({"prompt": "x", "max_tokens": 1});
    for count in ["0", "1", "2"] {
        let header = format!("x-stainless-retry-count: {count}");
        assert_eq!(server.post_with("/v1/completions", &body, &[&header]).await.status, 200);
    }
    let scrape = server.metrics().await;
    let accepted = |attempt: &str| scrape.sum("inference_admission_accepted_total", &[attempt]);
    assert_eq!((accepted("attempt=\"first\""), accepted("attempt=\"retry\"")), (1.0, 2.0));
}

#[tokio::test]
async fn a_target_of_nothing_is_a_mistake() {
    let server = slow("", &[]);
    for header in ["x-slo-ttft-ms", "x-slo-tpot-ms"] {
        let line = format!("{header}: 0");
        let reply = server.post_with("/v1/completions", &request(1, 4), &[&line]).await;
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(header)));
    }
}

/// A hint moves the forecast, and only that.
#[tokio::test]
async fn an_expected_length_is_believed_and_does_not_bind() {
    let server = slow("", &["--slo-tpot", "none"]);
    let mut predicted = Vec::new();
    for hints in [json!({"osl": 10}), json!({"osl": 100_000}), json!(null)] {
        let mut body = json!({"prompt": [50, 51], "max_tokens": 60});
        body["nvext"] = json!({ "agent_hints": hints });
        let reply = server.post("/v1/completions", &body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.json()["usage"]["completion_tokens"], 60, "no end token is ever said");
        let header = |name: &str| reply.header(name).parse::<u64>().unwrap();
        let first = header("x-sluice-predicted-ttft-ms");
        let last = header("x-sluice-predicted-e2e-ms");
        assert!(first < last && last < header("x-sluice-upper-e2e-ms") * 2, "{:?}", reply.headers);
        predicted.push(last - first);
        server.idle().await;
    }
    // 9 more tokens, 59 more (the limit), and about half of the limit without a hint.
    assert!(predicted[0] * 5 < predicted[1], "{predicted:?}");
    assert!(predicted[0] < predicted[2] && predicted[2] < predicted[1], "{predicted:?}");
}

#[tokio::test]
async fn an_answer_says_how_many_more_would_be_taken() {
    let server = slow("[class.latency]\nmax_waiting = 12", &["--slo-tpot", "none"]);
    let reply = server.post("/v1/completions", &request(1, 100)).await;
    assert_eq!(reply.header("x-ratelimit-limit-requests"), "12");
    let remaining: u32 = reply.header("x-ratelimit-remaining-requests").parse().unwrap();
    assert!((1..12).contains(&remaining), "it has a place itself: {remaining}");
    assert!(reply.header("x-ratelimit-reset-requests").ends_with("ms"));
}

#[tokio::test]
async fn a_rate_of_tokens_is_told_when_they_are_there() {
    let server = slow("", &["--admission", "token-bucket=2:50", "--slo-tpot", "none"]);
    let first = server.post("/v1/completions", &request(1, 100)).await;
    assert_eq!(first.status, 200, "a full bucket lets one in that takes more");
    let second = server.post("/v1/completions", &request(2, 20)).await;
    assert_eq!((second.status, &second.error()["code"]), (429, &json!("rate_limit")));
    check_retry(&second);
    // 54 tokens of debt and 24 of its own, two a second, less what has passed.
    let seconds: u64 = second.header("retry-after").parse().unwrap();
    assert!((10..=60).contains(&seconds), "{seconds}");
}
