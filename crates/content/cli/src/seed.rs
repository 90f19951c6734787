//! `seedkeep seed`: torrents to other peers, from files where they lie or from a store.

use std::{
    error::Error,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use serde_json::json;
use swarmkeep_bittorrent::in_words;
use swarmkeep_content::{
    ContentConfig, ContentRepository, Memory, PieceBits,
    files::HIDDEN,
    in_place::{InPlace, Place},
};
use swarmkeep_metainfo::{Info, Metainfo};

use crate::{
    peer::{Sharing, Until, line, share},
    store::{
        check::verify_unknown,
        in_runs, of_pieces,
        opened::Access,
        read_whole_torrent,
        take_up::{FileCheck, check},
        torrents_and_data,
    },
};

const DETAILS: &str = "\
Examples:
  seedkeep create album                           makes album.torrent
  seedkeep seed album.torrent                     seeds the folder album, which lies beside it
  seedkeep seed album.torrent ~/music             seeds ~/music/album, or the files in ~/music
  seedkeep seed --store disk.image                every torrent of a store, complete or not
  seedkeep seed album.torrent --store disk.image  one torrent of it

The files are verified and seeded where they are; nothing is written to them or beside them. A file
that changes while it is seeded is no longer offered, until it is verified again and right.

Runs until SIGINT or SIGTERM. Then it notifies the trackers and closes the connections.

Exit codes:
  0  it was stopped
  1  the command failed
  2  the command line is wrong";

/// Seed torrents to other peers.
#[derive(Debug, clap::Args)]
#[command(after_long_help = DETAILS, after_help = "See --help for examples and the exit codes.")]
pub(crate) struct Args {
    /// Torrent files, and then, if their content is not beside them, one path to it: the file or folder of
    /// the torrent, or the folder with the content of all. Without any, all torrents of the store are seeded.
    /// With --store and without DATA, only the store is searched.
    #[arg(value_name = "FILE.torrent|DATA")]
    paths: Vec<PathBuf>,

    #[command(flatten)]
    sharing: Sharing,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let (paths, data) = torrents_and_data(&args.paths)?;
    let mut torrents = paths.iter().map(|path| read_whole_torrent(path)).collect::<Result<Vec<_>, _>>()?;
    let named = args.sharing.store.as_deref();
    // The store of the current folder has more information about its files than their bytes.
    let is_here = |info: &Info| data.is_none() && is_in_folder_store(info);
    let needs_store = || paths.is_empty() || torrents.iter().any(|(metainfo, _)| is_here(metainfo.info()));
    let in_store = match named {
        Some(store) => Some(args.sharing.open(store, Access::Writing)?.torrents),
        None if needs_store() => Some(args.sharing.open(Path::new("."), Access::Writing)?.torrents),
        None => None,
    };
    if let (true, Some(library)) = (paths.is_empty(), &in_store) {
        for summary in library.store().list()? {
            match library.torrent_file(&summary.info_hash) {
                Ok(Some(torrent)) => torrents.push((Metainfo::parse(&torrent)?, torrent)),
                Ok(None) => {}
                Err(error) => eprintln!("seedkeep: {}: {error}", summary.info_hash),
            }
        }
        if torrents.is_empty() {
            let (store, add) = (args.sharing.store().display(), "`seedkeep store add`");
            return Err(match &library.store().list()?[..] {
                [] => format!("{store} has no torrents; {add} puts them there"),
                _ => format!("{store} has no torrent file of its torrents; {add} keeps them"),
            }
            .into());
        }
    }
    let others: Arc<dyn ContentRepository> = match &in_store {
        Some(library) => Arc::clone(library.store()),
        None => Arc::new(Memory::new(&ContentConfig::new(""))),
    };
    let mut lacking = Vec::new();
    let mut places = Vec::new();
    for (nth, (metainfo, torrent)) in torrents.into_iter().enumerate() {
        let (info, path) = (metainfo.info(), paths.get(nth).copied());
        if let (Some(_), Err(refused)) = (path, args.sharing.many_files.check(info)) {
            lacking.push(refused);
            continue;
        }
        let place = match (path, data) {
            (Some(_), Some(data)) => Place::find(info, data),
            (Some(path), None) if named.is_none() && !is_here(info) => beside(info, path),
            _ => None,
        };
        let is_in_store = place.is_none() && data.is_none() && others.open(&info.info_hash()).is_ok();
        match path {
            Some(path) if place.is_none() && !is_in_store => lacking.push(missing(info, path, data, named)),
            _ => {
                if let Some(library) = in_store.as_ref().filter(|_| is_in_store) {
                    verify_unknown(library, info)?;
                }
                places.push((metainfo, torrent, place));
            }
        }
    }
    // Before the others are verified, which may take long.
    if places.is_empty() {
        return Err(lacking.join("\nseedkeep: ").into());
    }
    lacking.iter().for_each(|lacking| eprintln!("seedkeep: {lacking}"));
    let (store, mut shared, mut failed) = (InPlace::new(others), Vec::new(), !lacking.is_empty());
    for (metainfo, torrent, place) in places {
        if let Some(place) = place {
            match verified(metainfo.info(), &place, args.sharing.json) {
                Ok(right) => store.add(place, right)?,
                Err(error) => {
                    eprintln!("seedkeep: {}", in_words(&error));
                    failed = true;
                    continue;
                }
            }
        }
        shared.push((metainfo, torrent));
    }
    if shared.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    let ended = share(&args.sharing, Arc::new(store), None, (shared, Vec::new()), Until::Interrupted)?;
    Ok(if failed { ExitCode::FAILURE } else { ended })
}

/// Whether the store of the current folder has the torrent, if there is one.
fn is_in_folder_store(info: &Info) -> bool {
    Path::new(HIDDEN).join("torrents").join(info.info_hash().to_string()).exists()
}

/// The files of a torrent beside its torrent file, around it, or in the current folder.
fn beside(info: &Arc<Info>, torrent: &Path) -> Option<Place> {
    let original = info.files().iter().find_map(|file| Some(OsStr::from_bytes(file.original_path()?[0])));
    let names = [Some(OsStr::new(info.name())), original];
    [torrent.parent().unwrap_or(Path::new("")), Path::new("")].into_iter().find_map(|folder| {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let whole = folder.canonicalize();
        let is_own = |name| whole.as_ref().is_ok_and(|folder| folder.file_name() == Some(name));
        let is_there = names.into_iter().flatten().any(|name| is_own(name) || folder.join(name).exists());
        is_there.then(|| Place::find(info, folder)).flatten()
    })
}

fn missing(info: &Info, torrent: &Path, data: Option<&Path>, store: Option<&Path>) -> String {
    let (name, shown) = (info.name().escape_debug(), torrent.display());
    match (data, store) {
        (Some(data), _) => format!("{name}: none of its files is in {}", data.display()),
        (None, Some(store)) => {
            let store = store.display();
            format!("{name}: it is not in {store}; `seedkeep store add {store} {shown} DATA` puts it there")
        }
        (None, None) => format!(
            "{name}: it is neither beside its torrent file nor in the current folder; `seedkeep seed {shown} FOLDER` \
             seeds it from elsewhere, `seedkeep fetch {shown}` fetches it"
        ),
    }
}

/// The right pieces of a torrent, one at least. Prints the wrong and the missing ones.
fn verified(info: &Info, place: &Place, json: bool) -> Result<PieceBits, Box<dyn Error>> {
    let name = info.name().escape_debug();
    let FileCheck { right, wrong, missing, why, .. } =
        check(info, place).map_err(|error| format!("{name}: {error}"))?;
    let pieces = right.pieces();
    if right.count() == 0 {
        let why = why.map_or_else(|| "other bytes are there".to_owned(), |why| why.to_string());
        return Err(format!("{name}: no piece of it is right: {why}").into());
    }
    if json {
        line(&json!({
            "event": "verified", "info_hash": info.info_hash().to_string(), "name": info.name(),
            "pieces": pieces, "complete": right.count(), "wrong": wrong, "missing": missing,
        }))?;
        return Ok(right);
    }
    eprintln!("{name}: {} are right", of_pieces(right.count(), pieces));
    if !wrong.is_empty() {
        eprintln!("  not those of the torrent: {}", in_runs(&wrong));
    }
    if let Some(why) = why {
        eprintln!("  missing: {} ({})", in_runs(&missing), in_words(&why));
    }
    Ok(right)
}
