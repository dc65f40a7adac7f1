//! A client that leaves frees all that it held, at whatever moment it leaves.

use std::sync::Arc;
use std::time::Duration;

use harness::{Reply, Server};
use http_body_util::BodyExt;
use hyper::Method;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

const DISCONNECTS: u64 = 1_000;
/// How many clients are there at a time: more than the server runs, so that some wait.
const CLIENTS: u64 = 50;

/// One client: asks for something and leaves after a time of its own choosing. It may leave before
/// the answer begins, between two tokens, or just after the end.
async fn leave_early(server: Arc<Server>, seed: u64) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let body = json!({
        "prompt": "word ".repeat(rng.random_range(1..60)),
        "max_tokens": rng.random_range(1..400),
        "n": rng.random_range(1..4),
        "ignore_eos": true,
        "stream": rng.random_bool(0.5),
    });
    let patience = Duration::from_micros(rng.random_range(0..40_000));
    let asked = async {
        let path = "/v1/completions";
        let mut exchange = server.begin(Method::POST, path, body.to_string(), &[]).await;
        while exchange.response.frame().await.is_some() {}
    };
    // Either way the connection is closed here.
    let _left_or_ended = timeout(patience, asked).await;
}

#[tokio::test]
async fn a_thousand_disconnects_leave_nothing_behind() {
    for admission in ["deadline", "none"] {
        let server =
            Arc::new(Server::simulated(&["--max-num-seqs", "16", "--admission", admission]));
        for wave in 0..DISCONNECTS / 2 / CLIENTS {
            let mut clients = JoinSet::new();
            for client in 0..CLIENTS {
                clients.spawn(leave_early(Arc::clone(&server), wave * CLIENTS + client));
            }
            while let Some(client) = clients.join_next().await {
                client.unwrap();
            }
        }
        let scrape = server.idle().await;
        let cancelled = scrape.sum("inference_requests_total", &["outcome=\"cancelled\""]);
        assert!(cancelled > 0.0, "nobody was cancelled: the test left too late");
        assert_accounted(&server).await;
        let reply = next_request(&server).await;
        assert_eq!(reply.json()["usage"]["completion_tokens"], 8, "{}", reply.text());
    }
}

/// Every request that the gate saw has one outcome.
async fn assert_accounted(server: &Server) {
    let scrape = server.idle().await;
    let accepted = scrape.sum("inference_admission_accepted_total", &[]);
    let outcomes = ["completed", "expired", "cancelled", "failed"];
    let ended: f64 = outcomes
        .iter()
        .map(|outcome| scrape.sum("inference_requests_total", &[&format!("outcome=\"{outcome}\"")]))
        .sum();
    assert_eq!(ended, accepted, "{outcomes:?} do not add up");
    let shed = scrape.sum("inference_requests_total", &["outcome=\"shed\""]);
    assert_eq!(shed, scrape.sum("inference_admission_rejected_total", &[]));
}

async fn next_request(server: &Server) -> Reply {
    let body = json!({"prompt": "still there?", "max_tokens": 8, "ignore_eos": true});
    server.post("/v1/completions", &body).await
}

#[tokio::test]
async fn clients_that_leave_a_queue_make_room() {
    // One sequence at a time, and answers that take far longer than this test may.
    let args = ["--max-num-seqs", "1", "--admission", "none", "--scheduling-policy", "fcfs"];
    let server = Server::configured("", &[&["--runner", "simulated"][..], &args].concat());
    let endless = json!({"prompt": "x", "max_tokens": 4_000, "ignore_eos": true, "stream": true});
    let endless = || server.begin(Method::POST, "/v1/completions", endless.to_string(), &[]);
    let running = endless().await;
    let waiting = endless().await;
    counts_become(&server, 1.0, 1.0).await;
    drop(waiting);
    counts_become(&server, 1.0, 0.0).await;
    drop(running);
    assert_eq!(next_request(&server).await.status, 200);
    server.idle().await;
}

/// Waits until so many sequences run and so many wait.
async fn counts_become(server: &Server, running: f64, waiting: f64) {
    let counts = ["vllm:num_requests_running", "vllm:num_requests_waiting"];
    server
        .metrics_where("the expected counts", |scrape| {
            counts.map(|name| scrape.sum(name, &[])) == [running, waiting]
        })
        .await;
}
