//! The folder of a store, with its torrents, their states and its lock, and its used bytes.

use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use rustix::{fs::OFlags, io::Errno};

use super::{
    Allocation, HIDDEN,
    disk::{Disk, DiskStep},
    folder,
    open_files::OpenFiles,
    walk,
};
use crate::{ContentConfig, Counters, Error, Result, error::about, lock::Locked};

/// The folder of a store, and its used bytes.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) disk: Disk,
    pub(super) allocation: Allocation,
    pub(super) most: u64,
    /// The store's folder.
    pub(super) folder: OwnedFd,
    pub(super) path: PathBuf,
    /// The folder in it that contains all the following, and the files without a name.
    pub(super) hidden: OwnedFd,
    /// The states, a file for each torrent.
    pub(super) states: OwnedFd,
    /// Torrents that are being made.
    pub(super) making: OwnedFd,
    _lock: Locked,
    /// Whether the file system is read-only: then the store is left as it is.
    pub(super) read_only: bool,
    pub(super) open_files: OpenFiles,
    /// Bytes in use.
    pub(super) used: AtomicU64,
    pub(super) counters: Counters,
    ids: AtomicU64,
}

impl Volume {
    pub(super) fn open(config: &ContentConfig, allocation: Allocation, disk: Disk) -> Result<Self> {
        let path = &*config.folder;
        let failed = |error| Error::io("opening the store's folder")(about(path)(error));
        let path = path.canonicalize().map_err(failed)?;
        let opening = |error: io::Error| match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::LOOP | Errno::NOTDIR) => Error::NotAStore {
                path: path.join(HIDDEN),
                what: "not a folder: move it away, so that the store can keep its states there".to_owned(),
            },
            _ => failed(error),
        };
        let (folder, hidden, lock, read_only) = (|| {
            let folder = OwnedFd::from(File::open(&path)?);
            let hidden = walk::make(&disk, &folder, HIDDEN)?;
            let lock = disk
                .step(DiskStep::Lock)
                .and_then(|_| folder::open(&hidden, "lock", OFlags::RDWR | OFlags::CREATE, 0o666));
            let read_only = matches!(&lock, Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem);
            let lock = if read_only { folder::open(&hidden, "lock", OFlags::RDONLY, 0)? } else { lock? };
            Ok((folder, hidden, lock, read_only))
        })()
        .map_err(opening)?;
        let lock = Locked::lock(lock, &path, read_only)?;
        let (states, making) = (|| {
            let made = (walk::make(&disk, &hidden, "torrents")?, walk::make(&disk, &hidden, "making")?);
            // Folders of some read-only file systems cannot be flushed.
            if !read_only {
                disk.sync(DiskStep::SyncHidden, &hidden)?;
                disk.sync(DiskStep::SyncStore, &folder)?;
            }
            Ok(made)
        })()
        .map_err(opening)?;
        Ok(Self {
            disk,
            allocation,
            most: config.capacity.unwrap_or(u64::MAX),
            folder,
            path,
            hidden,
            states,
            making,
            _lock: lock,
            read_only,
            open_files: OpenFiles::default(),
            used: AtomicU64::new(0),
            counters: Counters::default(),
            ids: AtomicU64::new(0),
        })
    }

    /// Takes `bytes` bytes of the capacity.
    pub(super) fn take(&self, bytes: u64) -> Result<()> {
        let room = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.most);
        if bytes > 0 {
            let taken = self.used.try_update(Relaxed, Relaxed, room);
            taken.map_err(|_| Error::Full { what: "its capacity is used up" })?;
        }
        Ok(())
    }

    pub(super) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Relaxed)
    }
}
