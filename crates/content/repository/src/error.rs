//! What can go wrong with content, and what it means.

use std::{io, path::PathBuf};

use crate::InfoHash;

/// Why a store did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Measures that no torrent has.
    #[error("a torrent of {length} bytes in pieces of {piece_length}: {what}")]
    Geometry {
        /// Bytes in all.
        length: u64,
        /// Bytes of a piece.
        piece_length: u32,
        /// What is wrong with them.
        what: &'static str,
    },
    /// Bytes that are no torrent file.
    #[error(transparent)]
    Metainfo(swarmkeep_metainfo::Error),
    /// The store holds no such torrent.
    #[error("{0} is not in the store")]
    NotFound(InfoHash),
    /// The store holds a torrent of this info hash already.
    #[error("{0} is in the store already")]
    Exists(InfoHash),
    /// The store holds a torrent of this info hash that cannot be used now. All that it has stays as it is,
    /// until the store is opened again.
    #[error("{info_hash} cannot be used: {why}")]
    Unavailable {
        /// Which torrent.
        info_hash: InfoHash,
        /// What is in the way.
        why: String,
    },
    /// The torrent was deleted after it was opened.
    #[error("the torrent has been deleted from the store")]
    Deleted,
    /// Bytes that the torrent does not have.
    #[error("{len} bytes from {offset} on do not lie in a torrent of {length} bytes")]
    OutOfRange {
        /// Where they begin.
        offset: u64,
        /// How many.
        len: u64,
        /// The bytes that the torrent has.
        length: u64,
    },
    /// A piece that the torrent does not have.
    #[error("there is no piece {piece}: the torrent has {pieces}, counted from 0")]
    NoSuchPiece {
        /// Its number.
        piece: u32,
        /// How many the torrent has.
        pieces: u32,
    },
    /// Bytes that nobody has written, so that nothing can be read there and no piece of them is complete.
    #[error("nothing has been written at byte {at}")]
    NotWritten {
        /// The first of them.
        at: u64,
    },
    /// A write into a piece that is vouched for; mark it incomplete first.
    #[error("piece {piece} is complete, so it is not written to")]
    Complete {
        /// Its number.
        piece: u32,
    },
    /// The store has no room for what was to be put in. It is as it was before.
    #[error("the store is full: {what}")]
    Full {
        /// What there was no room for.
        what: &'static str,
    },
    /// The store was opened to be read, or became read-only for the reason it gave.
    #[error("the store is read-only: {why}")]
    ReadOnly {
        /// Why.
        why: &'static str,
    },
    /// Somebody else has the store open for writing.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// What the store lies on.
        path: PathBuf,
    },
    /// Something that is not the torrent's lies where its files are to be. Move it away, or keep the torrent
    /// in another folder.
    #[error("{} is there already, and is not the torrent's", path.display())]
    Occupied {
        /// What lies there.
        path: PathBuf,
    },
    /// What lies there is not a store of this kind, or one that cannot be read.
    #[error("{}: {what}", path.display())]
    NotAStore {
        /// What the store was to lie on.
        path: PathBuf,
        /// What was found, and what to do.
        what: String,
    },
    /// The store cannot do this.
    #[error("this store cannot {0}")]
    Unsupported(&'static str),
    /// The store below refused what was held back of a torrent: that counts as never written, and pieces that
    /// were marked complete with it are incomplete again. [`pieces`](crate::Content::pieces) says which are
    /// left.
    #[error("{info_hash} has lost what was held back of it: {source}")]
    Refused {
        /// Of which torrent.
        info_hash: InfoHash,
        /// What the store below said.
        source: Box<Error>,
    },
    /// The medium refused.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
}

impl Error {
    /// An error of the medium while doing `what`; a medium without room is [`Full`](Self::Full).
    pub fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::Full { what }
            }
            _ => Self::Io { what, source },
        }
    }
}
