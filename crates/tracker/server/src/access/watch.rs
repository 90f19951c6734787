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

    /// Whether the file is as it was at the last [`Changed`](Change::Changed), or at the beginning. One
    /// `stat`.
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

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write, os::unix::fs::symlink, thread, time::Duration};

    use tempfile::TempDir;

    use super::{Change::*, *};

    struct Folder(TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// Writes in place. Two times of writing differ only where the kernel's clock has ticked between
        /// them.
        fn write(&self, name: &str, text: &str) {
            thread::sleep(Duration::from_millis(12));
            fs::write(self.path(name), text).unwrap();
        }

        fn rename(&self, from: &str, to: &str) {
            fs::rename(self.path(from), self.path(to)).unwrap();
        }

        fn watch(&self) -> Watched {
            self.write("list", "first\n");
            let mut watched = Watched::new(self.path("list"));
            assert_eq!(looks(&mut watched, 2), [Same, Same]);
            watched
        }
    }

    fn looks(watched: &mut Watched, times: usize) -> Vec<Change> {
        (0..times).map(|_| watched.look()).collect()
    }

    /// The second look at a new file returns `Changed`; later looks do not.
    const TOLD: [Change; 4] = [Changing, Changed, Same, Same];

    #[test]
    fn a_file_written_in_place_has_changed_be_its_length_the_same_or_not() {
        let folder = Folder::new();
        let mut watched = folder.watch();
        for text in ["longer than before\n", "longer than beyond\n", ""] {
            folder.write("list", text);
            assert_eq!(looks(&mut watched, 4), TOLD, "{text:?}");
        }
    }

    #[test]
    fn a_file_renamed_over_another_has_changed_though_it_is_as_long_and_as_old() {
        let folder = Folder::new();
        let mut watched = folder.watch();
        let written = fs::metadata(folder.path("list")).unwrap().modified().unwrap();
        folder.write("new", "other\n");
        File::options().write(true).open(folder.path("new")).unwrap().set_modified(written).unwrap();
        folder.rename("new", "list");
        assert_eq!(looks(&mut watched, 4), TOLD);
    }

    #[test]
    fn a_file_written_in_place_has_changed_though_its_time_was_set_back() {
        let folder = Folder::new();
        let mut watched = folder.watch();
        let written = fs::metadata(folder.path("list")).unwrap().modified().unwrap();
        folder.write("list", "other\n");
        File::options().write(true).open(folder.path("list")).unwrap().set_modified(written).unwrap();
        assert_eq!(looks(&mut watched, 4), TOLD);
    }

    #[test]
    fn a_link_that_points_elsewhere_is_a_file_that_has_changed() {
        let folder = Folder::new();
        folder.write("one", "first\n");
        folder.write("two", "other\n");
        symlink("one", folder.path("list")).unwrap();
        let mut watched = Watched::new(folder.path("list"));
        assert_eq!(watched.look(), Same);
        symlink("two", folder.path("new")).unwrap();
        folder.rename("new", "list");
        assert_eq!(looks(&mut watched, 4), TOLD);
    }

    #[test]
    fn a_file_is_left_alone_while_it_is_written() {
        let folder = Folder::new();
        let mut watched = folder.watch();
        let mut file = File::options().append(true).open(folder.path("list")).unwrap();
        for _ in 0..5 {
            file.write_all(b"half a li").unwrap();
            assert_eq!(watched.look(), Changing);
        }
        assert_eq!(looks(&mut watched, 3), [Changed, Same, Same]);
    }

    #[test]
    fn a_file_that_is_deleted_is_gone_once_and_has_changed_when_it_is_there_again() {
        let folder = Folder::new();
        let mut watched = folder.watch();
        folder.rename("list", "away");
        let gone = Gone(io::ErrorKind::NotFound);
        assert_eq!(looks(&mut watched, 4), [Changing, gone, Same, Same]);
        folder.write("list", "back\n");
        assert_eq!(looks(&mut watched, 4), TOLD);
        fs::remove_file(folder.path("list")).unwrap();
        assert_eq!(looks(&mut watched, 3), [Changing, gone, Same]);
        folder.rename("away", "list");
        assert_eq!(looks(&mut watched, 4), TOLD);
    }

    #[test]
    fn a_file_that_is_away_for_one_look_is_not_gone() {
        let folder = Folder::new();
        let mut watched = folder.watch();
        folder.rename("list", "list~");
        assert_eq!(watched.look(), Changing);
        folder.write("list", "edited\n");
        assert_eq!(looks(&mut watched, 4), TOLD);
    }

    #[test]
    fn a_file_that_comes_later_has_changed_when_it_comes() {
        let folder = Folder::new();
        let mut watched = Watched::new(folder.path("list"));
        assert_eq!(looks(&mut watched, 2), [Same, Same]);
        folder.write("list", "first\n");
        assert_eq!(looks(&mut watched, 4), TOLD);
    }
}
