//! Torrents whose files exist elsewhere already: they are read there, and never written to.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;
use swarmkeep_metainfo::{FileList, Info};

use crate::{
    Capabilities, Content, ContentRepository, Error, Geometry, InfoHash, NewTorrent, PieceBits, Result,
    Summary, error::about, forward,
};

/// The files of a torrent, where a user keeps them. Symbolic links are followed: the files are not the
/// store's own.
#[derive(Debug)]
pub struct Place {
    files: FileList,
    folder: PathBuf,
    /// The number of first names of each path that the folder replaces.
    skipped: usize,
    /// Whether only the sanitised names count, and not the torrent's own.
    as_written: bool,
    /// The file that was read last.
    open: Mutex<Option<(usize, Arc<File>)>>,
    /// How each file was before it was verified.
    before: Mutex<BTreeMap<usize, Signature>>,
}

/// Device, inode, length, and the time of the last change of any kind, which no program can set.
type Signature = (u64, u64, u64, (i64, i64));

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
    pub fn find(info: &Info, path: &Path) -> Option<Self> {
        let files = || info.files().iter().filter(|file| !file.is_padding());
        let found = |skipped| Self { skipped, as_written: false, ..Self::below(info, path) };
        if path.is_file() {
            let mut all = files();
            let only = all.next().filter(|_| all.next().is_none())?;
            return Some(found(only.path().len()));
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
            (own, inside) => Some(found(usize::from(inside > own))),
        }
    }

    /// The files of a torrent below a folder, where a store writes them: under their whole paths, and the
    /// names that are [written](swarmkeep_metainfo::FileList).
    pub fn below(info: &Info, folder: &Path) -> Self {
        Self {
            files: info.files().clone(),
            folder: folder.to_owned(),
            skipped: 0,
            as_written: true,
            open: Mutex::default(),
            before: Mutex::default(),
        }
    }

    /// Verifies the pieces for which `wanted` returns true, in order, and passes each to `each`.
    ///
    /// # Errors
    /// [`Error::Geometry`] if the files are empty, and errors of `each`, which end the call.
    pub fn verify(
        &self,
        info: &Info,
        wanted: impl Fn(u32) -> bool,
        mut each: impl FnMut(u32, FoundPiece<'_>) -> Result<()>,
    ) -> Result<()> {
        let geometry = self.geometry(info)?;
        let mut bytes = Vec::new();
        for piece in (0..geometry.pieces()).filter(|&piece| wanted(piece)) {
            let range = geometry.piece(piece)?;
            bytes.clear();
            bytes.resize((range.end - range.start) as usize, 0);
            let noted = |index, signature| _ = self.before.lock().entry(index).or_insert(signature);
            let read = self.read(range.start, &mut [IoSliceMut::new(&mut bytes)], |index, file, read| {
                // Before the read, so that it counts as changed if it changes meanwhile.
                noted(index, signature(file)?);
                read()
            });
            let found = match read {
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

    fn geometry(&self, info: &Info) -> Result<Geometry> {
        Geometry::new(self.files.length(), info.piece_length())
    }

    /// Fills the buffers with the torrent's bytes from `offset` on, each part of a file by `read_part`.
    /// Padding is zeroes.
    fn read(
        &self,
        offset: u64,
        buffers: &mut [IoSliceMut<'_>],
        read_part: impl Fn(usize, &File, &mut dyn FnMut() -> io::Result<()>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut at = offset;
        for buffer in buffers {
            let mut rest = &mut buffer[..];
            let end = at + rest.len() as u64;
            for segment in self.files.segments(at..end) {
                let (now, later) = rest.split_at_mut(segment.length as usize);
                rest = later;
                if self.files.get(segment.file).expect("segments are of files").is_padding() {
                    now.fill(0);
                    continue;
                }
                let read = self.opened(segment.file).and_then(|file| {
                    read_part(segment.file, &file, &mut || file.read_exact_at(now, segment.offset))
                });
                read.map_err(|error| about(self.path(segment.file))(error))?;
            }
            at = end;
        }
        Ok(())
    }

    /// As it was when it was verified.
    fn read_unchanged(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.read(offset, buffers, |index, file, read| {
            read()?;
            match self.before.lock().get(&index) == Some(&signature(file)?) {
                true => Ok(()),
                false => Err(io::Error::other("it has changed since it was verified")),
            }
        })
    }

    fn opened(&self, index: usize) -> io::Result<Arc<File>> {
        let mut open = self.open.lock();
        if let Some((at, file)) = &*open
            && *at == index
        {
            return Ok(Arc::clone(file));
        }
        // Opening a pipe would block until it has a writer.
        let nonblocking = OFlags::NONBLOCK.bits() as i32;
        let file = File::options().read(true).custom_flags(nonblocking).open(self.path(index))?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let file = Arc::new(file);
        *open = Some((index, Arc::clone(&file)));
        Ok(file)
    }

    fn path(&self, index: usize) -> PathBuf {
        let file = self.files.get(index).expect("it comes from the list");
        path_of(file, &self.folder, self.skipped, self.as_written)
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

fn signature(file: &File) -> io::Result<Signature> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino(), metadata.len(), (metadata.ctime(), metadata.ctime_nsec())))
}

/// Torrents whose files exist elsewhere already, in front of a store with others. Nothing is written to those
/// files, and nothing is stored about them: the caller verifies them each time. A file that changes in any
/// way after it was verified can no longer be read.
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
    pub fn add(&self, info: &Info, place: Place, right: PieceBits) -> Result<()> {
        let torrent = PlacedTorrent { geometry: place.geometry(info)?, place, right: Mutex::new(right) };
        self.torrents.write().insert(info.info_hash(), Arc::new(torrent));
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
}

const READ_ONLY: Error = Error::ReadOnly { why: "the files are seeded where they are" };

impl Content for PlacedTorrent {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn is_verified(&self) -> bool {
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
        self.place.read_unchanged(offset, buffers).map_err(Error::io("reading a file in its place"))
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

    /// Three files in a folder, and their description.
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
                FoundPiece::Wrong(_) => wrong.push(piece),
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
    fn files_are_found_from_any_folder_and_every_piece_is_right() {
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
    fn wrong_and_missing_pieces_are_reported_and_cannot_be_read() {
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
    fn nothing_is_written_and_a_file_that_changes_in_any_way_is_not_read() {
        let (folder, info) = album(Format::V1);
        let (store, content) = store(&info, Place::find(&info, folder.path()).unwrap());
        assert!(content.is_read_only());
        assert!(matches!(content.write(0, &[1]), Err(Error::ReadOnly { .. })));
        assert!(matches!(store.create(&NewTorrent::of(&info).unwrap()), Err(Error::Exists(_))));
        assert!(content.mark_incomplete(0).unwrap() && !content.mark_incomplete(0).unwrap());
        assert!(matches!(content.mark_complete(0), Err(Error::NotWritten { at: 0 })));
        let (first, last) = (1, content.geometry().pieces() - 1);
        assert!(content.read_piece(first).is_ok() && content.read_piece(last).is_ok());
        // Replaced by one of the same length and time of writing.
        let written = fs::metadata(path(&folder, 2)).unwrap().modified().unwrap();
        let other = folder.path().join("other");
        fs::write(&other, bytes(1)).unwrap();
        File::options().write(true).open(&other).unwrap().set_modified(written).unwrap();
        fs::rename(other, path(&folder, 2)).unwrap();
        // The file that was read last is still open: read another one between.
        assert!(content.read_piece(first).is_ok());
        let changed = content.read_piece(last).unwrap_err();
        assert!(
            matches!(&changed, Error::Io { source, .. } if source.to_string().contains("one/b: it has changed"))
        );
        File::options().write(true).open(path(&folder, 0)).unwrap().set_len(10).unwrap();
        assert!(matches!(content.read_piece(first), Err(Error::Io { .. })));
        assert!(store.delete(&info.info_hash()).unwrap());
        assert!(fs::read(path(&folder, 1)).unwrap() == bytes(1));
    }

    #[test]
    fn a_file_that_changes_while_it_is_verified_is_right_piece_by_piece() {
        let (folder, info) = album(Format::V1);
        let place = Place::find(&info, folder.path()).unwrap();
        let mut right = 0;
        let each = |_, found: FoundPiece<'_>| {
            right += u32::from(matches!(found, FoundPiece::Right(_)));
            fs::write(path(&folder, 2), bytes(2)).unwrap();
            Ok(())
        };
        place.verify(&info, |_| true, each).unwrap();
        assert_eq!(right, info.piece_count());
    }

    #[test]
    fn a_pipe_or_folder_counts_as_missing_and_blocks_no_read() {
        let (folder, info) = album(Format::V2);
        let pipe = path(&folder, 0);
        fs::remove_file(&pipe).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .unwrap();
        fs::remove_file(path(&folder, 1)).unwrap();
        fs::create_dir(path(&folder, 1)).unwrap();
        let (right, wrong, missing) = verified(&info, &Place::find(&info, folder.path()).unwrap());
        assert_eq!((right.count(), wrong, missing), (4, vec![], (0..8).collect()));
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
