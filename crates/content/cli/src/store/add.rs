//! `seedkeep store add`: a torrent file, and those of its pieces that exist, into a store.

use std::{
    error::Error,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use indicatif::BinaryBytes;
use serde_json::json;
use swarmkeep_content::{
    ContentExt, ContentRepository, Error as StoreError,
    in_place::{FoundPiece, Place},
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use swarmkeep_metainfo::Info;

use super::{
    ManyFiles, StoreArg, WRONG, bar,
    check::verify_unknown,
    of_pieces,
    opened::{Access, Kind, OpenStore},
    print_json, read_whole_torrent, say, say_pieces,
    take_up::{FileCheck, take_up, tell_place, top},
    tell_changes, torrents_and_data,
};

/// Bytes after which added pieces are made durable, so that few are added again after an interruption.
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

    /// Take up the content that lies in the folder of the store, under the torrents' names, instead of
    /// copying DATA. Missing pieces can be fetched.
    #[arg(long)]
    in_place: bool,

    #[command(flatten)]
    many_files: ManyFiles,

    /// Print JSON: one document per torrent.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let (torrents, data) = torrents_and_data(&args.paths)?;
    if let (true, Some(data)) = (args.in_place, data) {
        let (data, store) = (data.display(), args.store.path.display());
        return Err(format!("{data}: --in-place takes up the files in {store}, and copies nothing").into());
    }
    let mut torrents = torrents.into_iter().map(read_whole_torrent).collect::<Result<Vec<_>, _>>()?;
    let refused = args.many_files.leave_out(&mut torrents);
    if torrents.is_empty() {
        return Err(refused.join("\nseedkeep: ").into());
    }
    refused.iter().for_each(|refused| eprintln!("seedkeep: {refused}"));
    let found: Vec<_> = torrents
        .iter()
        .map(|(metainfo, _)| data.map(|data| Place::find(metainfo.info(), data).ok_or(data)).transpose())
        .collect();
    if let [Err(data)] = found[..] {
        return Err(missing(torrents[0].0.info(), data).into());
    }
    let store = args.store.open(Access::Adding)?;
    let (mut failed, mut all_right) = (!refused.is_empty(), true);
    for ((metainfo, torrent), place) in torrents.iter().zip(&found) {
        let info = metainfo.info();
        let added = match place {
            Ok(Some(_)) if lies_there(&store, args, info, data) => Err(format!(
                "{}: it lies in {}; --in-place takes it up there, without a copy",
                info.name().escape_debug(),
                args.store.path.display()
            )
            .into()),
            Ok(_) if args.in_place => add_in_place(&store, args, info, torrent),
            Ok(place) => add(&store, args, info, torrent, place.as_ref()),
            Err(data) => Err(missing(info, data).into()),
        };
        match added {
            Ok(is_right) => all_right &= is_right,
            Err(error) => {
                eprintln!("seedkeep: {}", swarmkeep_bittorrent::in_words(&error));
                failed = true;
            }
        }
    }
    // Also writes the labels, without which a list reads torrent files.
    store.repository.flush()?;
    Ok(match all_right {
        _ if failed => ExitCode::FAILURE,
        true => ExitCode::SUCCESS,
        false => ExitCode::from(WRONG),
    })
}

fn missing(info: &Info, data: &Path) -> String {
    format!("none of the files of {} is in {}", info.name(), data.display())
}

/// Whether DATA is the place that a new torrent would get in the folder of the store.
fn lies_there(store: &OpenStore, args: &Args, info: &Info, data: Option<&Path>) -> bool {
    let (folder, own) = (&args.store.path, args.store.path.join(top(info)));
    let is_data = |path: &Path| {
        path.canonicalize()
            .ok()
            .is_some_and(|path| data.and_then(|data| data.canonicalize().ok()) == Some(path))
    };
    let is_free = matches!(&store.kind, Kind::Files(files) if files.torrent_at(top(info)).is_none());
    is_free
        && own.symlink_metadata().is_ok_and(|found| !found.is_symlink())
        && (is_data(folder) || is_data(&own))
}

/// Adds one torrent. Returns whether all pieces that were to be added are right.
fn add(
    store: &OpenStore,
    args: &Args,
    info: &Arc<Info>,
    torrent: &[u8],
    place: Option<&Place>,
) -> Result<bool, Box<dyn Error>> {
    verify_unknown(&store.torrents, info)?;
    match store.torrents.add(torrent) {
        Ok(_) => {
            tell_changes(info);
            if let Kind::Files(files) = &store.kind {
                tell_place(files, &args.store.path, info)?;
            }
        }
        Err(StoreError::Exists(_)) if place.is_some() => {}
        Err(error) => return Err(error.into()),
    }
    let (mut wrong, mut missing) = (Vec::new(), Vec::new());
    if let Some(place) = place {
        fill(store, info, place, &mut wrong, &mut missing)?;
    }
    tell(store, args, info, wrong, missing)
}

fn add_in_place(
    store: &OpenStore,
    args: &Args,
    info: &Arc<Info>,
    torrent: &[u8],
) -> Result<bool, Box<dyn Error>> {
    let (folder, name) = (&args.store.path, info.name().escape_debug());
    let Kind::Files(files) = &store.kind else {
        return Err(format!("{}: only a folder can take up files that lie in it", folder.display()).into());
    };
    if store.repository.open(&info.info_hash()).is_ok() {
        return add(store, args, info, torrent, Some(&Place::below(info, folder)));
    }
    let Some(FileCheck { wrong, missing, .. }) = take_up(&store.torrents, torrent, files, folder, info)?
    else {
        let place = folder.join(top(info));
        return Err(match files.torrent_at(top(info)) {
            Some(other) => {
                format!("{name}: {} is of the torrent {other}; add a copy with DATA", place.display())
            }
            None => format!("{name}: nothing of it that could be taken up lies in {}", folder.display()),
        }
        .into());
    };
    store.repository.flush()?;
    tell_changes(info);
    tell(store, args, info, wrong, missing)
}

/// Prints how much of a torrent is there: `wrong` pieces have other bytes, `missing` ones are not all there.
/// Returns whether there are none of these.
fn tell(
    store: &OpenStore,
    args: &Args,
    info: &Info,
    wrong: Vec<u32>,
    missing: Vec<u32>,
) -> Result<bool, Box<dyn Error>> {
    let (name, bytes, pieces) = (info.name(), info.length(), info.piece_count());
    let complete = store.repository.open(&info.info_hash())?.pieces()?.count();
    if args.json {
        print_json(&json!({
            "info_hash": info.info_hash().to_string(), "name": name, "bytes": bytes, "pieces": pieces,
            "complete": complete, "wrong": wrong, "missing": missing,
        }))?;
    } else {
        say!("{name}: {}, {} in all", of_pieces(complete, pieces), BinaryBytes(bytes));
        say_pieces("not those of the torrent", &wrong)?;
        say_pieces("missing", &missing)?;
    }
    Ok(wrong.is_empty() && missing.is_empty())
}

/// Adds every right piece that the store lacks.
fn fill(
    store: &OpenStore,
    info: &Info,
    place: &Place,
    wrong: &mut Vec<u32>,
    missing: &mut Vec<u32>,
) -> Result<(), Box<dyn Error>> {
    // The cache joins pieces to writes of a size that suits the store.
    let mut options = StripeCacheOptions::new();
    (options.write_memory, options.read_memory) = (64 << 20, 0);
    let cache = StripeCache::new(Arc::clone(&store.repository), options)?;
    let content = cache.open(&info.info_hash())?;
    let complete = content.pieces()?;
    let wanted = (0..info.piece_count()).filter(|&piece| !complete.contains(piece));
    let bytes = wanted.map(|piece| u64::from(info.piece_len(piece))).sum();
    let bar = bar(bytes).with_message(info.name().to_owned());
    let mut unflushed = 0;
    let done = place.verify(
        |piece| !complete.contains(piece),
        |piece, found| {
            bar.inc(info.piece_len(piece).into());
            match found {
                FoundPiece::Right(bytes) => {
                    content.write(content.geometry().piece(piece)?.start, bytes)?;
                    content.mark_complete(piece)?;
                    unflushed += bytes.len() as u64;
                }
                FoundPiece::Wrong(_) => wrong.push(piece),
                FoundPiece::Missing(error) => {
                    missing.push(piece);
                    if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) {
                        eprintln!("seedkeep: {}", swarmkeep_bittorrent::in_words(&error));
                    }
                }
            }
            if unflushed >= FLUSHED {
                // Stripes that are not whole wait for the next pieces.
                cache.flush_older(Duration::MAX)?;
                unflushed = 0;
            }
            Ok(())
        },
    );
    // Pieces that were added before an error stay.
    cache.flush()?;
    bar.finish_and_clear();
    Ok(done?)
}
