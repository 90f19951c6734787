//! Torrents whose files lie somewhere already: they are read where they are, and never written to.

use std::{
    collections::BTreeMap,
    fs::{File, Metadata},
    io::{self, IoSlice, IoSliceMut},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use swarmkeep_metainfo::{FileList, Info};

use crate::{
    Capabilities, Content, ContentRepository, Error, Geometry, InfoHash, NewTorrent, PieceBits, Result,
    Statistics, Summary,
};

/// The files of a torrent, where somebody keeps them. Symbolic links are followed: the files are not the
/// store's own.
#[derive(Debug)]
pub struct Place {
    files: Arc<FileList>,
    folder: PathBuf,
    /// The number of names of each path that the folder stands for.
    skipped: usize,
    /// The file that was read last.
    open: Mutex<Option<(usize, Arc<File>)>>,
    /// For each file that was read, what tells whether it has changed since.
    seen: Mutex<BTreeMap<usize, Seen>>,
}

/// Length, and the time of the last change of the bytes.
type Seen = (u64, i64, i64);

/// What there is of a piece.
#[derive(Debug)]
pub enum FoundPiece<'a> {
    /// The bytes of the piece, as a store has them.
    Right(&'a [u8]),
    /// Other bytes.
    Wrong,
    /// A file is missing, is too short, or cannot be read.
    Missing(io::Error),
}

impl Place {
    /// Finds the files of a torrent. `path` is the folder that has them, the folder of the torrent itself, or
    /// the one file of the torrent. Returns `None` if none of them is there.
    pub fn find(info: &Info, path: &Path) -> Option<Self> {
        let files = || info.files().iter().filter(|file| !file.is_padding());
        let found = |skipped| Self {
            files: Arc::new(info.files().clone()),
            folder: path.to_owned(),
            skipped,
            open: Mutex::default(),
            seen: Mutex::default(),
        };
        if path.is_file() {
            let mut all = files();
            let only = all.next().filter(|_| all.next().is_none())?;
            return Some(found(only.path().len()));
        }
        let count = |skipped: usize| {
            let there = |names: Vec<&str>| {
                names.len() > skipped && path.join(PathBuf::from_iter(&names[skipped..])).is_file()
            };
            files().filter(|file| there(file.path())).take(100).count()
        };
        match (count(0), count(1)) {
            (0, 0) => None,
            (own, inside) => Some(found(usize::from(inside > own))),
        }
    }

    /// The path of a file, by its number in the list.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn path(&self, index: usize) -> PathBuf {
        let file = self.files.get(index).expect("it comes from the list");
        let mut path = self.folder.clone();
        path.extend(&file.path()[self.skipped..]);
        path
    }

    /// Verifies the pieces for which `wanted` returns true, in order, and passes each to `each`.
    ///
    /// # Errors
    /// Those of `each`, which end it.
    pub fn verify(
        &self,
        info: &Info,
        wanted: impl Fn(u32) -> bool,
        mut each: impl FnMut(u32, FoundPiece<'_>) -> Result<()>,
    ) -> Result<()> {
        let geometry = NewTorrent::of(info)?.geometry;
        let mut bytes = Vec::new();
        for piece in (0..geometry.pieces()).filter(|&piece| wanted(piece)) {
            let range = geometry.piece(piece)?;
            bytes.clear();
            bytes.resize((range.end - range.start) as usize, 0);
            let found = match self.read(range.start, &mut [IoSliceMut::new(&mut bytes)]) {
                Err(error) => FoundPiece::Missing(error),
                Ok(()) if info.verify(piece, &bytes[..info.piece_len(piece) as usize]) => {
                    FoundPiece::Right(&bytes)
                }
                Ok(()) => FoundPiece::Wrong,
            };
            each(piece, found)?;
        }
        Ok(())
    }

    /// Fills the buffers with the torrent's bytes from `offset` on. Padding is zeroes.
    fn read(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let mut at = offset;
        for buffer in buffers {
            let mut rest = &mut buffer[..];
            let end = at + rest.len() as u64;
            for segment in self.files.segments(at..end.min(self.files.length())) {
                let (now, later) = rest.split_at_mut(segment.length as usize);
                rest = later;
                match self.files.get(segment.file).expect("segments are of files").is_padding() {
                    true => now.fill(0),
                    false => self.opened(segment.file)?.read_exact_at(now, segment.offset)?,
                }
            }
            // Behind the files of a v2 torrent is nothing.
            rest.fill(0);
            at = end;
        }
        Ok(())
    }

    /// A file, as it was when it was read first.
    fn opened(&self, index: usize) -> io::Result<Arc<File>> {
        let mut open = self.open.lock();
        let file = match &*open {
            Some((at, file)) if *at == index => Arc::clone(file),
            _ => {
                let path = self.path(index);
                let named =
                    |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
                let file = Arc::new(File::open(&path).map_err(named)?);
                *open = Some((index, Arc::clone(&file)));
                file
            }
        };
        drop(open);
        let now = seen(&file.metadata()?);
        match *self.seen.lock().entry(index).or_insert(now) == now {
            true => Ok(file),
            false => Err(io::Error::other(format!("{} has changed", self.path(index).display()))),
        }
    }
}

fn seen(metadata: &Metadata) -> Seen {
    (metadata.len(), metadata.mtime(), metadata.mtime_nsec())
}

/// Torrents whose files lie somewhere already, in front of a store with others. Nothing is written to those
/// files, and nothing is kept about them: the caller verifies them each time. A file that changes after it
/// was verified can no longer be read.
#[derive(Debug)]
pub struct InPlace {
    torrents: RwLock<BTreeMap<InfoHash, Arc<Torrent>>>,
    others: Arc<dyn ContentRepository>,
}

impl InPlace {
    /// Returns a store that has the torrents of `others`, and those that are [added](Self::add).
    pub fn new(others: Arc<dyn ContentRepository>) -> Self {
        Self { torrents: RwLock::default(), others }
    }

    /// Adds a torrent of which these pieces are right. It hides one of the same info hash of the store
    /// behind.
    ///
    /// # Errors
    /// [`Error::Geometry`] if its files are empty.
    pub fn add(&self, info: &Info, place: Place, right: PieceBits) -> Result<()> {
        let NewTorrent { info_hash, geometry, .. } = NewTorrent::of(info)?;
        let torrent = Torrent { geometry, place, right: Mutex::new(right) };
        self.torrents.write().insert(info_hash, Arc::new(torrent));
        Ok(())
    }
}

impl ContentRepository for InPlace {
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

    fn flush(&self) -> Result<()> {
        self.others.flush()
    }

    /// Those of the store behind.
    fn statistics(&self) -> Statistics {
        self.others.statistics()
    }

    fn capabilities(&self) -> Capabilities {
        self.others.capabilities()
    }
}

#[derive(Debug)]
struct Torrent {
    geometry: Geometry,
    place: Place,
    right: Mutex<PieceBits>,
}

const READ_ONLY: Error = Error::ReadOnly { why: "the files are seeded where they are" };

impl Content for Torrent {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let len: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let range = self.geometry.range(offset, len as u64)?;
        if range.is_empty() { Ok(()) } else { Err(READ_ONLY) }
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let range = self.geometry.range(offset, len as u64)?;
        {
            let right = self.right.lock();
            if let Some(piece) = self.geometry.pieces_of(&range).find(|&piece| !right.contains(piece)) {
                return Err(Error::NotWritten { at: self.geometry.piece(piece)?.start.max(offset) });
            }
        }
        self.place.read(offset, buffers).map_err(Error::io("reading a file where it lies"))
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
        Ok(self.right.lock().remove(piece))
    }

    fn pieces(&self) -> Result<PieceBits> {
        Ok(self.right.lock().clone())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use swarmkeep_metainfo::{Creation, Format, Metainfo};
    use tempfile::TempDir;

    use super::*;
    use crate::{ContentConfig, ContentExt, Memory};

    const PATHS: [&[&str]; 3] = [&["c"], &["one", "a"], &["one", "b"]];
    const LEN: usize = 50_000;

    fn bytes(file: usize) -> Vec<u8> {
        (0..LEN).map(|at| (at / 7) as u8 ^ file as u8).collect()
    }

    fn path(folder: &TempDir, file: usize) -> PathBuf {
        folder.path().join("album").join(PathBuf::from_iter(PATHS[file]))
    }

    /// Three files in a folder, and what describes them.
    fn album(format: Format) -> (TempDir, Info) {
        let folder = tempfile::tempdir().unwrap();
        let mut builder = Creation::builder("album", format);
        builder.piece_length(16 << 10);
        fs::create_dir_all(folder.path().join("album/one")).unwrap();
        for (file, names) in PATHS.into_iter().enumerate() {
            builder.file(names, LEN as u64, false);
            fs::write(path(&folder, file), bytes(file)).unwrap();
        }
        let mut creation = builder.build().unwrap();
        for piece in 0.. {
            let Some(mut hasher) = creation.hasher(piece) else { break };
            for segment in creation.segments(piece) {
                let names = creation.files().get(segment.file).unwrap().path();
                let file = PATHS.iter().position(|path| names.ends_with(path)).unwrap();
                let start = segment.offset as usize;
                hasher.update(&bytes(file)[start..start + segment.length as usize]);
            }
            creation.set(hasher.finish().unwrap());
        }
        (folder, Metainfo::parse(&creation.finish().unwrap()).unwrap().into_info())
    }

    /// The right pieces, the wrong and the missing ones.
    fn verified(info: &Info, place: &Place) -> (PieceBits, Vec<u32>, Vec<u32>) {
        let pieces = NewTorrent::of(info).unwrap().geometry.pieces();
        let (mut right, mut wrong, mut missing) = (PieceBits::none(pieces), Vec::new(), Vec::new());
        let each = |piece, found: FoundPiece<'_>| {
            match found {
                FoundPiece::Right(_) => _ = right.insert(piece),
                FoundPiece::Wrong => wrong.push(piece),
                FoundPiece::Missing(_) => missing.push(piece),
            }
            Ok(())
        };
        place.verify(info, |_| true, each).unwrap();
        (right, wrong, missing)
    }

    fn store(info: &Info, place: Place) -> (InPlace, Arc<dyn Content>) {
        let (right, ..) = verified(info, &place);
        let store = InPlace::new(Arc::new(Memory::new(&ContentConfig::new(""))));
        store.add(info, place, right).unwrap();
        let content = store.open(&info.info_hash()).unwrap();
        (store, content)
    }

    #[test]
    fn files_are_found_wherever_somebody_points_at_and_every_piece_of_them_is_right() {
        for format in [Format::V1, Format::V2, Format::Hybrid] {
            let (folder, info) = album(format);
            for at in [folder.path().to_owned(), folder.path().join("album")] {
                let place = Place::find(&info, &at).unwrap();
                let (right, wrong, missing) = verified(&info, &place);
                assert_eq!((right.count(), wrong, missing), (right.pieces(), vec![], vec![]), "{format:?}");
                let (_, content) = store(&info, place);
                for piece in 0..right.pieces() {
                    let bytes = content.read_piece(piece).unwrap();
                    assert!(info.verify(piece, &bytes[..info.piece_len(piece) as usize]));
                }
            }
            assert!(Place::find(&info, &folder.path().join("album/one")).is_none());
            assert!(Place::find(&info, &path(&folder, 0)).is_none(), "one file of three");
        }
    }

    #[test]
    fn what_is_wrong_or_missing_is_told_and_cannot_be_read() {
        let (folder, info) = album(Format::V2);
        let mut first = bytes(0);
        first[20_000] ^= 1;
        fs::write(path(&folder, 0), first).unwrap();
        fs::remove_file(path(&folder, 2)).unwrap();
        let place = Place::find(&info, folder.path()).unwrap();
        let (right, wrong, missing) = verified(&info, &place);
        // Four pieces of each file.
        assert_eq!((right.count(), &wrong[..], &missing[..]), (7, &[1][..], &[8, 9, 10, 11][..]));
        let (_, content) = store(&info, place);
        assert!(matches!(content.read_piece(1), Err(Error::NotWritten { at: 16_384 })));
        assert!(content.read_piece(2).is_ok());
    }

    #[test]
    fn nothing_is_written_and_what_changes_later_is_not_read() {
        let (folder, info) = album(Format::V1);
        let (store, content) = store(&info, Place::find(&info, folder.path()).unwrap());
        assert!(content.is_read_only());
        assert!(matches!(content.write(0, &[1]), Err(Error::ReadOnly { .. })));
        assert!(matches!(store.create(&NewTorrent::of(&info).unwrap()), Err(Error::Exists(_))));
        assert!(content.mark_incomplete(0).unwrap() && !content.mark_incomplete(0).unwrap());
        assert!(matches!(content.mark_complete(0), Err(Error::NotWritten { at: 0 })));
        fs::write(path(&folder, 2), bytes(2)).unwrap();
        let last = content.geometry().pieces() - 1;
        assert!(matches!(content.read_piece(last), Err(Error::Io { .. })));
        assert!(content.read_piece(1).is_ok());
        assert!(store.delete(&info.info_hash()).unwrap());
        assert!((0..3).all(|file| fs::read(path(&folder, file)).unwrap() == bytes(file)));
    }

    #[test]
    fn torrents_of_the_store_behind_are_there_too() {
        let (folder, info) = album(Format::V1);
        let (store, _) = store(&info, Place::find(&info, folder.path()).unwrap());
        let other = NewTorrent::new(InfoHash::new([1; 20]), 10, 16 << 10).unwrap();
        store.create(&other).unwrap().write(0, &[7; 10]).unwrap();
        let listed: Vec<_> = store.list().unwrap().iter().map(|summary| summary.info_hash).collect();
        let mut expected = [other.info_hash, info.info_hash()];
        expected.sort_unstable();
        assert_eq!(listed, expected);
        assert_eq!(store.open(&other.info_hash).unwrap().pieces().unwrap().count(), 0);
        assert!(store.delete(&other.info_hash).unwrap());
    }
}
