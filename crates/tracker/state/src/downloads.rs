//! The durable download counts of torrents: one table in a file of redb.

mod copy;
mod medium;

use std::{
    collections::BTreeMap,
    io::{
        self,
        ErrorKind::{InvalidData, UnexpectedEof},
    },
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
    time::Duration,
};

use redb::{
    Builder, Database, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _, StorageBackend,
    TableDefinition,
};
use tracing::warn;

pub(crate) use self::copy::{Copying, NAME as COPY};
pub use self::copy::{Counts, look_at_downloads, restore_downloads};
use self::{copy::NewDatabase, medium::Medium};
use crate::{Error, File, Folder, InfoHash, Result, snapshots};

/// A change of a torrent's count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// Whether the old count is forgotten.
    pub forget: bool,
    /// The number of downloads that are then added.
    pub add: u64,
}

impl Change {
    /// This change followed by a newer one.
    #[must_use]
    pub fn then(self, newer: Self) -> Self {
        if newer.forget {
            newer
        } else {
            Self { forget: self.forget, add: self.add.saturating_add(newer.add) }
        }
    }

    fn of(self, count: u32) -> u32 {
        let before = if self.forget { 0 } else { count.into() };
        u32::try_from(self.add.saturating_add(before)).unwrap_or(u32::MAX)
    }
}

/// The number of downloads of each torrent, in the file `downloads.redb` of a folder.
///
/// A commit is atomic and durable. Its cost depends on the number of changes, not on the number of known
/// torrents. Memory does not grow with that number, and a torrent takes 30 to 60 bytes on disk. Counts
/// saturate at `u32::MAX`. The README has an example; the repository has `docs/formats/downloads.md`.
#[derive(Debug)]
pub struct Downloads {
    folder: Arc<dyn Folder>,
    /// `None` after an error: redb accepts no calls then. The next call opens the file again.
    open: Option<OpenDatabase>,
    /// The fault, if the file is damaged. It is not opened again.
    damage: Option<String>,
    /// The counts before the commits that were refused, which may be in the file nevertheless.
    before: BTreeMap<InfoHash, u32>,
    entries: u64,
    bytes: u64,
}

#[derive(Debug)]
struct OpenDatabase {
    database: Database,
    medium: Medium,
}

/// The counts of a file.
type Table<'a> = redb::Table<'a, &'static [u8; InfoHash::LEN], u32>;

/// The error for a sector that the disk cannot read.
const EIO: i32 = 5;
const NAME: &str = "downloads.redb";
const TABLE: TableDefinition<'_, &[u8; InfoHash::LEN], u32> = TableDefinition::new("downloads");
/// The memory in which redb keeps pages of a file.
const CACHE: usize = 8 << 20;

impl Downloads {
    /// Opens the counts in a folder. A folder without counts gets an empty file; if a tracker has used it, a
    /// warning is logged. Incomplete files are removed.
    ///
    /// # Errors
    /// [`Error::Damaged`]; [`Error::Missing`] if there is only a copy; [`Error::Older`]; [`Error::Io`].
    pub fn open(folder: Arc<dyn Folder>) -> Result<Self> {
        let is_there = is_there(&*folder)?;
        copy::remove_partial(&*folder);
        match is_there {
            // The process before may have been killed before the name was durable.
            true => folder.sync().map_err(Error::io("syncing", folder.path("")))?,
            false => NewDatabase::begin(&*folder, NAME)?.finish(&*folder, None)?,
        }
        let mut downloads = Self::over(folder);
        downloads.entries =
            downloads.call(|database| Ok(database.begin_read()?.open_table(TABLE)?.len()?))?;
        downloads.measure();
        Ok(downloads)
    }

    /// As [`open`](Self::open). If the file is damaged, or the disk refuses to read a part of it, later calls
    /// return that error.
    ///
    /// # Errors
    /// The others of [`open`](Self::open).
    pub(crate) fn open_or_unread(folder: Arc<dyn Folder>) -> Result<Self> {
        let damage = match Self::open(Arc::clone(&folder)) {
            Err(Error::Damaged { what, .. }) => Some(what),
            Err(Error::Io { source, .. }) if source.raw_os_error() == Some(EIO) => None,
            opened => return opened,
        };
        let mut unread = Self::over(folder);
        unread.damage = damage;
        Ok(unread)
    }

    fn over(folder: Arc<dyn Folder>) -> Self {
        Self { folder, open: None, damage: None, before: BTreeMap::new(), entries: 0, bytes: 0 }
    }

    /// The number of downloads of the torrent; 0 if it is unknown.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn get(&mut self, info_hash: &InfoHash) -> Result<u32> {
        Ok(self.get_all(&[*info_hash])?[0])
    }

    /// The counts of many torrents, one for one. Neighbours in ascending order share reads.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_all(&mut self, info_hashes: &[InfoHash]) -> Result<Vec<u32>> {
        let before = mem::take(&mut self.before);
        let counts = self.call(|database| {
            let table = database.begin_read()?.open_table(TABLE)?;
            let count = |info_hash| match before.get(info_hash) {
                Some(count) => Ok(*count),
                None => Ok(table.get(info_hash.as_bytes())?.map_or(0, |count| count.value())),
            };
            info_hashes.iter().map(count).collect()
        });
        self.before = before;
        counts
    }

    /// Makes all changes in order, or none. They are durable when it returns.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`]: no change is made. The same changes may be committed again, alone
    /// or with others, and then count once. If the process ends instead, the next process may find the
    /// refused commit, whole.
    pub fn commit(&mut self, changes: impl IntoIterator<Item = (InfoHash, Change)>) -> Result<()> {
        self.write(|table, before| {
            for (info_hash, change) in changes {
                let count = table.get(info_hash.as_bytes())?.map_or(0, |count| count.value());
                before.entry(info_hash).or_insert(count);
                put(table, &info_hash, change.of(count))?;
            }
            Ok(())
        })
    }

    /// Raises the counts of torrents to at least these, all or none, and returns how many counts were lower.
    /// They are durable when it returns. Ascending info hashes are fastest.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`]: all may be raised nevertheless. The call can be repeated.
    pub fn raise(&mut self, counts: &[(InfoHash, u32)]) -> Result<u64> {
        self.write(|table, _| {
            let mut raised = 0;
            for (info_hash, count) in counts {
                if table.get(info_hash.as_bytes())?.map_or(0, |count| count.value()) < *count {
                    put(table, info_hash, *count)?;
                    raised += 1;
                }
            }
            Ok(raised)
        })
    }

    /// Forgets all counts below `least`, gives their space back, and returns their number.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`]: all of them may still be forgotten. The call can be repeated.
    pub fn forget_below(&mut self, least: u32) -> Result<u64> {
        let forgotten = self.write(|table, _| {
            let entries = table.len()?;
            table.retain(|_, count| count >= least)?;
            Ok(entries - table.len()?)
        })?;
        let compacted = self.call(|database| {
            while database.compact()? {}
            Ok(())
        });
        if let Err(failed) = compacted {
            warn!(%failed, "the space of forgotten download counts was not given back");
        }
        self.measure();
        Ok(forgotten)
    }

    /// Checks the whole file, and writes a copy of it, `downloads.redb.copy`. The latest copy stays until the
    /// new one is complete and checked.
    ///
    /// # Errors
    /// [`Error::Damaged`]: the latest copy stays. [`Error::Io`].
    pub fn copy(&mut self) -> Result<()> {
        self.begin_copy()?.finish(|_| true).map(|_| ())
    }

    /// Checks the whole file, and begins a copy as of now.
    pub(crate) fn begin_copy(&mut self) -> Result<Copying> {
        let path = self.folder.path(NAME);
        let read = self.call(|database| {
            copy::checked(&path, database)?;
            Ok(database.begin_read()?)
        })?;
        Ok(Copying { folder: Arc::clone(&self.folder), read })
    }

    /// The age of the latest copy, by the clock of the system. `None` if there is none.
    pub(crate) fn age_of_copy(&self) -> Option<Duration> {
        self.folder.open(copy::NAME).and_then(|copy| copy::age(&*copy)).ok()
    }

    /// The number of known torrents.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The size of the file in bytes, with the space that is free in it.
    pub fn size_bytes(&self) -> u64 {
        self.bytes
    }

    /// The fault, if the file is damaged. It is neither read nor written then.
    pub fn damage(&self) -> Option<Error> {
        let what = self.damage.clone()?;
        Some(Error::Damaged { path: self.folder.path(NAME), what })
    }

    /// Writes the counts before the refused commits, and then the change, which may add to these counts.
    fn write<T>(
        &mut self,
        change: impl FnOnce(&mut Table<'_>, &mut BTreeMap<InfoHash, u32>) -> Called<T>,
    ) -> Result<T> {
        let mut before = mem::take(&mut self.before);
        let written = self.call(|database| {
            let mut write = database.begin_write()?;
            // After a crash, the file opens at once: without this, redb reads all of it.
            write.set_quick_repair(true);
            let (value, entries) = {
                let mut table = write.open_table(TABLE)?;
                for (info_hash, &count) in &before {
                    put(&mut table, info_hash, count)?;
                }
                (change(&mut table, &mut before)?, table.len()?)
            };
            write.commit()?;
            Ok((value, entries))
        });
        let (value, entries) = written.inspect_err(|_| self.before = before)?;
        self.entries = entries;
        self.measure();
        Ok(value)
    }

    fn measure(&mut self) {
        self.bytes = self.open.as_ref().and_then(|open| open.medium.file.len().ok()).unwrap_or(self.bytes);
    }

    /// Calls redb. After an error, the file is closed.
    fn call<T>(&mut self, call: impl FnOnce(&mut Database) -> Called<T>) -> Result<T> {
        if let Some(damage) = self.damage() {
            return Err(damage);
        }
        let (path, open) = (self.folder.path(NAME), self.open.take());
        let mut open =
            open.map_or_else(|| open_file(&*self.folder), Ok).inspect_err(|error| self.note(error))?;
        let called = guarded(&path, || call(&mut open.database));
        match &called {
            Ok(_) => self.open = Some(open),
            Err(error) => {
                // Without a write, and without a panic of redb.
                open.medium.abandon();
                let _ = close(&path, open.database);
                self.note(error);
            }
        }
        called
    }

    fn note(&mut self, error: &Error) {
        if let Error::Damaged { what, .. } = error {
            self.damage = Some(what.clone());
        }
    }
}

/// redb writes when it closes a file.
impl Drop for Downloads {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            let _ = close(&self.folder.path(NAME), open.database);
        }
    }
}

/// The result of a call of redb.
type Called<T> = Result<T, redb::Error>;

const NOT_WHOLE: &str = "a part of it is not as it was written";

/// Whether a folder has counts. Logs a warning if a tracker has used it, and there are none.
///
/// # Errors
/// [`Error::Older`], [`Error::Missing`], [`Error::Io`].
fn is_there(folder: &dyn Folder) -> Result<bool> {
    let names = folder.names().map_err(Error::io("listing", folder.path("")))?;
    let is_older = |name: &&String| {
        name.starts_with("downloads-") && [".log", ".run"].iter().any(|end| name.ends_with(end))
    };
    if let Some(name) = names.iter().find(is_older) {
        return Err(Error::Older { path: folder.path(name) });
    }
    let has = |name| names.iter().any(|other| other == name);
    match has(NAME) {
        false if has(copy::NAME) => Err(Error::Missing { path: folder.path(NAME) }),
        false if has(snapshots::LATEST) || has(copy::REPLACED) => {
            let folder = folder.path("");
            warn!("no stored download counts in {}: only those of a snapshot are left", folder.display());
            Ok(false)
        }
        has => Ok(has),
    }
}

fn open_file(folder: &dyn Folder) -> Result<OpenDatabase> {
    let path = folder.path(NAME);
    let file: Arc<dyn File> = folder.open_to_write(NAME).map_err(Error::io("opening", path.clone()))?.into();
    let medium = Medium::new(file);
    let database = open_over(&path, &*medium.file, medium.clone())?;
    Ok(OpenDatabase { database, medium })
}

/// Opens an existing file, which must not be empty: redb begins a new one there.
fn open_over(path: &Path, file: &dyn File, medium: impl StorageBackend) -> Result<Database> {
    if file.len().map_err(Error::io("reading", path.to_owned()))? == 0 {
        return Err(Error::Damaged { path: path.to_owned(), what: "it is empty".into() });
    }
    guarded(path, || create(medium))
}

fn create(medium: impl StorageBackend) -> Called<Database> {
    Ok(Builder::new().set_cache_size(CACHE).create_with_backend(medium)?)
}

fn put(table: &mut Table<'_>, info_hash: &InfoHash, count: u32) -> Called<()> {
    match count {
        0 => table.remove(info_hash.as_bytes())?,
        _ => table.insert(info_hash.as_bytes(), count)?,
    };
    Ok(())
}

fn close(path: &Path, database: Database) -> Result<()> {
    guarded(path, || Ok(database.close()?))
}

/// Calls redb, which may panic over a damaged file. A database that is dropped by that panic may panic again,
/// which ends the process: so only `close` moves one into a call.
fn guarded<T>(path: &Path, call: impl FnOnce() -> Called<T>) -> Result<T> {
    let called =
        catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(redb::Error::Corrupted(NOT_WHOLE.into())));
    called.map_err(|error| match error {
        // A file that was cut off, or is none of redb's, is damaged.
        redb::Error::Io(source) if !matches!(source.kind(), UnexpectedEof | InvalidData) => {
            Error::io("using", path.to_owned())(source)
        }
        redb::Error::PreviousIo | redb::Error::DatabaseClosed => {
            Error::io("using", path.to_owned())(io::Error::other("another operation has failed"))
        }
        redb::Error::Corrupted(what) => Error::Damaged { path: path.to_owned(), what },
        error => Error::Damaged { path: path.to_owned(), what: swarmkeep_bittorrent::in_words(&error) },
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Directory;

    #[test]
    fn after_damage_or_a_panic_of_redb_the_file_is_closed_without_a_write() {
        for panics in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let mut downloads = Downloads::open(Arc::new(Directory::open(folder.path()).unwrap())).unwrap();
            let file = || fs::read(folder.path().join(NAME)).unwrap();
            let before = file();
            let called = downloads.call::<()>(|_| match panics {
                true => panic!("a page is none"),
                false => Err(redb::Error::Corrupted(NOT_WHOLE.into())),
            });
            assert!(matches!(called, Err(Error::Damaged { .. })));
            assert!(file() == before, "{panics}");
        }
    }
}
