//! The official OpenAI clients, Python and npm, against a real server.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use harness::Server;
use harness::binary::workspace;

/// The Python interpreter and the folder with `node_modules`, installed into the cache at need.
pub(crate) fn clients() -> [PathBuf; 2] {
    let output = Command::new(workspace().join("tests/clients/install.sh"))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "cannot install the clients: see above");
    let paths = String::from_utf8(output.stdout).unwrap();
    let mut paths = paths.lines().map(PathBuf::from);
    [paths.next().unwrap(), paths.next().unwrap()]
}

pub(crate) fn expect_success(output: &Output) {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
}

#[test]
fn the_python_suite_passes() {
    let [python, _] = clients();
    let server = Server::demo_model(&["--served-model-name", "demo", "--max-model-len", "1024"]);
    let output = Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "120"])
        .arg(workspace().join("tests/python"))
        .env("SLUICE_URL", server.url())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    expect_success(&output);
}

#[test]
fn the_npm_client_works() {
    let [_, node_folder] = clients();
    let server = Server::demo_model(&["--served-model-name", "demo"]);
    let output = Command::new("node")
        .arg(workspace().join("tests/clients/smoke.cjs"))
        .env("SLUICE_URL", server.url())
        .env("NODE_PATH", node_folder.join("node_modules"))
        .output()
        .unwrap();
    expect_success(&output);
}
