//! Content in plain files: the torrents' own files and folders, as their users expect them.
//!
//! # Where the files are
//! In the store's folder, under the names that the torrent gives them. A torrent whose top name is taken (by
//! another torrent, by anything else that lies there, or by a name that differs in upper and lower case
//! alone) goes into a folder that is named by its info hash, and so does one whose files have no one folder
//! in common. What lies there already is never written to, so that a torrent is never fetched over somebody's
//! files: a file of another length in the place of a torrent's own gets a name that ends with `.found`, and
//! one that was put there after the torrent was deleted, or is not as long as its own, stays when it is. A
//! torrent of which no names are known is one file, named by its info hash. Files without bytes are made;
//! padding (BEP 47) is not: it reads as zeroes once it was written, and anything else that is written there
//! counts as never written.
//!
//! What names there can be is up to [`FileList`](crate::FileList), which holds no path that leads out of its
//! folder, is absolute, or is reserved. The folder itself may be shared with others: no symbolic link in it
//! is followed.
//!
//! # What is kept about them
//! In the folder `.swarmkeep`, a file for each torrent (`torrents/` and the info hash, in hexadecimal). All
//! numbers are little-endian; checksums are CRC-32C.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `swkfiles` |
//! | 4 | version of the format: 1 |
//! | 4 | flags. 1: the files lie in a folder named by the info hash |
//! | 20 | info hash |
//! | 4 | piece length |
//! | 8 | length of the torrent |
//! | 4 | length of the list of files |
//! | 4 | checksum of the list |
//! | 4 | checksum of all bytes before |
//! | | the list. For each file: 0, or 1 if it is executable, or 2 for padding (1 byte), length (8), and unless it is padding how many names its path shares with that of the file before from the front on (1), how many follow (1), and for each its length (1) and UTF-8 |
//! | | zeroes, to a multiple of 512 |
//! | 512 each | have-bits of 4,064 pieces, the first in the highest bit, and in the last 4 bytes the checksum of the info hash, the number of this part from 0 on (4 bytes), and the bits |
//!
//! It is written whole when the torrent is created, under another name until it is durable; afterwards
//! sectors of have-bits alone are written, in their place. A bit is set when the bytes of its piece are
//! durable, and cleared before they change, so that any mix of old and new sectors is true. A sector that
//! does not have its checksum, or that the disk does not give, costs its pieces, and is written anew, so that
//! it is not believed when it reads well again. A state that is damaged elsewhere costs its torrent, whose
//! files stay (the state is set aside with the ending `.damaged`). A file that is gone or has another length
//! costs its pieces. What somebody else wrote to a file without changing its length is not noticed.
//!
//! What cannot be told now is no damage. A torrent whose state cannot be read, or is of a later version of
//! the format; of which it cannot be seen what is there of its files, or none of them is, as when a disk is
//! not mounted; or which claims the place of another: such a one is [unavailable](crate::Error::Unavailable).
//! It keeps its info hash and its place, and nothing of it is changed but by deleting it. The store is opened
//! again when the cause is gone. All this is [reported](FileStore::report).
//!
//! A piece that is not vouched for does not outlive the store: files whose state was lost are not adopted,
//! and are fetched again.
//!
//! `making/` has the files of torrents that are being created; `.new` ends the name of a state that is being
//! written, `.gone` that of a deleted torrent as long as its files are removed. `lock` is locked (`flock`)
//! while a process has the store open.
//!
//! # Cost
//! At most 256 files are open, and one more for each call under way; where more are written to between two
//! flushes, 32 at a time are flushed and closed. A create or delete keeps open as many folders as lie in each
//! other; a create flushes up to 32 files and folders one by one, and of more, the whole file system at once.
//! In memory a torrent takes some 700 bytes, what its [`FileList`](crate::FileList) takes, a bit a piece, and
//! some 50 bytes for each stretch of incomplete pieces that was written or has room on the disk. Opening
//! looks at every file once. A flush is one `fdatasync` for each file that was written to and one more for
//! each torrent with newly complete pieces; who reads or writes waits for neither. A torrent of more than
//! 67,108,864 pieces is refused. Nothing is mapped into memory.
//!
//! # Proof
//! Every change that the store makes to a disk, and every flush, passes one place, where tests record them.
//! What was recorded is replayed on a model of a file system that keeps what was flushed and any part of the
//! rest; what is left is put into a folder, opened, and compared with what was promised; and each flush is
//! left out in turn.

#[cfg(test)]
mod crashes;
mod disk;
mod folder;
mod open_files;
mod place;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod torrent;
mod volume;
mod walk;

use std::{fmt, ops::Range, path::PathBuf, sync::Arc};

use store::Store;
use torrent::Handle;

use crate::{
    Capabilities, Content, ContentConfig, ContentRepository, InfoHash, NewTorrent, Result, Statistics,
    Summary,
};

/// The folder in the store's folder that has what is kept about the files.
pub const HIDDEN: &str = ".swarmkeep";

/// When files take their room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Allocation {
    /// As they are written: there are holes in them. A disk can run full while a torrent is fetched.
    #[default]
    Sparse,
    /// All of it when the torrent is created, which is [`Full`](crate::Error::Full) if there is not as much.
    /// Fewer extents where pieces come in random order.
    Preallocated,
}

/// Content in plain files.
#[derive(Clone)]
pub struct FileStore {
    store: Arc<Store>,
    report: Arc<OpenReport>,
}

impl FileStore {
    /// Opens the store in the folder of `config`, or makes one there. What torrents that are there have of
    /// files stays as it is, however they were allocated.
    ///
    /// Its capacity counts bytes of content, written or with room on the disk, and the states. What file
    /// systems add to that, up to a block for each file, is not in it, nor is what a torrent takes that is
    /// [unavailable](Damage::Unavailable).
    ///
    /// # Errors
    /// [`Error::InUse`](crate::Error::InUse) if somebody has it open,
    /// [`Error::NotAStore`](crate::Error::NotAStore) if something else lies where it keeps its states,
    /// [`Error::Io`](crate::Error::Io).
    pub fn open(config: &ContentConfig, allocation: Allocation) -> Result<Self> {
        Self::open_on(disk::Disk::default(), config, allocation)
    }

    fn open_on(disk: disk::Disk, config: &ContentConfig, allocation: Allocation) -> Result<Self> {
        let (store, report) = Store::open(config, allocation, disk)?;
        Ok(Self { store: Arc::new(store), report: Arc::new(report) })
    }

    /// What was found when the store was opened.
    pub fn report(&self) -> &OpenReport {
        &self.report
    }

    /// Where the files of a torrent lie, in their order, each with its number in its
    /// [`FileList`](crate::FileList); padding lies nowhere.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound), [`Error::Unavailable`](crate::Error::Unavailable).
    pub fn paths(&self, info_hash: &InfoHash) -> Result<Vec<(usize, PathBuf)>> {
        let torrent = self.store.get(info_hash)?;
        let path = |index| self.store.path().join(PathBuf::from_iter(torrent.place.path(index)));
        Ok(torrent.place.files().map(|file| (file.index(), path(file.index()))).collect())
    }
}

/// What was found when a store was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OpenReport {
    /// What was not as the store had left it.
    pub damage: Vec<Damage>,
}

/// Something that was not as the store had left it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The state of a torrent that cannot be read, and was set aside. The torrent is not in the store; its
    /// files are where they were.
    #[error("{}: {what}; its torrent is no longer in the store, and its files are where they were", path.display())]
    State {
        /// Where the state is now.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Have-bits that cannot be read: these pieces are incomplete now.
    #[error("{info_hash}: it is not known which of the pieces {pieces:?} were complete")]
    HaveBits {
        /// Of which torrent.
        info_hash: InfoHash,
        /// Of which pieces.
        pieces: Range<u32>,
    },
    /// A file that is gone or has another length. It has been made anew; one of another length has now a name
    /// that ends with `.found`.
    #[error("{info_hash}: {} is gone or of another length: {pieces} pieces are no longer complete", path.display())]
    File {
        /// Of which torrent.
        info_hash: InfoHash,
        /// Which file.
        path: PathBuf,
        /// How many pieces were complete and are not now.
        pieces: u32,
    },
    /// A torrent that cannot be used: its state cannot be read or written, or is of a later version of the
    /// format; or it cannot be told what is there of its files, or none of them is; or they would lie where
    /// those of another torrent do. It keeps its info hash and its place.
    #[error("{info_hash} cannot be used: {why}")]
    Unavailable {
        /// Which torrent.
        info_hash: InfoHash,
        /// What is in the way.
        why: String,
    },
    /// A deleted torrent whose files cannot be removed; that is tried again when the store is opened.
    #[error("{info_hash}: it is deleted and its files cannot be removed: {what}")]
    Leftover {
        /// Which torrent.
        info_hash: InfoHash,
        /// What the system said.
        what: String,
    },
}

impl ContentRepository for FileStore {
    /// As the trait says.
    ///
    /// # Errors
    /// Those of the trait; [`Error::Occupied`](crate::Error::Occupied) if the files can be put neither under
    /// their own names nor in a folder named by the info hash;
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the file system cannot preallocate, or takes the
    /// names of two of the files for the same, or if there are too many pieces;
    /// [`Error::Unavailable`](crate::Error::Unavailable).
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(Handle(self.store.create(torrent)?)))
    }

    /// As the trait says.
    ///
    /// # Errors
    /// Those of the trait; [`Error::Unavailable`](crate::Error::Unavailable).
    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(Handle(self.store.get(info_hash)?)))
    }

    fn list(&self) -> Result<Vec<Summary>> {
        let torrents = self.store.torrents.read();
        let summary = |(&info_hash, torrent): (&InfoHash, &Arc<torrent::Torrent>)| Summary {
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
    /// Those of the trait; [`Error::Unavailable`](crate::Error::Unavailable).
    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        self.store.delete(info_hash)
    }

    fn flush(&self) -> Result<()> {
        self.store.flush()
    }

    fn statistics(&self) -> Statistics {
        self.store.statistics()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(4 << 20).durable().bounded()
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore").field("folder", &self.store.path()).finish_non_exhaustive()
    }
}
