//! The folder that torrent files are in.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read, Write},
    path::PathBuf,
    sync::OnceLock,
};

use rustix::fs::RawDir;

use crate::error::about;

/// A folder of small files, one step per call. A test that implements it records the steps.
///
/// The library assumes: after a crash, a file whose bytes were not flushed holds any part of them; of the names
/// that changed since the folder was flushed, any subset is there.
pub trait TorrentFolder: fmt::Debug + Send + Sync {
    /// The bytes of a file.
    ///
    /// # Errors
    /// Those of the medium, and `NotFound`.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// Calls `each` with the name of every file. There is none if there is no folder.
    ///
    /// # Errors
    /// Those of the medium.
    fn names(&self, each: &mut dyn FnMut(&str)) -> io::Result<()>;

    /// Makes a file, or replaces all of its bytes.
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

    /// Makes the names of all files durable, and the folder itself.
    ///
    /// # Errors
    /// Those of the medium.
    fn flush(&self) -> io::Result<()>;
}

/// A folder of the file system. It is made with its first file.
#[derive(Debug)]
pub struct FileFolder {
    path: PathBuf,
    /// Whether the names of the folders above are durable. An earlier process may have made them.
    is_durable: OnceLock<()>,
}

impl FileFolder {
    /// The folder `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), is_durable: OnceLock::new() }
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
        self.at("", fs::create_dir_all)?;
        self.at(name, |path| File::create(path)?.write_all(bytes))
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
        self.at("", |path| {
            let path = path.canonicalize()?;
            File::open(&path)?.sync_all()?;
            if self.is_durable.get().is_none() {
                // A folder that may not be read was not made here.
                let above = path.ancestors().skip(1).filter_map(|above| File::open(above).ok());
                above.into_iter().try_for_each(|above| above.sync_all())?;
                let _ = self.is_durable.set(());
            }
            Ok(())
        })
    }
}
