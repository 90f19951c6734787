//! `seedkeep store add`: a torrent file, and what there is of its files, into a store.

use std::{
    error::Error,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use indicatif::BinaryBytes;
use serde::Serialize;
use swarmkeep_content::{
    ContentExt, ContentRepository, Error as StoreError,
    in_place::{FoundPiece, Place},
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use swarmkeep_metainfo::Info;

use super::{
    StoreArg, WRONG, bar, in_runs,
    opened::{For, Opened},
    print_json, read_whole_torrent, say, tell_changes, torrents_and_data,
};

/// What was put in is made durable at least this often, so that little of it is put in again after an
/// interruption.
const FLUSHED: u64 = 128 << 20;

/// Add torrents, and the files of them that exist already.
///
/// Each piece of DATA is verified, and right pieces are complete in the store. If a torrent is in the store
/// already, only missing pieces are added.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: StoreArg,

    /// Torrent files; then, if there is some of their content already, the torrent's file or folder, or the
    /// folder with the files of all.
    #[arg(value_name = "FILE.torrent|DATA", required = true)]
    paths: Vec<PathBuf>,

    /// Print JSON: one document per torrent.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Added<'a> {
    info_hash: String,
    name: &'a str,
    bytes: u64,
    pieces: u32,
    complete: u32,
    /// Pieces whose bytes are not those of the torrent.
    wrong: Vec<u32>,
    /// Pieces that are not there, or not all of them.
    missing: Vec<u32>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let (torrents, data) = torrents_and_data(&args.paths)?;
    let torrents = torrents.into_iter().map(read_whole_torrent).collect::<Result<Vec<_>, _>>()?;
    let found: Vec<_> = torrents
        .iter()
        .map(|(metainfo, _)| data.map(|data| Place::find(metainfo.info(), data).ok_or(data)).transpose())
        .collect();
    if let [Err(data)] = found[..] {
        return Err(missing(torrents[0].0.info(), data).into());
    }
    let store = Opened::open(&args.store.path, For::Adding)?;
    let (mut failed, mut all_right) = (false, true);
    for ((metainfo, torrent), place) in torrents.iter().zip(&found) {
        let info = metainfo.info();
        let added = match place {
            Ok(place) => add(&store, info, torrent, place.as_ref(), args.json),
            Err(data) => Err(missing(info, data).into()),
        };
        match added {
            Ok(is_right) => all_right &= is_right,
            Err(error) => {
                eprintln!("seedkeep: {error}");
                failed = true;
            }
        }
    }
    Ok(match all_right {
        _ if failed => ExitCode::FAILURE,
        true => ExitCode::SUCCESS,
        false => ExitCode::from(WRONG),
    })
}

fn missing(info: &Info, data: &Path) -> String {
    format!("none of the files of {} is in {}", info.name(), data.display())
}

/// Adds one torrent. Returns whether all that is wanted of it was there and right.
fn add(
    store: &Opened,
    info: &Info,
    torrent: &[u8],
    place: Option<&Place>,
    json: bool,
) -> Result<bool, Box<dyn Error>> {
    match store.repository.add(torrent) {
        Ok(_) => tell_changes(info),
        Err(StoreError::Exists(_)) if place.is_some() => {}
        Err(error) => return Err(error.into()),
    }
    let mut added = Added {
        info_hash: info.info_hash().to_string(),
        name: info.name(),
        bytes: info.length(),
        pieces: info.piece_count(),
        complete: 0,
        wrong: Vec::new(),
        missing: Vec::new(),
    };
    if let Some(place) = place {
        fill(store, info, place, &mut added)?;
    }
    added.complete = store.repository.open(&info.info_hash())?.pieces()?.count();
    if json {
        print_json(&added)?;
    } else {
        say!(
            "{}: {} of {} pieces, {} in all",
            added.name,
            added.complete,
            added.pieces,
            BinaryBytes(added.bytes)
        );
        for (pieces, what) in [(&added.wrong, "not those of the torrent"), (&added.missing, "missing")] {
            if !pieces.is_empty() {
                say!("  {what}: {}", in_runs(pieces));
            }
        }
    }
    Ok(added.wrong.is_empty() && added.missing.is_empty())
}

/// Puts in every piece that the store lacks and that is right.
fn fill(store: &Opened, info: &Info, place: &Place, added: &mut Added<'_>) -> Result<(), Box<dyn Error>> {
    // Pieces are smaller than what a store likes to be given.
    let options = StripeCacheOptions::new().write_memory(64 << 20).read_memory(0);
    let cache = StripeCache::new(Arc::clone(&store.repository) as _, options)?;
    let content = cache.open(&info.info_hash())?;
    let complete = content.pieces()?;
    let wanted = (0..info.piece_count()).filter(|&piece| !complete.contains(piece));
    let bytes = wanted.map(|piece| u64::from(info.piece_len(piece))).sum();
    let bar = bar(bytes).with_message(info.name().to_owned());
    let mut unflushed = 0;
    let done = place.verify(
        info,
        |piece| !complete.contains(piece),
        |piece, found| {
            bar.inc(info.piece_len(piece).into());
            match found {
                FoundPiece::Right(bytes) => {
                    content.write(content.geometry().piece(piece)?.start, bytes)?;
                    content.mark_complete(piece)?;
                    unflushed += bytes.len() as u64;
                }
                FoundPiece::Wrong => added.wrong.push(piece),
                FoundPiece::Missing(error) => {
                    added.missing.push(piece);
                    if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) {
                        eprintln!("seedkeep: {error}");
                    }
                }
            }
            if unflushed >= FLUSHED {
                cache.flush()?;
                unflushed = 0;
            }
            Ok(())
        },
    );
    // What was put in so far stays in, whatever happened.
    cache.flush()?;
    bar.finish_and_clear();
    Ok(done?)
}
