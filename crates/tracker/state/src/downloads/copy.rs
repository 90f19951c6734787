//! The copy of the counts that is kept beside them.

use std::{
    io,
    ops::Bound,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use redb::{AccessGuard, Database, ReadTransaction, ReadableDatabase as _, ReadableTableMetadata as _};
use tracing::warn;

use super::{
    Called, NOT_WHOLE, TABLE, close, create, guarded, is_there,
    medium::{Medium, Unchanged},
    open_over, put,
};
use crate::{Error, File, Folder, InfoHash, Result};

/// The name of the copy.
pub(crate) const NAME: &str = "downloads.redb.copy";
/// The name of the counts that a copy has replaced.
pub(super) const REPLACED: &str = "downloads.redb.replaced";
/// The rows that are copied together.
const ROWS: usize = 1 << 16;

/// A copy of the counts as they were when it was begun.
pub(crate) struct Copying {
    pub(super) folder: Arc<dyn Folder>,
    pub(super) read: ReadTransaction,
}

impl Copying {
    /// Writes the copy in steps. After each, `goes_on` gets the time that it took; if it returns false, the
    /// copy is given up. Returns whether the copy is complete. If not, nothing of it stays.
    pub(crate) fn finish(self, goes_on: impl FnMut(Duration) -> bool) -> Result<bool> {
        write(&*self.folder, (&self.folder.path(super::NAME), &self.read), (NAME, None), goes_on)
    }
}

/// Writes a database with the rows of another to a name, and keeps the file that has it under another name.
fn write(
    folder: &dyn Folder,
    from: (&Path, &ReadTransaction),
    to: (&'static str, Option<&str>),
    goes_on: impl FnMut(Duration) -> bool,
) -> Result<bool> {
    let written = NewDatabase::begin(folder, to.0).and_then(|new| match new.fill(from, goes_on) {
        Ok(true) => new.finish(folder, to.1).map(|()| true),
        ended => {
            let _ = close(&new.path, new.database);
            ended
        }
    });
    if !matches!(written, Ok(true)) {
        // On a full disk, this gives the space back.
        let _ = folder.remove(&partial(to.0));
    }
    written
}

/// A new database, which gets its name when it is complete.
pub(super) struct NewDatabase {
    name: &'static str,
    path: PathBuf,
    file: Arc<dyn File>,
    database: Database,
}

impl NewDatabase {
    pub(super) fn begin(folder: &dyn Folder, name: &'static str) -> Result<Self> {
        let partial = partial(name);
        let path = folder.path(&partial);
        let file: Arc<dyn File> =
            folder.create(&partial).map_err(Error::io("creating", path.clone()))?.into();
        let database = guarded(&path, || create(Medium::new(Arc::clone(&file))))?;
        let new = Self { name, path, file, database };
        new.put(&[]).map(|()| new)
    }

    /// Puts all rows of another database into it, in steps. Returns false if `goes_on` does.
    fn fill(
        &self,
        (path, from): (&Path, &ReadTransaction),
        mut goes_on: impl FnMut(Duration) -> bool,
    ) -> Result<bool> {
        let mut after = Bound::Unbounded;
        loop {
            let began = Instant::now();
            let rows = guarded(path, || {
                let table = from.open_table(TABLE)?;
                let after = after.as_ref().map(|info_hash: &InfoHash| info_hash.as_bytes());
                let rows = table.range::<&[u8; InfoHash::LEN]>((after, Bound::Unbounded))?.take(ROWS);
                let row = |(key, count): (AccessGuard<'_, &[u8; _]>, AccessGuard<'_, u32>)| {
                    (InfoHash::new(*key.value()), count.value())
                };
                Ok(rows.map(|found| found.map(row)).collect::<Result<Vec<_>, _>>()?)
            })?;
            let Some(&(last, _)) = rows.last() else { return Ok(true) };
            self.put(&rows)?;
            after = Bound::Excluded(last);
            if !goes_on(began.elapsed()) {
                return Ok(false);
            }
        }
    }

    fn put(&self, rows: &[(InfoHash, u32)]) -> Result<()> {
        guarded(&self.path, || {
            let mut write = self.database.begin_write()?;
            write.set_quick_repair(true);
            {
                let mut table = write.open_table(TABLE)?;
                rows.iter().try_for_each(|(info_hash, count)| put(&mut table, info_hash, *count))?;
            }
            Ok(write.commit()?)
        })
    }

    /// Checks it, makes it durable, and gives it its name. A file with that name gets the name `keep_as`.
    pub(super) fn finish(mut self, folder: &dyn Folder, keep_as: Option<&str>) -> Result<()> {
        let is_whole = guarded(&self.path, || checked(&self.path, &mut self.database));
        let closed = close(&self.path, self.database);
        is_whole.and(closed)?;
        let name = || {
            self.file.sync()?;
            match keep_as.map(|keep_as| folder.rename(self.name, keep_as)) {
                Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            folder.rename(&partial(self.name), self.name)?;
            folder.sync()
        };
        name().map_err(Error::io("writing", folder.path(self.name)))
    }
}

fn partial(name: &str) -> String {
    format!("{name}.partial")
}

/// Removes the incomplete files of a killed process, which may be large.
pub(super) fn remove_partial(folder: &dyn Folder) {
    for name in [super::NAME, NAME] {
        // If it stays, the next one replaces it.
        let _ = folder.remove(&partial(name));
    }
}

/// Checks all checksums of a database. If only the list of its free pages is wrong, redb repairs that and
/// answers false: then the second answer counts.
pub(super) fn checked(path: &Path, database: &mut Database) -> Called<()> {
    if database.check_integrity()? {
        return Ok(());
    }
    warn!(file = %path.display(), "the pages of download counts are good, and the list of free pages was repaired");
    match database.check_integrity()? {
        true => Ok(()),
        false => Err(redb::Error::Corrupted(NOT_WHOLE.into())),
    }
}

/// The contents of a file of download counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// The number of torrents.
    pub entries: u64,
    /// The size of the file.
    pub bytes: u64,
    /// The time since the last change of the file, by the clock of the system.
    pub age: Duration,
}

/// Checks the download counts of a folder, and their copy, completely. Returns the contents of each, or its
/// fault. It changes nothing.
///
/// # Errors
/// [`Error::Older`], [`Error::Io`].
pub fn look_at_downloads(folder: &dyn Folder) -> Result<Vec<(&'static str, Result<Counts>)>> {
    let mut found = Vec::new();
    match is_there(folder) {
        Err(error @ Error::Missing { .. }) => found.push((super::NAME, Err(error))),
        there => _ = there?,
    }
    for name in [super::NAME, NAME] {
        match look_at(folder, name) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            looked_at => found.push((name, looked_at.map(|(_, counts)| counts))),
        }
    }
    Ok(found)
}

fn look_at(folder: &dyn Folder, name: &str) -> Result<(Database, Counts)> {
    let path = folder.path(name);
    let reading = || Error::io("reading", path.clone());
    let file: Arc<dyn File> = folder.open(name).map_err(reading())?.into();
    let (bytes, age) = file.len().and_then(|bytes| Ok((bytes, age(&*file)?))).map_err(reading())?;
    let unchanged = Unchanged::new(Arc::clone(&file)).map_err(reading())?;
    let mut database = open_over(&path, &*file, unchanged)?;
    let entries = guarded(&path, || {
        checked(&path, &mut database)?;
        Ok(database.begin_read()?.open_table(TABLE)?.len()?)
    });
    match entries {
        Ok(entries) => Ok((database, Counts { entries, bytes, age })),
        Err(error) => {
            let _ = close(&path, database);
            Err(error)
        }
    }
}

/// The time since the last change of a file, by the clock of the system.
pub(super) fn age(file: &dyn File) -> io::Result<Duration> {
    Ok(file.modified()?.elapsed().unwrap_or_default())
}

/// Checks the copy of the download counts, and puts its contents in their place. The copy stays, and the
/// counts are kept under the name `downloads.redb.replaced`.
///
/// # Errors
/// [`Error::NoCopy`], [`Error::Damaged`], [`Error::Io`]: the counts and the copy are kept.
pub fn restore_downloads(folder: &dyn Folder) -> Result<Counts> {
    let path = folder.path(NAME);
    let (database, counts) = look_at(folder, NAME).map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            Error::NoCopy { path: path.clone() }
        }
        error => error,
    })?;
    let read = guarded(&path, || Ok(database.begin_read()?))?;
    write(folder, (&path, &read), (super::NAME, Some(REPLACED)), |_| true)?;
    Ok(counts)
}
