//! The store on Redis beside the design that trackers on Redis usually have, beside `redis-benchmark`, and by
//! itself.
//!
//! `cargo bench -p swarmkeep-lab --bench redis -- --markdown docs/reports/redis-bench.md` measures all of it
//! and writes the document; `--only announces`, `fleet`, `bytes`, `encodings`, `client`, `hot` or `shards` a
//! part of it, `--json FILE` the numbers, `--seconds N` and `--turns N` say how long. It starts servers of
//! its own on loopback. What is compared takes turns on one server, since nothing else makes it comparable on
//! a busy machine; Criterion does not take turns, so this prints its own tables of medians.
//!
//! [`naive`] tells what the other design is, and where it was made cheaper than it is.

use std::{
    env,
    error::Error,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Signal, set_parent_process_death_signal};
use swarmkeep_servers::Server;
use tokio::runtime::Runtime;

use crate::report::{Report, Section};

mod agree;
mod announces;
mod bytes;
mod client;
mod drive;
mod encodings;
mod fleet;
mod hot;
mod naive;
mod report;
mod shards;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

type Part = fn(&Bench) -> Result<Section>;

const PARTS: [(&str, Part); 7] = [
    ("announces", announces::measure),
    ("fleet", fleet::measure),
    ("client", client::measure),
    ("hot", hot::measure),
    ("shards", shards::measure),
    ("bytes", bytes::measure),
    ("encodings", encodings::measure),
];

/// How all parts measure.
pub(crate) struct Bench {
    pub(crate) runtime: Runtime,
    pub(crate) test: bool,
    /// A run, of which each turn has one for everything that is compared.
    pub(crate) during: Duration,
    pub(crate) turns: usize,
    bar: ProgressBar,
}

impl Bench {
    /// What is being done.
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
    let arguments: Vec<String> = env::args().collect();
    // As Criterion has it: a test of the bench, not a measurement.
    let test = !arguments.iter().any(|argument| argument == "--bench")
        || arguments.iter().any(|argument| argument == "--test");
    let after = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1))
    };
    let number = |name: &str, otherwise| after(name).and_then(|n| n.parse().ok()).unwrap_or(otherwise);
    let seconds: f64 = number("--seconds", if test { 0.05 } else { 2.0 });
    let turns = number("--turns", if test { 1.0 } else { 3.0 }) as usize;
    let only = after("--only");
    if let Some(only) = only
        && !PARTS.iter().any(|(name, _)| name == only)
    {
        let names = PARTS.map(|(name, _)| name).join(", ");
        return Err(format!("--only {only}: there are {names}").into());
    }
    if let Some(missing) = missing_program()? {
        if env::var_os("CI").is_some() {
            return Err(missing.into());
        }
        eprintln!("NOTHING IS MEASURED: {missing}");
        return Ok(());
    }

    let parts: Vec<_> = PARTS.into_iter().filter(|(name, _)| only.is_none_or(|only| only == name)).collect();
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} [{elapsed}] {msg}")?;
    let bar = ProgressBar::new(parts.len() as u64).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    let bench = Bench {
        runtime: drive::runtime()?,
        test,
        during: Duration::from_secs_f64(seconds),
        turns: turns.max(1),
        bar,
    };
    bench.say("asking both designs the same".to_owned());
    agree::check(&bench)?;
    let json = after("--json");
    // Of what was asked for, what the document depends on.
    let flags = arguments.iter().skip(1);
    let flags = flags.filter(|flag| !["--bench", "--json"].contains(&flag.as_str()) && Some(*flag) != json);
    let flags = flags.map(|flag| format!(" {flag}")).collect::<String>();
    let command = format!("cargo bench -p swarmkeep-lab --bench redis --{flags}");
    let mut report = Report::new(seconds, bench.turns)?;
    for (_, measure) in parts {
        let section = measure(&bench)?;
        bench.bar.suspend(|| println!("{}", section.text));
        report.sections.push(section);
        bench.bar.inc(1);
        // After each part, so that none is lost where a later one fails.
        if let Some(path) = after("--markdown") {
            fs::write(in_workspace(path), report.markdown(&command))?;
        }
        if let Some(path) = json {
            fs::write(in_workspace(path), serde_json::to_vec_pretty(&report)?)?;
        }
    }
    bench.bar.finish_and_clear();
    println!("{}", report.goals());
    Ok(())
}

/// Benches run in the folder of their package, and paths are of the workspace, where the command was given.
fn in_workspace(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// What is to be installed, if one of the programs is not there that all this takes.
fn missing_program() -> Result<Option<String>> {
    match Server::start() {
        Err(missing @ swarmkeep_servers::Error::NotInstalled { .. }) => return Ok(Some(missing.to_string())),
        started => drop(started?),
    }
    match Command::new("redis-benchmark").arg("--version").output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let what = "redis-benchmark is not installed: `apt-get install redis-tools` on Debian";
            Ok(Some(what.to_owned()))
        }
        ran => Ok(ran.map(|_| None)?),
    }
}
