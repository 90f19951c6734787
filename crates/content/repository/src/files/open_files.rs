//! The open files: few, however many files the stores of the process have.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io, mem,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::*, fence},
    },
    thread,
};

use parking_lot::Mutex;
use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};

use super::disk::{Disk, DiskStep};

/// The most files that are open in all tables, unless more are in use: a quarter of the descriptors that the
/// process may have (`RLIMIT_NOFILE`), from 8 to 1,024. The rest is for sockets.
static MOST: LazyLock<usize> = LazyLock::new(|| {
    let limit = if cfg!(test) { None } else { getrlimit(Resource::Nofile).current };
    limit.map_or(256, |limit| (limit / 4).clamp(8, 1024) as usize)
});

/// The number of files that are open in all tables.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// The number of files that are closed together. Written ones are flushed first, at once: that takes little
/// more time than one flush.
const AT_ONCE: usize = 32;

/// Open files by torrent and number; the least recently used are closed first. A written file is flushed
/// before it is closed: only while it is open is an error of its bytes certain to be reported.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles(Mutex<FileTable>);

type Key = (u64, u32);

#[derive(Debug, Default)]
struct FileTable {
    files: HashMap<Key, FileSlot>,
    /// Closed files whose flush failed.
    failed: HashSet<Key>,
    uses: u64,
}

#[derive(Debug)]
struct FileSlot {
    open: Arc<OpenFile>,
    used: u64,
}

#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    writable: bool,
    /// Whether it was written to since its last flush.
    written: AtomicBool,
    /// Whether it could not be flushed: the system reports that only once.
    failed: Mutex<bool>,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Relaxed);
    }
}

impl OpenFile {
    /// Notes a write; call it afterwards.
    pub(super) fn wrote(&self) {
        self.written.store(true, Relaxed);
    }

    fn flush(&self, disk: &Disk, index: u32) -> io::Result<()> {
        let mut failed = self.failed.lock();
        if *failed {
            return Err(io::Error::other("it could not be flushed before"));
        }
        if self.written.swap(false, Relaxed) {
            disk.flush(DiskStep::Flush(index as usize), &self.file).inspect_err(|_| *failed = true)?;
        }
        Ok(())
    }
}

impl OpenFiles {
    /// Returns a file. Calls `open` if it is not open, or not open for writing and `writable` is set.
    pub(crate) fn get(
        &self,
        disk: &Disk,
        key: Key,
        writable: bool,
        open: impl Fn() -> io::Result<File>,
    ) -> io::Result<Arc<OpenFile>> {
        let find = |held: &mut FileTable| {
            held.uses += 1;
            let now = held.uses;
            let slot = held.files.get_mut(&key).filter(|slot| slot.open.writable || !writable)?;
            slot.used = now;
            Some(Arc::clone(&slot.open))
        };
        let full = {
            let mut held = self.0.lock();
            if let Some(open) = find(&mut held) {
                return Ok(open);
            }
            // Tests have a table each: the others close none of its files.
            *MOST <= if cfg!(test) { held.files.len() } else { OPEN.load(Relaxed) }
        };
        if full {
            self.close_some(disk);
        }
        let file = match open() {
            Err(error) if is_out_of_descriptors(&error) => {
                self.close_some(disk);
                open()?
            }
            opened => opened?,
        };
        OPEN.fetch_add(1, Relaxed);
        let open =
            Arc::new(OpenFile { file, writable, written: AtomicBool::new(false), failed: Mutex::new(false) });
        let mut held = self.0.lock();
        // Another thread may have opened it meanwhile, and written to it.
        let other = find(&mut held);
        let used = held.uses;
        let before = match other {
            Some(other) => return Ok(other),
            None => held.files.insert(key, FileSlot { open: Arc::clone(&open), used }),
        };
        drop(held);
        // Closed after the lock is released: a file system may take its time.
        drop(before);
        Ok(open)
    }

    /// Makes the writes to a file durable. Reports an error once.
    pub(crate) fn flush(&self, disk: &Disk, key: Key) -> io::Result<()> {
        let (open, failed) = {
            let mut held = self.0.lock();
            (held.files.get(&key).map(|slot| Arc::clone(&slot.open)), held.failed.remove(&key))
        };
        match open {
            _ if failed => Err(io::Error::other("it could not be flushed when it was closed")),
            Some(open) => open.flush(disk, key.1),
            // It was flushed when it was closed.
            None => Ok(()),
        }
    }

    /// Closes the least recently used files that are not in use.
    fn close_some(&self, disk: &Disk) {
        let mut closed = Vec::new();
        let victims: Vec<_> = {
            let mut held = self.0.lock();
            let idle = held.files.iter().filter(|(_, slot)| users(&slot.open) == 1);
            let mut idle: Vec<_> =
                idle.map(|(&key, slot)| (slot.open.written.load(Relaxed), slot.used, key)).collect();
            // Files that need no flush come first.
            idle.sort_unstable();
            idle.truncate(AT_ONCE);
            let clean = idle.iter().filter(|(written, ..)| !written).map(|&(_, _, key)| key);
            closed.extend(clean.filter_map(|key| held.files.remove(&key)));
            // While there are clean files, written ones stay.
            let written = idle.iter().filter(|_| closed.is_empty()).map(|&(_, _, key)| key);
            written.map(|key| (key, Arc::clone(&held.files[&key].open))).collect()
        };
        let results: Vec<_> = victims.iter().map(|_| AtomicBool::new(false)).collect();
        let numbered: Vec<_> = victims.iter().zip(&results).collect();
        for_each_at_once(&numbered, |((key, open), failed)| {
            failed.store(open.flush(disk, key.1).is_err(), Relaxed);
        });
        let mut held = self.0.lock();
        for ((key, open), failed) in numbered {
            if failed.load(Relaxed) {
                held.failed.insert(*key);
            } else if users(open) > 2 || open.written.load(Relaxed) {
                // It is in use again.
                continue;
            }
            closed.extend(held.files.remove(key));
        }
        drop(held);
        drop((closed, victims));
    }

    /// Closes a file whose content is no longer trusted.
    pub(crate) fn forget(&self, key: Key) {
        let mut held = self.0.lock();
        held.failed.remove(&key);
        let gone = held.files.remove(&key);
        drop(held);
        drop(gone);
    }

    pub(crate) fn close(&self, torrent: u64) {
        let mut held = self.0.lock();
        let (gone, stay) = mem::take(&mut held.files).into_iter().partition(|((of, _), _)| *of == torrent);
        held.files = stay;
        held.failed.retain(|(of, _)| *of != torrent);
        drop(held);
        drop::<HashMap<_, _>>(gone);
    }
}

/// The number of references to a file, the table's included. The fence makes changes through dropped ones
/// visible.
fn users(open: &Arc<OpenFile>) -> usize {
    let users = Arc::strong_count(open);
    fence(Acquire);
    users
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE))
}

/// Threads of a flush. A journal is written once for files that are flushed at the same time: 500 files of
/// 10 kB on ext4 took 3.8 s one after another, and 0.1 s in 16 threads.
const FLUSHERS: usize = 16;

pub(super) fn for_each_at_once<T: Sync>(all: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some(one) = all.get(next.fetch_add(1, Relaxed)) {
            work(one);
        }
    };
    thread::scope(|scope| {
        for _ in 1..all.len().min(FLUSHERS) {
            // If the system has no more threads, fewer are enough.
            let _ = thread::Builder::new().spawn_scoped(scope, worker);
        }
        worker();
    });
}
