//! Errors of snapshots and download counts.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::downloads::COPY;

/// Why something was not read or not kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The medium returned an error. No acknowledged change is lost, and the call can be repeated.
    #[error("{doing} {}: {}", path.display(), swarmkeep_bittorrent::in_words(source))]
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
    /// The download counts, or their copy, are not as they were written.
    #[error("{} is damaged: {what}. {}", path.display(), remedy(path))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// The download counts are gone, and their copy is there.
    #[error("{} is missing, and its copy is there: restore it by `swarmkeep state DIR --restore`, or remove it to begin with no download counts", path.display())]
    Missing {
        /// The missing file.
        path: PathBuf,
    },
    /// There is no copy of the download counts to restore.
    #[error("there is no copy to restore, {} is missing: restore a backup, or, if downloads.redb is damaged, remove it to begin with the counts of the snapshot", path.display())]
    NoCopy {
        /// The missing file.
        path: PathBuf,
    },
    /// The folder has download counts of an older layout.
    #[error("{} has download counts of an older layout, which commit 7132e1d is the last to read: use that one, or another folder", path.display())]
    Older {
        /// A file of that layout.
        path: PathBuf,
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
    NoEntropy(io::Error),
}

fn remedy(path: &Path) -> &'static str {
    if path.ends_with(COPY) {
        return "The next copy of download counts that are good replaces it; if they are damaged too, restore a backup";
    }
    "`swarmkeep state DIR --restore` puts its latest copy in its place, while no tracker runs"
}

impl Error {
    /// An error of the medium while `doing` something to `path`.
    pub(crate) fn io(doing: &'static str, path: PathBuf) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path, source }
    }
}
