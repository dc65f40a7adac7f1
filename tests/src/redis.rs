//! Redis servers of a test's own: child processes on free ports, without persistence.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Anything that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A `redis-server` that ends with this value.
#[derive(Debug)]
pub struct RedisServer {
    child: Option<Child>,
    port: u16,
    args: Vec<String>,
    folder: TempDir,
}

impl RedisServer {
    /// Starts a server.
    #[must_use]
    pub fn start() -> RedisServer {
        RedisServer::with(&[])
    }

    /// Starts a server with further arguments.
    ///
    /// # Panics
    /// If there is no `redis-server`, or it does not get ready.
    #[must_use]
    pub fn with(args: &[&str]) -> RedisServer {
        let port = free_port();
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        RedisServer { child: None, port, args, folder: TempDir::new().unwrap() }.started()
    }

    /// Starts a sentinel that watches over `primary` under `service`, and replaces it when it has
    /// been gone for half a second.
    ///
    /// # Panics
    /// As [`RedisServer::with`].
    #[must_use]
    pub fn sentinel(primary: &RedisServer, service: &str) -> RedisServer {
        let server = RedisServer {
            child: None,
            port: free_port(),
            args: ["sentinel.conf", "--sentinel"].map(str::to_owned).into(),
            folder: TempDir::new().unwrap(),
        };
        let config = format!(
            "sentinel monitor {service} 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds {service} 500\n\
             sentinel failover-timeout {service} 2000\n",
            primary.port
        );
        std::fs::write(server.folder.path().join("sentinel.conf"), config).unwrap();
        server.started()
    }

    /// Starts a server that is a node of a Redis Cluster, of which it knows nobody else.
    ///
    /// # Panics
    /// As [`RedisServer::with`].
    #[must_use]
    pub fn node() -> RedisServer {
        RedisServer::with(&["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"])
    }

    fn started(mut self) -> RedisServer {
        self.restart();
        self
    }

    /// Starts it again, on the same port and with nothing in it.
    ///
    /// # Panics
    /// If it does not get ready.
    pub fn restart(&mut self) {
        self.kill();
        let port = self.port.to_string();
        // The file of a sentinel comes first.
        let split = self.args.iter().take_while(|arg| !arg.starts_with("--")).count();
        let (file, args) = self.args.split_at(split);
        let child = Command::new("redis-server")
            .args(file)
            .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--protected-mode", "no", "--loglevel", "warning"])
            .args(args)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.expect("redis-server is missing: apt-get install redis-server"));
        let deadline = Instant::now() + PATIENCE;
        // A server that asks for a password says so, and is there.
        while !["PONG", "NOAUTH"].iter().any(|word| self.cli(&["ping"]).contains(word)) {
            assert!(Instant::now() < deadline, "redis-server is not ready");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only if it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends it a signal, such as `STOP`.
    ///
    /// # Panics
    /// If it does not run, or there is no `kill`.
    pub fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap();
        assert!(status.success(), "redis-server is gone");
    }

    /// Runs a command by `redis-cli`, and gives what that prints.
    ///
    /// # Panics
    /// If there is no `redis-cli`.
    #[must_use]
    pub fn cli(&self, args: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(args)
            .output()
            .expect("redis-cli is missing: apt-get install redis-server");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// `redis://127.0.0.1:PORT`
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }
}

/// A port that nobody has, for a moment.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
