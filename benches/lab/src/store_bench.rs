//! `cargo store-bench`: the cost of stores of content, each row in a process of its own.

use std::{
    env,
    error::Error,
    io::{self, Write},
    path::PathBuf,
    process::{Command, ExitCode},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use swarmkeep_benches::origin::Origin;

use crate::content::{self, Error as BenchError, Options};

const DETAILS: &str = "\
Examples:
  sudo -E cargo store-bench --quick              a first impression, in a few minutes
  sudo -E cargo store-bench --report bench.md    the paper's benchmark, with its pictures in the folder bench
  sudo -E cargo store-bench --only 'block store' some rows

Rows:
  files                     plain files
  files, free page cache    with all of the machine's memory
  libtorrent; tuned         plain files, written by libtorrent, if python3-libtorrent is installed
  files, pieces by extents  plain files without a cache, with the pieces of 4 MiB one after another
  files, cache              behind the stripe cache, which chooses the next piece
  block store, cache        a block device, behind the stripe cache
  cache without affinity    the same, with pieces in random order
  aged                      the same, full to 75 % with torrents of mixed sizes, of which many came and went

Traced, as root, with tracefs:
  Each row has a loop device; plain files lie on an ext4 on it. The kernel records the requests that reach
  it, and a control group limits the memory of the row, page cache and all, to that of the stripe cache.

Modelled:
  The requests, or else the calls, are replayed on a disk that turns: a seek takes
  1 ms + 14 ms * sqrt(distance / capacity), then half a turn, then the bytes pass at 150 MB/s. The head waits
  for bytes that lie shortly ahead.

Exit codes:
  0  measured
  1  not measured: no room, or a store lost or altered a piece
  2  options that are wrong";

/// Compare plain files and the block store, with and without the stripe cache: the benchmark of Norberg's
/// paper.
#[derive(Debug, clap::Args)]
#[command(after_long_help = DETAILS, after_help = "See --help for examples, rows and the modelled disk.")]
pub struct Args {
    #[command(flatten)]
    options: Options,

    /// Take a few minutes: 10 torrents of 128 MB, 5 at a time, 64 MB of cache.
    #[arg(long)]
    quick: bool,

    /// Measure only rows with one of these in their names; `;` separates them, names have commas.
    #[arg(long, value_name = "WORD;...", value_delimiter = ';')]
    only: Vec<String>,

    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,

    /// Write the report to this file, as Markdown, and its pictures into the folder of the same name.
    #[arg(long, value_name = "FILE.md")]
    report: Option<PathBuf>,
}

/// Measures all rows, and prints and writes the report.
pub fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let program = env::current_exe()?;
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template("{bar:30} {percent:>3} % [{elapsed}, {eta} left] {msg}")
            .expect("a valid template"),
    );
    bar.enable_steady_tick(Duration::from_millis(200));
    let command = || {
        let mut command = Command::new(&program);
        command.arg("store-bench-row");
        command
    };
    let origin = Origin::here(args.options.seed, 1, args.quick);
    let report = content::run(&args.options, &args.only, origin, &command, &mut |row, before, of, share| {
        bar.set_length(of as u64 * 100);
        bar.set_position(before as u64 * 100 + (share * 100.0) as u64);
        bar.set_message(format!("{} ({} of {of})", row.name(), before + 1));
    });
    bar.finish_and_clear();
    let report = match report {
        Err(BenchError::Options(wrong)) => crate::refuse(wrong),
        report => report?,
    };
    let text = if args.json { report.json() } else { report.text() };
    io::stdout().write_all(text.as_bytes())?;
    if let Some(path) = &args.report {
        report.write(path)?;
    }
    Ok(ExitCode::SUCCESS)
}
