//! Redis as it is run where it matters: behind TLS, watched by sentinels, and as a cluster.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use harness::Server;
use harness::redis::{RedisServer, free_port};
use harness::tls::Certificates;
use serde_json::json;

use super::{PATIENCE, logs, replica, sees, until};

const UP: &str = "inference_coordinator_up";

async fn is_served(server: &Server) {
    let body = json!({"prompt": "x", "max_tokens": 2});
    assert_eq!(server.post("/v1/completions", &body).await.status, 200);
}

/// Asks a Redis until its answer contains `word`.
fn answers(redis: &RedisServer, question: &[&str], word: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !redis.cli(question).contains(word) {
        assert!(Instant::now() < deadline, "{question:?}: {}", redis.cli(question));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test]
async fn replicas_meet_over_tls_where_the_root_is_known() {
    let (port, certificates) = (free_port(), Certificates::new());
    let args = certificates.redis(port);
    let _redis = RedisServer::with(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let url = format!("rediss://127.0.0.1:{port}");
    let root = certificates.root();
    let start = |root: &std::path::Path| {
        Server::simulated_with(&[("SSL_CERT_FILE", root.as_os_str())], &["--coordinator", &url])
    };
    let (a, b) = (start(&root), start(&root));
    sees(&a, 2).await;
    sees(&b, 2).await;
    // Somebody else's root: said once, with the reason, and requests feel nothing.
    let stranger = start(&Certificates::new().root());
    logs(&stranger, "coordinator lets nobody in", 1).await;
    for said in ["invalid peer certificate", "SSL_CERT_FILE"] {
        assert!(stranger.log().contains(said), "{}", stranger.log());
    }
    until(&stranger, UP, &[], 0.0).await;
    is_served(&stranger).await;
    sees(&a, 2).await;
}

#[tokio::test]
async fn a_primary_is_asked_of_the_sentinels_and_so_is_the_next_one() {
    let mut primary = RedisServer::with(&["--repl-diskless-sync-delay", "0"]);
    let port = primary.port().to_string();
    let second = RedisServer::with(&["--replicaof", &format!("127.0.0.1 {port}")]);
    let sentinel = RedisServer::sentinel(&primary, "books");
    answers(&second, &["info", "replication"], "master_link_status:up");
    let second_port = second.port().to_string();
    answers(&sentinel, &["sentinel", "replicas", "books"], &second_port);
    let watched = format!("redis+sentinel://127.0.0.1:{}/books", sentinel.port());
    let (a, b) = (replica(&watched, &[]), replica(&watched, &[]));
    sees(&a, 2).await;
    assert_ne!(primary.cli(&["dbsize"]), "0", "it is the primary that has the books");
    primary.kill();
    until(&a, UP, &[], 0.0).await;
    is_served(&a).await;
    until(&a, UP, &[], 1.0).await;
    until(&b, UP, &[], 1.0).await;
    sees(&a, 2).await;
    sees(&b, 2).await;
    answers(&second, &["info", "replication"], "role:master");
    logs(&a, "coordinator is down", 1).await;
    logs(&a, "coordinator is up", 2).await;
}

#[tokio::test]
async fn a_service_that_no_sentinel_knows_is_named_in_the_log() {
    let primary = RedisServer::start();
    let sentinel = RedisServer::sentinel(&primary, "books");
    let server = replica(&format!("redis+sentinel://127.0.0.1:{}/bokos", sentinel.port()), &[]);
    logs(&server, "coordinator is down", 1).await;
    assert!(server.log().contains("do not know this service"), "{}", server.log());
    is_served(&server).await;
}

/// All keys of one cluster of replicas lie in one slot, so one script may use them.
fn one_slot(redis: &RedisServer) {
    let keys = redis.cli(&["keys", "*"]);
    let slots: BTreeSet<String> =
        keys.lines().map(|key| redis.cli(&["cluster", "keyslot", key])).collect();
    assert_eq!(slots.len(), 1, "{keys}");
}

#[tokio::test]
async fn a_cluster_of_one_node_keeps_the_books_in_one_slot() {
    let node = RedisServer::node();
    assert_eq!(node.cli(&["cluster", "addslotsrange", "0", "16383"]), "OK");
    answers(&node, &["cluster", "info"], "cluster_state:ok");
    let (a, b) = (replica(&node.url(), &[]), replica(&node.url(), &[]));
    sees(&a, 2).await;
    sees(&b, 2).await;
    one_slot(&node);
    logs(&a, "coordinator is down", 0).await;
}

#[tokio::test]
async fn either_node_of_a_cluster_leads_to_the_same_books() {
    let (one, two) = (RedisServer::node(), RedisServer::node());
    assert_eq!(one.cli(&["cluster", "addslotsrange", "0", "8191"]), "OK");
    assert_eq!(two.cli(&["cluster", "addslotsrange", "8192", "16383"]), "OK");
    assert_eq!(one.cli(&["cluster", "meet", "127.0.0.1", &two.port().to_string()]), "OK");
    for node in [&one, &two] {
        answers(node, &["cluster", "info"], "cluster_state:ok");
    }
    let (a, b) = (replica(&one.url(), &[]), replica(&two.url(), &[]));
    sees(&a, 2).await;
    sees(&b, 2).await;
    let full: Vec<&RedisServer> =
        [&one, &two].into_iter().filter(|node| node.cli(&["dbsize"]) != "0").collect();
    assert_eq!(full.len(), 1, "one of them has the books");
    one_slot(full[0]);
    for server in [&a, &b] {
        // Where to go is found out while connecting, and is no failure.
        logs(server, "coordinator is down", 0).await;
        until(server, UP, &[], 1.0).await;
        is_served(server).await;
    }
}
