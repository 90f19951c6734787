//! The `swarmkeep` program.

use std::{error::Error, io, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};

mod check;
mod counting;
mod create;
mod demo;
mod import;
mod load;
mod peer;
mod serve;
mod settings;
mod shootout;
mod state;
mod store;
mod units;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting::new();

/// BitTorrent stores at work and measured: a tracker on a swarm store, content on a store that survives anything.
#[derive(Parser)]
#[command(name = "swarmkeep", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a BitTorrent tracker over UDP and HTTP.
    Serve(Box<serve::Args>),
    /// Print the settings that `serve` runs with, or all there are.
    Config(Box<serve::ConfigArgs>),
    /// Say what a tracker has kept for its next start.
    State(state::Args),
    /// Ask a tracker whether it answers.
    Check(check::Args),
    /// Take over the downloads that another tracker has counted.
    Import(import::Args),
    /// Put a tracker under load, check its answers and report.
    Load(Box<load::Args>),
    /// Make a torrent file of a file or a folder.
    Create(Box<create::Args>),
    /// Fetch torrents from other peers.
    Fetch(Box<peer::FetchArgs>),
    /// Seed torrents to other peers.
    Seed(Box<peer::SeedArgs>),
    /// Keep torrents' content on a block device, in an image, or in plain files.
    Store(Box<store::Args>),
    /// See it all at work: a tracker, a seeder and two fetchers on this machine.
    Demo(demo::Args),
    /// Run a part of a demo in this process.
    #[command(hide = true)]
    DemoPart(demo::PartArgs),
    /// Compare the swarm stores: time, tail latency and memory.
    Shootout(shootout::Args),
    /// Measure one row of a shootout in this process.
    #[command(hide = true)]
    ShootoutRow(shootout::RowArgs),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        // It reads the command line itself, again at each SIGHUP.
        Command::Serve(_) => serve::run().map(|()| ExitCode::SUCCESS),
        Command::Config(args) => serve::print_config(*args),
        Command::State(args) => state::run(&args),
        Command::Check(args) => check::run(args).map(|()| ExitCode::SUCCESS),
        Command::Import(args) => import::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Load(args) => load::run(*args),
        Command::Create(args) => create::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Fetch(args) => peer::fetch(&args),
        Command::Seed(args) => peer::seed(&args),
        Command::Store(args) => store::run(*args),
        Command::Demo(args) => demo::run(&args),
        Command::DemoPart(args) => demo::run_part(args).map(|never| match never {}),
        Command::Shootout(args) => shootout::run(args).map(|()| ExitCode::SUCCESS),
        Command::ShootoutRow(args) => shootout::run_row(args).map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        // Whoever read the output has seen enough of it.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("swarmkeep: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Ends the program for options that are wrong together, as clap does for those wrong by themselves: exit code 2.
fn refuse(message: String) -> ! {
    Cli::command().error(ErrorKind::ValueValidation, message).exit()
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
