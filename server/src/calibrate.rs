//! `sluice calibrate`: measure, show the fit, write the profile.

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use anyhow::Context;
use engine::calibrate::Measurement;

use crate::cli::Calibrate;
use crate::launch;

/// Runs the command. The table goes to standard error, so that the profile can be redirected.
///
/// # Errors
/// One line that says what is wrong with the model, the memory, the configuration or the file.
pub fn run(command: &Calibrate) -> anyhow::Result<()> {
    let config = command.resolve()?;
    let (profile, measurement) =
        launch::calibrate(&config, command.name.as_deref(), command.budget)?;
    eprint!("{}", table(&measurement));
    let text = profile.to_toml();
    match &command.output {
        None => print!("{text}"),
        Some(path) => {
            let shown = path.display();
            fs::write(path, text).with_context(|| format!("cannot write the profile {shown}"))?;
            eprintln!("wrote {shown}; try `sluice serve --profile {shown}`");
        }
    }
    Ok(())
}

/// Measured against predicted, point by point.
fn table(measurement: &Measurement) -> String {
    let mut text = format!("{:<34}{:>12}{:>12}{:>10}\n", "step", "measured", "predicted", "error");
    for point in &measurement.points {
        writeln!(
            text,
            "{:<34}{:>12}{:>12}{:>8.1} %",
            point.name,
            millis(point.measured),
            millis(point.predicted),
            point.error_percent()
        )
        .expect("a String takes any text");
    }
    let (mean, largest) = measurement.errors_percent();
    let (points, steps) = (measurement.points.len(), measurement.steps);
    writeln!(
        text,
        "mean error {mean:.1} %, largest {largest:.1} % ({points} points, {steps} steps)"
    )
    .expect("a String takes any text");
    text
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;
    use engine::Profile;

    use super::*;
    use crate::cli::{Cli, Command};

    fn calibrate(args: &[&str]) -> Calibrate {
        let args = ["sluice", "calibrate"].iter().chain(args);
        match Cli::try_parse_from(args).expect("valid arguments").command {
            Command::Calibrate(calibrate) => *calibrate,
            other => panic!("{other:?} is another command"),
        }
    }

    /// What the fit is worth is tested where it is made: here time is that of a busy machine.
    #[test]
    fn a_measurement_becomes_a_profile() {
        let folder = tempfile::tempdir().expect("a directory");
        let said = folder.path().join("said.toml");
        let output = folder.path().join("found.toml");
        let text = "version = 1\nname = \"fast\"\n[cost]\nfixed_ns = 2_000_000\n\
            per_seq_ns = 100_000\nper_context_token_ps = 1_000_000\n\
            per_prefill_token_ns = 40_000\nper_prefill_span_ps = 30_000\n[limits]\n\
            num_blocks = 4_096\nblock_size = 16\nmax_model_len = 4_096\nmax_num_seqs = 16\n\
            max_num_batched_tokens = 256\n";
        fs::write(&said, text).expect("written");
        let paths = [said, output].map(|path| path.display().to_string());
        let flags = ["--runner", "simulated", "--profile", &paths[0], "--output", &paths[1]];
        run(&calibrate(&[&flags[..], &["--budget", "1s", "--name", "again"]].concat()))
            .expect("measured");
        let [said, found] = paths.map(|path| Profile::read(Path::new(&path)).expect("a profile"));
        assert_eq!((found.name.as_str(), found.limits), ("again", said.limits));
        assert_eq!(found.provenance.runner.as_deref(), Some("simulated"));
        let measured = &found.provenance;
        assert!(measured.steps >= measured.points && measured.points > Some(20));
        assert!(measured.measured_at.is_some() && measured.command.is_some());
    }

    #[test]
    fn a_profile_is_refused_where_it_would_be_ignored() {
        let error = calibrate(&["--profile", "x.toml"]).resolve().expect_err("for nothing");
        assert!(error.to_string().contains("--runner simulated"), "{error}");
    }
}
