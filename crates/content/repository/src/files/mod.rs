//! Content in plain files: the torrents' own files and folders, as their users expect them.
//!
//! # Where the files are
//! They are in the store's folder, under the names that the torrent gives them. If the top name of a torrent
//! is taken (by another torrent, by anything else in the folder, or by a name that differs only in case), the
//! torrent gets one with a number: `album (2)`, `film (2).mkv`. A torrent whose files are not in one common
//! folder goes into one that is named by its info hash. The store writes only to its own files, and to files
//! that it [adopts](FileStore::adopt) because the caller has found the torrent's content in them. A file of
//! another length in the place of a torrent's own is renamed, to a name that ends with `.found`. When a
//! torrent is deleted, a file stays if it does not have the length of the torrent's own, or was put there
//! after the deletion. A torrent without a list of files is one file in the folder `.swarmkeep`, named by its
//! info hash. Empty files are made. Padding (BEP 47) has no file: it reads as zeroes after it was written,
//! and any other bytes that are written there count as never written.
//!
//! Names come from [`FileList`](crate::FileList), which has no path that leads out of its folder, is
//! absolute, or is reserved. Other programs may use the folder, too: the store follows no symbolic link in
//! it.
//!
//! # The state of a torrent
//! In the folder `.swarmkeep`, a file for each torrent (`torrents/` and the info hash, in hexadecimal). All
//! numbers are little-endian; checksums are CRC-32C.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `swkfiles` |
//! | 4 | version of the format: 2. A folder with states of version 1 is refused |
//! | 4 | flags. 1: the paths are those in a folder named by the info hash |
//! | 20 | info hash |
//! | 4 | piece length |
//! | 8 | length of the torrent |
//! | 4 | length of the list of files |
//! | 4 | checksum of the list |
//! | 4 | checksum of all bytes before |
//! | | the list of files, as below |
//! | | zeroes, to a multiple of 512 |
//! | 512 each | sectors of have-bits, as below |
//!
//! The list has for each file: 0, or 1 if it is executable, or 2 for padding (1 byte); its length (8); and,
//! unless it is padding, the number of leading names that its path shares with the previous file (1), the
//! number of names that follow (1), and for each its length (1) and UTF-8. A sector of have-bits has the bits
//! of 4,064 pieces, the first in the highest bit, and in the last 4 bytes the checksum of the info hash, the
//! number of the sector from 0 on (4 bytes), and the bits.
//!
//! The state is written whole when the torrent is created, under another name until it is durable.
//! Afterwards, only sectors of have-bits are written, in their place. A bit is set after the bytes of its
//! piece are durable, and cleared before they change, so that any mix of old and new sectors is valid. If a
//! sector has a wrong checksum or cannot be read, its pieces are lost; it is written again, so that it is not
//! used if it can be read again. If a state is damaged elsewhere, its torrent is lost, but its files stay
//! (the state is renamed, with the ending `.damaged`). If a file is gone or has another length, its pieces
//! are lost. A change by another program that keeps the length of a file is not noticed.
//!
//! A torrent is [unavailable](crate::Error::Unavailable), not damaged, if its state cannot be read or has a
//! later version of the format, if its files cannot be examined, if none of them exists (as when a disk is
//! not mounted, or other files have their place), or if it claims the place of another torrent. It keeps its
//! info hash and its place, and nothing but a delete changes it. Open the store again when the cause is
//! removed. All of this is [reported](FileStore::report).
//!
//! An incomplete piece does not outlive the store. Files whose state was lost are fetched again, unless the
//! caller verifies them and lets the store adopt them.
//!
//! `making/` contains the files of torrents that are being created. The name of a state that is being written
//! ends with `.new`, that of a deleted torrent whose files are being removed with `.gone`. `lock` is locked
//! (`flock`) while a process has the store open.
//!
//! # Cost
//! At most a quarter of the descriptors that the process may have are open files, 1,024 at most, plus one per
//! call in progress. If more files are written between two flushes,
//! they are flushed and closed 32 at a time. A create or delete keeps nested folders open, as many as the
//! depth of the tree. A create flushes up to 32 files and folders one by one; with more, it flushes the whole
//! file system at once. In memory a torrent takes about 700 bytes, its [`FileList`](crate::FileList), one bit
//! per piece, and about 50 bytes per contiguous range of incomplete pieces that was written or has room on
//! the disk. Opening examines every file once. A flush is one `fdatasync` per written file and one more per
//! torrent with newly complete pieces; reads and writes wait for neither. A torrent of more than 67,108,864
//! pieces is refused. Nothing is mapped into memory.
//!
//! # Proof
//! Every change and every flush of the disk passes through one module, where tests record them. The tests
//! replay the record on a model of a file system that keeps all flushed changes and any part of the rest,
//! open the result, and compare it with the promises of the store. They also leave out each flush in turn.

#[cfg(test)]
mod crashes;
pub(crate) mod disk;
#[doc(hidden)]
pub mod folder;
pub(crate) mod open_files;
mod place;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod torrent;
mod volume;
mod walk;

use std::{ops::Range, path::PathBuf, sync::Arc};

use store::Store;
use swarmkeep_bittorrent::counted;
use torrent::Handle;

use crate::{
    Capabilities, Content, ContentConfig, ContentRepository, Error, InfoHash, NewTorrent, PieceBits, Result,
    Summary, forward,
};

/// The folder in the store's folder that contains the states of the torrents.
pub const HIDDEN: &str = ".swarmkeep";

/// When files take their room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Allocation {
    /// As they are written: files have holes. The disk can become full while a torrent is fetched.
    #[default]
    Sparse,
    /// All of it when the torrent is created. If there is not enough, `create` returns
    /// [`Full`](crate::Error::Full). Files have fewer extents if pieces come in random order.
    Preallocated,
}

/// Content in plain files.
#[derive(Clone)]
pub struct FileStore {
    store: Arc<Store>,
    report: Arc<OpenReport>,
}

impl FileStore {
    /// Opens the store in the folder of `config`, or makes one there. Files of existing torrents stay as they
    /// are, whichever allocation they have.
    ///
    /// The capacity counts bytes of content that are written or have room on the disk, and the states. It
    /// does not count what the file system adds, up to a block per file, nor the files of
    /// [unavailable](Damage::Unavailable) torrents.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process has it open, [`Error::NotAStore`] if there is something else in
    /// the place of its states, [`Error::Io`].
    pub fn open(config: &ContentConfig, allocation: Allocation) -> Result<Self> {
        Self::open_on(disk::Disk::default(), config, allocation)
    }

    fn open_on(disk: disk::Disk, config: &ContentConfig, allocation: Allocation) -> Result<Self> {
        let (store, report) = Store::open(config, allocation, disk)?;
        Ok(Self { store: Arc::new(store), report: Arc::new(report) })
    }

    /// The findings when the store was opened.
    pub fn report(&self) -> &OpenReport {
        &self.report
    }

    /// Creates a torrent from files that exist already: in the store's folder, under the names that the
    /// torrent gives them. The caller has verified which of its pieces are right: these are complete and
    /// durable. The store owns each file for whose number in the [`FileList`](crate::FileList) `has_content`
    /// returns true: it writes the other pieces to them, and deletes them with the torrent. Other files there
    /// are renamed, to names that end with `.found`, and so are damaged files that are too long, and hard
    /// links to which the store would have to write; their pieces are not complete. A file that is only too
    /// long is cut. Returns the new paths of the renamed files.
    ///
    /// Returns `None`, and changes nothing, if no file is adopted, if the place of a file has something that
    /// is no file or folder, if two names lead to one file, or if another torrent has that place.
    ///
    /// # Errors
    /// As [`create`](ContentRepository::create), and [`Error::Io`] if a file cannot be
    /// examined or written.
    pub fn adopt(
        &self,
        torrent: &NewTorrent,
        right: &PieceBits,
        has_content: impl Fn(usize) -> bool,
    ) -> Result<Option<Vec<PathBuf>>> {
        let adopted = self.store.adopt(torrent, right, has_content).map_err(self.about());
        let Some((_, renamed)) = adopted? else { return Ok(None) };
        self.store.flush()?;
        Ok(Some(renamed.iter().map(|path| self.store.path().join(path)).collect()))
    }

    /// Adds the folder to an error of the medium.
    fn about(&self) -> impl FnOnce(Error) -> Error {
        |error| error.about(self.store.path())
    }

    /// The torrent that has a name at the top of the store's folder.
    pub fn torrent_at(&self, name: &str) -> Option<InfoHash> {
        self.store.torrent_at(name)
    }

    /// The paths of the files of a torrent, in their order, each with its number in the
    /// [`FileList`](crate::FileList). Padding has no path.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unavailable`].
    pub fn paths(&self, info_hash: &InfoHash) -> Result<Vec<(usize, PathBuf)>> {
        let torrent = self.store.get(info_hash)?;
        let path = |index| self.store.path().join(PathBuf::from_iter(torrent.place.path(index)));
        Ok(torrent.place.files().map(|file| (file.index(), path(file.index()))).collect())
    }
}

/// The findings when a store was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OpenReport {
    /// All differences from the state that the store had left.
    pub damage: Vec<Damage>,
}

/// A difference from the state that the store had left.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The state of a torrent that cannot be read, and was set aside. The torrent is not in the store; its
    /// files are where they were.
    #[error("{}: {what}; its torrent is no longer in the store, and its files are where they were", path.display())]
    State {
        /// Where the state is now.
        path: PathBuf,
        /// The reason.
        what: String,
    },
    /// Have-bits that cannot be read: these pieces are incomplete now.
    #[error("{info_hash}: it is not known which of the pieces {} to {} were complete", pieces.start, pieces.end.saturating_sub(1))]
    HaveBits {
        /// Of which torrent.
        info_hash: InfoHash,
        /// Of which pieces.
        pieces: Range<u32>,
    },
    /// A file that is gone or has another length. It was made anew; a file of another length now has a name
    /// that ends with `.found`.
    #[error("{info_hash}: {} is gone or of another length, which costs {}", path.display(), counted(*pieces as usize, "complete piece"))]
    File {
        /// Of which torrent.
        info_hash: InfoHash,
        /// Which file.
        path: PathBuf,
        /// How many pieces were complete and are not now.
        pieces: u32,
    },
    /// A torrent that cannot be used. Its state cannot be read or written, or has a later version of the
    /// format; or its files cannot be examined, or all of them are missing, or they have the place of another
    /// torrent's files. It keeps its info hash and its place.
    #[error("{info_hash} cannot be used: {why}")]
    Unavailable {
        /// Which torrent.
        info_hash: InfoHash,
        /// The cause.
        why: String,
    },
    /// A deleted torrent whose files cannot be removed. The store tries again when it is opened.
    #[error("{info_hash}: it is deleted and its files cannot be removed: {what}")]
    Leftover {
        /// Which torrent.
        info_hash: InfoHash,
        /// The error of the system.
        what: String,
    },
}

impl ContentRepository for FileStore {
    forward! { it, it.store; flush, statistics }

    /// As the trait says.
    ///
    /// # Errors
    /// Those of the trait; [`Error::Occupied`] if every place for the files is taken;
    /// [`Error::Unsupported`] if the file system cannot preallocate, or takes the
    /// names of two of the files for the same, or if there are too many pieces;
    /// [`Error::Unavailable`].
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        let created = self.store.create(torrent).map_err(self.about());
        Ok(Arc::new(Handle(created?)))
    }

    /// As the trait says.
    ///
    /// # Errors
    /// Those of the trait; [`Error::Unavailable`].
    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(Handle(self.store.get(info_hash)?)))
    }

    fn list(&self) -> Result<Vec<Summary>> {
        let torrents = self.store.torrents.read();
        let summary = |(&info_hash, torrent): (&InfoHash, &Arc<torrent::FileTorrent>)| Summary {
            info_hash,
            geometry: torrent.geometry(),
            complete: torrent.complete(),
        };
        let mut all: Vec<_> = torrents.iter().map(summary).collect();
        all.sort_unstable_by_key(|summary| summary.info_hash);
        Ok(all)
    }

    /// As the trait says; also of a torrent that is [unavailable](crate::Error::Unavailable), if it is known
    /// which files are its own. If they cannot be removed, the torrent is deleted all the same, and the next
    /// call tries again.
    ///
    /// # Errors
    /// Those of the trait; [`Error::Unavailable`].
    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        self.store.delete(info_hash).map_err(self.about())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(4 << 20).durable().bounded()
    }
}

debug_as!(FileStore, it, "FileStore {{ folder: {:?}, .. }}", it.store.path());
