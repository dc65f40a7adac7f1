//! `sluice drain`: asks a server on this machine to end in order what it has. An image needs no
//! other tool for a `preStop` hook.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::Args;

/// `sluice drain`.
#[derive(Clone, Copy, Debug, Args)]
pub struct Drain {
    /// Port of the server on 127.0.0.1
    #[arg(long, env = "SLUICE_PORT", default_value_t = 8000)]
    port: u16,
}

impl Drain {
    /// Returns when nothing is in flight any more, or when the server's time for it is over, which
    /// is a failure.
    ///
    /// # Errors
    /// There is no server, or it does not drain.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let answer = self.ask().with_context(|| {
            format!("cannot drain a server at 127.0.0.1:{}; is another --port meant?", self.port)
        })?;
        let (head, body) = answer.split_once("\r\n\r\n").context("not an answer in HTTP")?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        ensure!(status == "200", "the server answered {status}: {}", body.trim());
        println!("{}", body.trim());
        Ok(if body.contains("\"drained\":true") { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn ask(self) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        let head = "POST /drain HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n";
        write!(stream, "{head}connection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if answer.is_empty() {
            bail!("the server ended without an answer");
        }
        Ok(answer)
    }
}
