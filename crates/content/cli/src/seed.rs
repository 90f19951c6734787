//! `seedkeep seed`: torrents to other peers, from files where they lie or from a store.

use std::{
    error::Error,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use serde::Serialize;
use swarmkeep_content::{
    ContentConfig, ContentRepository, Error as StoreError, Memory, NewTorrent, PieceBits,
    files::HIDDEN,
    in_place::{FoundPiece, InPlace, Place},
};
use swarmkeep_metainfo::{Info, Metainfo};

use crate::{
    peer::{self, Sharing, Until, line, share},
    store::{bar, in_runs, opened::For, read_torrent, torrents_and_data},
};

const DETAILS: &str = "\
  seedkeep create album                           makes album.torrent
  seedkeep seed album.torrent                     seeds the folder album, which lies beside it
  seedkeep seed album.torrent ~/music             seeds ~/music/album, or the files in ~/music
  seedkeep seed --store disk.image                every torrent of a store, complete or not
  seedkeep seed album.torrent --store disk.image  one torrent of it

The files are seeded where they are. They are verified first, and nothing is written to them or beside
them. A file that changes while it is seeded is no longer offered.

Runs until it is interrupted (SIGINT, SIGTERM). Then it tells the trackers and closes the connections.

Exit codes:
  0  it was stopped
  1  the command failed
  2  the command line is wrong";

/// Seed torrents to other peers.
#[derive(Debug, clap::Args)]
#[command(after_long_help = DETAILS, after_help = "See --help for examples and the exit codes.")]
pub(crate) struct Args {
    /// Torrent files; then, if it is not beside them, the file or folder of the torrent, or the folder with
    /// the files of all. Without any, all torrents of the store are seeded.
    #[arg(value_name = "FILE.torrent|DATA")]
    paths: Vec<PathBuf>,

    #[command(flatten)]
    sharing: Sharing,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let (torrents, data) = torrents_and_data(&args.paths)?;
    let in_store = match &args.sharing.store {
        Some(store) => Some(peer::open(store, For::Writing)?),
        None if torrents.is_empty() || Path::new(HIDDEN).is_dir() => {
            Some(peer::open(Path::new("."), For::Writing)?)
        }
        None => None,
    };
    let others: Arc<dyn ContentRepository> = match &in_store {
        Some(store) => Arc::clone(store) as _,
        None => Arc::new(Memory::new(&ContentConfig::new(""))),
    };
    let (store, mut shared) = (InPlace::new(Arc::clone(&others)), Vec::new());
    for path in &torrents {
        let (metainfo, torrent) = read_torrent(path)?;
        let info = metainfo.info();
        // Somebody who names a store means it.
        let place = match (data, &args.sharing.store) {
            (Some(data), _) => Place::find(info, data),
            (None, Some(_)) => None,
            (None, None) => beside(info, path),
        };
        match place {
            Some(place) => {
                let right = verified(info, &place, args.sharing.json)?;
                store.add(info, place, right)?;
            }
            None => match others.open(&info.info_hash()) {
                Err(StoreError::NotFound(_)) => {
                    return Err(missing(info, path, data, in_store.is_some()).into());
                }
                found => drop(found?),
            },
        }
        shared.push((metainfo, torrent));
    }
    if let (true, Some(in_store)) = (torrents.is_empty(), &in_store) {
        for summary in in_store.list()? {
            if let Some(torrent) = in_store.torrent_file(&summary.info_hash)? {
                shared.push((Metainfo::parse(&torrent)?, torrent));
            }
        }
    }
    if shared.is_empty() {
        let store = args.sharing.store().display();
        return Err(format!("{store} has no torrents; `seedkeep store add` puts them there").into());
    }
    share(&args.sharing, Arc::new(store), None, shared, Vec::new(), Until::Interrupted)
}

/// The files of a torrent beside its torrent file, or in the current folder.
fn beside(info: &Info, torrent: &Path) -> Option<Place> {
    [torrent.parent().unwrap_or(Path::new("")), Path::new("")].into_iter().find_map(|folder| {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        folder.join(info.name()).exists().then(|| Place::find(info, folder)).flatten()
    })
}

fn missing(info: &Info, torrent: &Path, data: Option<&Path>, has_store: bool) -> String {
    let (name, shown) = (info.name().escape_debug(), torrent.display());
    let looked = match data {
        Some(data) => format!("none of its files is in {}", data.display()),
        None if has_store => {
            "it is not in the store, and none of its files is beside its torrent file".to_owned()
        }
        None => "none of its files is beside its torrent file, or in the current folder".to_owned(),
    };
    format!(
        "{name}: {looked}; `seedkeep seed {shown} FOLDER` seeds them from elsewhere, `seedkeep fetch {shown}` fetches them"
    )
}

#[derive(Serialize)]
#[serde(tag = "event", rename = "verified")]
struct Verified<'a> {
    info_hash: String,
    name: &'a str,
    pieces: u32,
    complete: u32,
    /// Pieces with other bytes.
    wrong: Vec<u32>,
    /// Pieces of which a file is not there, or cannot be read.
    missing: Vec<u32>,
}

/// The right pieces of a torrent, one at least. Says what is wrong with the others.
fn verified(info: &Info, place: &Place, json: bool) -> Result<PieceBits, Box<dyn Error>> {
    let pieces = NewTorrent::of(info)?.geometry.pieces();
    let mut right = PieceBits::none(pieces);
    let (mut wrong, mut missing, mut why) = (Vec::new(), Vec::new(), None);
    let bar = bar(info.length()).with_message(format!("verifying {}", info.name().escape_debug()));
    place.verify(
        info,
        |_| true,
        |piece, found| {
            match found {
                FoundPiece::Right(_) => _ = right.insert(piece),
                FoundPiece::Wrong => wrong.push(piece),
                FoundPiece::Missing(error) => {
                    missing.push(piece);
                    why.get_or_insert(error);
                }
            }
            bar.inc(info.piece_len(piece).into());
            Ok(())
        },
    )?;
    bar.finish_and_clear();
    let name = info.name().escape_debug();
    if right.count() == 0 {
        let why = why.map_or_else(|| "other bytes are there".to_owned(), |why| why.to_string());
        return Err(format!("{name}: no piece of it is right: {why}").into());
    }
    if json {
        let (info_hash, name, complete) = (info.info_hash().to_string(), info.name(), right.count());
        line(&Verified { info_hash, name, pieces, complete, wrong, missing })?;
        return Ok(right);
    }
    eprintln!("{name}: {} of {pieces} pieces are right", right.count());
    if !wrong.is_empty() {
        eprintln!("  not those of the torrent: {}", in_runs(&wrong));
    }
    if let Some(why) = why {
        eprintln!("  missing: {} ({why})", in_runs(&missing));
    }
    Ok(right)
}
