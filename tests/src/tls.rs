//! Certificates of a test's own, made by `openssl`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A root that nobody else knows, and a certificate of 127.0.0.1 that it has signed.
#[derive(Debug)]
pub struct Certificates(TempDir);

impl Certificates {
    /// Makes them.
    ///
    /// # Panics
    /// If there is no `openssl`.
    #[must_use]
    pub fn new() -> Certificates {
        const KEY: [&str; 5] =
            ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        let made = Certificates(TempDir::new().unwrap());
        let folder = made.0.path();
        fs::write(folder.join("names"), "subjectAltName = IP:127.0.0.1\n").unwrap();
        let root = ["req", "-x509", "-days", "1", "-subj", "/CN=root"];
        openssl(folder, &[&root, &KEY[..], &["-keyout", "root.key", "-out", "root.pem"]].concat());
        let ask = ["req", "-subj", "/CN=server", "-keyout", "server.key", "-out", "server.csr"];
        openssl(folder, &[&ask, &KEY[..]].concat());
        let sign = ["x509", "-req", "-in", "server.csr", "-out", "server.pem", "-days", "1"];
        let by = ["-CA", "root.pem", "-CAkey", "root.key", "-CAcreateserial", "-extfile", "names"];
        openssl(folder, &[&sign[..], &by].concat());
        made
    }

    /// The root, as a file of PEM.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.0.path().join("root.pem")
    }

    /// What a `redis-server` takes to answer with the certificate on `port` as well.
    #[must_use]
    pub fn redis(&self, port: u16) -> Vec<String> {
        let file = |name: &str| self.0.path().join(name).to_string_lossy().into_owned();
        [
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", file("server.pem")),
            ("--tls-key-file", file("server.key")),
            ("--tls-ca-cert-file", file("root.pem")),
            ("--tls-auth-clients", "no".to_owned()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
    }
}

impl Default for Certificates {
    fn default() -> Certificates {
        Certificates::new()
    }
}

fn openssl(folder: &Path, args: &[&str]) {
    let command = Command::new("openssl").args(args).current_dir(folder).output();
    let output = command.expect("openssl is missing: apt-get install openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
