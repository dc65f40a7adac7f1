//! A start that fails says why in one line, and what to do about it.

use std::io::Write;
use std::net::TcpListener;

use harness::process::{demo_model, run};
use tempfile::NamedTempFile;

/// The start fails with one line that contains all of `expected`, and without a panic.
fn check(args: &[&str], expected: &[&str]) {
    let (status, text) = run(&[&["serve", "--port", "0"], args].concat());
    assert!(!status.success(), "{args:?} started:\n{text}");
    assert!(!text.contains("panicked"), "{text}");
    let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("error:")).collect();
    assert_eq!(errors.len(), 1, "{args:?}: one line should say what is wrong:\n{text}");
    for part in expected {
        assert!(text.contains(part), "{args:?}: no {part:?} in\n{text}");
    }
}

fn file(suffix: &str, content: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::with_suffix(suffix).unwrap();
    file.write_all(content).unwrap();
    file
}

#[test]
fn a_taken_port() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (status, text) = run(&["serve", "--runner", "simulated", "--port", &port]);
    assert!(!status.success());
    assert!(text.contains(&port) && text.contains("--port"), "{text}");
}

#[test]
fn a_model_that_is_not_there() {
    check(&["/no/such/model.gguf"], &["/no/such/model.gguf"]);
    check(&["/no/such/folder"], &["/no/such/folder"]);
}

#[test]
fn a_folder_without_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_string_lossy();
    check(&[&path], &["config.json"]);
}

#[test]
fn a_file_that_is_no_model() {
    let nothing = file(".gguf", b"");
    check(&[&nothing.path().to_string_lossy()], &[&nothing.path().to_string_lossy()]);
    let text = file(".gguf", b"this is not a model at all, whatever its name says");
    check(&[&text.path().to_string_lossy()], &[&text.path().to_string_lossy()]);
}

#[test]
fn a_model_that_is_cut_short_or_lies_about_its_size() {
    let whole = std::fs::read(demo_model()).unwrap();
    for bytes in [23, 4_096, 1_000_000, whole.len() / 2] {
        let cut = file(".gguf", &whole[..bytes]);
        check(&[&cut.path().to_string_lossy()], &[&cut.path().to_string_lossy()]);
    }
    // The count of metadata entries, at byte 16, says 2^60.
    let mut absurd = whole[..65_536].to_vec();
    absurd[16..24].copy_from_slice(&(1_u64 << 60).to_le_bytes());
    let absurd = file(".gguf", &absurd);
    check(&[&absurd.path().to_string_lossy()], &[]);
}

#[test]
fn a_misspelt_setting() {
    let config = file(".toml", b"max_num_seqz = 4\n");
    let path = config.path().to_string_lossy();
    check(&["--runner", "simulated", "--config", &path], &["max_num_seqz"]);
    let config = file(".toml", b"[class.latency]\nslo_ttft = \"soon\"\n");
    let path = config.path().to_string_lossy();
    check(&["--runner", "simulated", "--config", &path], &["slo_ttft", "soon"]);
    check(&["--runner", "simulated", "--config", "/no/such.toml"], &["/no/such.toml"]);
}

#[test]
fn a_value_that_makes_no_sense() {
    for (flag, value, expected) in [
        ("--scheduling-policy", "luck", "luck"),
        ("--slo-ttft", "soon", "--slo-ttft"),
        ("--max-num-seqs", "0", "max_num_seqs"),
        ("--overload-status", "200", "429, 503 or 529"),
        ("--kv-cache-memory", "many", "--kv-cache-memory"),
    ] {
        check(&["--runner", "simulated", flag, value], &[expected]);
    }
}

#[test]
fn a_profile_that_is_none() {
    let profile = "version = 1\nname = \"x\"\n[cost]\nfixed_ns = -5\nper_seq_ns = 1\n\
        per_context_token_ps = 1\nper_prefill_token_ns = 1\nper_prefill_span_ps = 1\n";
    for (text, expected) in [
        (profile, "-5"),
        (&profile.replace("-5", "1_000_000_000_000_000"), "would take"),
        (&profile.replace("version = 1", "version = 3"), "version 3"),
        ("hello", "is not a profile"),
    ] {
        let file = file(".toml", text.as_bytes());
        let path = file.path().to_string_lossy();
        check(&["--runner", "simulated", "--profile", &path], &[&path, expected]);
    }
    check(&["--runner", "simulated", "--profile", "/no/such.toml"], &["/no/such.toml"]);
}

#[test]
fn help_teaches() {
    for (command, parts) in [
        ("serve", ["--slo-ttft", "--admission", "Examples:", "curl"]),
        ("calibrate", ["--output", "--budget", "Examples:", "sluice serve --profile"]),
    ] {
        let (status, text) = run(&[command, "--help"]);
        assert!(status.success());
        for part in parts {
            assert!(text.contains(part), "no {part:?} in the help of {command}");
        }
    }
}
