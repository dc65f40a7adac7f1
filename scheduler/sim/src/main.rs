//! `sluice-sim`: see `sluice-sim --help` and the library's documentation.

use anyhow::Result;
use clap::Parser;

fn main() -> Result<()> {
    sim::cli::run(sim::cli::Cli::parse())
}
