//! The copy of the counts that is kept beside them.

use std::{
    io,
    ops::Bound,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use redb::{AccessGuard, Database, ReadTransaction, ReadableDatabase as _, ReadableTableMetadata as _};

use super::{
    Called, NOT_WHOLE, TABLE, create, guarded, is_there,
    medium::{Medium, Unchanged},
    open_over, put,
};
use crate::{Error, File, Folder, InfoHash, Result};

/// The name of the copy.
pub(crate) const NAME: &str = "downloads.redb.copy";
/// The name of the counts that a copy has replaced.
const REPLACED: &str = "downloads.redb.replaced";
/// The rows that are copied together.
const ROWS: usize = 1 << 16;

/// A copy of the counts as they were when it was begun.
pub(crate) struct Copying {
    pub(super) folder: Arc<dyn Folder>,
    pub(super) read: ReadTransaction,
}

impl Copying {
    /// Writes the copy in steps. After each, `goes_on` is told the time that it took; if it returns false,
    /// the copy is given up. Returns whether the copy is complete.
    pub(crate) fn finish(self, mut goes_on: impl FnMut(Duration) -> bool) -> Result<bool> {
        let source = self.folder.path(super::NAME);
        let new = New::begin(&*self.folder, NAME)?;
        let mut from = Bound::Unbounded;
        loop {
            let began = Instant::now();
            let rows = guarded(&source, || {
                let table = self.read.open_table(TABLE)?;
                let from = from.as_ref().map(|info_hash: &InfoHash| info_hash.as_bytes());
                let rows = table.range::<&[u8; InfoHash::LEN]>((from, Bound::Unbounded))?.take(ROWS);
                let row = |(key, count): (AccessGuard<'_, &[u8; _]>, AccessGuard<'_, u32>)| {
                    (InfoHash::new(*key.value()), count.value())
                };
                Ok(rows.map(|found| found.map(row)).collect::<Result<Vec<_>, _>>()?)
            })?;
            let Some(&(last, _)) = rows.last() else { break };
            new.put(&rows)?;
            from = Bound::Excluded(last);
            if !goes_on(began.elapsed()) {
                return Ok(false);
            }
        }
        new.finish(&*self.folder).map(|()| true)
    }
}

/// A new database, which gets its name when it is complete.
pub(super) struct New {
    name: &'static str,
    path: PathBuf,
    file: Arc<dyn File>,
    database: Database,
}

impl New {
    pub(super) fn begin(folder: &dyn Folder, name: &'static str) -> Result<Self> {
        let partial = partial(name);
        let path = folder.path(&partial);
        let file: Arc<dyn File> =
            folder.create(&partial).map_err(Error::io("creating", path.clone()))?.into();
        let database = guarded(&path, || create(Medium::new(Arc::clone(&file))))?;
        Ok(Self { name, path, file, database })
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

    /// Checks it, makes it durable, and gives it its name.
    pub(super) fn finish(mut self, folder: &dyn Folder) -> Result<()> {
        self.put(&[])?;
        guarded(&self.path, || {
            checked(&mut self.database)?;
            Ok(self.database.close()?)
        })?;
        let synced = self.file.sync().and_then(|()| folder.rename(&partial(self.name), self.name));
        synced.and_then(|()| folder.sync()).map_err(Error::io("writing", folder.path(self.name)))
    }
}

fn partial(name: &str) -> String {
    format!("{name}.partial")
}

fn checked(database: &mut Database) -> Called<()> {
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
            Err(error @ Error::Io { .. }) => return Err(error),
            looked_at => found.push((name, looked_at)),
        }
    }
    Ok(found)
}

fn look_at(folder: &dyn Folder, name: &str) -> Result<Counts> {
    let path = folder.path(name);
    let reading = || Error::io("reading", path.clone());
    let file: Arc<dyn File> = folder.open(name).map_err(reading())?.into();
    let bytes = file.len().map_err(reading())?;
    let unchanged = Unchanged::new(Arc::clone(&file)).map_err(reading())?;
    let mut database = open_over(&path, &*file, unchanged)?;
    let entries = guarded(&path, move || {
        checked(&mut database)?;
        Ok(database.begin_read()?.open_table(TABLE)?.len()?)
    })?;
    Ok(Counts { entries, bytes })
}

/// Checks the copy of the download counts, and puts it in their place. They are kept under the name
/// `downloads.redb.replaced`.
///
/// # Errors
/// [`Error::Damaged`], [`Error::Io`], such as for a folder without a copy: nothing was changed.
pub fn restore_downloads(folder: &dyn Folder) -> Result<Counts> {
    let counts = look_at(folder, NAME)?;
    let replace = || {
        match folder.rename(super::NAME, REPLACED) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        folder.rename(NAME, super::NAME)?;
        folder.sync()
    };
    replace().map_err(Error::io("renaming", folder.path(NAME)))?;
    Ok(counts)
}
