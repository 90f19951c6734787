//! The `seedkeep` program as a library.

use std::{
    fmt::Display,
    io::{self, Write as _},
    path::PathBuf,
    process::{self, ExitCode},
    str::FromStr,
};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use futures_util::future::select_all;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use swarmkeep_bittorrent::{in_words, programs};
use tokio::signal::unix::{Signal, SignalKind, signal};

mod cache;
mod create;
mod kept;
mod news;
mod peer;
mod seed;
mod store;

/// Make, seed and fetch torrents, and keep their content on a store that survives a crash at any moment.
#[derive(Parser)]
#[command(name = "seedkeep", version = env!("VERSION"), max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Create(Box<create::Args>),
    Fetch(Box<peer::FetchArgs>),
    Seed(Box<seed::Args>),
    Store(Box<store::Args>),
    /// Print the completions of a shell: `seedkeep completions bash > /etc/bash_completion.d/seedkeep`.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages into a folder: `seedkeep man /usr/local/share/man/man1`.
    Man {
        /// The folder, which has to be there.
        folder: PathBuf,
    },
}

/// Runs the command line.
pub fn main() -> ExitCode {
    // Most systems give programs that can use more than 1,024 descriptors as many as they ask for.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let done = match Cli::parse().command {
        Command::Create(args) => create::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Fetch(args) => peer::fetch(&args),
        Command::Seed(args) => seed::run(&args),
        Command::Store(args) => store::run(*args),
        Command::Completions { shell } => {
            let mut completions = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "seedkeep", &mut completions);
            io::stdout().write_all(&completions).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
        Command::Man { folder } => clap_mangen::generate_to(for_pages(Cli::command()), &folder)
            .map(|()| ExitCode::SUCCESS)
            .map_err(|error| format!("{}: {error}", folder.display()).into()),
    };
    programs::end("seedkeep", done)
}

/// The value of an option, or the error of its parser in words.
fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| in_words(&error))
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

/// The signals that end the program.
struct Signals(Vec<Signal>);

impl Signals {
    fn new(kinds: impl IntoIterator<Item = SignalKind>) -> io::Result<Self> {
        kinds.into_iter().map(signal).collect::<Result<_, _>>().map(Self)
    }

    async fn any(&mut self) {
        select_all(self.0.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
    }
}

/// Ends the program with exit code 2 for options that conflict, as clap does for a single wrong option.
fn refuse(message: String) -> ! {
    eprintln!("seedkeep: {}", in_words(&message));
    process::exit(2)
}

#[cfg(test)]
#[test]
fn messages_of_wrong_values_have_no_words_of_programmers() {
    let mut commands = vec![Cli::command()];
    let mut refused = 0;
    while let Some(command) = commands.pop() {
        commands.extend(command.get_subcommands().cloned());
        for option in command.get_arguments().filter_map(|option| option.get_long()) {
            let values =
                ["", "0", "-1", "abc", "99999999999999999999", "1.5", "\u{e9}", "1 2", "[::1", "1XiB"];
            for value in values {
                let given = [format!("--{option}={value}")];
                let Err(error) = command.clone().no_binary_name(true).try_get_matches_from(given) else {
                    continue;
                };
                swarmkeep_store_tests::assert_plain(&error.to_string());
                refused += 1;
            }
        }
    }
    assert!(refused > 300, "{refused}");
}
