//! The part of a file system that this crate needs, and its implementation for a directory.

use std::{
    fmt,
    fs::{self, TryLockError},
    io,
    os::unix::fs::{FileExt, MetadataExt as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, openat},
    io::{Errno, retry_on_intr},
    process::{getegid, geteuid},
};

use crate::{Error, Result};

/// A folder of files, without subfolders.
///
/// A rename is atomic. Names that were changed before a successful [`sync`](Self::sync), and bytes that were
/// written before a successful [`File::sync`], survive a power failure. The rest may be lost: names change in
/// order, and any subset of the written 512-byte sectors survives.
pub trait Folder: fmt::Debug + Send + Sync {
    /// The path of the file `name`, for messages.
    fn path(&self, name: &str) -> PathBuf;

    /// All names, in any order. Names that are not UTF-8 are left out.
    ///
    /// # Errors
    /// The errors of the medium, as for all methods here.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Opens an existing file to read.
    fn open(&self, name: &str) -> io::Result<Box<dyn File>>;

    /// Opens an existing file to read and write.
    fn open_to_write(&self, name: &str) -> io::Result<Box<dyn File>>;

    /// Creates an empty file to read and write. It replaces a file of that name.
    fn create(&self, name: &str) -> io::Result<Box<dyn File>>;

    /// Renames a file. It replaces a file with the name `to`. An open file stays open.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. An open file stays open.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all created, renamed and removed names durable, but not the contents of the files.
    fn sync(&self) -> io::Result<()>;
}

/// An open file of a [`Folder`].
#[allow(clippy::len_without_is_empty)]
pub trait File: fmt::Debug + Send + Sync {
    /// Its length in bytes.
    ///
    /// # Errors
    /// The errors of the medium, as for all methods here.
    fn len(&self) -> io::Result<u64>;

    /// Fills `buffer` from byte `offset` on. It fails if the file ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` from byte `offset` on. After an error, any part of them may be written.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Cuts the file, or extends it by zeroes that need no space.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// The time of the last change.
    fn modified(&self) -> io::Result<SystemTime>;

    /// Makes the written bytes and the length durable (`fdatasync`). After an error, earlier writes may be
    /// lost even if the next `sync` succeeds: write them again.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the file system. It is locked for this process while the value exists.
///
/// Files are reached from the open directory, not by their paths: no link in it is ever followed, and only
/// regular files are opened. The path of the directory itself may lead through links.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    handle: fs::File,
    /// `None` if the directory was opened to read, and its lock file cannot be opened.
    lock: Option<fs::File>,
}

impl Directory {
    /// The name of the lock file. The file stays when the lock is released.
    pub const LOCK: &str = "lock";

    /// Opens an existing directory and locks it (`flock` on the file [`LOCK`](Self::LOCK)).
    ///
    /// # Errors
    /// [`Error::NotWritable`] if this process may not write to it, [`Error::InUse`] if another process has it
    /// open, [`Error::Io`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let mut directory = Self::enter(path.clone()).map_err(|error| not_opened(path.clone(), error))?;
        let lock = directory.open_file(Self::LOCK, OFlags::RDWR | OFlags::CREATE);
        let lock = lock.map_err(|error| match fs::symlink_metadata(path.join(Self::LOCK)) {
            Ok(_) => not_opened(path.join(Self::LOCK), error),
            Err(_) => not_opened(path.clone(), error),
        })?;
        directory.lock(lock)?;
        // The lock file may be from a time when the directory was writable.
        match directory.create(PROBE).and_then(|_| directory.remove(PROBE)) {
            Err(error) if refuses_writes(&error) => Err(not_opened(path, error)),
            // A disk without room may have room later.
            _ => Ok(directory),
        }
    }

    /// Opens an existing directory to read its files, and changes nothing. Writes may fail.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process has it open and this one can open the lock file, [`Error::Io`].
    pub fn open_to_read(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let mut directory = Self::enter(path.clone()).map_err(Error::io("opening", path))?;
        // Some network file systems lock only files that are open for writing.
        let mut locks = [OFlags::RDWR, OFlags::RDONLY].into_iter();
        if let Some(lock) = locks.find_map(|flags| directory.open_file(Self::LOCK, flags).ok()) {
            directory.lock(lock)?;
        }
        Ok(directory)
    }

    /// Returns the owner and the mode of the directory, if others than this process's user and root may write
    /// to it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn others_may_write(&self) -> Result<Option<String>> {
        let metadata = self.handle.metadata().map_err(Error::io("looking at", self.path.clone()))?;
        let is_open = metadata.mode() & 0o022 != 0;
        let is_of_others = ![0, geteuid().as_raw()].contains(&metadata.uid());
        Ok((is_open || is_of_others).then(|| whose(&metadata)))
    }

    fn enter(path: PathBuf) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&path, flags, Mode::empty())?.into();
        Ok(Self { path, handle, lock: None })
    }

    fn lock(&mut self, lock: fs::File) -> Result<()> {
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Error::InUse { path: self.path.clone() },
            TryLockError::Error(error) => Error::io("locking", self.path(Self::LOCK))(error),
        })?;
        self.lock = Some(lock);
        Ok(())
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<fs::File> {
        // `NONBLOCK`: opening a pipe does not wait.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = retry_on_intr(|| openat(&self.handle, name, flags, OWN));
        let file: fs::File = match opened {
            Ok(file) => file.into(),
            Err(Errno::LOOP) => {
                return Err(io::Error::other("it is a link, which is not followed: remove it"));
            }
            Err(error) => return Err(error.into()),
        };
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("it is no file: remove it")),
        }
    }
}

/// Only the owner may read the files: they contain peers' addresses.
const OWN: Mode = Mode::RUSR.union(Mode::WUSR);

/// A file that is created to test whether files can be created.
const PROBE: &str = "writable.partial";

/// Why a directory, or the lock in it, was not opened for writing.
fn not_opened(path: PathBuf, source: io::Error) -> Error {
    let metadata = if refuses_writes(&source) { fs::metadata(&path).ok() } else { None };
    let Some(metadata) = metadata else { return Error::io("opening", path)(source) };
    let folder = if path.ends_with(Directory::LOCK) { path.parent().unwrap_or(&path) } else { &path };
    let (folder, us) = (folder.display(), geteuid());
    let advice = if source.kind() == io::ErrorKind::ReadOnlyFilesystem {
        "mount its file system to be written to".to_owned()
    } else if metadata.uid() == us.as_raw() {
        format!("let it write there, as by `chmod u+rwx {folder}`")
    } else {
        format!("give it to that user, as by `chown -R {us}:{} {folder}`", getegid())
    };
    Error::NotWritable { path, source, whose: whose(&metadata), advice }
}

fn whose(metadata: &fs::Metadata) -> String {
    let (uid, gid, mode) = (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777);
    format!(
        "it belongs to user {uid} and group {gid} with mode {mode:04o}, and this process is user {} and group {}",
        geteuid(),
        getegid()
    )
}

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
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.handle)? {
            match entry?.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        Ok(Box::new(self.open_file(name, OFlags::RDONLY)?))
    }

    fn open_to_write(&self, name: &str) -> io::Result<Box<dyn File>> {
        Ok(Box::new(self.open_file(name, OFlags::RDWR)?))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        // Always a new file: an existing one may belong to another user, or have a second name elsewhere.
        let create = || self.open_file(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL);
        let created = match create() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.remove(name)?;
                create()
            }
            created => created,
        };
        Ok(Box::new(created?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.handle, from, &self.handle, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.handle, name, AtFlags::empty())?)
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

    fn modified(&self) -> io::Result<SystemTime> {
        self.metadata()?.modified()
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
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_directory_is_one_process_s() {
        let folder = tempfile::tempdir().unwrap();
        let first = Directory::open(folder.path()).unwrap();
        let error = Directory::open(folder.path()).unwrap_err();
        assert!(matches!(&error, Error::InUse { path } if path == folder.path()), "{error}");
        drop(first);
        Directory::open(folder.path()).unwrap();
        let error = Directory::open(folder.path().join("missing")).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
    }

    /// Root can still write there.
    #[test]
    fn a_directory_without_permission_to_write_is_opened_to_be_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "download").unwrap();
        let permit = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        permit(0o500);
        let directory = Directory::open_to_read(folder.path()).unwrap();
        assert_eq!(directory.open("a").unwrap().len().unwrap(), 8);
        assert_eq!(directory.names().unwrap(), ["a"], "reading leaves no lock");
        permit(0o700);
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

    #[test]
    fn a_new_file_replaces_an_existing_one_and_no_link_or_pipe_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let (state, victim) = (folder.path().join("state"), folder.path().join("victim"));
        fs::create_dir(&state).unwrap();
        fs::write(&victim, "precious").unwrap();
        let directory = Directory::open(&state).unwrap();
        symlink(&victim, state.join("link")).unwrap();
        fs::hard_link(&victim, state.join("second name")).unwrap();
        for name in ["link", "second name"] {
            directory.create(name).unwrap().write_all_at(b"x", 0).unwrap();
            assert_eq!(fs::read(&victim).unwrap(), b"precious", "{name}");
            assert_eq!(fs::read(state.join(name)).unwrap(), b"x", "{name}");
        }
        symlink(&victim, state.join("other")).unwrap();
        for opened in [directory.open("other"), directory.open_to_write("other")] {
            assert!(opened.err().unwrap().to_string().contains("it is a link"));
        }
        assert!(std::process::Command::new("mkfifo").arg(state.join("pipe")).status().unwrap().success());
        let opened = [".", "pipe"].map(|name| directory.open(name).err().unwrap().to_string());
        assert!(opened.iter().all(|error| error.contains("no file")), "{opened:?}");
        drop(directory);
        fs::rename(state.join("other"), state.join(Directory::LOCK)).unwrap();
        let error = Directory::open(&state).unwrap_err().to_string();
        assert!(error.ends_with("lock: it is a link, which is not followed: remove it"), "{error}");
    }
}
