//! Tells when a file has changed.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// A file that is watched for changes. It has no clock and no thread: the caller [looks](Self::look) about
/// once per second.
///
/// A change counts when two looks in a row have seen the same file. So a file that is being written in place,
/// or that an editor has moved away and not yet written again, is not read too early. A program that pauses
/// for longer while it writes should write to another file, and rename it at the end.
#[derive(Debug, Clone)]
pub struct Watched {
    path: PathBuf,
    /// The state at the last [`Changed`](Change::Changed), or at the beginning.
    known: FileState,
    /// The state at the latest look.
    seen: FileState,
}

/// The result of a look at a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The file is as it was at the last [`Changed`](Self::Changed), or at the beginning.
    Same,
    /// The file has changed since the last look. Wait for the next look.
    Changing,
    /// The file has changed and was the same at two looks: load it. Each change is returned once, whether or
    /// not the new file is valid.
    Changed,
    /// The file cannot be read any more, for this reason: keep the loaded list. This is returned once. If the
    /// file comes back, it has changed.
    Gone(io::ErrorKind),
}

impl Watched {
    /// Begins to watch the file. Call it before the file is read, so that no change is missed.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let seen = FileState::at(&path);
        Self { path, known: seen, seen }
    }

    /// Looks at the file, with one `stat`.
    pub fn look(&mut self) -> Change {
        let before = std::mem::replace(&mut self.seen, FileState::at(&self.path));
        if self.seen == self.known {
            return Change::Same;
        }
        if self.seen != before {
            return Change::Changing;
        }
        self.known = self.seen;
        match self.seen {
            FileState::File(_) => Change::Changed,
            FileState::Gone(reason) => Change::Gone(reason),
        }
    }

    /// Whether the file is as it was at the last [`Changed`](Change::Changed), or at first. One `stat`.
    pub fn is_unchanged(&self) -> bool {
        matches!(self.known, FileState::File(_)) && FileState::at(&self.path) == self.known
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileState {
    File(Signature),
    Gone(io::ErrorKind),
}

impl FileState {
    fn at(path: &Path) -> Self {
        match fs::metadata(path) {
            Ok(metadata) => Self::File(Signature::of(&metadata)),
            Err(error) => Self::Gone(error.kind()),
        }
    }
}

/// Differs after a file is written in place or replaced by a rename. It contains the time of the last change
/// of any kind (`ctime`), which no program can set: a copy may have the length and the time of writing of
/// the file that it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Signature {
    device: u64,
    inode: u64,
    length: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl Signature {
    pub(super) fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}
