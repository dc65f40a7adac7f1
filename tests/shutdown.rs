//! SIGTERM ends a server in order: what runs may finish, nothing new begins, the exit is clean.

use std::time::Duration;

use harness::Server;
use harness::process::run;
use http_body_util::BodyExt;
use hyper::Method;
use serde_json::json;

const PATH: &str = "/v1/completions";

/// About a second of decoding on the simulated machine.
fn long_stream() -> String {
    json!({"prompt": "x", "max_tokens": 1_000, "ignore_eos": true, "stream": true}).to_string()
}

fn simulated(args: &[&str]) -> Server {
    let cost =
        "[simulated.cost]\nfixed_ns = 1_000_000\nper_seq_ns = 0\nper_prefill_token_ns = 10_000\n";
    Server::configured(cost, &[&["--runner", "simulated", "--slo-tpot", "none"], args].concat())
}

#[tokio::test]
async fn running_streams_finish_and_the_exit_is_clean() {
    let mut server = simulated(&["--shutdown-delay", "0s"]);
    let exchange = server.begin(Method::POST, PATH, long_stream(), &[]).await;
    assert_eq!(exchange.response.status(), 200);
    server.terminate();
    let body = exchange.response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&body);
    assert!(text.ends_with("data: [DONE]\n\n"), "cut: ...{}", &text[text.len().min(200)..]);
    assert!(server.wait().success(), "{}", server.log());
}

#[tokio::test]
async fn a_server_that_ends_is_not_ready_but_answers() {
    let server = simulated(&["--shutdown-delay", "10s"]);
    let exchange = server.begin(Method::POST, PATH, long_stream(), &[]).await;
    server.terminate();
    let mut ready = server.get("/readyz").await;
    for _ in 0..500 {
        if ready.status != 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        ready = server.get("/readyz").await;
    }
    assert_eq!(ready.status, 503);
    assert_eq!(server.get("/livez").await.status, 200);
    drop(exchange);
}

#[tokio::test]
async fn streams_that_outlast_the_grace_end_in_an_error_and_not_in_silence() {
    let mut server = simulated(&["--shutdown-delay", "0s", "--grace", "100ms"]);
    let exchange = server.begin(Method::POST, PATH, long_stream(), &[]).await;
    server.terminate();
    let body = exchange.response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&body);
    let last = text.trim_end().rsplit("\n\n").next().unwrap_or("");
    assert!(last.contains("\"error\""), "the stream ends with {last}");
    assert!(server.wait().success(), "{}", server.log());
}

#[test]
fn an_idle_server_ends_at_once() {
    let mut server = simulated(&["--shutdown-delay", "0s"]);
    server.terminate();
    assert!(server.wait().success(), "{}", server.log());
}

/// What a preStop hook does, and what the signal that follows it finds.
#[tokio::test]
async fn drain_answers_when_the_last_answer_is_complete() {
    let mut server = simulated(&["--shutdown-delay", "0s"]);
    let exchange = server.begin(Method::POST, PATH, long_stream(), &[]).await;
    let reader = tokio::spawn(exchange.response.into_body().collect());
    let reply = server.send(Method::POST, "/drain", "", &[]).await;
    assert_eq!(reply.json(), json!({"drained": true, "in_flight": 0}));
    let body = reader.await.unwrap().unwrap().to_bytes();
    assert!(body.ends_with(b"data: [DONE]\n\n"), "the answer was cut");
    assert_eq!(server.get("/readyz").await.status, 503);
    assert_eq!(server.get("/health").await.status, 200);
    let refused = server.post(PATH, &json!({"prompt": "x"})).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, "2"));
    assert_eq!(refused.error()["code"], "draining");
    assert_eq!(refused.header("connection"), "close");
    server.terminate();
    assert!(server.wait().success(), "{}", server.log());
}

#[tokio::test]
async fn drain_gives_up_after_the_grace_and_says_what_is_left() {
    let server = simulated(&["--shutdown-delay", "0s", "--shutdown-timeout", "0"]);
    let exchange = server.begin(Method::POST, PATH, long_stream(), &[]).await;
    let reply = server.send(Method::POST, "/drain", "", &[]).await;
    assert_eq!(reply.json(), json!({"drained": false, "in_flight": 1}));
    drop(exchange);
}

/// Whoever can reach the server must not be able to end it: not through a proxy, and not from a
/// page in a browser on the same machine.
#[tokio::test]
async fn only_the_machine_itself_may_drain() {
    let server = simulated(&[]);
    for header in ["x-forwarded-for: 10.0.0.1", "forwarded: for=10.0.0.1", "origin: http://a.b"] {
        let reply = server.send(Method::POST, "/drain", "", &[header]).await;
        assert_eq!((reply.status, reply.error()["code"].as_str()), (403, Some("not_local")));
    }
    assert_eq!(server.get("/drain").await.status, 405);
    assert_eq!(server.get("/readyz").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_drains_the_server_on_its_port() {
    let server = simulated(&["--shutdown-delay", "0s"]);
    let port = server.url().rsplit(':').next().unwrap().to_owned();
    let (status, said) = run(&["drain", "--port", &port]);
    assert!(status.success() && said.contains("\"drained\":true"), "{said}");
    assert_eq!(server.get("/readyz").await.status, 503);
    let (status, said) = run(&["drain", "--port", "1"]);
    assert!(!status.success() && said.contains("127.0.0.1:1"), "{said}");
}
