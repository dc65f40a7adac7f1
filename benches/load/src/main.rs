//! `sluice-load`: see `sluice-load --help` and the library's documentation.

use std::process::ExitCode;

use clap::Parser;
use load::{cli::Cli, commands};

/// One thread is enough for thousands of streams, and leaves the other cores to the server.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match commands::run(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}
