//! Adds lines to the file of a list, changes them and removes them.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt, fchown},
    path::Path,
    time::{Duration, SystemTime},
};

use swarmkeep::InfoHash;
use tempfile::{Builder, NamedTempFile};

use super::{
    AccessError,
    lines::{Line, Lines},
    list,
    passkeys::{self, Member, fingerprint},
    watch::Signature,
};

/// Appends an info hash to the file of a list, and waits until it is on the disk. Returns `false` if the file
/// already contains it, in any notation. Reads the whole file.
///
/// Only one edit at a time is safe: of two concurrent edits, one may be lost.
///
/// # Errors
/// If the file cannot be loaded or written. It then stays as it was.
pub fn add_line(path: impl AsRef<Path>, info_hash: &InfoHash) -> Result<bool, AccessError> {
    let (path, mut is_listed) = (path.as_ref(), false);
    visit(path, |line| {
        is_listed |= list::entry(path, line)? == *info_hash;
        Ok(())
    })?;
    if !is_listed {
        append(path, &info_hash.to_string())?;
    }
    Ok(!is_listed)
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
    rewrite(path.as_ref(), |path, line| Ok((list::entry(path, line)? == *info_hash).then(String::new)))
}

/// Appends a passkey with its member to the file of a list, as [`add_line`] does.
pub(crate) fn add_passkey(path: &Path, passkey: &str, member: &Member) -> Result<(), AccessError> {
    visit(path, |line| passkeys::entry(path, line).map(drop))?;
    append(path, &member.line(passkey))
}

/// Gives the passkey with a fingerprint another member or, for `None`, removes it, as [`remove_line`] does.
/// Returns the new member or the removed one; `None` if the file does not contain the passkey.
pub(crate) fn edit_passkey(
    path: &Path,
    of: &str,
    edit: impl FnOnce(Member) -> Option<Member>,
) -> Result<Option<Member>, AccessError> {
    let mut found = None;
    visit(path, |line| {
        let (passkey, member) = passkeys::entry(path, line)?;
        if fingerprint(passkey) == of && (found.is_none() || member != Member::default()) {
            found = Some(member);
        }
        Ok(())
    })?;
    let Some(member) = found else { return Ok(None) };
    let edited = edit(member.clone());
    rewrite(path, |path, line| {
        let (passkey, _) = passkeys::entry(path, line)?;
        let entry = || edited.as_ref().map_or_else(String::new, |member| member.line(passkey));
        Ok((fingerprint(passkey) == of).then(entry))
    })?;
    Ok(Some(edited.unwrap_or(member)))
}

/// The members in the file of a list by the fingerprints of their passkeys: the first `most` after one of
/// them, of all members or of those with a name. Reads the whole file.
pub(crate) fn list_passkeys(
    path: &Path,
    after: &str,
    name: Option<&str>,
    most: usize,
) -> Result<BTreeMap<String, Member>, AccessError> {
    let mut found = BTreeMap::<_, Member>::new();
    visit(path, |line| {
        let (passkey, member) = passkeys::entry(path, line)?;
        let fingerprint = fingerprint(passkey);
        if *fingerprint > *after && name.is_none_or(|name| member.name.as_deref() == Some(name)) {
            let known = found.entry(fingerprint).or_default();
            if member != Member::default() {
                *known = member;
            }
            if found.len() > most {
                found.pop_last();
            }
        }
        Ok(())
    })?;
    Ok(found)
}

/// Calls `visit` with each line that has an entry.
fn visit(
    path: &Path,
    mut visit: impl FnMut(&Line<'_>) -> Result<(), AccessError>,
) -> Result<(), AccessError> {
    let mut lines = Lines::open(path)?;
    while let Some(line) = lines.next()? {
        if !line.entry.is_empty() {
            visit(&line)?;
        }
    }
    Ok(())
}

fn append(path: &Path, line: &str) -> Result<(), AccessError> {
    let append = || {
        let mut file = OpenOptions::new().read(true).append(true).open(path)?;
        let before = file.metadata()?.len();
        let mut last = [b'\n'];
        if before > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        let end = if last == [b'\n'] { "" } else { "\n" };
        // In one write: a crash between two would leave half a line.
        let written = file.write_all(format!("{end}{line}\n").as_bytes()).and_then(|()| file.sync_all());
        if written.is_err() {
            // The first error is the one to report.
            let _ = file.set_len(before);
        }
        written
    };
    append().map_err(|source| AccessError::Write { path: path.to_owned(), source })
}

/// Writes a file anew, with other entries in the lines for which `edit` returns them; an empty entry removes
/// the line. Returns whether there is such a line: without one the file stays in place.
fn rewrite(
    path: &Path,
    mut edit: impl FnMut(&Path, &Line<'_>) -> Result<Option<String>, AccessError>,
) -> Result<bool, AccessError> {
    let mut is_edited = false;
    visit(path, |line| {
        is_edited |= edit(path, line)?.is_some();
        Ok(())
    })?;
    if !is_edited {
        return Ok(false);
    }
    // Beside the file itself, where the path is a link to it.
    let path =
        fs::canonicalize(path).map_err(|source| AccessError::Read { path: path.to_owned(), source })?;
    let unwritten = |source| AccessError::Write { path: path.clone(), source };
    let folder = path.parent().expect("a file is in a folder");
    let mut lines = Lines::open(&path)?;
    let old = lines.metadata().clone();
    remove_unfinished(folder);
    let new = Builder::new().prefix(".swarmkeep-").suffix(".new").tempfile_in(folder).map_err(unwritten)?;
    let mut out = BufWriter::with_capacity(1 << 16, new.as_file());
    while let Some(line) = lines.next()? {
        out.write_all(line.mark).map_err(unwritten)?;
        let edited = if line.entry.is_empty() { None } else { edit(&path, &line)? };
        match edited {
            None => out.write_all(line.bytes),
            Some(entry) if entry.is_empty() => Ok(()),
            Some(entry) => {
                let blanks = line.bytes.len() - line.bytes.trim_ascii_start().len();
                let (blanks, rest) = line.bytes.split_at(blanks);
                out.write_all(&[blanks, entry.as_bytes(), &rest[line.entry.len()..]].concat())
            }
        }
        .map_err(unwritten)?;
    }
    out.flush().map_err(unwritten)?;
    drop((out, lines));
    finish(&new, &old).map_err(unwritten)?;
    let unchanged = fs::metadata(&path).is_ok_and(|now| Signature::of(&now) == Signature::of(&old));
    if !unchanged {
        return Err(AccessError::WrittenMeanwhile { path });
    }
    new.persist(&path).map_err(|failed| unwritten(failed.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(unwritten)?;
    Ok(true)
}

/// Removes the new files that crashes have left, with entries of old ones. A young one may be in use.
fn remove_unfinished(folder: &Path) {
    for file in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = file.file_name().into_string().unwrap_or_default();
        let is_new = name.starts_with(".swarmkeep-") && name.ends_with(".new");
        let written =
            || file.metadata().and_then(|file| file.modified()).unwrap_or_else(|_| SystemTime::now());
        if is_new && written().elapsed().is_ok_and(|age| age > Duration::from_secs(60)) {
            let _ = fs::remove_file(file.path());
        }
    }
}

/// Makes a new file ready to take the place of an old one.
fn finish(new: &NamedTempFile, old: &fs::Metadata) -> io::Result<()> {
    let file = new.as_file();
    // Only root can change the owner. Otherwise the mode alone decides which users can read the file.
    let _ = fchown(file, Some(old.uid()), Some(old.gid()));
    file.set_permissions(old.permissions())?;
    file.sync_all()
}
