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
use swarmkeep_state::{Damage, Directory, Downloads, Rewritten, look_at_snapshots};

use crate::{print_json, say};

/// Show the state that a tracker has kept in the folder of its --state, and whether it is valid.
///
/// Reads every snapshot and all download counts completely. Without --repair and --forget-below it changes
/// nothing. The tracker must not be running. Exit code 1 if anything is refused or damaged. A last commit that
/// is not whole is normal after a kill.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder.
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// If download counts are damaged, write anew what can be read of them. Copies of the damaged files are
    /// kept with the ending `.damaged`.
    #[arg(long)]
    repair: bool,

    /// Forget the counts of all torrents with fewer downloads, such as those that strangers have made up.
    /// This also repairs.
    #[arg(long, value_name = "N")]
    forget_below: Option<u32>,

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
    /// What is damaged of it.
    damaged: Vec<Damaged>,
    /// The last commit, if it is not whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    torn: Option<Damaged>,
    /// What was written anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    rewritten: Option<Anew>,
}

#[derive(Serialize)]
struct Damaged {
    file: String,
    from: u64,
    to: u64,
    what: &'static str,
    /// Torrents of which it can have held downloads at most.
    lost: u64,
    #[serde(skip)]
    text: String,
}

impl From<Damage> for Damaged {
    fn from(damage: Damage) -> Self {
        Self {
            text: damage.to_string(),
            from: damage.bytes.start,
            to: damage.bytes.end,
            what: damage.what,
            lost: damage.lost,
            file: damage.file,
        }
    }
}

#[derive(Serialize)]
struct Anew {
    entries: u64,
    forgotten: u64,
    /// Copies of damaged files.
    kept: Vec<String>,
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
    let rewrites = args.repair || args.forget_below.is_some();
    let open = if rewrites { Directory::open } else { Directory::open_to_read };
    let folder = Arc::new(open(&args.folder)?);
    let snapshots = look_at_snapshots(&*folder)?.into_iter().map(|(file, looked_at)| match looked_at {
        Ok(summary) => Snapshot { file, summary: Some(summary), refused: None },
        Err(error) => Snapshot { file, summary: None, refused: Some(error.to_string()) },
    });
    let snapshots: Vec<_> = snapshots.collect();
    let mut downloads = Downloads::open(Arc::clone(&folder) as _)?;
    let (damage, torn) = (downloads.check(), downloads.torn().cloned().map(Damaged::from));
    let (is_damaged, least) = (!damage.is_empty(), args.forget_below.unwrap_or(1));
    let mut rewritten = None;
    if args.forget_below.is_some() || (args.repair && is_damaged) {
        let Rewritten { entries, forgotten, kept, .. } = downloads.rewrite(least)?;
        rewritten = Some(Anew { entries, forgotten, kept });
        downloads = Downloads::open(folder)?;
    }
    let kept = Kept {
        snapshots,
        download_entries: downloads.entries(),
        download_bytes: downloads.size_bytes(),
        damaged: damage.into_iter().map(Damaged::from).collect(),
        torn,
        rewritten,
    };
    let is_refused = kept.snapshots.iter().any(|snapshot| snapshot.refused.is_some());
    let is_bad = is_refused || (is_damaged && kept.rewritten.is_none());
    if args.json {
        print_json(&kept)?;
    } else {
        print(&kept)?;
    }
    Ok(if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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
    for Damaged { text, .. } in &kept.damaged {
        say!("damaged: {text}");
    }
    if let Some(Damaged { text, .. }) = &kept.torn {
        say!("not whole: {text}");
    }
    match &kept.rewritten {
        None if kept.damaged.is_empty() => {}
        None => say!("damaged parts are not counted; --repair writes the rest anew, and keeps copies"),
        Some(Anew { entries, forgotten, kept }) => {
            let copies = if kept.is_empty() { "none".into() } else { kept.join(", ") };
            let [entries, forgotten] = [entries, forgotten].map(|number| HumanCount(*number));
            say!(
                "written anew: {entries} entries; forgotten: {forgotten}; copies of damaged files: {copies}"
            );
        }
    }
    Ok(())
}
