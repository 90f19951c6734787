//! `cargo store-bench`: the cost of stores of content, each row in a process of its own.

use std::{
    env,
    error::Error,
    io::{self, Write},
    num::NonZeroU32,
    path::PathBuf,
    process::{Command, ExitCode},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use swarmkeep_cli::units::counted;

use crate::content::{self, Error as BenchError, Options, child};

const DETAILS: &str = "\
Examples:
  sudo -E cargo store-bench --quick              a first impression, in a few minutes
  sudo -E cargo store-bench --report bench.md    the paper's benchmark, with its pictures in the folder bench
  sudo -E cargo store-bench --only 'block store' some rows

Rows:
  files                     plain files
  files, free page cache    with all of the machine's memory
  libtorrent; tuned         plain files, written by libtorrent, if python3-libtorrent is installed
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
    /// The folder in which the stores are made, one after another; all is removed again. By default 28 GB are
    /// needed.
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,

    /// Take a few minutes: 10 torrents of 128 MB, 5 at a time, 64 MB of cache.
    #[arg(long)]
    quick: bool,

    /// The number of torrents [default: 25].
    #[arg(long, value_name = "N")]
    torrents: Option<NonZeroU32>,

    /// Bytes of each, as 1GB, 128MB or 1GiB [default: 1GB].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    size: Option<u64>,

    /// The number of torrents that are downloaded at a time [default: 10].
    #[arg(long, value_name = "N")]
    parallel: Option<NonZeroU32>,

    /// Bytes of the stripe cache [default: 1GB].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    cache: Option<u64>,

    /// Bytes of a block and of a stripe.
    #[arg(long, value_name = "BYTES", default_value = "4MiB", value_parser = bytes)]
    block: u64,

    /// Threads of the stripe cache that write; with one, a disk that turns is written to strictly in order.
    #[arg(long, value_name = "N", default_value = "1")]
    writers: NonZeroU32,

    /// The seed of all random numbers.
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,

    /// Measure only rows with one of these in their names; `;` separates them, names have commas.
    #[arg(long, value_name = "WORD;...", value_delimiter = ';')]
    only: Vec<String>,

    /// Do not trace requests and limit memory, even if this process is root.
    #[arg(long)]
    untraced: bool,

    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,

    /// Write the report to this file, as Markdown, and its pictures into the folder of the same name.
    #[arg(long, value_name = "FILE.md")]
    report: Option<PathBuf>,
}

/// Measure one row of `cargo store-bench` in this process.
#[derive(Debug, clap::Args)]
pub struct RowArgs {
    /// The options and the row, as JSON.
    plan: String,
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
    let report = content::run(&args.options(), &args.only, &command, &mut |row, before, of, share| {
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

/// Measures one row and prints it for the parent process.
pub fn run_row(args: &RowArgs) -> Result<ExitCode, Box<dyn Error>> {
    child::answer(&args.plan, io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn options(&self) -> Options {
        let mut options = Options::new(&self.folder);
        if self.quick {
            (options.torrents, options.size) = (10, 128_000_000);
            (options.parallel, options.cache) = (5, 64_000_000);
        }
        options.torrents = self.torrents.map_or(options.torrents, NonZeroU32::get);
        options.parallel = self.parallel.map_or(options.parallel, NonZeroU32::get);
        options.size = self.size.unwrap_or(options.size);
        options.cache = self.cache.unwrap_or(options.cache);
        // A size that is too large is refused like one that is no power of two.
        options.block = u32::try_from(self.block).unwrap_or(u32::MAX);
        (options.writers, options.seed, options.traced) = (self.writers.get(), self.seed, !self.untraced);
        options
    }
}

/// `1GB`, `128MB`, `4MiB`, `65536`: disks are sold by powers of ten.
fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 8] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
    ];
    counted(text, &UNITS).ok_or_else(|| "expected bytes, such as 1GB, 128MB or 4MiB".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        for (text, number) in
            [("1GB", 1_000_000_000), ("4MiB", 4 << 20), ("65536", 65536), ("1500kB", 1_500_000)]
        {
            assert_eq!(bytes(text), Ok(number), "{text}");
        }
        for text in ["", "GB", "-1MB", "1EB", "1.5GB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
