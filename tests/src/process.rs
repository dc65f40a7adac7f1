//! A server as a child process.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use crate::binary::sluice;

/// What precedes the URL in the line that a server prints when it is ready.
const READY: &str = "is ready at ";

/// A hundred times faster than the default, so that tests need not wait.
const FAST: &str = "[simulated.cost]\nfixed_ns = 200_000\nper_seq_ns = 20_000\n\
    per_prefill_token_ns = 10_000\n";

/// Anything that takes longer than this hangs; far above what a loaded machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A `sluice serve` that ends with this value.
#[derive(Debug)]
pub struct Server {
    child: Child,
    url: String,
    log: Arc<Mutex<String>>,
    _config: NamedTempFile,
}

impl Server {
    /// Starts a server without a model: the simulated runner, a hundred times faster than the
    /// default, with `args` behind its own arguments.
    #[must_use]
    pub fn simulated(args: &[&str]) -> Self {
        Self::simulated_with(&[], args)
    }

    /// The same with these variables in its environment.
    #[must_use]
    pub fn simulated_with(variables: &[(&str, &OsStr)], args: &[&str]) -> Self {
        let args = [&["--runner", "simulated"], args].concat();
        Self::launch(variables, 0, FAST, &args)
    }

    /// Starts a server with the demo model on our own CPU kernels.
    ///
    /// # Panics
    /// If the model is not in the cache.
    #[must_use]
    pub fn demo_model(args: &[&str]) -> Self {
        let model = demo_model();
        assert!(model.exists(), "{} is missing: run `make model`", model.display());
        let model = model.to_string_lossy();
        Self::configured("", &[&[model.as_ref(), "--threads", "1"], args].concat())
    }

    /// Starts a server with this configuration file and these arguments, and waits until it is
    /// ready.
    ///
    /// # Panics
    /// If it does not get ready; shows its log.
    #[must_use]
    pub fn configured(config: &str, args: &[&str]) -> Self {
        Self::on_port(0, config, args)
    }

    /// The same on a port that is known before.
    ///
    /// # Panics
    /// As [`Server::configured`].
    #[must_use]
    pub fn on_port(port: u16, config: &str, args: &[&str]) -> Self {
        Self::launch(&[], port, config, args)
    }

    fn launch(variables: &[(&str, &OsStr)], port: u16, config: &str, args: &[&str]) -> Self {
        let mut file = NamedTempFile::with_suffix(".toml").unwrap();
        file.write_all(config.as_bytes()).unwrap();
        let mut child = command(args)
            .arg("--config")
            .arg(file.path())
            .args(["--port", &port.to_string()])
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        keep_log(child.stderr.take().unwrap(), Arc::clone(&log));
        let mut server = Self { child, url: String::new(), log, _config: file };
        server.url = server.wait_ready();
        server
    }

    fn wait_ready(&mut self) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = self.log();
            let url = log.lines().find_map(|line| line.split_once(READY)).map(|(_, url)| url);
            if let Some(url) = url {
                return url.trim().to_owned();
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended ({ended:?}):\n{log}");
            assert!(Instant::now() < deadline, "the server is not ready:\n{log}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// `http://127.0.0.1:PORT`
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What the server has written so far.
    ///
    /// # Panics
    /// If the thread that reads it has panicked.
    #[must_use]
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Sends SIGTERM, as an orchestrator does.
    ///
    /// # Panics
    /// If there is no `kill`.
    pub fn terminate(&self) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(status.success(), "the server is gone:\n{}", self.log());
    }

    /// Waits until the process has ended by itself.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not end:\n{}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

/// Runs `sluice` with `args` to its end; gives its exit status and all that it wrote.
///
/// # Panics
/// If it cannot be started or does not end.
#[must_use]
pub fn run(args: &[&str]) -> (ExitStatus, String) {
    let mut child =
        plain_command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let log = Arc::new(Mutex::new(String::new()));
    let readers = [
        keep_log(child.stdout.take().unwrap(), Arc::clone(&log)),
        keep_log(child.stderr.take().unwrap(), Arc::clone(&log)),
    ];
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("`sluice {args:?}` does not end:\n{}", log.lock().unwrap());
        }
        thread::sleep(Duration::from_millis(5));
    };
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    let text = log.lock().unwrap().clone();
    (status, text)
}

/// Where `make model` puts the demo model.
///
/// # Panics
/// If there is no home directory.
#[must_use]
pub fn demo_model() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache"),
        PathBuf::from,
    );
    cache.join("sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf")
}

fn command(args: &[&str]) -> Command {
    plain_command(&[&["serve"], args].concat())
}

/// Settings of whoever runs the tests must not leak into the server.
fn plain_command(args: &[&str]) -> Command {
    let mut command = Command::new(sluice());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SLUICE_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

fn keep_log(from: impl Read + Send + 'static, log: Arc<Mutex<String>>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut log = log.lock().unwrap();
            log.push_str(&line);
            log.push('\n');
        }
    })
}
