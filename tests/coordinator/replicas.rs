//! Several real servers on one Redis.

use std::sync::Arc;
use std::time::Duration;

use harness::Server;
use harness::proxy::Proxy;
use harness::redis::RedisServer;
use hyper::Method;
use scheduler::cluster::Stage;
use serde_json::{Value, json};
use server::coordinator::record::{self, Decoded};
use server::coordinator::{Call, Coordinator, Redis};
use tokio::task::JoinSet;

use super::{logs, replica, sees, until};

const PATH: &str = "/v1/completions";
const UP: &str = "inference_coordinator_up";

/// Thousands of tokens, a few of them a millisecond.
const COST: &str = "[simulated]\nnoise_permille = 0\n[simulated.cost]\nfixed_ns = 1_000_000\n\
    per_seq_ns = 0\nper_prefill_token_ns = 1_000_000\n";

fn short() -> Value {
    json!({"prompt": "x", "max_tokens": 2})
}

async fn is_served(server: &Server) {
    let reply = server.post(PATH, &short()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[tokio::test]
async fn replicas_see_each_other_and_miss_whoever_dies_or_leaves() {
    let redis = RedisServer::start();
    let url = redis.url();
    let (a, b, mut c) = (replica(&url, &[]), replica(&url, &[]), replica(&url, &[]));
    for server in [&a, &b, &c] {
        sees(server, 3).await;
        until(server, UP, &[], 1.0).await;
    }
    // SIGKILL: nobody says goodbye.
    drop(b);
    sees(&a, 2).await;
    c.terminate();
    until(&a, "inference_coordinator_peers", &["state=\"draining\""], 1.0).await;
    sees(&a, 1).await;
    assert!(c.wait().success(), "{}", c.log());
    is_served(&a).await;
    logs(&a, "coordinator is up", 1).await;
    logs(&a, "coordinator is down", 0).await;
}

/// A replica that comes back under its old name is another one, and its first life is forgotten.
#[tokio::test]
async fn a_replica_that_flaps_under_one_name_is_counted_once() {
    let redis = RedisServer::start();
    let url = redis.url();
    let watcher = replica(&url, &["--coordinator-replica", "watcher"]);
    for _ in 0..3 {
        let flapping = replica(&url, &["--coordinator-replica", "flapping"]);
        sees(&watcher, 2).await;
        drop(flapping);
    }
    sees(&watcher, 1).await;
    until(&watcher, "inference_coordinator_peers", &["state=\"missing\""], 0.0).await;
}

#[tokio::test]
async fn requests_go_on_while_redis_is_dead_and_each_change_is_one_line() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let (a, b) = (replica(&url, &[]), replica(&url, &[]));
    sees(&a, 2).await;
    for times in 1..3 {
        redis.kill();
        until(&a, UP, &[], 0.0).await;
        for _ in 0..20 {
            is_served(&a).await;
        }
        logs(&a, "coordinator is down", times).await;
        redis.restart();
        until(&a, UP, &[], 1.0).await;
        sees(&a, 2).await;
        sees(&b, 2).await;
        logs(&a, "coordinator is up", times + 1).await;
        logs(&a, "coordinator is down", times).await;
    }
}

#[tokio::test]
async fn a_redis_that_hangs_or_is_emptied_is_waited_for_by_nobody() {
    let redis = RedisServer::start();
    let url = redis.url();
    let (a, b) = (replica(&url, &[]), replica(&url, &[]));
    sees(&a, 2).await;
    redis.signal("STOP");
    until(&a, UP, &[], 0.0).await;
    for _ in 0..20 {
        is_served(&a).await;
    }
    redis.signal("CONT");
    until(&a, UP, &[], 1.0).await;
    sees(&a, 2).await;
    assert_eq!(redis.cli(&["flushall"]), "OK");
    assert_eq!(redis.cli(&["script", "flush"]), "OK");
    assert_eq!(redis.cli(&["function", "flush"]), "OK");
    sees(&a, 2).await;
    sees(&b, 2).await;
    is_served(&a).await;
}

#[tokio::test]
async fn a_slow_redis_is_late_and_not_down() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let (a, b) = (replica(&proxy.url(), &[]), replica(&redis.url(), &[]));
    sees(&a, 2).await;
    proxy.delay(Duration::from_millis(100));
    let answered = "inference_coordinator_tick_seconds_count";
    let before = a.metrics().await.sum(answered, &[]);
    until_more(&a, answered, before + 5.0).await;
    is_served(&a).await;
    sees(&b, 2).await;
    proxy.cut(true);
    until(&a, UP, &[], 0.0).await;
    is_served(&a).await;
    sees(&b, 1).await;
    proxy.cut(false);
    proxy.delay(Duration::ZERO);
    until(&a, UP, &[], 1.0).await;
    sees(&b, 2).await;
    logs(&a, "coordinator is down", 1).await;
}

async fn until_more(server: &Server, name: &str, least: f64) {
    while server.metrics().await.sum(name, &[]) < least {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Reads the books as a replica would, and as one that leaves no trace.
async fn read(books: &mut Redis, seq: u32) -> Vec<Decoded> {
    let call = Call { leaves: true, ..super::contract::call("reader", seq, 0, 1_000, &[]) };
    let reply = books.tick(&call).await.unwrap();
    reply.members.iter().map(|member| record::decode(&member.record).unwrap()).collect()
}

/// Nothing in the books is about a request, so none can expire there while it runs.
#[tokio::test]
async fn a_request_that_outlives_every_entry_stays_counted() {
    let redis = RedisServer::start();
    let args = ["--runner", "simulated", "--slo-tpot", "none", "--coordinator", &redis.url()];
    let args =
        [&args[..], &["--coordinator-cluster", "long", "--coordinator-prefix", "p:"]].concat();
    let args = [&args[..], &["--max-model-len", "8192"]].concat();
    let server = Server::configured(COST, &args);
    until(&server, UP, &[], 1.0).await;
    let endless = json!({"prompt": "x", "max_tokens": 6_000, "ignore_eos": true, "stream": true});
    let exchange = server.begin(Method::POST, PATH, endless.to_string(), &[]).await;
    assert_eq!(exchange.response.status(), 200);
    let address: server::coordinator::address::Address = redis.url().parse().unwrap();
    let mut books = Redis::new(address.target(None).unwrap(), "p:", "long");
    books.connect().await.unwrap();
    let mut first = None;
    for seq in 1.. {
        let reports = read(&mut books, seq).await;
        assert_eq!(reports.len(), 1, "{reports:?}");
        let Decoded { seq: call, report, .. } = reports[0];
        if report.load.in_flight == 1 {
            assert_eq!(report.stage, Stage::Ready);
            // Three times as many calls as an entry lives for.
            if call > *first.get_or_insert(call) + 30 {
                break;
            }
        } else {
            assert_eq!(first, None, "it is not counted any more: {report:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(exchange);
    loop {
        let reports = read(&mut books, 1_000_000).await;
        if reports[0].report.load.in_flight == 0 {
            assert_eq!(reports[0].report.work(), scheduler::Micros(0));
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_full_replica_says_that_another_one_has_room() {
    let redis = RedisServer::start();
    let url = redis.url();
    let args = ["--runner", "simulated", "--slo-tpot", "none", "--coordinator", &url];
    let full = Arc::new(Server::configured(COST, &args));
    let idle = Server::configured(COST, &args);
    sees(&full, 2).await;
    let body = |number: u32| {
        let prompt: Vec<u32> =
            (0..200).map(|i| 40 + (number * 7 + i * (number + 1)) % 80).collect();
        json!({"prompt": prompt, "max_tokens": 4, "ignore_eos": true})
    };
    let mut clients = JoinSet::new();
    for number in 0..40 {
        let (server, body) = (Arc::clone(&full), body(number));
        clients.spawn(async move { server.post(PATH, &body).await });
    }
    let replies = clients.join_all().await;
    let shed: Vec<_> = replies.iter().filter(|reply| reply.status != 200).collect();
    assert!(shed.len() > 10, "{} of 40 were shed", shed.len());
    let busy = shed.iter().filter(|reply| reply.error()["code"] == "replica_busy");
    assert!(busy.count() > 5, "{}", shed[0].text());
    // Neither is a want of capacity of all of them.
    let reply = idle.post(PATH, &body(99)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}
