//! `sluice-sim autoscale`.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::tables;
use super::world::Traffic;

/// Its arguments.
#[derive(Debug, Args)]
pub struct Autoscale {
    /// Which traffic; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    traffic: Vec<Traffic>,
    /// Of the noise.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw the replicas of the first traffic over time into this SVG file.
    #[arg(long)]
    plot: Option<PathBuf>,
}

impl Autoscale {
    /// Prints the tables, and draws.
    ///
    /// # Errors
    /// If something cannot be written.
    pub fn run(self, out: &mut impl Write) -> Result<()> {
        let all = Traffic::value_variants();
        let traffic = if self.traffic.is_empty() { all } else { &self.traffic };
        tables::print(traffic, self.seed, out)?;
        match &self.plot {
            Some(path) => tables::plot(traffic[0], self.seed, path),
            None => Ok(()),
        }
    }
}
