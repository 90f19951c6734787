//! The `swarmkeep` program as a library.

use std::{
    error::Error,
    io::{self, Write as _},
    path::PathBuf,
    process::{self, ExitCode},
};

use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use swarmkeep_bittorrent::{in_words, programs, say};

mod check;
mod import;
#[doc(hidden)]
pub mod load;
mod serve;
mod settings;
mod state;
mod token;
mod units;

/// A BitTorrent tracker over any swarm store, and tools for its operator.
#[derive(Parser)]
#[command(name = "swarmkeep", version = env!("VERSION"), max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a BitTorrent tracker over UDP and HTTP.
    Serve(Box<serve::Args>),
    /// Print the settings that `serve` uses, or all settings.
    Config(Box<serve::ConfigArgs>),
    /// Show the state that a tracker has kept for its next start.
    State(state::Args),
    /// Check whether a tracker answers.
    Check(check::Args),
    /// Print a new token for the admin address.
    Token(token::Args),
    /// Import the download counts of another tracker.
    Import(import::Args),
    /// Put a tracker under load, check its answers and report.
    Load(Box<load::Args>),
    /// Print the completions of a shell: `swarmkeep completions bash > /etc/bash_completion.d/swarmkeep`.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages into a folder: `swarmkeep man /usr/local/share/man/man1`.
    Man {
        /// The folder, which has to be there.
        folder: PathBuf,
    },
}

/// Runs the command of the command line.
pub fn main() -> ExitCode {
    let cli = command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = cli.unwrap_or_else(|error| plain(error).exit());
    let done = match cli.command {
        // It reads the command line itself, again at each SIGHUP.
        Command::Serve(_) => serve::run().map(|()| ExitCode::SUCCESS),
        Command::Config(args) => serve::print_config(*args),
        Command::State(args) => state::run(&args),
        Command::Check(args) => check::run(args).map(|()| ExitCode::SUCCESS),
        Command::Token(args) => token::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Import(args) => import::run(args).map(|()| ExitCode::SUCCESS),
        Command::Load(args) => load::run(&args),
        Command::Completions { shell } => {
            let mut completions = Vec::new();
            clap_complete::generate(shell, &mut command(), "swarmkeep", &mut completions);
            io::stdout().write_all(&completions).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
        Command::Man { folder } => clap_mangen::generate_to(for_pages(command()), &folder)
            .map(|()| ExitCode::SUCCESS)
            .map_err(|error| format!("{}: {error}", folder.display()).into()),
    };
    programs::end("swarmkeep", done)
}

/// The command line. `-h` has the first sentence on each option, `--help` all of them.
fn command() -> clap::Command {
    Cli::command().mut_subcommands(|command| {
        command.mut_args(|option| match option.get_help().map(ToString::to_string) {
            Some(whole) => {
                let first = whole.split(". ").next().unwrap_or_default().to_owned();
                option.help(first).long_help(whole)
            }
            None => option,
        })
    })
}

/// The command line for manual pages. By itself, their synopsis names options without their values.
fn for_pages(command: clap::Command) -> clap::Command {
    fn with_usage(mut command: clap::Command) -> clap::Command {
        let usage = command.render_usage().to_string();
        command.override_usage(usage.trim_start_matches("Usage: ").to_owned()).mut_subcommands(with_usage)
    }
    let mut command = command.disable_help_subcommand(true);
    command.build();
    with_usage(command)
}

/// The error of a wrong value, in words for a person instead of a library's.
pub(crate) fn plain(error: clap::Error) -> clap::Error {
    let Some(source) = error.source() else { return error };
    let (said, expected) = (source.to_string(), expected(source));
    if said == expected {
        return error;
    }
    let text = error.to_string().replacen(&said, &expected, 1);
    clap::Error::raw(error.kind(), text.trim_start_matches("error: "))
}

/// Which values are expected, from the error of a parser.
pub(crate) fn expected(error: &(dyn Error + 'static)) -> String {
    let text = error.to_string();
    match text.split_once(" is not in ").and_then(|(_, range)| range.split_once("..")) {
        Some((from, "")) => format!("expected a number from {from} on"),
        Some((from, to)) => format!("expected a number from {from} to {}", to.trim_start_matches('=')),
        None => in_words(&text),
    }
}

/// Ends the program with exit code 2 for options that conflict, as clap does for a single wrong option.
fn refuse(message: String) -> ! {
    eprintln!("swarmkeep: {}", in_words(&message));
    process::exit(2)
}

fn print_json(value: &impl serde::Serialize) -> Result<(), Box<dyn Error>> {
    say!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}
