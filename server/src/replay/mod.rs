//! `sluice replay`: what a record says, and whether this build would decide the same.

mod traffic;
mod verify;
mod whatif;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use scheduler::Micros;

use crate::config::{Admission, Safety, Target};
use whatif::Changes;

const EXAMPLES: &str = "\
Examples:
  sluice serve --record sluice.rec     record while serving
  sluice replay sluice.rec             are all decisions the same, bit for bit?
  sluice replay sluice.rec.1           the segment before
  sluice replay sluice.rec --policy fcfs --admission none
                                       what would a plain queue have done with this traffic?
  sluice replay sluice.rec --slo-ttft 800ms --safety-factor 0.8

Every input of the admission gate and of the scheduler is repeated, and each decision compared with
the recorded one. The exit status is 0 if all are the same, and 1 if some differ or the record is
damaged.

With a setting that differs from the recorded one, the recorded traffic is offered to a simulated
server instead, once with the recorded settings and once with the others: how far the former is from
what really happened is how far the latter can be trusted.";

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

    /// Settings instead of the recorded ones.
    #[command(flatten)]
    whatif: WhatIfFlags,
}

/// Settings instead of the recorded ones.
#[derive(Debug, Args)]
#[command(next_help_heading = "What if")]
struct WhatIfFlags {
    /// Who runs next
    #[arg(long, alias = "scheduling-policy", value_name = "POLICY")]
    #[arg(value_parser = scheduler::policy::NAMES)]
    policy: Option<String>,

    /// How the gate decides: deadline, none, queue-cap=REQUESTS ...
    #[arg(long, value_name = "POLICY")]
    admission: Option<Admission>,

    /// Class latency: arrival to first token, or none
    #[arg(long, value_name = "DURATION")]
    slo_ttft: Option<Target>,

    /// Class latency: mean gap between tokens, or none
    #[arg(long, value_name = "DURATION")]
    slo_tpot: Option<Target>,

    /// Class latency: arrival to last token, or none
    #[arg(long, value_name = "DURATION")]
    slo_e2e: Option<Target>,

    /// Share of a deadline that a forecast may use, both classes: auto, or such as 0.8
    #[arg(long, value_name = "FACTOR")]
    safety_factor: Option<Safety>,
}

impl WhatIfFlags {
    /// `None` if nothing is changed.
    fn changes(&self) -> anyhow::Result<Option<Changes>> {
        let changes = Changes {
            policy: self.policy.clone(),
            admission: self.admission.map(|admission| admission.0),
            ttft: self.slo_ttft.map(target).transpose()?,
            tpot: self.slo_tpot.map(target).transpose()?,
            e2e: self.slo_e2e.map(target).transpose()?,
            safety: self.safety_factor.map(|safety| match safety {
                Safety::Auto => None,
                Safety::Permille(permille) => Some(permille),
            }),
        };
        Ok((changes != Changes::default()).then_some(changes))
    }
}

fn target(target: Target) -> anyhow::Result<Option<Micros>> {
    match target {
        Target::None => Ok(None),
        Target::Within(span) => Ok(Some(Micros(u64::try_from(span.as_micros())?))),
        Target::Auto => bail!("`auto` was worked out when the server started; give a duration"),
    }
}

impl Replay {
    /// Replays every file and prints what came out.
    ///
    /// # Errors
    /// A file cannot be read at all.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        if let Some(changes) = self.whatif.changes()? {
            for file in &self.files {
                print!("{}", whatif::run(file, &changes)?);
            }
            return Ok(ExitCode::SUCCESS);
        }
        let mut all_good = true;
        for file in &self.files {
            let report = verify::verify(file, self.differences)?;
            print!("{report}");
            all_good &= report.is_good();
        }
        Ok(if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
