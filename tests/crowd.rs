//! A crowd of official OpenAI clients, most of which have to be refused at first.

use std::process::Command;

use harness::Server;
use harness::binary::workspace;
use serde_json::Value;

use crate::clients::{clients, expect_success};

const CLIENTS: u64 = 600;

/// 64 answers of 50 tokens at once take two seconds.
const TWO_SECONDS: &str = "max_num_seqs = 64\n[simulated.cost]\nper_context_token_ps = 0\n\
    fixed_ns = 37_000_000\nper_seq_ns = 40_000\nper_prefill_token_ns = 10_000\n";

/// First attempts that take longer than this to arrive are sent by a machine that is too busy to
/// send them, and to do what the simulated runner promises.
const QUIET_SECONDS: f64 = 2.5;

/// What became of a crowd.
struct Crowd {
    gave_up: u64,
    quiet: bool,
}

/// Sends the crowd to a server that misjudges the rate by `scale`.
fn send(scale: &str, hint: &str) -> Crowd {
    let [python, _] = clients();
    let args = ["--runner", "simulated", "--retry-after-scale", scale];
    let server = Server::configured(TWO_SECONDS, &args);
    let output = Command::new(python)
        .arg(workspace().join("tests/clients/crowd.py"))
        .args([server.url(), "--hint", hint, "--clients", &CLIENTS.to_string()])
        .output()
        .unwrap();
    expect_success(&output);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    println!("scale {scale}, hint {hint}: {report}");
    let arrived = report["arrived_within_s"].as_f64().unwrap();
    Crowd { gave_up: report["gave_up"].as_u64().unwrap(), quiet: arrived <= QUIET_SECONDS }
}

/// One after the other, so that they do not slow each other down. On a quiet machine nobody gives
/// up at either scale.
#[test]
fn a_crowd_is_served_where_a_constant_hint_loses_a_third() {
    let constant = send("1.0", "2").gave_up;
    assert!(constant >= CLIENTS / 10, "{constant} of {CLIENTS} gave up by a constant hint");
    for (scale, most) in [("1.0", CLIENTS / 100), ("0.667", CLIENTS / 50)] {
        let Crowd { gave_up, quiet } = send(scale, "server");
        let most = if quiet { most } else { constant - 1 };
        assert!(gave_up <= most, "{gave_up} of {CLIENTS} gave up at scale {scale}");
    }
}
