//! The folder that torrent files are in.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use rustix::fs::RawDir;

use crate::error::about;

/// A folder of small files, one step per call. A test that implements it records the steps.
///
/// The library assumes: after a crash, an unflushed file holds any part of its bytes, and of the names that
/// changed since the folder was flushed, any subset exists.
pub trait TorrentFolder: fmt::Debug + Send + Sync {
    /// The bytes of a file.
    ///
    /// # Errors
    /// Those of the medium, and `NotFound`.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// Calls `each` with the name of every file. There is none without the folder.
    ///
    /// # Errors
    /// Those of the medium.
    fn names(&self, each: &mut dyn FnMut(&str)) -> io::Result<()>;

    /// Makes a file, and replaces an old one. Makes the folder, durably, if it does not exist.
    ///
    /// # Errors
    /// Those of the medium.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Makes the bytes of a file durable.
    ///
    /// # Errors
    /// Those of the medium.
    fn flush_file(&self, name: &str) -> io::Result<()>;

    /// Gives a file another name. A file that has it already is gone.
    ///
    /// # Errors
    /// Those of the medium.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Those of the medium, and `NotFound`.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the names of all files durable.
    ///
    /// # Errors
    /// Those of the medium.
    fn flush(&self) -> io::Result<()>;
}

/// A folder of the file system. It is made with its first file.
#[derive(Debug)]
pub struct FileFolder {
    path: PathBuf,
}

impl FileFolder {
    /// The folder `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn at<T>(&self, name: &str, act: impl FnOnce(PathBuf) -> io::Result<T>) -> io::Result<T> {
        let path = if name.is_empty() { self.path.clone() } else { self.path.join(name) };
        act(path.clone()).map_err(about(path))
    }
}

impl TorrentFolder for FileFolder {
    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.at(name, |path| {
            let mut bytes = Vec::new();
            File::open(path)?.take(swarmkeep_metainfo::LONGEST as u64 + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        })
    }

    fn names(&self, each: &mut dyn FnMut(&str)) -> io::Result<()> {
        self.at("", |path| {
            let folder = match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                opened => opened?,
            };
            // A hundred thousand names take 8 calls, and 220 in the buffer of the standard library.
            let mut buffer = Vec::with_capacity(1 << 20);
            let mut entries = RawDir::new(&folder, buffer.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                entry?.file_name().to_str().into_iter().for_each(&mut *each);
            }
            Ok(())
        })
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.at("", |path| make(&path))?;
        self.at(name, |path| match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => File::create_new(path)?.write_all(bytes),
        })
    }

    fn flush_file(&self, name: &str) -> io::Result<()> {
        self.at(name, |path| File::open(path)?.sync_all())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.at(to, |to| fs::rename(self.path.join(from), to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.at(name, fs::remove_file)
    }

    fn flush(&self) -> io::Result<()> {
        self.at("", |path| File::open(path)?.sync_all())
    }
}

/// Makes a folder and its parents, if they do not exist. Each name is durable before the next folder is made.
fn make(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = path.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
    make(above)?;
    match fs::create_dir(path) {
        // Another process made it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        made => made?,
    }
    File::open(above)?.sync_all()
}
