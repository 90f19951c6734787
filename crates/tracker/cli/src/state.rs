//! `swarmkeep state`: what a tracker has kept in its folder.

use std::{
    error::Error,
    io,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime},
};

use indicatif::{HumanBytes, HumanCount, HumanDuration};
use serde::Serialize;
use swarmkeep_state::{Directory, Downloads, look_at_snapshots};

use crate::{print_json, say};

/// Show the state that a tracker has kept in the folder of its --state, and whether it is valid.
///
/// Reads every snapshot completely, and changes nothing. The tracker must not be running. Exit code 1 if
/// anything is refused.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder.
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Kept {
    snapshots: Vec<Snapshot>,
    /// Entries of the database of download counts: at most so many torrents are known, and at rest three
    /// quarters of it at least.
    download_entries: u64,
    download_bytes: u64,
}

#[derive(Serialize)]
struct Snapshot {
    file: String,
    /// What is in it, if it is good.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    summary: Option<swarmkeep::snapshot::Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let folder = Arc::new(Directory::open_to_read(&args.folder)?);
    let snapshots = look_at_snapshots(&*folder)?.into_iter().map(|(file, looked_at)| match looked_at {
        Ok(summary) => Snapshot { file, summary: Some(summary), refused: None },
        Err(error) => Snapshot { file, summary: None, refused: Some(error.to_string()) },
    });
    let snapshots: Vec<_> = snapshots.collect();
    let downloads = Downloads::open(folder)?;
    let kept =
        Kept { snapshots, download_entries: downloads.entries(), download_bytes: downloads.size_bytes() };
    let is_refused = kept.snapshots.iter().any(|snapshot| snapshot.refused.is_some());
    if args.json {
        print_json(&kept)?;
    } else {
        print(&kept)?;
    }
    Ok(if is_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(kept: &Kept) -> io::Result<()> {
    if kept.snapshots.is_empty() {
        say!("no snapshot");
    }
    for Snapshot { file, summary, refused } in &kept.snapshots {
        if let Some(summary) = summary {
            let taken = SystemTime::UNIX_EPOCH + Duration::from_secs(summary.taken.as_secs());
            let age = match taken.elapsed() {
                Ok(age) => format!("{} ago", HumanDuration(age)),
                Err(_) => "at a time that is still to come".into(),
            };
            say!(
                "{file}: taken {age}, {} swarms (large ones in parts), {} peers, {}",
                HumanCount(summary.swarms),
                HumanCount(summary.peers),
                HumanBytes(summary.bytes)
            );
        }
        if let Some(refused) = refused {
            say!("{file}: refused: {refused}");
        }
    }
    let [entries, bytes] =
        [HumanCount(kept.download_entries).to_string(), HumanBytes(kept.download_bytes).to_string()];
    say!("download counts: {entries} entries, {bytes}");
    Ok(())
}
