//! The files of databases, as redb reads and writes them.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use redb::StorageBackend;

use crate::File;

/// A file that redb reads and writes, until it is abandoned: then every change fails.
#[derive(Clone)]
pub(super) struct Medium {
    pub(super) file: Arc<dyn File>,
    is_abandoned: Arc<AtomicBool>,
}

impl Medium {
    pub(super) fn new(file: Arc<dyn File>) -> Self {
        Self { file, is_abandoned: Arc::default() }
    }

    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Relaxed);
    }

    fn change(&self, change: impl FnOnce(&dyn File) -> io::Result<()>) -> io::Result<()> {
        match self.is_abandoned.load(Relaxed) {
            true => Err(io::Error::other("it is abandoned")),
            false => change(&*self.file),
        }
    }
}

impl StorageBackend for Medium {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|file| file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.change(|file| file.sync())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(|file| file.write_all_at(data, offset))
    }
}

impl fmt::Debug for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Medium")
    }
}

const PAGE: usize = 4096;

/// A file that stays as it is: changes are in memory. A check writes a few pages, and more after a crash.
pub(super) struct Unchanged {
    file: Arc<dyn File>,
    changes: Mutex<Changes>,
}

struct Changes {
    len: u64,
    /// The bytes of the file that still count: less than all if it was shortened.
    kept: u64,
    pages: BTreeMap<u64, [u8; PAGE]>,
}

impl Unchanged {
    pub(super) fn new(file: Arc<dyn File>) -> io::Result<Self> {
        let len = file.len()?;
        Ok(Self { file, changes: Mutex::new(Changes { len, kept: len, pages: BTreeMap::new() }) })
    }
}

impl Changes {
    fn page(&self, file: &dyn File, number: u64) -> io::Result<[u8; PAGE]> {
        if let Some(page) = self.pages.get(&number) {
            return Ok(*page);
        }
        let (mut page, at) = ([0; PAGE], number * PAGE as u64);
        let some = self.kept.saturating_sub(at).min(PAGE as u64) as usize;
        file.read_exact_at(&mut page[..some], at)?;
        Ok(page)
    }
}

/// The parts of a range of bytes: the number of each page, the part of the page, and the part of the range.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE as u64) as usize;
        let some = (PAGE - within).min(len - done);
        done += some;
        (some > 0).then_some((at / PAGE as u64, within, done - some, some))
    })
}

impl StorageBackend for Unchanged {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changes.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let changes = self.changes.lock();
        if offset + out.len() as u64 > changes.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (number, within, from, some) in parts(offset, out.len()) {
            let page = changes.page(&*self.file, number)?;
            out[from..from + some].copy_from_slice(&page[within..within + some]);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut changes = self.changes.lock();
        changes.len = len;
        changes.kept = changes.kept.min(len);
        changes.pages.split_off(&len.div_ceil(PAGE as u64));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut changes = self.changes.lock();
        for (number, within, from, some) in parts(offset, data.len()) {
            let mut page = changes.page(&*self.file, number)?;
            page[within..within + some].copy_from_slice(&data[from..from + some]);
            changes.pages.insert(number, page);
        }
        Ok(())
    }
}

impl fmt::Debug for Unchanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unchanged")
    }
}
