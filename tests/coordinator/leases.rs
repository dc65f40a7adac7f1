//! A tenant's cap for all replicas together, on real servers: requests that never end by themselves
//! are let in until no more are, here and there, and counted by who sent them.

use std::ops::Range;
use std::time::{Duration, Instant};

use harness::Server;
use harness::redis::RedisServer;
use hyper::Method;
use load::client::Exchange;
use serde_json::json;

use super::{PATIENCE, logs, sees, until};

const CAP: usize = 6;
const UNITS: &str = "inference_coordinator_lease_units";
const GOLD: &[&str] = &["tier=\"gold\""];

/// A step takes 20 ms: 8,000 tokens take longer than any test.
const COST: &str = "[simulated]\nnoise_permille = 0\n[simulated.cost]\nfixed_ns = 20_000_000\n\
    per_seq_ns = 0\nper_prefill_token_ns = 0\n";

fn start(redis: &RedisServer, tenants: &str) -> Server {
    let args = ["--runner", "simulated", "--slo-ttft", "none", "--slo-tpot", "none"];
    let url = redis.url();
    let more = ["--coordinator", &url, "--coordinator-replicas", "3", "--max-model-len", "16384"];
    Server::configured(&format!("{COST}{tenants}"), &[args, more].concat())
}

fn tenant(name: &str, tier: &str, most: usize) -> String {
    format!("[tenant.{name}]\napi_keys = [\"{name}\"]\nmax_requests = {most}\ntier = \"{tier}\"\n")
}

/// Requests that are inside for certain: admitted, and still read by somebody. One that is dropped
/// leaves a moment later, so the server has never fewer.
struct Inside(Vec<Exchange>);

/// Lets one more request in, if the server does.
async fn enter(server: &Server, inside: &mut Inside) -> bool {
    let body = json!({"prompt": "x", "max_tokens": 8_000, "ignore_eos": true, "stream": true});
    let key = ["authorization: Bearer acme"];
    let exchange = server.begin(Method::POST, "/v1/completions", body.to_string(), &key).await;
    let status = exchange.response.status();
    assert!(status == 200 || status == 429, "{status}");
    let admitted = status == 200;
    if admitted {
        inside.0.push(exchange);
    } else {
        let text = exchange.whole_body().await.unwrap();
        assert!(String::from_utf8_lossy(&text).contains("tenant_budget"), "{text:?}");
    }
    admitted
}

/// Asks until so many of `here` are inside; `elsewhere` are so many more, and together they are
/// never above the cap.
async fn fill(server: &Server, here: &mut Inside, elsewhere: usize, until: usize) {
    let deadline = Instant::now() + PATIENCE;
    while here.0.len() < until {
        if !enter(server, here).await {
            assert!(Instant::now() < deadline, "{} of {until}\n{}", here.0.len(), server.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(here.0.len() + elsewhere <= CAP, "{} and {elsewhere}", here.0.len());
    }
}

/// Nobody is let in however often it asks.
async fn is_full(server: &Server, tries: Range<usize>) {
    for number in tries {
        assert!(!enter(server, &mut Inside(Vec::new())).await, "at try {number}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until these hold all of the cap together.
async fn hold_all(servers: &[&Server]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut sum = 0.0;
        for server in servers {
            sum += server.metrics().await.sum(UNITS, GOLD);
        }
        if (sum - CAP as f64).abs() < 0.1 {
            return;
        }
        assert!(Instant::now() < deadline, "they hold {sum} units");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Three replicas that share the cap and see each other.
async fn three(redis: &RedisServer) -> [Server; 3] {
    let servers = [(); 3].map(|()| start(redis, &tenant("acme", "gold", CAP)));
    for server in &servers {
        sees(server, 3).await;
    }
    hold_all(&servers.each_ref()).await;
    servers
}

#[tokio::test]
async fn a_cap_for_all_follows_the_demand_and_is_never_exceeded() {
    let redis = RedisServer::start();
    let [a, b, c] = three(&redis).await;
    let (mut at_a, mut at_b) = (Inside(Vec::new()), Inside(Vec::new()));
    fill(&a, &mut at_a, 0, CAP).await;
    is_full(&a, 0..20).await;
    // What is in use is not taken away, whoever asks.
    is_full(&b, 0..20).await;
    until(&a, UNITS, GOLD, CAP as f64).await;
    // What leaves here is let in there, one after the other.
    for number in 1..=CAP {
        at_a.0.pop();
        fill(&b, &mut at_b, at_a.0.len(), number).await;
    }
    is_full(&a, 0..20).await;
    until(&b, UNITS, GOLD, CAP as f64).await;
    until(&a, UNITS, GOLD, 0.0).await;
    // A third one has a part again as soon as nobody wants it.
    drop(at_b);
    hold_all(&[&a, &b, &c]).await;
    fill(&c, &mut Inside(Vec::new()), 0, CAP).await;
}

/// SIGKILL, amid streams: what the replica held is the others' once its entry has expired, and what
/// runs there goes on.
#[tokio::test]
async fn what_a_killed_replica_held_returns_to_the_others() {
    let redis = RedisServer::start();
    let [a, b, c] = three(&redis).await;
    let (mut at_a, mut at_b) = (Inside(Vec::new()), Inside(Vec::new()));
    fill(&a, &mut at_a, 0, 4).await;
    fill(&b, &mut at_b, 4, 2).await;
    is_full(&c, 0..10).await;
    drop(a);
    drop(at_a);
    fill(&b, &mut at_b, 0, CAP).await;
    sees(&b, 2).await;
    until(&b, UNITS, GOLD, CAP as f64).await;
    is_full(&b, 0..10).await;
    is_full(&c, 0..10).await;
    logs(&b, "coordinator is down", 0).await;
    let running = b.metrics().await.sum("vllm:num_requests_running", &[]);
    assert_eq!(running, CAP as f64, "those who were there before run too");
}

/// Replicas with other tenants, in another order: a lease goes by the tenant's name.
#[tokio::test]
async fn replicas_that_list_tenants_otherwise_share_the_right_cap() {
    let redis = RedisServer::start();
    let (acme, other) = (tenant("acme", "gold", CAP), tenant("aardvark", "other", 2));
    let new = tenant("zeta", "other", 4);
    let (a, b) = (start(&redis, &format!("{acme}{other}")), start(&redis, &format!("{new}{acme}")));
    for server in [&a, &b] {
        sees(server, 2).await;
    }
    hold_all(&[&a, &b]).await;
    let (mut at_a, mut at_b) = (Inside(Vec::new()), Inside(Vec::new()));
    fill(&a, &mut at_a, 0, CAP).await;
    until(&a, UNITS, GOLD, CAP as f64).await;
    until(&b, UNITS, GOLD, 0.0).await;
    is_full(&b, 0..20).await;
    at_a.0.clear();
    fill(&b, &mut at_b, 0, CAP).await;
    is_full(&a, 0..20).await;
    // Whose tenant nobody else has keeps all of it.
    let others: &[&str] = &["tier=\"other\""];
    until(&a, UNITS, others, 2.0).await;
    until(&b, UNITS, others, 4.0).await;
}
