//! `serve --record` under mixed load, and `replay` of what it wrote.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use harness::Server;
use harness::process::run;
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Answers, refusals, several choices, several prompts, stops, and clients that leave.
async fn mixed_load(server: &Arc<Server>) {
    let mut clients = JoinSet::new();
    for i in 0..60u32 {
        let server = Arc::clone(server);
        clients.spawn(async move {
            let body = body(i);
            let deadline = format!("x-request-deadline-ms: {}", 1 + i * 13 % 400);
            let headers: &[&str] = if i % 3 == 0 { &[&deadline] } else { &[] };
            if i % 5 == 4 {
                // Dropped as soon as the answer begins.
                let path = "/v1/completions";
                drop(server.begin(Method::POST, path, body.to_string(), headers).await);
            } else {
                drop(server.post_with("/v1/completions", &body, headers).await);
            }
        });
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    clients.join_all().await;
    server.idle().await;
}

fn body(i: u32) -> Value {
    let secret = "the secret text of client ".repeat(1 + i as usize % 9);
    match i % 4 {
        0 => json!({"prompt": secret, "max_tokens": 1 + i % 90, "n": 1 + i % 3}),
        1 => json!({"prompt": [secret, "another"], "max_tokens": 40, "ignore_eos": true}),
        2 => json!({"prompt": secret, "max_tokens": 200, "stop": ["e", "7"], "stream": true}),
        _ => json!({"prompt": secret, "max_tokens": 120, "ignore_eos": true, "stream": true}),
    }
}

/// Records a server's life, and ends it.
async fn record(path: &Path, args: &[&str]) {
    let path = path.to_str().unwrap();
    let args = [&["--max-num-seqs", "4", "--record", path], args].concat();
    let mut server = Server::simulated(&args);
    let shared = Arc::new(server);
    mixed_load(&shared).await;
    server = Arc::into_inner(shared).unwrap();
    server.terminate();
    assert!(server.wait().success(), "{}", server.log());
}

#[tokio::test]
async fn every_decision_of_a_server_is_replayed_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sluice.rec");
    let shown = path.to_str().unwrap();
    for args in [&[][..], &["--admission", "none", "--scheduling-policy", "fcfs"]] {
        record(&path, args).await;
        let (status, text) = run(&["replay", shown]);
        assert!(status.success() && text.contains("all the same"), "{text}");
        assert!(text.contains("60 requests ("), "{text}");
        assert!(!text.contains("just stops"), "{text}");
    }
    // The first record was kept, and holds no text.
    let before = format!("{shown}.1");
    let (status, text) = run(&["replay", &before]);
    assert!(status.success() && text.contains("all the same"), "{text}");
    let bytes = fs::read(&before).unwrap();
    assert!(!bytes.windows(6).any(|window| window == b"secret"));
}

#[tokio::test]
async fn a_damaged_record_is_named_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sluice.rec");
    let shown = path.to_str().unwrap();
    record(&path, &[]).await;
    let whole = fs::read(&path).unwrap();

    let mut flipped = whole.clone();
    let middle = whole.len() / 2;
    flipped[middle] ^= 4;
    fs::write(&path, &flipped).unwrap();
    let (status, text) = run(&["replay", shown]);
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("damaged at byte") || text.contains("cut off at byte"), "{text}");

    fs::write(&path, &whole[..middle]).unwrap();
    let (_, text) = run(&["replay", shown]);
    assert!(text.contains("decisions compared: all the same"), "{text}");

    fs::write(&path, "no record at all").unwrap();
    let (status, text) = run(&["replay", shown]);
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("no record of sluice"), "{text}");
}

/// The three columns of the row called `name`.
fn row(text: &str, name: &str) -> [String; 3] {
    let row = text.lines().find_map(|line| line.trim().strip_prefix(name)).expect(text);
    let columns: Vec<String> = row.split_whitespace().map(str::to_owned).collect();
    columns.try_into().unwrap()
}

#[tokio::test]
async fn other_settings_are_tried_on_the_recorded_traffic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sluice.rec");
    let shown = path.to_str().unwrap();
    record(&path, &[]).await;
    let (status, text) = run(&["replay", shown, "--policy", "fcfs", "--admission", "none"]);
    assert!(status.success(), "{text}");
    assert_eq!(row(&text, "offered"), ["60"; 3]);
    for rule in ["own", "harm", "kind"] {
        let [_, _, whatif] = row(&text, &format!("refused: {rule}"));
        assert_eq!(whatif, "0", "a plain queue refuses nobody for being late:\n{text}");
    }
    // As tight a target as nobody can meet, where only the class promised something.
    let (status, text) = run(&["replay", shown, "--slo-ttft", "1us", "--safety-factor", "0.5"]);
    assert!(status.success(), "{text}");
    let met: [f64; 3] = row(&text, "in time").map(|count| count.parse().unwrap());
    assert!(met[2] < met[1], "{text}");
    let (status, text) = run(&["replay", shown, "--slo-tpot", "auto"]);
    assert!(!status.success() && text.contains("give a duration"), "{text}");
}

#[test]
fn a_record_that_cannot_be_written_is_known_before_the_model_is_loaded() {
    let (status, text) = run(&["serve", "--runner", "simulated", "--record", "/none/sluice.rec"]);
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("cannot record to /none/sluice.rec"), "{text}");
}
