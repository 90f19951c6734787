//! The part of a file system that this crate needs, and its implementation for a directory.

use std::{
    fmt,
    fs::{self, OpenOptions, TryLockError},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use crate::{Error, Result};

/// A folder of files, without subfolders.
///
/// A rename is atomic. What was written or renamed before a successful [`sync`](Self::sync) or [`File::sync`]
/// survives a power failure. The rest may be lost: names change in order, and any subset of the written
/// 512-byte sectors survives.
pub trait Folder: fmt::Debug + Send + Sync {
    /// What `name` in it is called in messages.
    fn path(&self, name: &str) -> PathBuf;

    /// All names, in any order. Those that are not UTF-8 are left out.
    ///
    /// # Errors
    /// As the medium has them; so for all methods here.
    fn names(&self) -> io::Result<Vec<String>>;

    /// A file to be read, which exists.
    fn open(&self, name: &str) -> io::Result<Box<dyn File>>;

    /// A file to be read and written, which exists.
    fn open_to_write(&self, name: &str) -> io::Result<Box<dyn File>>;

    /// An empty file to be read and written, in place of what had that name.
    fn create(&self, name: &str) -> io::Result<Box<dyn File>>;

    /// Renames a file, in place of what had the name `to`. Who has it open keeps it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Who has it open keeps it.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the names durable as they are: created, renamed and removed. Not what the files hold.
    fn sync(&self) -> io::Result<()>;
}

/// An open file of a [`Folder`].
#[allow(clippy::len_without_is_empty)]
pub trait File: Send + Sync {
    /// Its length in bytes.
    ///
    /// # Errors
    /// As the medium has them; so for all methods here.
    fn len(&self) -> io::Result<u64>;

    /// Fills `buffer` from byte `offset` on, or fails: also where the file ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` from byte `offset` on. After an error, any part of them may be written.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Cuts the file, or lengthens it by zeroes that need no room.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes durable what was written, and the length (`fdatasync`). After an error, what was written before
    /// is lost or not, and another `sync` does not tell: it is to be written again.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the file system. It is locked for this process while the value exists.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    handle: fs::File,
    /// Nothing where the directory cannot be written to and nobody has made the file.
    lock: Option<fs::File>,
}

impl Directory {
    /// The name of the lock file. The file stays when the lock is released.
    pub const LOCK: &str = "lock";

    /// Opens an existing directory and locks it (`flock` on the file [`LOCK`](Self::LOCK)).
    ///
    /// A directory without write access can be read; the first write fails.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process has it open, [`Error::Io`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let handle = fs::File::open(&path).map_err(Error::io("opening", path.clone()))?;
        let lock_path = path.join(Self::LOCK);
        let writable =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(OWN).open(&lock_path);
        let lock = match writable {
            Ok(file) => Some(file),
            Err(error) if refuses_writes(&error) => fs::File::open(&lock_path).ok(),
            Err(error) => return Err(Error::io("opening", lock_path)(error)),
        };
        match lock.as_ref().map(fs::File::try_lock) {
            None | Some(Ok(())) => Ok(Self { path, handle, lock }),
            Some(Err(TryLockError::WouldBlock)) => Err(Error::InUse { path }),
            Some(Err(TryLockError::Error(error))) => Err(Error::io("locking", lock_path)(error)),
        }
    }

    fn open_as(&self, name: &str, options: &OpenOptions) -> io::Result<Box<dyn File>> {
        Ok(Box::new(options.open(self.path.join(name))?))
    }
}

/// Whose files these are is all who may read them: they hold peers' addresses.
const OWN: u32 = 0o600;

/// Releases the lock. It would otherwise last until the last copy of the descriptor is closed, and a child
/// process that is just being started has a copy.
impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

impl Folder for Directory {
    fn path(&self, name: &str) -> PathBuf {
        Path::join(&self.path, name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.open_as(name, OpenOptions::new().read(true))
    }

    fn open_to_write(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.open_as(name, OpenOptions::new().read(true).write(true))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.open_as(name, OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(OWN))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }
}

impl File for fs::File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Self::set_len(self, len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

fn refuses_writes(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_one_process_s() {
        let folder = tempfile::tempdir().unwrap();
        let first = Directory::open(folder.path()).unwrap();
        let error = Directory::open(folder.path()).unwrap_err();
        assert!(matches!(&error, Error::InUse { path } if path == folder.path()), "{error}");
        assert!(error.to_string().contains("in use by another process"), "{error}");
        drop(first);
        Directory::open(folder.path()).unwrap();
    }

    /// Root may write there all the same.
    #[test]
    fn a_directory_without_permission_to_write_is_opened_to_be_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "download").unwrap();
        let mut permissions = fs::metadata(folder.path()).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(folder.path(), permissions.clone()).unwrap();
        let length = Directory::open(folder.path()).unwrap().open("a").unwrap().len();
        assert_eq!(length.unwrap(), 8);
        #[allow(clippy::permissions_set_readonly_false)]
        permissions.set_readonly(false);
        fs::set_permissions(folder.path(), permissions).unwrap();
    }

    #[test]
    fn what_is_not_there_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let error = Directory::open(folder.path().join("missing")).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
    }

    #[test]
    fn files_are_written_read_renamed_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(folder.path()).unwrap();
        let file = directory.create("a").unwrap();
        file.write_all_at(b"download", 4).unwrap();
        file.set_len(16).unwrap();
        file.sync().unwrap();
        directory.rename("a", "b").unwrap();
        directory.sync().unwrap();
        let mut names = directory.names().unwrap();
        names.sort();
        assert_eq!(names, ["b", Directory::LOCK]);

        let file = directory.open("b").unwrap();
        assert_eq!(file.len().unwrap(), 16);
        let mut bytes = [1; 16];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"\0\0\0\0download\0\0\0\0");
        let error = file.read_exact_at(&mut bytes, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(file.write_all_at(b"x", 0).is_err(), "it was opened to be read");

        directory.open_to_write("b").unwrap().write_all_at(b"x", 0).unwrap();
        directory.remove("b").unwrap();
        assert_eq!(directory.open("b").err().map(|error| error.kind()), Some(io::ErrorKind::NotFound));
    }
}
