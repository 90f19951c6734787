//! The laboratory's program: `cargo demo`, `cargo store-bench`, `cargo load-report`.

use std::{env, error::Error, io, path::Path, process::ExitCode};

use clap::{Parser, Subcommand};
use swarmkeep_lab::{demo, load, store_bench};

#[derive(Parser)]
#[command(name = "cargo", version, max_term_width = 110)]
struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// See it all at work: a tracker, a seeder and two fetchers on this machine.
    Demo(demo::Args),
    /// Run a part of a demo in this process.
    #[command(hide = true)]
    DemoPart(demo::PartArgs),
    /// Put a tracker under three loads and write a results file with charts.
    LoadReport(Box<load::Args>),
    /// Compare plain files and the block store, with and without the stripe cache: the benchmark of Norberg's
    /// paper.
    StoreBench(Box<store_bench::Args>),
    /// Measure one row of a store bench in this process.
    #[command(hide = true)]
    StoreBenchRow(store_bench::RowArgs),
}

fn main() -> ExitCode {
    // The demo calls this program by the names of those that it shows.
    let called = env::args_os().next().unwrap_or_default();
    match Path::new(&called).file_name().and_then(|name| name.to_str()) {
        Some("swarmkeep") => return swarmkeep_cli::main(),
        Some("seedkeep") => return seedkeep::main(),
        _ => {}
    }
    let done = match Lab::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::DemoPart(args) => demo::run_part(args).map(|never| match never {}),
        Command::LoadReport(args) => load::run(&args),
        Command::StoreBench(args) => store_bench::run(&args),
        Command::StoreBenchRow(args) => store_bench::run_row(&args),
    };
    match done {
        Ok(code) => code,
        // The reader of the output has seen enough of it.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
