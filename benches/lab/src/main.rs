//! The laboratory's program: `cargo store-bench`, `cargo load-report`.

use std::{env, io, process::ExitCode};

use clap::{Parser, Subcommand};
use swarmkeep_bittorrent::programs::end;
use swarmkeep_lab::{content::child::answer, load, store_bench};

#[derive(Parser)]
#[command(name = "cargo", version, max_term_width = 110)]
struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Put a tracker under three loads and write a results file with charts.
    LoadReport(Box<load::Args>),
    StoreBench(Box<store_bench::Args>),
    /// Measure one row of a store bench in this process.
    #[command(hide = true)]
    StoreBenchRow {
        /// The options and the row, as JSON.
        plan: String,
    },
}

fn main() -> ExitCode {
    // A test starts a tracker by this name.
    if env::args_os().next().is_some_and(|called| called == "swarmkeep") {
        return swarmkeep_cli::main();
    }
    let done = match Lab::parse().command {
        Command::LoadReport(args) => load::run(&args),
        Command::StoreBench(args) => store_bench::run(&args),
        Command::StoreBenchRow { plan } => {
            answer(&plan, io::stdout().lock()).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
    };
    end("error", done)
}
