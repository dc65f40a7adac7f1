//! `sluice`: the command line.

use std::process::ExitCode;

use clap::Parser;
use server::cli::{Cli, Command};
use server::{calibrate, log, serve};

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let serve = match cli.command {
        Command::Version => {
            println!("sluice {}", env!("CARGO_PKG_VERSION"));
            return Ok(ExitCode::SUCCESS);
        }
        Command::Drain(drain) => return drain.run(),
        Command::Replay(replay) => return replay.run(),
        Command::Calibrate(calibrate) => {
            calibrate::run(&calibrate)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Serve(serve) => serve,
    };
    let config = serve.resolve()?;
    if serve.print_config {
        print!("{}", config.to_toml()?);
        return Ok(ExitCode::SUCCESS);
    }
    log::init(config.log_format);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve::run(config))?;
    Ok(ExitCode::SUCCESS)
}
