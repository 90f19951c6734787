//! `cargo store-bench`: what stores of content cost, each row in a process of its own.

use std::{
    env,
    error::Error,
    fs,
    io::{self, Write},
    num::NonZeroU32,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use crate::content::{Disk, Error as BenchError, Locality, Options, SeedingOptions, child};
use indicatif::{ProgressBar, ProgressStyle};

use swarmkeep_cli::units::counted;

/// What the program ends with when it has measured and not every goal was reached.
const MISSED: u8 = 4;

const DETAILS: &str = "\
Examples:
  sudo -E cargo store-bench --quick                      a first impression, in a few minutes
  cargo store-bench --report bench.md --svg bench        the paper's benchmark, with its pictures
  cargo store-bench --only block-sequential --rounds 3   some rows, medians of three
  cargo store-bench --quick --json | jq .speedup_over_sparse_files
  cargo store-bench --only seeding --in-order 0 --by-extent 0 --same-rare 0

Rows:
  files-sparse, files-preallocated  plain files
  free page cache                   with all of the machine's memory
  libtorrent; tuned                 plain files, written by libtorrent, if python3-libtorrent is installed
  block-sequential, block-ordered   a block device, or an image as one; by how blocks are chosen
  aged                              full to 75 % with torrents of mixed sizes, of which many came and went
  cache                             behind the stripe cache, which is asked what piece comes next
  cache without affinity            behind the stripe cache, pieces in random order
  memory                            further rows, with an eighth, a half and all of the content as memory
  seeding                           16 KiB requests of many peers, modelled alone: no room is taken

Traced, as root, with tracefs:
  Each row has a loop device; plain files lie on an ext4 on it. The kernel records the requests that reach
  it, and a control group limits the memory of the row, page cache and all, to that of the stripe cache.

Modelled:
  The requests, or else the calls (through the extents of files), are replayed on a disk that turns: a seek
  takes --shortest-seek + (--longest-seek - --shortest-seek) * sqrt(distance / capacity), then half a turn,
  then the bytes pass at --disk-rate. What lies shortly ahead is waited for.

Exit codes:
  0  measured
  1  not measured: no room, or a store lost or altered what was written to it
  2  options that are wrong
  4  measured, and with --goals: not every goal was reached";

/// Compare plain files and the block store, with and without the stripe cache: the benchmark of Norberg's
/// paper.
#[derive(Debug, clap::Args)]
#[command(after_long_help = DETAILS, after_help = "See --help for examples, rows and the modelled disk.")]
pub struct Args {
    /// Where the stores are made, one after another; all is removed again. By default 28 GB are needed.
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,

    /// Take a few minutes: 10 torrents of 128 MB, 5 at a time, 64 MB of cache.
    #[arg(long)]
    quick: bool,

    /// How many torrents there are [default: 25].
    #[arg(long, value_name = "N")]
    torrents: Option<NonZeroU32>,

    /// Bytes of each, as 1GB, 128MB or 1GiB [default: 1GB].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    size: Option<u64>,

    /// How many are downloaded at a time [default: 10].
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

    /// Measure everything so often, the rows in turns, and print medians.
    #[arg(long, value_name = "N", default_value = "1")]
    rounds: NonZeroU32,

    /// What everything is drawn from.
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,

    /// Measure only rows with one of these in their names; `;` separates them, names have commas.
    #[arg(long, value_name = "WORD;...", value_delimiter = ';')]
    only: Vec<String>,

    /// Bytes of the modelled disk.
    #[arg(long, value_name = "BYTES", default_value = "1TB", value_parser = bytes, help_heading = "Modelled disk")]
    disk_capacity: u64,

    /// Bytes a second that pass under its head.
    #[arg(long, value_name = "BYTES", default_value = "150MB", value_parser = bytes, help_heading = "Modelled disk")]
    disk_rate: u64,

    /// Its turns a minute.
    #[arg(long, value_name = "N", default_value = "7200", help_heading = "Modelled disk")]
    disk_turns: f64,

    /// Milliseconds to a neighbouring track.
    #[arg(long, value_name = "MS", default_value = "1", help_heading = "Modelled disk")]
    shortest_seek: f64,

    /// Milliseconds from the first track to the last.
    #[arg(long, value_name = "MS", default_value = "15", help_heading = "Modelled disk")]
    longest_seek: f64,

    /// How many peers download [default: 100, with --quick 12].
    #[arg(long, value_name = "N", help_heading = "Modelled seeding")]
    peers: Option<u32>,

    /// Requests of 16 KiB, of all of them together [default: 50000, with --quick 10000].
    #[arg(long, value_name = "N", help_heading = "Modelled seeding")]
    requests: Option<u32>,

    /// Share of the peers that take pieces one after another.
    #[arg(long, value_name = "SHARE", default_value = "0.25", help_heading = "Modelled seeding")]
    in_order: f64,

    /// Share of the peers that take 4 MiB at random and all pieces of it.
    #[arg(long, value_name = "SHARE", default_value = "0.25", help_heading = "Modelled seeding")]
    by_extent: f64,

    /// Share of the others' choices that are as another peer's of the swarm.
    #[arg(long, value_name = "SHARE", default_value = "0.25", help_heading = "Modelled seeding")]
    same_rare: f64,

    /// Do not trace requests and limit memory, even where this process is root.
    #[arg(long)]
    untraced: bool,

    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,

    /// Write the whole report to this file, as Markdown; it shows the pictures of --svg.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Draw pictures into this directory.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// End with an exit code that says whether every goal was reached.
    #[arg(long)]
    goals: bool,
}

/// Measure one row of `cargo store-bench` in this process.
#[derive(Debug, clap::Args)]
pub struct RowArgs {
    /// What to measure, as JSON.
    plan: String,
}

/// How this program is told to measure one row.
const ROW: &str = "store-bench-row";

/// Measures every row and prints what was found.
pub fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let options = args.options();
    let program = env::current_exe()?;
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template("{bar:30} {percent:>3} % [{elapsed}, {eta} left] {msg}")
            .expect("a valid template"),
    );
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut measure = |plan: &_, progress: &mut dyn FnMut(f64)| {
        let mut command = Command::new(&program);
        command.arg(ROW);
        child::ask(command, plan, progress)
    };
    let report = crate::content::run(&options, &mut measure, &mut |progress| {
        bar.set_length(progress.of as u64 * 100);
        bar.set_position(progress.done as u64 * 100 + (progress.share * 100.0) as u64);
        bar.set_message(format!("{} ({} of {})", progress.plan, progress.done + 1, progress.of));
    });
    bar.finish_and_clear();
    let report = match report {
        Err(BenchError::Options(what)) => crate::refuse(what),
        report => report?,
    };

    let text = if args.json { report.json() + "\n" } else { report.text() };
    io::stdout().write_all(text.as_bytes())?;
    if let Some(folder) = &args.svg {
        fs::create_dir_all(folder)?;
        report.draw(folder)?;
    }
    if let Some(path) = &args.report {
        let pictures = args.svg.as_deref().map(|folder| seen_from(path, folder));
        fs::write(path, report.markdown(pictures.as_deref()))?;
    }
    let missed = args.goals && report.goals.iter().any(|goal| !goal.reached);
    Ok(if missed { ExitCode::from(MISSED) } else { ExitCode::SUCCESS })
}

/// Measures one row and prints it for the process that asked.
pub fn run_row(args: &RowArgs) -> Result<ExitCode, Box<dyn Error>> {
    child::answer(&args.plan, io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn options(&self) -> Options {
        let locality =
            Locality { in_order: self.in_order, by_extent: self.by_extent, same_rare: self.same_rare };
        let mut options = Options::new(&self.folder);
        options.seeding = Some(SeedingOptions { locality, ..SeedingOptions::default() });
        if self.quick {
            options = options.quick();
        }
        let set = |option: &mut u32, number: Option<NonZeroU32>| {
            *option = number.map_or(*option, NonZeroU32::get);
        };
        set(&mut options.torrents, self.torrents);
        set(&mut options.parallel, self.parallel);
        set(&mut options.rounds, Some(self.rounds));
        set(&mut options.writers, Some(self.writers));
        options.size = self.size.unwrap_or(options.size);
        options.cache = self.cache.unwrap_or(options.cache);
        // What is too large is refused as what is no power of two is.
        options.block = u32::try_from(self.block).unwrap_or(u32::MAX);
        if let Some(seeding) = &mut options.seeding {
            seeding.peers = self.peers.unwrap_or(seeding.peers);
            seeding.requests = self.requests.unwrap_or(seeding.requests);
        }
        options.traced = !self.untraced;
        options.disk = Disk {
            capacity: self.disk_capacity,
            shortest_seek_ms: self.shortest_seek,
            longest_seek_ms: self.longest_seek,
            turns: self.disk_turns,
            rate: self.disk_rate as f64,
        };
        (options.seed, options.only, options.pictures) = (self.seed, self.only.clone(), self.svg.is_some());
        options
    }
}

/// The path to `folder` for a reader of `file`: relative where one lies beneath the other's folder.
fn seen_from(file: &Path, folder: &Path) -> PathBuf {
    let beside = file.parent().unwrap_or(Path::new(""));
    folder
        .strip_prefix(beside)
        .map_or_else(|_| fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned()), Path::to_owned)
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

    #[test]
    fn a_report_shows_pictures_by_a_path_that_works_from_where_it_lies() {
        assert_eq!(seen_from(Path::new("bench.md"), Path::new("pictures")), Path::new("pictures"));
        assert_eq!(seen_from(Path::new("docs/bench.md"), Path::new("docs/bench")), Path::new("bench"));
    }
}
