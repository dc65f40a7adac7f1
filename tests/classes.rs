//! Classes, as clients see them: how a request gets its class, interactive work beside a backlog of
//! bulk work, and a queue bound for each.

use std::sync::Arc;

use harness::prometheus::Scrape;
use harness::{Reply, Server};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const COMPLETIONS: &str = "/v1/completions";
const BULK: &str = "x-sluice-class: throughput";
const QUICK: &str = "x-sluice-class: latency";

/// A token of a prompt takes a millisecond; a step takes at most 64 of them. Nothing is due, so
/// that nothing is refused because this machine is busy.
const SLOW: &str = "[simulated]\nnoise_permille = 0\n[simulated.cost]\nfixed_ns = 1_000_000\n\
    per_seq_ns = 500_000\nper_prefill_token_ns = 1_000_000\n";

fn serve(config: &str) -> Arc<Server> {
    let args = ["--runner", "simulated", "--max-num-batched-tokens", "64"];
    Arc::new(Server::configured(&format!("{config}\n{SLOW}"), &args))
}

/// A request whose prompt is `tokens` token ids, none shared with another `number`.
fn request(number: u32, tokens: u32, max_tokens: u32) -> Value {
    let prompt: Vec<u32> = (0..tokens).map(|i| 40 + (number * 7 + i * (number + 1)) % 80).collect();
    json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true})
}

fn send(server: &Arc<Server>, clients: &mut JoinSet<Reply>, body: Value, header: &'static str) {
    let server = Arc::clone(server);
    clients.spawn(async move { server.post_with(COMPLETIONS, &body, &[header]).await });
}

fn class(label: &str) -> String {
    format!("class=\"{label}\"")
}

fn accepted(scrape: &Scrape, label: &str) -> f64 {
    scrape.sum("inference_admission_accepted_total", &[&class(label)])
}

fn rejected(scrape: &Scrape, label: &str, reason: &str) -> f64 {
    let reason = format!("reason=\"{reason}\"");
    scrape.sum("inference_admission_rejected_total", &[&class(label), &reason])
}

fn waiting(scrape: &Scrape, label: &str) -> f64 {
    scrape.sum("inference_queue_depth", &[&class(label)])
}

/// A hundred bulk requests of half a second each are inside when the first interactive one comes.
/// Those are all answered while most of the backlog still waits, and the backlog goes on.
#[tokio::test]
async fn interactive_work_is_answered_while_a_backlog_of_bulk_work_remains() {
    let nothing = "slo_ttft = \"none\"\nslo_tpot = \"none\"\n";
    let config = format!("[class.throughput]\n{nothing}[class.latency]\n{nothing}");
    let server = serve(&config);
    let mut backlog = JoinSet::new();
    for number in 0..100 {
        send(&server, &mut backlog, request(number, 500, 4), BULK);
    }
    let inside = |scrape: &Scrape| accepted(scrape, "throughput") == 100.0;
    server.metrics_where("all of the backlog inside", inside).await;

    let mut quick = JoinSet::new();
    for number in 0..6 {
        send(&server, &mut quick, request(1_000 + number, 20, 4), QUICK);
    }
    for reply in quick.join_all().await {
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let scrape = server.metrics().await;
    assert!(waiting(&scrape, "throughput") > 0.0, "bulk work is still waiting");
    assert_eq!(waiting(&scrape, "latency"), 0.0);
    let done = std::iter::from_fn(|| backlog.try_join_next()).count();
    assert!(done < 50, "{done} of 100 bulk requests came before six interactive ones");
    let bulk = backlog.join_next().await.unwrap().unwrap();
    assert_eq!(bulk.status, 200, "bulk work goes on: {}", bulk.text());
}

/// Each class has a slot and places for two that wait. One class fills its own, for longer than
/// this test lives, and only it is refused.
#[tokio::test]
async fn a_full_queue_is_the_queue_of_one_class() {
    let one = "max_num_seqs = 1\nmax_waiting = 2\nslo_ttft = \"none\"\nslo_tpot = \"none\"\n";
    let config = format!("max_num_seqs = 2\n[class.latency]\n{one}[class.throughput]\n{one}");
    for (full, header, other, other_header) in
        [("throughput", BULK, "latency", QUICK), ("latency", QUICK, "throughput", BULK)]
    {
        let server = serve(&config);
        let mut clients = JoinSet::new();
        let endless = |number| request(number, 4, 4_000);
        send(&server, &mut clients, endless(0), header);
        let runs = |scrape: &Scrape| scrape.sum("vllm:num_requests_running", &[]) == 1.0;
        server.metrics_where("running", runs).await;
        for number in 1..3 {
            send(&server, &mut clients, endless(number), header);
        }
        server.metrics_where("full", |scrape| waiting(scrape, full) == 2.0).await;

        let refused = server.post_with(COMPLETIONS, &request(3, 4, 4), &[header]).await;
        assert_eq!((refused.status, &refused.error()["code"]), (429, &json!("queue_full")));
        assert_eq!(refused.header("x-sluice-reason"), "queue_full");
        let served = server.post_with(COMPLETIONS, &request(4, 4, 4), &[other_header]).await;
        assert_eq!(served.status, 200, "{other} beside a full {full}: {}", served.text());

        let scrape = server.metrics().await;
        assert_eq!(rejected(&scrape, full, "queue_full"), 1.0);
        assert_eq!(rejected(&scrape, other, "queue_full"), 0.0);
        assert_eq!((accepted(&scrape, full), accepted(&scrape, other)), (3.0, 1.0));
        assert!(clients.try_join_next().is_none(), "what fills the queue is still there");
    }
}

/// Header, alias, tenant, route, and what wins where two of them say something; admitted, and
/// refused before its tokens are known.
#[tokio::test]
async fn every_way_of_choosing_a_class_is_seen_in_the_metrics() {
    let config = "trust_tenant_header = true\n[class.latency]\nslo_tpot = \"none\"\n\
        [class.throughput]\nroutes = [\"/v1/completions\"]\n\
        [model_alias.batch]\nclass = \"throughput\"\n[model_alias.live]\nclass = \"latency\"\n\
        [tenant.nightly]\ndefault_class = \"throughput\"\n\
        [tenant.site]\ndefault_class = \"latency\"\n";
    let server = serve(config);
    let chat = "/v1/chat/completions";
    let [nightly, site] = ["x-sluice-tenant: nightly", "x-sluice-tenant: site"];
    for (path, model, headers, expected) in [
        (chat, None, vec![], "latency"),
        (COMPLETIONS, None, vec![], "throughput"),
        (chat, Some("batch"), vec![], "throughput"),
        (COMPLETIONS, Some("live"), vec![], "latency"),
        (chat, None, vec![nightly], "throughput"),
        (COMPLETIONS, None, vec![site], "latency"),
        (chat, Some("live"), vec![nightly], "latency"),
        (chat, None, vec![BULK], "throughput"),
        (chat, Some("live"), vec![site, BULK], "throughput"),
        (COMPLETIONS, Some("batch"), vec![nightly, QUICK], "latency"),
    ] {
        let mut body = if path == chat {
            json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})
        } else {
            json!({"prompt": "Hi", "max_tokens": 1})
        };
        if let Some(model) = model {
            body["model"] = model.into();
        }
        let case = format!("{path} {model:?} {headers:?}");
        let before = server.metrics().await;
        let served = server.post_with(path, &body, &headers).await;
        assert_eq!(served.status, 200, "{case}: {}", served.text());
        let passed = [headers.as_slice(), &["x-request-deadline-ms: 0"]].concat();
        let refused = server.post_with(path, &body, &passed).await;
        assert_eq!(refused.error()["code"], "expired", "{case}: {}", refused.text());
        let after = server.idle().await;
        for label in ["latency", "throughput"] {
            let more = f64::from(u8::from(label == expected));
            assert_eq!(accepted(&after, label) - accepted(&before, label), more, "{case}: {label}");
            let expired = |scrape: &Scrape| rejected(scrape, label, "expired");
            assert_eq!(expired(&after) - expired(&before), more, "{case}: refused {label}");
        }
    }
}

/// A route that is bound to two classes, or on which nothing is generated.
#[test]
fn a_server_does_not_start_with_routes_that_make_no_sense() {
    let twice = "[class.latency]\nroutes = [\"/v1/completions\"]\n\
        [class.throughput]\nroutes = [\"/v1/completions\"]\n";
    let silent = "[class.throughput]\nroutes = [\"/v1/models\"]\n";
    for (text, parts) in [
        (twice, ["class.throughput.routes", "leave it in one place"]),
        (silent, ["class.throughput.routes", "/v1/chat/completions and /v1/completions"]),
    ] {
        let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().to_string_lossy();
        let args = ["serve", "--port", "0", "--runner", "simulated", "--config", &path];
        let (status, log) = harness::process::run(&args);
        assert!(!status.success(), "{text} started");
        assert!(parts.iter().all(|part| log.contains(part)), "{text}: {log}");
    }
}
