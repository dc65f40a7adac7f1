//! What is in `server/deploy`: documents against published schemas, names against the server, and
//! queries against a Prometheus that scrapes two replicas under overload.

use std::process::{Command, Stdio};

use harness::Server;
use harness::binary::{sluice, workspace};

use crate::clients::expect_success;

#[test]
fn manifests_queries_and_the_dashboard_are_right() {
    let output = Command::new(workspace().join("tests/deploy/install.sh"))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "cannot install what checks the manifests: see above");
    let python = String::from_utf8(output.stdout).unwrap();
    let cost = "[simulated.cost]\nfixed_ns = 5_000_000\nper_seq_ns = 1_000_000\n\
                per_prefill_token_ns = 200_000\n";
    let args = ["--runner", "simulated", "--max-num-seqs", "8"];
    let replicas = [(); 2].map(|()| Server::configured(cost, &args));
    let output = Command::new(python.trim())
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout"])
        .args(["--timeout", "120"])
        .arg(workspace().join("tests/deploy"))
        .env("SLUICE_URLS", format!("{},{}", replicas[0].url(), replicas[1].url()))
        .env("SLUICE_BIN", sluice())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // One of the packages brings a plugin that wants more packages.
        .env("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        .output()
        .unwrap();
    expect_success(&output);
}
