//! `swarmkeep state`: the content of a tracker's folder.

use std::{error::Error, io, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use indicatif::{BinaryBytes, HumanCount, HumanDuration};
use serde::Serialize;
use swarmkeep_bittorrent::{counted, in_words, say};
use swarmkeep_state::{
    Counts, Directory, Downloads, look_at_downloads, look_at_snapshots, restore_downloads,
};
use swarmkeep_tracker::now;

use crate::print_json;

/// Show the state that a tracker has kept in the folder of its --state, and whether it is valid.
///
/// Reads every snapshot and all download counts completely. Without --restore and --forget-below it changes
/// nothing. The tracker must not be running. Exit code 1 if anything is refused or damaged, or nothing is
/// there.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder.
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Put the latest copy of the download counts in their place. They are kept as
    /// `downloads.redb.replaced`.
    #[arg(long)]
    restore: bool,

    /// Forget the counts of all torrents with fewer downloads, such as made-up torrents.
    #[arg(long, value_name = "N")]
    forget_below: Option<u32>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct StateReport {
    snapshots: Vec<Snapshot>,
    /// The download counts, and their copy.
    downloads: Vec<Database>,
    /// Whether the copy has replaced the counts.
    restored: bool,
    /// The number of forgotten counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    forgotten: Option<u64>,
}

#[derive(Serialize)]
struct Database {
    file: &'static str,
    /// Its content, if it is good.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    counts: Option<CountsSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged: Option<String>,
}

#[derive(Serialize)]
struct CountsSummary {
    torrents: u64,
    bytes: u64,
    age_seconds: u64,
}

#[derive(Serialize)]
struct Snapshot {
    file: String,
    /// Its content, if it is good.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    summary: Option<swarmkeep::snapshot::Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let changes = args.restore || args.forget_below.is_some();
    let mut folder = Arc::new(Directory::open_to_read(&args.folder)?);
    let snapshots = look_at_snapshots(&*folder)?;
    if snapshots.is_empty() && look_at_downloads(&*folder)?.is_empty() {
        let folder = args.folder.display();
        return Err(format!(
            "{folder} has neither snapshots nor download counts: give the folder that --state of a tracker names"
        )
        .into());
    }
    if changes {
        drop(folder);
        folder = Arc::new(Directory::open(&args.folder)?);
    }
    let snapshots = snapshots.into_iter().map(|(file, looked_at)| match looked_at {
        Ok(summary) => Snapshot { file, summary: Some(summary), refused: None },
        Err(error) => Snapshot { file, summary: None, refused: Some(in_words(&error)) },
    });
    let snapshots: Vec<_> = snapshots.collect();
    if args.restore {
        restore_downloads(&*folder)?;
    }
    let forget = |least| Downloads::open(Arc::clone(&folder) as _)?.forget_below(least);
    let forgotten = args.forget_below.map(forget).transpose()?;
    let downloads = look_at_downloads(&*folder)?.into_iter().map(|(file, looked_at)| match looked_at {
        Ok(Counts { entries, bytes, age, .. }) => {
            let summary = CountsSummary { torrents: entries, bytes, age_seconds: age.as_secs() };
            Database { file, counts: Some(summary), damaged: None }
        }
        Err(error) => Database { file, counts: None, damaged: Some(error.to_string()) },
    });
    let downloads = downloads.collect();
    let report = StateReport { snapshots, downloads, restored: args.restore, forgotten };
    let is_bad = report.snapshots.iter().any(|snapshot| snapshot.refused.is_some())
        || report.downloads.iter().any(|database| database.damaged.is_some());
    if args.json {
        print_json(&report)?;
    } else {
        print(&report)?;
    }
    Ok(if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(report: &StateReport) -> io::Result<()> {
    if report.snapshots.is_empty() {
        say!("no snapshot");
    }
    for Snapshot { file, summary, refused } in &report.snapshots {
        if let Some(summary) = summary {
            let age = now().as_secs().checked_sub(summary.taken.as_secs());
            let age = age.map_or("at a time that is still to come".into(), |secs| {
                format!("{} ago", HumanDuration(Duration::from_secs(secs)))
            });
            let [swarms, peers] = [(summary.records, "swarm"), (summary.peers, "peer")]
                .map(|(n, unit)| counted(HumanCount(n), unit));
            let bytes = BinaryBytes(summary.bytes);
            say!("{file}: taken {age}, {swarms} (large ones in parts), {peers}, {bytes}");
        }
        if let Some(refused) = refused {
            say!("{file}: refused: {refused}");
        }
    }
    if report.downloads.is_empty() {
        say!("no download counts");
    }
    for Database { file, counts, damaged } in &report.downloads {
        if let Some(CountsSummary { torrents, bytes, age_seconds }) = counts {
            let (torrents, bytes) = (counted(HumanCount(*torrents), "torrent"), BinaryBytes(*bytes));
            let age = HumanDuration(Duration::from_secs(*age_seconds));
            say!("{file}: download counts of {torrents}, {bytes}, written {age} ago");
        }
        if let Some(damaged) = damaged {
            say!("{file}: damaged: {damaged}");
        }
    }
    if report.restored {
        say!("the copy is in the place of the download counts, which are kept as downloads.redb.replaced");
    }
    if let Some(forgotten) = report.forgotten {
        say!("forgotten: download counts of {}", counted(HumanCount(forgotten), "torrent"));
    }
    Ok(())
}
