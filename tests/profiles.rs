//! Profiles: measured by one command, served by another.

use std::fs;
use std::path::PathBuf;

use harness::Server;
use harness::binary::workspace;
use harness::process::run;
use serde_json::json;

fn shipped() -> Vec<PathBuf> {
    let entries = fs::read_dir(workspace().join("profiles")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let profiles: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|ending| ending == "toml")).collect();
    assert!(profiles.len() >= 3);
    profiles
}

#[tokio::test]
async fn every_shipped_profile_serves() {
    for path in shipped() {
        let path = path.to_string_lossy();
        let server = Server::configured("", &["--runner", "simulated", "--profile", &path]);
        let body = json!({"prompt": "hello", "max_tokens": 3, "ignore_eos": true});
        let reply = server.post("/v1/completions", &body).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        assert_eq!(reply.json()["usage"]["completion_tokens"], 3);
    }
}

#[test]
fn a_profile_lies_below_what_is_said() {
    let path = workspace().join("profiles/h100-llama-3.1-8b.toml");
    let flags = ["serve", "--runner", "simulated", "--max-num-seqs", "7", "--print-config"];
    let (status, text) = run(&[&flags[..], &["--profile", &path.to_string_lossy()]].concat());
    assert!(status.success(), "{text}");
    for line in [
        "max_num_seqs = 7",
        "max_num_batched_tokens = 2048",
        "max_model_len = 131072",
        "num_blocks = 28125",
        "per_prefill_span_ps = 660",
    ] {
        assert!(text.lines().any(|printed| printed == line), "no {line:?} in\n{text}");
    }
}

#[test]
fn what_is_measured_can_be_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.toml");
    let path = path.to_string_lossy();
    let (status, text) =
        run(&["calibrate", "--runner", "simulated", "--budget", "1s", "--output", &path]);
    assert!(status.success(), "{text}");
    for part in ["decode of 32 at context 512", "measured", "predicted", "mean error"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let server = Server::configured("", &["--runner", "simulated", "--profile", &path]);
    assert!(server.log().contains("simulated on simulated"), "{}", server.log());
}
