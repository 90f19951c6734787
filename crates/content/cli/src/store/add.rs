//! `seedkeep store add`: a torrent file, and what there is of its files, into a store.

use std::{
    error::Error,
    fs::File,
    io::ErrorKind,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use indicatif::BinaryBytes;
use serde::Serialize;
use swarmkeep_content::{
    ContentExt, ContentRepository, Error as StoreError,
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use swarmkeep_metainfo::Info;

use super::{
    StoreArg, WRONG, bar, in_runs,
    opened::{For, Opened},
    print_json, read_torrent, say,
};

/// What was put in is made durable at least this often, so that little of it is put in again after an
/// interruption.
const FLUSHED: u64 = 128 << 20;

/// Add a torrent, and the files of it that exist already.
///
/// Each piece of DATA is verified, and right pieces are complete in the store. If the torrent is in the store
/// already, only missing pieces are added.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: StoreArg,

    /// The torrent file.
    #[arg(value_name = "FILE.torrent")]
    torrent: PathBuf,

    /// The torrent's file or folder, or the folder that contains it.
    data: Option<PathBuf>,

    /// Print JSON.
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
    let (metainfo, torrent) = read_torrent(&args.torrent)?;
    let info = metainfo.info();
    let data = args.data.as_deref().map(|data| Data::of(info, data)).transpose()?;
    let store = Opened::open(&args.store.path, For::Adding)?;
    match store.repository.add(&torrent) {
        Ok(_) => {}
        Err(StoreError::Exists(_)) if data.is_some() => {}
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
    if let Some(data) = data {
        fill(&store, info, data, &mut added)?;
    }
    added.complete = store.repository.open(&info.info_hash())?.pieces()?.count();
    if args.json {
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
    let all = added.wrong.is_empty() && added.missing.is_empty();
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

/// Puts in every piece that the store lacks and that is right.
fn fill(
    store: &Opened,
    info: &Info,
    mut data: Data<'_>,
    added: &mut Added<'_>,
) -> Result<(), Box<dyn Error>> {
    // Pieces are smaller than what a store likes to be given.
    let options = StripeCacheOptions::new().write_memory(64 << 20).read_memory(0);
    let cache = StripeCache::new(Arc::clone(&store.repository) as _, options)?;
    let content = cache.open(&info.info_hash())?;
    let complete = content.pieces()?;
    let bar = bar(info.length()).with_message(info.name().to_owned());
    let mut unflushed = 0;
    let mut bytes = Vec::new();
    for piece in 0..info.piece_count() {
        let range = content.geometry().piece(piece)?;
        let length = range.end - range.start;
        bar.inc(length);
        if complete.contains(piece) {
            continue;
        }
        // Zeroes, also where padding is, which is read from nowhere.
        bytes.clear();
        bytes.resize(length as usize, 0);
        if !data.read(range.start, &mut bytes) {
            added.missing.push(piece);
        } else if !info.verify(piece, &bytes[..info.piece_len(piece) as usize]) {
            added.wrong.push(piece);
        } else {
            if let Err(error) = content.write(range.start, &bytes) {
                // What was put in so far stays in.
                cache.flush()?;
                return Err(error.into());
            }
            content.mark_complete(piece)?;
            unflushed += length;
        }
        if unflushed >= FLUSHED {
            cache.flush()?;
            unflushed = 0;
        }
    }
    cache.flush()?;
    bar.finish_and_clear();
    Ok(())
}

/// The files of a torrent, wherever they are.
struct Data<'a> {
    info: &'a Info,
    folder: PathBuf,
    /// How many names of each path the folder stands for.
    skipped: usize,
    /// The file that was read last.
    open: Option<(usize, File)>,
}

impl<'a> Data<'a> {
    /// Finds the files below a path: it may be the folder that has them, their own folder, or the one file.
    fn of(info: &'a Info, path: &Path) -> Result<Self, Box<dyn Error>> {
        let kind = path.metadata().map_err(|error| format!("{}: {error}", path.display()))?;
        let mut files = info.files().iter().filter(|file| !file.is_padding());
        let found = |folder: PathBuf, skipped| Ok(Self { info, folder, skipped, open: None });
        if kind.is_file() {
            let only = files.next().filter(|_| files.next().is_none());
            let only = only.ok_or_else(|| {
                format!("{} has more than one file, and {} is a file", info.name(), path.display())
            })?;
            return found(path.to_owned(), only.path().len());
        }
        // Whichever has more of the files.
        let count = |skipped: usize| {
            let paths = info.files().iter().filter(|file| !file.is_padding()).map(|file| file.path());
            paths
                .filter(|names| {
                    names.len() > skipped && path.join(PathBuf::from_iter(&names[skipped..])).is_file()
                })
                .take(100)
                .count()
        };
        match (count(0), count(1)) {
            (0, 0) => Err(format!("none of the files of {} is in {}", info.name(), path.display()).into()),
            (own, inside) => found(path.to_owned(), usize::from(inside > own)),
        }
    }

    /// Fills `into` with the torrent's bytes from `offset` on; `false` if some are not there, or cannot be
    /// read.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> bool {
        let mut rest = into;
        // Behind the files of a v2 torrent is nothing.
        let end = self.info.files().length().min(offset + rest.len() as u64);
        for segment in self.info.files().segments(offset..end) {
            let (now, later) = rest.split_at_mut(segment.length as usize);
            rest = later;
            let file = self.info.files().get(segment.file).expect("segments are of files");
            if file.is_padding() {
                continue;
            }
            let path = self.path(&file.path());
            let there = self.open.as_ref().is_some_and(|(open, _)| *open == segment.file);
            let read = if there {
                Ok(())
            } else {
                File::open(&path).map(|file| self.open = Some((segment.file, file)))
            };
            let read = read.and_then(|()| {
                let (_, open) = self.open.as_ref().expect("it was opened");
                open.read_exact_at(now, segment.offset)
            });
            match read {
                Ok(()) => {}
                Err(error) => {
                    if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) {
                        eprintln!("seedkeep: {}: {error}", path.display());
                    }
                    return false;
                }
            }
        }
        true
    }

    fn path(&self, names: &[&str]) -> PathBuf {
        let mut path = self.folder.clone();
        path.extend(&names[self.skipped..]);
        path
    }
}
