//! A rolling restart of three replicas behind nginx, under load: no client of the official SDK
//! loses a request.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use harness::Server;
use harness::binary::workspace;
use serde_json::Value;
use tempfile::TempDir;

use crate::clients::clients;

const COST: &str =
    "[simulated.cost]\nfixed_ns = 2_000_000\nper_seq_ns = 20_000\nper_prefill_token_ns = 1_000\n";

/// nginx with the configuration that we ship; ends with this value.
struct Nginx {
    child: Child,
    _folder: TempDir,
}

impl Nginx {
    /// In front of `replicas`, on `port`.
    fn start(port: u16, replicas: &[u16]) -> Nginx {
        let shipped = workspace().join("server/deploy/nginx/sluice.conf");
        let mut site = fs::read_to_string(shipped).unwrap();
        for (i, replica) in replicas.iter().enumerate() {
            site =
                site.replace(&format!("127.0.0.1:800{}", i + 1), &format!("127.0.0.1:{replica}"));
        }
        let site = site.replace("listen 8000;", &format!("listen 127.0.0.1:{port};"));
        let folder = TempDir::new().unwrap();
        let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {kind};\n"))
            .concat();
        let main = format!(
            "daemon off;\nmaster_process off;\nworker_processes 1;\npid nginx.pid;\n\
             error_log error.log;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{site}}}\n"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, main).unwrap();
        let child = nginx(folder.path())
            .spawn()
            .unwrap_or_else(|error| panic!("nginx is missing (apt-get install nginx): {error}"));
        Nginx { child, _folder: folder }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn nginx(folder: &Path) -> Command {
    let mut command = Command::new("nginx");
    command.arg("-p").arg(folder).args(["-c", "nginx.conf", "-e", "error.log"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Ports that nobody uses now.
fn free_ports<const N: usize>() -> [u16; N] {
    let sockets = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    sockets.map(|socket| socket.local_addr().unwrap().port())
}

fn replica(port: u16) -> Server {
    let args = ["--runner", "simulated", "--slo-tpot", "none", "--shutdown-delay", "300ms"];
    Server::on_port(port, COST, &args)
}

#[test]
fn a_rolling_restart_loses_no_request() {
    let [python, _] = clients();
    let [front, ports @ ..] = free_ports::<4>();
    let mut replicas = ports.map(|port| Some(replica(port)));
    let _nginx = Nginx::start(front, &ports);
    let mut load = Command::new(python)
        .arg(workspace().join("tests/clients/rolling.py"))
        .arg(format!("http://127.0.0.1:{front}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(1));
    for (place, port) in replicas.iter_mut().zip(ports) {
        let mut old = place.take().unwrap();
        old.terminate();
        assert!(old.wait().success(), "{}", old.log());
        *place = Some(replica(port));
    }
    thread::sleep(Duration::from_millis(500));
    load.stdin.take().unwrap().write_all(b"stop\n").unwrap();
    let mut said = String::new();
    load.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(load.wait().unwrap().success(), "{said}");
    let result: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(result["lost"].as_array().map(Vec::len), Some(0), "{result}");
    assert!(result["served"].as_u64().unwrap() > 100, "{result}");
    println!("{result}");
}
