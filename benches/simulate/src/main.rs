//! `cargo simulate`: prints the report, or says what is wrong.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use swarmkeep_simulate::{Args, run};

fn main() -> io::Result<ExitCode> {
    match run(&Args::parse()) {
        Ok(report) => io::stdout().write_all(report.as_bytes()).map(|()| ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("simulate: {error}");
            Ok(ExitCode::from(2))
        }
    }
}
