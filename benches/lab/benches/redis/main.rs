//! The store on Redis beside the design that trackers on Redis usually have.
//!
//! `cargo bench -p swarmkeep-lab --bench redis -- --markdown docs/reports/redis-bench.md` measures all of it
//! and writes the document; `--only announces`, `fleet`, `hot` or `bytes` measures one table, `--seconds N`
//! and `--turns N` set the duration. It starts its own servers on loopback. Compared designs take turns on
//! one server, because other programs of the machine then affect all of them; Criterion does not take turns,
//! so this prints its own tables of medians.
//!
//! [`naive`] describes the other design, and where it was made cheaper than it is.

use std::{env, error::Error, fs, path::Path, process::ExitCode, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Signal, set_parent_process_death_signal};
use swarmkeep_lab::Arguments;
use swarmkeep_servers::Server;
use tokio::runtime::Runtime;

mod agree;
mod announces;
mod bytes;
mod drive;
mod fleet;
mod hot;
mod naive;
mod report;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// A part measures one table, and returns its section of the document.
type Part = fn(&Bench) -> Result<String>;

const PARTS: [(&str, Part); 4] = [
    ("announces", announces::measure),
    ("fleet", fleet::measure),
    ("hot", hot::measure),
    ("bytes", bytes::measure),
];

/// The settings of all parts.
pub(crate) struct Bench {
    pub(crate) runtime: Runtime,
    pub(crate) test: bool,
    /// The duration of a run. In each turn, each compared design has one.
    pub(crate) during: Duration,
    pub(crate) turns: usize,
    bar: ProgressBar,
}

impl Bench {
    /// Shows the work in progress.
    pub(crate) fn say(&self, what: String) {
        self.bar.set_message(what);
    }
}

fn main() -> Result<ExitCode> {
    // A part measures a tracker, which is this program.
    if env::args().next().as_deref() == Some("swarmkeep") {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        return Ok(swarmkeep_cli::main());
    }
    bench()?;
    Ok(ExitCode::SUCCESS)
}

fn bench() -> Result<()> {
    let arguments = Arguments::of_bench();
    let seconds: f64 = arguments.number("--seconds", 0.05, 2.0);
    let turns: usize = arguments.number("--turns", 1, 3);
    let only = arguments.after("--only");
    if let Some(only) = only
        && !PARTS.iter().any(|(name, _)| *name == only)
    {
        let names = PARTS.map(|(name, _)| name).join(", ");
        return Err(format!("--only {only}: there are {names}").into());
    }
    match Server::start() {
        Err(missing @ swarmkeep_servers::Error::NotInstalled { .. }) if env::var_os("CI").is_none() => {
            eprintln!("NOTHING IS MEASURED: {missing}");
            return Ok(());
        }
        started => drop(started?),
    }

    let parts: Vec<_> = PARTS.into_iter().filter(|(name, _)| only.is_none_or(|only| only == *name)).collect();
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} [{elapsed}] {msg}")?;
    let bar = ProgressBar::new(parts.len() as u64).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    let bench = Bench {
        runtime: drive::runtime()?,
        test: arguments.test,
        during: Duration::from_secs_f64(seconds),
        turns: turns.max(1),
        bar,
    };
    bench.say("asking both designs the same".to_owned());
    agree::check(&bench)?;
    // The flags on which the document depends.
    let flags = arguments.flags().map(|flag| format!(" {flag}")).collect::<String>();
    let command = format!("cargo bench -p swarmkeep-lab --bench redis --{flags}");
    let mut text = report::introduction(&command, seconds, bench.turns)?;
    for (_, measure) in parts {
        let section = measure(&bench)?;
        bench.bar.suspend(|| println!("{section}"));
        text = text + "\n" + &section;
        bench.bar.inc(1);
        // After each part, so that none is lost if a later one fails.
        if let Some(path) = arguments.after("--markdown") {
            // Benches run in the folder of their package, and the path is of the workspace.
            fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path), &text)?;
        }
    }
    bench.bar.finish_and_clear();
    Ok(())
}
