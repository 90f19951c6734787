//! The errors of content stores.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::InfoHash;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No torrent can have these lengths.
    #[error("a torrent of {length} bytes in pieces of {piece_length}: {what}")]
    Geometry {
        /// Bytes in all.
        length: u64,
        /// Bytes of a piece.
        piece_length: u32,
        /// The reason.
        what: &'static str,
    },
    /// The bytes are not a torrent file.
    #[error(transparent)]
    Metainfo(swarmkeep_metainfo::Error),
    /// The store has no torrent of this info hash.
    #[error("{0} is not in the store")]
    NotFound(InfoHash),
    /// The store already has a torrent of this info hash.
    #[error("{0} is in the store already")]
    Exists(InfoHash),
    /// The store has a torrent of this info hash that cannot be used now. Its files stay as they are until
    /// the store is opened again.
    #[error("{info_hash} cannot be used: {why}")]
    Unavailable {
        /// The torrent.
        info_hash: InfoHash,
        /// Why it cannot be used.
        why: String,
    },
    /// The torrent was deleted after it was opened.
    #[error("the torrent has been deleted from the store")]
    Deleted,
    /// The range does not lie in the torrent.
    #[error("{len} bytes from {offset} on do not lie in a torrent of {length} bytes")]
    OutOfRange {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
        /// The length of the torrent.
        length: u64,
    },
    /// The torrent does not have this piece.
    #[error("there is no piece {piece}: the torrent has {pieces}, counted from 0")]
    NoSuchPiece {
        /// Its number.
        piece: u32,
        /// The number of pieces of the torrent.
        pieces: u32,
    },
    /// Bytes were never written: they cannot be read, and no piece that contains them can be complete.
    #[error("nothing has been written at byte {at}")]
    NotWritten {
        /// The first of them.
        at: u64,
    },
    /// The bytes of a complete piece are not those of the torrent. Mark it incomplete to have it again.
    #[error("the bytes of piece {piece} are not those of the torrent")]
    Wrong {
        /// Its number.
        piece: u32,
    },
    /// The write touches a complete piece. Mark it incomplete first.
    #[error("piece {piece} is complete, so it is not written to")]
    Complete {
        /// Its number.
        piece: u32,
    },
    /// The store has no room. It is as it was before the call. If the file system of an image with holes has
    /// no room for i-nodes, the store is read-only from then on.
    #[error("the store is full: {what}")]
    Full {
        /// The thing that had no room.
        what: &'static str,
    },
    /// The store was opened read-only, or became read-only.
    #[error("the store is read-only: {why}")]
    ReadOnly {
        /// Why.
        why: &'static str,
    },
    /// Another process, or another store of this process, has the store open.
    #[error("{} is in use by another process: stop that one, or use another store", path.display())]
    InUse {
        /// The path of the store.
        path: PathBuf,
    },
    /// A file or folder that does not belong to the torrent is in the place of its files. Move it away, or
    /// keep the torrent in another folder.
    #[error("{} is there already, and is not the torrent's", path.display())]
    Occupied {
        /// The path of that file or folder.
        path: PathBuf,
    },
    /// There is no store of this kind, or it cannot be read.
    #[error("{}: {what}", path.display())]
    NotAStore {
        /// The path.
        path: PathBuf,
        /// The finding, and the remedy.
        what: String,
    },
    /// The store cannot do this.
    #[error("this store cannot {0}")]
    Unsupported(&'static str),
    /// The store below refused bytes of a torrent that were held back. They count as never written, and
    /// pieces that were marked complete with them are incomplete again. [`pieces`](crate::Content::pieces)
    /// returns the pieces that are still complete.
    #[error("{info_hash} has lost bytes that were held back: {source}")]
    Refused {
        /// The torrent.
        info_hash: InfoHash,
        /// The error of the store below.
        source: Box<Error>,
    },
    /// The medium returned an error.
    #[error("{what}: {}", swarmkeep_bittorrent::in_words(source))]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl Error {
    /// Makes an error of the medium during `what`. A medium without room becomes [`Full`](Self::Full).
    pub fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::Full { what }
            }
            _ => Self::Io { what, source },
        }
    }

    /// Adds a path to an error of the medium.
    pub(crate) fn about(self, path: &Path) -> Self {
        match self {
            Self::Io { what, source } => Self::Io { what, source: about(path)(source) },
            other => other,
        }
    }
}

/// Adds a path to an error of the operating system. The result keeps the kind of the error, not its number.
pub(crate) fn about(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.as_ref().display()))
}
