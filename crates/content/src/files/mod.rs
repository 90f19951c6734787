//! Content in plain files: the torrents' own files and folders, as their users expect them.
//!
//! # Where the files are
//! In the store's folder, under the names that the torrent gives them. A torrent whose top name is taken (by another torrent, by anything
//! else that lies there, or by a name that differs in upper and lower case alone) goes into a folder that is named by its info hash, and so does one whose files
//! have no one folder in common. What lies there already is never written to, so that a torrent
//! is never fetched over somebody's files. A torrent of which no names are known is one file, named by its info hash. Files without
//! bytes are made; padding (BEP 47) is not: it reads as zeroes once it was written, and anything else that is written there counts as never written.
//!
//! What names there can be is up to [`FileList`](crate::FileList), which holds no path that leads out of its folder, is absolute, or is reserved. The
//! folder itself may be shared with others: no symbolic link in it is followed.
//!
//! # What is kept about them
//! In the folder `.swarmkeep`, a file for each torrent (`torrents/` and the info hash, in hexadecimal). All numbers are little-endian;
//! checksums are CRC-32C.
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
//! It is written whole when the torrent is created, under another name until it is durable; afterwards sectors of have-bits alone are written, in their place. A bit is
//! set when the bytes of its piece are durable, and cleared before they change, so that any mix of old and new sectors is true. A sector that does not have its checksum costs its pieces; a state that does
//! not, its torrent, whose files stay (the state is set aside with the ending `.damaged`). Both are [reported](FileStore::report), and so is
//! a file that is gone or has another length, which costs its pieces. What somebody else wrote to a file without changing its length is not noticed.
//!
//! `making/` has the files of torrents that are being created; `.new` ends the name of a state that is being written, `.gone` that of a deleted
//! torrent as long as its files are removed. `lock` is locked (`flock`) while a process has the store open.
//!
//! # Cost
//! At most 256 files are open, and one more for each call under way; a create or delete keeps open as many folders as lie in each other. In memory a
//! torrent takes some 700 bytes, what its [`FileList`](crate::FileList) takes, a bit a piece, and some 50 bytes for each stretch of incomplete pieces that was
//! written. Opening looks at every file once. A flush is one `fdatasync` for each file that was written to and one more for each torrent with newly complete
//! pieces. Nothing is mapped into memory.

mod folder;
mod open_files;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod torrent;

use std::{fmt, ops::Range, path::PathBuf, sync::Arc};

use store::Store;
use torrent::Handle;

use crate::{
    Capabilities, Content, ContentConfig, ContentRepository, Error, InfoHash, NewTorrent, Result, Statistics,
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
    /// All of it when the torrent is created, which is [`Full`](Error::Full) if there is not as much. Fewer extents where pieces come in random order.
    Preallocated,
}

/// Content in plain files.
#[derive(Clone)]
pub struct FileStore {
    store: Arc<Store>,
    report: Arc<OpenReport>,
}

impl FileStore {
    /// Opens the store in the folder of `config`, or makes one there. What torrents that are there have of files stays as it is, however they were allocated.
    ///
    /// Its capacity counts bytes of content, and the states. What file systems add to that, up to a block for each file, is not in it.
    ///
    /// # Errors
    /// [`Error::InUse`] if somebody has it open, [`Error::NotAStore`] if something else lies where it keeps its states, [`Error::Io`].
    pub fn open(config: &ContentConfig, allocation: Allocation) -> Result<Self> {
        let (store, report) = Store::open(config, allocation)?;
        Ok(Self { store: Arc::new(store), report: Arc::new(report) })
    }

    /// What was found when the store was opened.
    pub fn report(&self) -> &OpenReport {
        &self.report
    }

    /// Where the files of a torrent lie, in their order; padding lies nowhere.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn paths(&self, info_hash: &InfoHash) -> Result<Vec<PathBuf>> {
        let torrent = self.store.torrents.read().get(info_hash).cloned();
        let torrent = torrent.ok_or(Error::NotFound(*info_hash))?;
        let files = torrent.record.files.iter().filter(|file| !file.is_padding());
        Ok(files.map(|file| self.store.path().join(PathBuf::from_iter(torrent.path(file.index())))).collect())
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
    /// The state of a torrent that cannot be read, and was set aside. The torrent is not in the store; its files are where they were.
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
    /// A file that is gone or has another length. It has been made anew, empty where it was not.
    #[error("{info_hash}: {} is gone or of another length: {pieces} pieces are no longer complete", path.display())]
    File {
        /// Of which torrent.
        info_hash: InfoHash,
        /// Which file.
        path: PathBuf,
        /// How many pieces were complete and are not now.
        pieces: u32,
    },
    /// The state of a torrent that cannot be written to, and files of which are missing.
    #[error("{info_hash}: files are missing, and that cannot be noted: {what}")]
    Unwritable {
        /// Of which torrent.
        info_hash: InfoHash,
        /// What the system said.
        what: String,
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
    /// Those of the trait; [`Error::Occupied`] if the files can be put neither under their own names nor in a folder named by the info hash;
    /// [`Error::Unsupported`] if the file system cannot preallocate.
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(Handle(self.store.create(torrent)?)))
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        let torrent = self.store.torrents.read().get(info_hash).cloned();
        Ok(Arc::new(Handle(torrent.ok_or(Error::NotFound(*info_hash))?)))
    }

    fn list(&self) -> Result<Vec<Summary>> {
        let torrents = self.store.torrents.read();
        let summary = |(&info_hash, torrent): (&InfoHash, &Arc<torrent::Torrent>)| Summary {
            info_hash,
            geometry: torrent.record.geometry,
            complete: torrent.complete(),
        };
        let mut all: Vec<_> = torrents.iter().map(summary).collect();
        all.sort_unstable_by_key(|summary| summary.info_hash);
        Ok(all)
    }

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
