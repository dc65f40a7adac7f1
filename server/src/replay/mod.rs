//! `sluice replay`: what a record says, and whether this build would decide the same.

mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  sluice serve --record sluice.rec     record while serving
  sluice replay sluice.rec             are all decisions the same, bit for bit?
  sluice replay sluice.rec.1           the segment before

Every input of the admission gate and of the scheduler is repeated, and each decision compared with
the recorded one. The exit status is 0 if all are the same, and 1 if some differ or the record is
damaged.";

/// `sluice replay`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Replay {
    /// Segments of a record; each is replayed by itself
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Most differences to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    differences: usize,
}

impl Replay {
    /// Replays every file and prints what came out.
    ///
    /// # Errors
    /// A file cannot be read at all.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let mut all_good = true;
        for file in &self.files {
            let report = verify::verify(file, self.differences)?;
            print!("{report}");
            all_good &= report.is_good();
        }
        Ok(if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
