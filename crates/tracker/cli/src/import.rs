//! `swarmkeep import`: the downloads that another tracker has counted.

use std::{error::Error, path::PathBuf};

use indicatif::HumanCount;
use swarmkeep_bittorrent::{counted, say};
use swarmkeep_import::{Format, Imported, Options, Totals};

use crate::{print_json, refuse, units::named};

const DETAILS: &str = "\
Examples:
  sqlite3 -readonly sqlite3.db 'SELECT info_hash, completed FROM torrents' |
    swarmkeep import --state /var/lib/swarmkeep -
  curl http://old.example:6969/scrape | swarmkeep import --state /var/lib/swarmkeep -
  swarmkeep import --dry-run statedump.txt.gz

Content:
  How often each torrent was downloaded, and nothing else: peers announce themselves again within
  the hour. An import never lowers a count and never adds to one: it raises a count to at least
  the number in the file. So the same file can be imported twice, and a newer one of the same
  tracker again until the switch is done. Of several counts of one torrent, in one file or in
  several, the highest is used: counts of two trackers are not added up. Nor are counts of this
  tracker since it began: import before its first peers come.

Formats, each also compressed by gzip:
  scrape             The answer to a scrape over HTTP (BEP 48). opentracker and others answer with
                     all their torrents to one that asks for none.
  opentracker-state  INFOHASH:MINUTES:DOWNLOADS, as opentracker's /stats?mode=statedump has them.
  opentracker-txtp   INFOHASH:SEEDERS:LEECHERS:DOWNLOADS, its /stats?mode=tpbs&format=txtp.
  lines              INFOHASH, a tab, comma, blank, colon or bar, and DOWNLOADS: the output of any
                     database, such as the one of torrust-tracker.

  aquatic counts no downloads, so there is nothing to import from it.

Errors:
  Everything is read before anything is imported. If a file has an error, its place is reported, and
  nothing is imported; --skip-bad imports the rest: all good lines, and the beginning of a file that
  is cut off or broken.

Exit codes:
  0  the counts are imported
  1  an error, and nothing is imported. If the disk refuses a write, all counts may be imported
     nevertheless: repeat the import. If only the copy of the counts failed, the report is
     printed, and the error says that they are imported
  2  the command line is wrong";

/// Import the download counts of another tracker.
#[derive(Debug, clap::Args)]
#[command(after_long_help = DETAILS, after_help = "See --help for examples, formats and content.")]
pub(crate) struct Args {
    /// Files of the other tracker; - is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// State folder of this tracker.
    #[arg(long, value_name = "DIR", required_unless_present = "dry_run")]
    state: Option<PathBuf>,

    /// Format of the files. By default it is recognized from their beginning.
    #[arg(long, value_name = "FORMAT", hide_possible_values = true, value_parser = named(Format::ALL, Format::name))]
    from: Option<Format>,

    /// Read everything and report its counts, without importing them.
    #[arg(long)]
    dry_run: bool,

    /// Skip wrong entries, instead of importing nothing.
    #[arg(long)]
    skip_bad: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let Args { files, state, from, dry_run, skip_bad, json } = args;
    if files.iter().filter(|file| file.as_os_str() == "-").count() > 1 {
        refuse("standard input can be read once only".into());
    }
    let state = state.filter(|_| !dry_run);
    let imported = swarmkeep_import::run(&Options { files, state, from, skip_bad })?;
    report(&imported, json)?;
    match imported.not_copied {
        Some(reason) => Err(format!("the counts are imported, but no copy was made: {reason}").into()),
        None => Ok(()),
    }
}

fn report(imported: &Imported, json: bool) -> Result<(), Box<dyn Error>> {
    let some = |count, unit| counted(HumanCount(count), unit);
    if json {
        return print_json(imported);
    }
    for file in &imported.files {
        let gzip = if file.gzip { ", gzip" } else { "" };
        say!("{}: {}{gzip}, {}", file.file, file.format, some(file.read, "count"));
        if file.refused > 0 {
            say!("  {} left out:{}", some(file.refused, "wrong one"), file.named());
        }
    }
    let Totals { torrents, with_downloads, downloads, duplicates, raised, .. } = imported.totals;
    let [torrents, with, downloads] =
        [some(torrents, "torrent"), HumanCount(with_downloads).to_string(), some(downloads, "download")];
    say!("{torrents}, {with} of them downloaded, {downloads} in all");
    if duplicates > 0 {
        say!("{} of torrents that had one: the highest is used", some(duplicates, "more count"));
    }
    if with_downloads == 0 {
        say!("no downloads at all: does that tracker count them?");
    }
    match raised {
        Some(raised) => say!("{} raised, the others had as many", some(raised, "torrent")),
        None => say!("nothing is imported: --dry-run"),
    }
    Ok(())
}
