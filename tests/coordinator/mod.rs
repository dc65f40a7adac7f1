//! Replicas that share what they know: the contract that both kinds of books keep, and real
//! servers with a real Redis between them, which dies, hangs and comes back.

mod contract;
mod kinds;
mod leases;
mod replicas;
mod security;

use std::time::{Duration, Instant};

use harness::Server;

/// Anything that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a series has a value.
async fn until(server: &Server, name: &str, labels: &[&str], value: f64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = server.metrics().await.sum(name, labels);
        if (now - value).abs() < 1e-9 {
            return;
        }
        assert!(Instant::now() < deadline, "{name}{labels:?} is {now}, not {value}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until a server sees so many others and itself.
async fn sees(server: &Server, ready: u32) {
    until(server, "inference_coordinator_peers", &["state=\"ready\""], ready.into()).await;
}

/// Waits until a server has written a line `count` times, and checks that it was not more often.
async fn logs(server: &Server, line: &str, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    let lines = || server.log().matches(line).count();
    while lines() < count {
        assert!(Instant::now() < deadline, "{} times `{line}`, not {count}", lines());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(lines(), count, "`{line}` in\n{}", server.log());
}

fn replica(url: &str, args: &[&str]) -> Server {
    Server::simulated(&[&["--coordinator", url, "--shutdown-delay", "500ms"], args].concat())
}
