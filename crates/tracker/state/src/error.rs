//! Errors of snapshots and download counts.

use std::{io, path::PathBuf};

use crate::InfoHash;

/// Why something was not read or not kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The medium returned an error. No acknowledged change is lost, and the call can be repeated.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// This process may not write to the folder, or to the lock in it.
    #[error("cannot write to {}: {source}; {whose}: {advice}, or name another folder", path.display())]
    NotWritable {
        /// The folder, or the lock.
        path: PathBuf,
        /// The refusal of the operating system.
        source: io::Error,
        /// Its owner, its mode, and the user of this process.
        whose: String,
        /// The way to make it writable.
        advice: String,
    },
    /// Another process uses the folder.
    #[error("{} is in use by another process: stop that one, or use another folder", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// A file is not as it was written. It is left unchanged.
    #[error("{} is damaged at byte {at}: {what}. Restore the whole folder from a copy, or begin with an empty one", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The position: the first byte of the part with a wrong checksum, or of the wrong field.
        at: u64,
        /// The fault.
        what: &'static str,
    },
    /// A file was written by a later version of this program.
    #[error("{} has format version {found}, and this program knows version {known}: use a later program", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u16,
        /// The latest version that this program reads.
        known: u16,
    },
    /// Files with a part of the counts are missing, or files of two folders are mixed.
    #[error(
        "{} does not fit the other files of its folder, where number {expected} was expected: restore the whole folder from a copy, or begin with an empty \
         one",
        path.display()
    )]
    Mixed {
        /// The first file that does not fit.
        path: PathBuf,
        /// The expected number: of the next log, or the first number of the next run.
        expected: u64,
    },
    /// The input is not in ascending order. Nothing of it was taken.
    #[error("{info_hash} is not greater than the info hash before it: sort them")]
    NotAscending {
        /// The first info hash that is out of order.
        info_hash: InfoHash,
    },
    /// There are more changes than one commit can contain. None of them was committed.
    #[error("more than {most} changes in one commit: use several")]
    TooManyChanges {
        /// The most changes of one commit.
        most: usize,
    },
    /// A snapshot changed while it was loaded. The store contains a part of it.
    #[error("{}: {error}", path.display())]
    Snapshot {
        /// The file.
        path: PathBuf,
        /// The fault, and its position.
        error: Box<swarmkeep::snapshot::Error>,
    },
    /// The store could not be reached during a snapshot.
    #[error(transparent)]
    Unavailable(#[from] swarmkeep::Unavailable),
    /// The operating system gave no randomness. The blocks of a snapshot are marked with it.
    #[error("no randomness from the operating system: {0}")]
    NoEntropy(getrandom::Error),
    /// The input could not be read. Nothing of it was added.
    #[error("the input could not be read: {0}")]
    Source(io::Error),
}

impl Error {
    /// An error of the medium while `doing` something to `path`.
    pub(crate) fn io(doing: &'static str, path: PathBuf) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path, source }
    }
}
