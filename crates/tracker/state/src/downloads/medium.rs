//! The files of databases, as redb reads and writes them.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use redb::StorageBackend;

use crate::File;

/// A file that redb reads and writes, until it is abandoned: then every change fails.
#[derive(Debug, Clone)]
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

/// A file that stays as it is: changes are in memory. A check writes a few pages, and more after a crash.
#[derive(Debug)]
pub(super) struct Unchanged {
    file: Arc<dyn File>,
    changes: Mutex<Changes>,
}

#[derive(Debug)]
struct Changes {
    len: u64,
    /// The bytes of the file that still count: less than all if it was shortened.
    kept: u64,
    /// The written ranges, oldest first, each with its offset.
    writes: Vec<(u64, Vec<u8>)>,
}

impl Unchanged {
    pub(super) fn new(file: Arc<dyn File>) -> io::Result<Self> {
        let len = file.len()?;
        Ok(Self { file, changes: Mutex::new(Changes { len, kept: len, writes: Vec::new() }) })
    }
}

impl StorageBackend for Unchanged {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changes.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (changes, end) = (self.changes.lock(), offset + out.len() as u64);
        if end > changes.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (of_file, zeroes) = out.split_at_mut((changes.kept.clamp(offset, end) - offset) as usize);
        if !of_file.is_empty() {
            self.file.read_exact_at(of_file, offset)?;
        }
        zeroes.fill(0);
        for (at, bytes) in &changes.writes {
            let (from, to) = (offset.max(*at), end.min(at + bytes.len() as u64));
            if from < to {
                out[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut changes = self.changes.lock();
        (changes.len, changes.kept) = (len, changes.kept.min(len));
        changes.writes.retain_mut(|(at, bytes)| {
            bytes.truncate(len.saturating_sub(*at) as usize);
            !bytes.is_empty()
        });
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let writes = &mut self.changes.lock().writes;
        writes.retain(|(at, bytes)| *at != offset || bytes.len() > data.len());
        writes.push((offset, data.into()));
        Ok(())
    }
}
