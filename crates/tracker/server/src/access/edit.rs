//! Adds lines to the file of a list, and removes them.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt, fchown},
    path::Path,
};

use swarmkeep::InfoHash;
use tempfile::{Builder, NamedTempFile};

use super::{AccessError, lines::Lines, list, watch::Signature};

/// Appends an info hash to the file of a list, and waits until it is on the disk. Returns `false` if the file
/// already contains it, in any notation. Reads the whole file.
///
/// Only one edit at a time is safe: of two concurrent edits, one may be lost.
///
/// # Errors
/// If the file cannot be loaded or written. It then stays as it was.
pub fn add_line(path: impl AsRef<Path>, info_hash: &InfoHash) -> Result<bool, AccessError> {
    let path = path.as_ref();
    if lists(path, info_hash)? {
        return Ok(false);
    }
    append(path, &format!("{info_hash}\n"))
        .map_err(|source| AccessError::Write { path: path.to_owned(), source })?;
    Ok(true)
}

/// Removes all lines with an info hash from the file of a list, in any notation and with their comments.
/// Returns `false` if there are none. All other bytes stay. The new file is written beside the old one and
/// replaces it once it is on the disk: a reader sees one or the other. It has the permissions of the old
/// file, and its owner if the system allows that. Reads the whole file twice.
///
/// Only one edit at a time is safe: of two concurrent edits, one may be lost.
///
/// # Errors
/// If the file cannot be loaded, if another process writes to it meanwhile, or if the new file cannot be
/// written. The old file then stays as it was, unless the last step fails, which waits until the disk has
/// recorded the replacement.
pub fn remove_line(path: impl AsRef<Path>, info_hash: &InfoHash) -> Result<bool, AccessError> {
    if !lists(path.as_ref(), info_hash)? {
        return Ok(false);
    }
    // Beside the file itself, where the path is a link to it.
    let path = fs::canonicalize(path.as_ref())
        .map_err(|source| AccessError::Read { path: path.as_ref().to_owned(), source })?;
    let unwritten = |source| AccessError::Write { path: path.clone(), source };
    let folder = path.parent().expect("a file is in a folder");
    let lines = Lines::open(&path)?;
    let old = lines.metadata().clone();
    let new = Builder::new().prefix(".swarmkeep-").suffix(".new").tempfile_in(folder).map_err(unwritten)?;
    copy_without(&path, lines, info_hash, new.as_file())?;
    finish(&new, &old).map_err(unwritten)?;
    let unchanged = fs::metadata(&path).is_ok_and(|now| Signature::of(&now) == Signature::of(&old));
    if !unchanged {
        return Err(AccessError::WrittenMeanwhile { path });
    }
    new.persist(&path).map_err(|failed| unwritten(failed.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(unwritten)?;
    Ok(true)
}

/// Whether a file that could be loaded has a line with this info hash.
fn lists(path: &Path, info_hash: &InfoHash) -> Result<bool, AccessError> {
    let (mut lines, mut found) = (Lines::open(path)?, false);
    while let Some(line) = lines.next()? {
        found |= !line.entry.is_empty() && list::entry(path, &line)? == *info_hash;
    }
    Ok(found)
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).append(true).open(path)?;
    let before = file.metadata()?.len();
    let mut last = [b'\n'];
    if before > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    let end = if last == [b'\n'] { "" } else { "\n" };
    // In one write: a crash between two would leave half a line.
    let written = file.write_all(format!("{end}{line}").as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        // The first error is the one to report.
        let _ = file.set_len(before);
    }
    written
}

/// Writes all lines to `new`, except those with `info_hash`.
fn copy_without(
    path: &Path,
    mut lines: Lines<'_>,
    info_hash: &InfoHash,
    new: &File,
) -> Result<(), AccessError> {
    let unwritten = |source| AccessError::Write { path: path.to_owned(), source };
    let mut new = BufWriter::with_capacity(1 << 16, new);
    while let Some(line) = lines.next()? {
        new.write_all(line.mark).map_err(unwritten)?;
        if line.entry.is_empty() || list::entry(path, &line)? != *info_hash {
            new.write_all(line.bytes).map_err(unwritten)?;
        }
    }
    new.flush().map_err(unwritten)
}

/// Makes a new file ready to take the place of an old one.
fn finish(new: &NamedTempFile, old: &fs::Metadata) -> io::Result<()> {
    let file = new.as_file();
    // Only root can change the owner. Otherwise the mode alone decides which users can read the file.
    let _ = fchown(file, Some(old.uid()), Some(old.gid()));
    file.set_permissions(old.permissions())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::{PermissionsExt, symlink},
        path::PathBuf,
        sync::atomic::{AtomicBool, Ordering::Relaxed},
        thread,
        time::Duration,
    };

    use tempfile::TempDir;

    use super::*;
    use crate::access::InfoHashList;

    const HEX: &str = "0123456789abcdef0123456789abcdef01234567";
    const OTHER: &str = "89abcdef0123456789abcdef0123456789abcdef";

    struct List(TempDir);

    impl List {
        fn new(text: &str) -> Self {
            let list = Self(tempfile::tempdir().unwrap());
            fs::write(list.path(), text).unwrap();
            list
        }

        fn path(&self) -> PathBuf {
            self.0.path().join("list")
        }

        /// The text of the file, which is the only one in its folder.
        fn text(&self) -> String {
            assert_eq!(fs::read_dir(self.0.path()).unwrap().count(), 1, "nothing is left behind");
            fs::read_to_string(self.path()).unwrap()
        }

        fn add(&self) -> Result<bool, AccessError> {
            add_line(self.path(), &HEX.parse().unwrap())
        }

        fn remove(&self) -> Result<bool, AccessError> {
            remove_line(self.path(), &HEX.parse().unwrap())
        }
    }

    /// Three notations of [`HEX`], one with a comment.
    fn notations() -> [String; 3] {
        [
            HEX.to_uppercase(),
            "AERUKZ4JVPG66AJDIVTYTK6N54ASGRLH # old".to_owned(),
            format!("  {HEX}{}\t", "0".repeat(24)),
        ]
    }

    #[test]
    fn an_added_entry_is_a_line_of_its_own() {
        for (before, after) in [
            ("", ""),
            ("\n", "\n"),
            ("# a comment", "# a comment\n"),
            ("# a comment\n", "# a comment\n"),
            ("\u{feff}", "\u{feff}\n"),
            (OTHER, &format!("{OTHER}\n")),
            (&format!("{OTHER}\r\n"), &format!("{OTHER}\r\n")),
        ] {
            let list = List::new(before);
            assert!(list.add().unwrap());
            assert_eq!(list.text(), format!("{after}{HEX}\n"));
            let entries = before.contains(OTHER) as usize + 1;
            assert_eq!(InfoHashList::load(list.path()).unwrap().len(), entries);
        }
    }

    #[test]
    fn an_entry_in_any_notation_is_not_added_again() {
        for notation in notations() {
            let list = List::new(&notation);
            assert!(!list.add().unwrap());
            assert_eq!(list.text(), notation);
        }
    }

    #[test]
    fn removing_an_entry_removes_all_its_notations_and_no_other_byte() {
        let [upper, base32, v2] = notations();
        for (before, after) in [
            (format!("{HEX}\n"), String::new()),
            (HEX.to_owned(), String::new()),
            (format!("\u{feff}{HEX}\n{OTHER}"), format!("\u{feff}{OTHER}")),
            (
                format!(
                    "# one \u{e9}\r\n{upper}\r\n\n {OTHER} # {HEX}\n{base32}\n#{HEX}\n{v2}\n\t\n{OTHER}\n{HEX}"
                ),
                format!("# one \u{e9}\r\n\n {OTHER} # {HEX}\n#{HEX}\n\t\n{OTHER}\n"),
            ),
        ] {
            let list = List::new(&before);
            assert!(list.remove().unwrap());
            assert_eq!(list.text(), after);
            assert!(!list.remove().unwrap());
        }
    }

    #[test]
    fn removing_a_missing_entry_leaves_the_file_in_place() {
        let list = List::new(&format!("{OTHER}\n#{HEX}"));
        let before = Signature::of(&fs::metadata(list.path()).unwrap());
        assert!(!list.remove().unwrap());
        assert_eq!(Signature::of(&fs::metadata(list.path()).unwrap()), before);
    }

    #[test]
    fn the_new_file_has_the_permissions_of_the_old() {
        for mode in [0o600, 0o640, 0o604, 0o444] {
            let list = List::new(HEX);
            fs::set_permissions(list.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert!(list.remove().unwrap());
            assert_eq!(fs::metadata(list.path()).unwrap().permissions().mode() & 0o7777, mode);
        }
    }

    #[test]
    fn a_link_stays_a_link_to_the_file_that_is_edited() {
        let list = List::new(HEX);
        let elsewhere = tempfile::tempdir().unwrap();
        let link = elsewhere.path().join("link");
        symlink(list.path(), &link).unwrap();
        assert!(remove_line(&link, &HEX.parse().unwrap()).unwrap());
        assert_eq!(list.text(), "");
        assert!(add_line(&link, &HEX.parse().unwrap()).unwrap());
        assert_eq!(list.text(), format!("{HEX}\n"));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn a_file_that_could_not_be_loaded_is_left_as_it_is() {
        let text = format!("{HEX}\nnonsense\n");
        let list = List::new(&text);
        for error in [list.add().unwrap_err(), list.remove().unwrap_err()] {
            assert!(matches!(error, AccessError::InfoHash { line: 2, .. }), "{error}");
        }
        assert_eq!(list.text(), text);
    }

    /// Another process appends to the file during a long copy.
    #[test]
    fn a_line_of_another_process_is_not_lost() {
        let text = format!("{OTHER}\n").repeat(100_000) + HEX + "\n";
        for _ in 0..20 {
            let list = List::new(&text);
            let done = AtomicBool::new(false);
            let (removed, appended) = thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let mut file = OpenOptions::new().append(true).open(list.path()).unwrap();
                    let mut appended = String::new();
                    while !done.load(Relaxed) {
                        file.write_all(b"# a comment\n").unwrap();
                        appended += "# a comment\n";
                        thread::sleep(Duration::from_millis(1));
                    }
                    appended
                });
                let removed = list.remove();
                done.store(true, Relaxed);
                (removed, other.join().unwrap())
            });
            if let Err(error) = removed {
                assert!(matches!(error, AccessError::WrittenMeanwhile { .. }), "{error}");
                assert!(list.text() == text + &appended, "the file is as the other has left it");
                return;
            }
        }
        panic!("never seen");
    }

    #[test]
    fn a_missing_file_is_not_made() {
        let list = List::new("");
        fs::remove_file(list.path()).unwrap();
        for error in [list.add().unwrap_err(), list.remove().unwrap_err()] {
            assert!(matches!(error, AccessError::Read { .. }), "{error}");
        }
        assert!(!list.path().exists());
    }
}
