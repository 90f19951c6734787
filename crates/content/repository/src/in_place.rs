//! Torrents whose files exist elsewhere already: they are read there, and never written to.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::{File, Metadata},
    io::{self, IoSlice, IoSliceMut},
    ops::Range,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;
use swarmkeep_metainfo::Info;

use crate::{
    Capabilities, Content, ContentRepository, Error, Geometry, InfoHash, NewTorrent, PieceBits, Result,
    Summary,
    error::about,
    files::{
        disk::Disk,
        open_files::{OpenFile, OpenFiles},
    },
    forward,
};

/// The open files of all places, by the number of the place and of the file.
static OPEN_FILES: LazyLock<OpenFiles> = LazyLock::new(OpenFiles::default);

/// The files of a torrent, where a user keeps them. Symbolic links are followed: the files are not the
/// store's own.
#[derive(Debug)]
pub struct Place {
    info: Arc<Info>,
    folder: PathBuf,
    /// The number of first names of each path that the folder replaces.
    skipped: usize,
    /// Whether only the sanitised names count, and not the torrent's own.
    as_written: bool,
    /// Distinguishes it from all others.
    id: u64,
    /// How each file was before it was verified.
    before: Mutex<BTreeMap<usize, Signature>>,
}

/// How a file was at a moment: its device, i-node, length and time of the last write; and the time of the
/// last change of any kind, such as another link, which no program can set.
type Signature = ((u64, u64, u64, (i64, i64)), (i64, i64));

fn signature(of: &Metadata) -> Signature {
    let written = (of.mtime(), of.mtime_nsec());
    ((of.dev(), of.ino(), of.len(), written), (of.ctime(), of.ctime_nsec()))
}

/// A piece as it was found.
#[derive(Debug)]
pub enum FoundPiece<'a> {
    /// The bytes of the piece, with the padding behind it.
    Right(&'a [u8]),
    /// Other bytes, with zeroes for the padding behind them.
    Wrong(&'a [u8]),
    /// A file is missing, is too short, or cannot be read. The error names it.
    Missing(io::Error),
}

impl Place {
    /// Finds the files of a torrent, under the torrent's own names or under the sanitised ones. `path` is the
    /// folder that has them, the folder of the torrent itself, or the one file of the torrent. Returns `None`
    /// if none of the files exists.
    pub fn find(info: &Arc<Info>, path: &Path) -> Option<Self> {
        let files = || info.files().iter().filter(|file| !file.is_padding());
        if path.is_file() {
            let mut all = files();
            let only = all.next().filter(|_| all.next().is_none())?;
            return Some(Self::new(info, path, only.path().len(), false));
        }
        // A hundred files are enough to choose one of the two folders.
        let count = |skipped: usize| {
            let there = |file: &swarmkeep_metainfo::File<'_>| {
                file.path().len() > skipped && path_of(*file, path, skipped, false).is_file()
            };
            files().filter(there).take(100).count()
        };
        match (count(0), count(1)) {
            (0, 0) => None,
            (own, inside) => Some(Self::new(info, path, usize::from(inside > own), false)),
        }
    }

    /// The files of a torrent below a folder, where a store writes them: under their whole paths, and the
    /// names that are [written](swarmkeep_metainfo::FileList).
    pub fn below(info: &Arc<Info>, folder: &Path) -> Self {
        Self::new(info, folder, 0, true)
    }

    fn new(info: &Arc<Info>, folder: &Path, skipped: usize, as_written: bool) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Relaxed);
        let (info, folder) = (Arc::clone(info), folder.to_owned());
        Self { info, folder, skipped, as_written, id, before: Mutex::default() }
    }

    /// Verifies the pieces for which `wanted` returns true, in order, and passes each to `each`.
    ///
    /// # Errors
    /// [`Error::Geometry`] if the files are empty, and errors of `each`, which end the call.
    pub fn verify(
        &self,
        wanted: impl Fn(u32) -> bool,
        mut each: impl FnMut(u32, FoundPiece<'_>) -> Result<()>,
    ) -> Result<()> {
        let (info, geometry) = (&self.info, self.geometry()?);
        let mut bytes = Vec::new();
        for piece in (0..geometry.pieces()).filter(|&piece| wanted(piece)) {
            let range = geometry.piece(piece)?;
            bytes.clear();
            bytes.resize((range.end - range.start) as usize, 0);
            for segment in info.files().segments(range.clone()) {
                // Before the read, so that it counts as changed if it changes meanwhile.
                if !self.is_padding(segment.file)
                    && !self.before.lock().contains_key(&segment.file)
                    && let Ok(now) = self.now(segment.file)
                {
                    self.before.lock().insert(segment.file, now);
                }
            }
            let found =
                match self.read(range.start, &mut [IoSliceMut::new(&mut bytes)], |_, read| read.map(drop)) {
                    Err(error) => FoundPiece::Missing(error),
                    Ok(()) if info.verify(piece, &bytes[..info.piece_len(piece) as usize]) => {
                        FoundPiece::Right(&bytes)
                    }
                    Ok(()) => FoundPiece::Wrong(&bytes),
                };
            each(piece, found)?;
        }
        Ok(())
    }

    fn geometry(&self) -> Result<Geometry> {
        Geometry::new(self.info.files().length(), self.info.piece_length())
    }

    /// Fills the buffers with the torrent's bytes from `offset` on. `check` gets the number of each file and
    /// the result of its read. Padding is zeroes.
    fn read(
        &self,
        offset: u64,
        buffers: &mut [IoSliceMut<'_>],
        check: impl Fn(usize, io::Result<Signature>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut at = offset;
        for buffer in buffers {
            let mut rest = &mut buffer[..];
            let end = at + rest.len() as u64;
            for segment in self.info.files().segments(at..end) {
                let (now, later) = rest.split_at_mut(segment.length as usize);
                rest = later;
                if self.is_padding(segment.file) {
                    now.fill(0);
                    continue;
                }
                let read = self.opened(segment.file).and_then(|open| {
                    open.file.read_exact_at(now, segment.offset)?;
                    Ok(signature(&open.file.metadata()?))
                });
                check(segment.file, read).map_err(|error| about(self.path(segment.file))(error))?;
            }
            at = end;
        }
        Ok(())
    }

    fn opened(&self, index: usize) -> io::Result<Arc<OpenFile>> {
        OPEN_FILES.get(&Disk::default(), (self.id, index as u32), false, || {
            // Opening a pipe would block until it has a writer.
            let nonblocking = OFlags::NONBLOCK.bits() as i32;
            let file = File::options().read(true).custom_flags(nonblocking).open(self.path(index))?;
            if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no file")) }
        })
    }

    fn is_padding(&self, index: usize) -> bool {
        self.info.files().get(index).expect("it comes from the list").is_padding()
    }

    fn now(&self, index: usize) -> io::Result<Signature> {
        Ok(signature(&self.path(index).metadata()?))
    }

    fn path(&self, index: usize) -> PathBuf {
        let file = self.info.files().get(index).expect("it comes from the list");
        path_of(file, &self.folder, self.skipped, self.as_written)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        OPEN_FILES.close(self.id);
    }
}

/// The path of a file below a folder that stands for the first names of its path: under the torrent's own
/// names, if the file exists there, or else under the sanitised ones.
fn path_of(file: swarmkeep_metainfo::File<'_>, folder: &Path, skipped: usize, as_written: bool) -> PathBuf {
    let possible = |name: &&[u8]| {
        !matches!(**name, [] | [b'.'] | [b'.', b'.']) && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
    };
    let below = |names: &mut dyn Iterator<Item = &OsStr>| {
        let mut path = folder.to_owned();
        path.extend(names.skip(skipped));
        path
    };
    let original = file.original_path().filter(|names| !as_written && names.iter().all(possible));
    let original = original.map(|names| below(&mut names.into_iter().map(OsStr::from_bytes)));
    let written = || below(&mut file.path().into_iter().map(OsStr::new));
    original.filter(|path| path.is_file()).unwrap_or_else(written)
}

/// Torrents whose files exist elsewhere already, in front of a store with others. Nothing is written to those
/// files, and nothing is stored about them: the caller verifies them each time.
///
/// A file whose device, i-node, length or time of writing changes after it was verified loses all of its
/// pieces. A change of any other kind leaves them, and [counts](Content::changes). The next read and the next
/// [`verify_changes`](Content::verify_changes) notice either; the latter verifies the file again.
///
/// Different from other stores, any write of bytes is [`Error::ReadOnly`], and handles read on after a
/// delete.
#[derive(Debug)]
pub struct InPlace {
    torrents: RwLock<BTreeMap<InfoHash, Arc<PlacedTorrent>>>,
    others: Arc<dyn ContentRepository>,
}

impl InPlace {
    /// Returns a store that has the torrents of `others` and the [added](Self::add) ones.
    pub fn new(others: Arc<dyn ContentRepository>) -> Self {
        Self { torrents: RwLock::default(), others }
    }

    /// Adds a torrent of which these pieces are right. It hides one of the same info hash of the store
    /// behind.
    ///
    /// # Errors
    /// [`Error::Geometry`] if its files are empty.
    pub fn add(&self, place: Place, right: PieceBits) -> Result<()> {
        let (info_hash, geometry, right) = (place.info.info_hash(), place.geometry()?, Mutex::new(right));
        let (stale, [changes, looked]) = (Mutex::default(), [const { AtomicU64::new(0) }; 2]);
        let torrent = PlacedTorrent { geometry, place, right, stale, changes, looked };
        self.torrents.write().insert(info_hash, Arc::new(torrent));
        Ok(())
    }
}

impl ContentRepository for InPlace {
    forward! { it, it.others; flush, statistics }

    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        match self.torrents.read().contains_key(&torrent.info_hash) {
            true => Err(Error::Exists(torrent.info_hash)),
            false => self.others.create(torrent),
        }
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        match self.torrents.read().get(info_hash) {
            Some(torrent) => Ok(Arc::clone(torrent) as _),
            None => self.others.open(info_hash),
        }
    }

    fn list(&self) -> Result<Vec<Summary>> {
        let torrents = self.torrents.read();
        let others = self.others.list()?;
        let mut all: Vec<_> =
            others.into_iter().filter(|other| !torrents.contains_key(&other.info_hash)).collect();
        all.extend(torrents.iter().map(|(&info_hash, torrent)| Summary {
            info_hash,
            geometry: torrent.geometry,
            complete: torrent.right.lock().count(),
        }));
        all.sort_unstable_by_key(|summary| summary.info_hash);
        Ok(all)
    }

    /// A torrent in place is forgotten; its files stay.
    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        match self.torrents.write().remove(info_hash) {
            Some(_) => Ok(true),
            None => self.others.delete(info_hash),
        }
    }

    /// Those of the store behind, without labels.
    fn capabilities(&self) -> Capabilities {
        Capabilities { label: 0, ..self.others.capabilities() }
    }
}

#[derive(Debug)]
struct PlacedTorrent {
    geometry: Geometry,
    place: Place,
    right: Mutex<PieceBits>,
    /// Files to verify again, and how they were at the latest look.
    stale: Mutex<BTreeMap<usize, Option<Signature>>>,
    changes: AtomicU64,
    /// The value of `changes` at the latest look.
    looked: AtomicU64,
}

impl PlacedTorrent {
    fn pieces_of(&self, file: usize) -> Range<u32> {
        let file = self.place.info.files().get(file).expect("it comes from the list");
        self.geometry.pieces_of(&file.range())
    }

    /// Compares a file that was read with how it was when it was verified.
    fn check(&self, index: usize, read: io::Result<Signature>) -> io::Result<()> {
        let (now, before) = (self.place.now(index), self.place.before.lock().get(&index).copied());
        let is_same =
            |it: &io::Result<Signature>| matches!((it, before), (Ok(it), Some(before)) if it.0 == before.0);
        match read {
            // The medium has an error.
            Err(error) if is_same(&now) => Err(error),
            Ok(_) if !is_same(&read) => self.compare(index, read),
            _ => self.compare(index, now),
        }
    }

    /// Compares a file as it is now with how it was when it was verified. Withdraws its pieces if it differs.
    fn compare(&self, index: usize, now: io::Result<Signature>) -> io::Result<()> {
        let mut stale = self.stale.lock();
        let before = self.place.before.lock().get(&index).copied();
        match (&now, before) {
            (Ok(now), Some(before)) if now.0 == before.0 => {
                if *now != before && stale.insert(index, Some(*now)) != Some(Some(*now)) {
                    self.changes.fetch_add(1, Relaxed);
                }
                Ok(())
            }
            _ => {
                stale.insert(index, now.as_ref().ok().copied());
                // A disk that is mounted again has the same files.
                self.place.before.lock().remove(&index);
                let mut right = self.right.lock();
                let lost = self.pieces_of(index).filter(|&piece| right.remove(piece)).count();
                drop((right, stale));
                self.changes.fetch_add(u64::from(lost > 0), Relaxed);
                // While it is open, a removed file takes room.
                OPEN_FILES.forget((self.place.id, index as u32));
                Err(now.err().unwrap_or_else(|| io::Error::other("it has changed since it was verified")))
            }
        }
    }
}

const READ_ONLY: Error = Error::ReadOnly { why: "the files are seeded where they are" };

impl Content for PlacedTorrent {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// A file is verified at the second look at which it is the same.
    fn verify_changes(&self, ends: &dyn Fn() -> bool) -> bool {
        let stale = self.stale.lock().clone();
        let known: BTreeSet<_> = self.place.before.lock().keys().chain(stale.keys()).copied().collect();
        let mut same = Vec::new();
        for index in known {
            let found = self.place.now(index);
            let now = found.as_ref().ok().copied();
            let _ = self.compare(index, found);
            match (now, stale.get(&index)) {
                (Some(now), Some(seen)) if *seen == Some(now) => same.push((index, now)),
                (_, Some(_)) => _ = self.stale.lock().insert(index, now),
                (_, None) => {}
            }
        }
        for (index, now) in same {
            self.stale.lock().remove(&index);
            self.place.before.lock().insert(index, now);
            OPEN_FILES.forget((self.place.id, index as u32));
            let pieces = self.pieces_of(index);
            let _ = self.place.verify(
                |piece| pieces.contains(&piece),
                |piece, found| {
                    match found {
                        FoundPiece::Right(_) => self.right.lock().insert(piece),
                        FoundPiece::Wrong(_) | FoundPiece::Missing(_) => self.right.lock().remove(piece),
                    };
                    if ends() { Err(Error::Deleted) } else { Ok(()) }
                },
            );
            // Errors and results of earlier reads do not count any more.
            self.changes.fetch_add(1, Relaxed);
        }
        let changes = self.changes.load(Relaxed);
        self.looked.swap(changes, Relaxed) != changes
    }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let len: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let range = self.geometry.range(offset, len as u64)?;
        if range.is_empty() { Ok(()) } else { Err(READ_ONLY) }
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let range = self.geometry.range(offset, len as u64)?;
        let wrong = self.geometry.pieces_of(&range).find(|&piece| !self.right.lock().contains(piece));
        if let Some(piece) = wrong {
            return Err(Error::NotWritten { at: self.geometry.piece(piece)?.start.max(offset) });
        }
        let read = self.place.read(offset, buffers, |index, read| self.check(index, read));
        read.map_err(Error::io("reading a file in its place"))
    }

    fn mark_complete(&self, piece: u32) -> Result<bool> {
        let range = self.geometry.piece(piece)?;
        match self.right.lock().contains(piece) {
            true => Ok(false),
            false => Err(Error::NotWritten { at: range.start }),
        }
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        self.geometry.piece(piece)?;
        // It comes back when a file of it has changed and is right.
        Ok(self.right.lock().remove(piece))
    }

    fn pieces(&self) -> Result<PieceBits> {
        Ok(self.right.lock().clone())
    }
}

#[cfg(test)]
mod tests;
