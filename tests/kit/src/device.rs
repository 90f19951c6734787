//! A block device in memory, whose accesses a test watches and refuses.

use std::{collections::HashMap, fmt, io, ops::Range};

use parking_lot::RwLock;
use swarmkeep_content::block::{Barrier, BlockDevice, Sector};

/// A call of a device, with its sectors.
#[expect(missing_docs, reason = "the names say it")]
pub enum Access {
    Read(Range<u64>),
    Write(Range<u64>),
    Flush(Barrier),
}

/// Sectors in memory. Sectors of zeroes take none.
pub struct SparseDevice {
    sectors: u64,
    held: RwLock<HashMap<u64, Box<Sector>>>,
    watch: RwLock<Box<dyn Fn(Access) -> io::Result<bool> + Send + Sync>>,
}

impl SparseDevice {
    /// A device of `sectors` sectors of zeroes.
    pub fn new(sectors: u64) -> Self {
        Self { sectors, held: RwLock::default(), watch: RwLock::new(Box::new(|_| Ok(true))) }
    }

    /// Calls `watch` before each access from now on. The access returns its error; after `false`, a write
    /// does nothing.
    pub fn watch(&self, watch: impl Fn(Access) -> io::Result<bool> + Send + Sync + 'static) {
        *self.watch.write() = Box::new(watch);
    }

    /// The first sectors of a device of `sectors`; the others are zeroes.
    pub fn from_sectors(sectors: u64, first: impl IntoIterator<Item = Sector>) -> Self {
        let device = Self::new(sectors);
        device.held.write().extend((0..sectors).zip(first.into_iter().map(Box::new)));
        device
    }

    /// The range of `count` sectors from `first` on, if there is such a range.
    fn range(&self, first: u64, count: usize) -> io::Result<Range<u64>> {
        let end = first.checked_add(count as u64).filter(|end| *end <= self.sectors);
        end.map(|end| first..end).ok_or(io::ErrorKind::UnexpectedEof.into())
    }
}

impl fmt::Debug for SparseDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SparseDevice of {} sectors", self.sectors)
    }
}

impl BlockDevice for SparseDevice {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn read(&self, first: u64, into: &mut [Sector]) -> io::Result<()> {
        let range = self.range(first, into.len())?;
        self.watch.read()(Access::Read(range.clone()))?;
        let held = self.held.read();
        range.zip(into).for_each(|(at, sector)| *sector = held.get(&at).map_or(Sector::ZERO, |held| **held));
        Ok(())
    }

    fn write(&self, first: u64, parts: &[&[Sector]]) -> io::Result<()> {
        let range = self.range(first, parts.iter().map(|part| part.len()).sum())?;
        if self.watch.read()(Access::Write(range.clone()))? {
            let mut held = self.held.write();
            for (at, new) in range.zip(parts.iter().copied().flatten()) {
                _ = if *new == Sector::ZERO { held.remove(&at) } else { held.insert(at, Box::new(*new)) };
            }
        }
        Ok(())
    }

    fn flush(&self, barrier: Barrier) -> io::Result<()> {
        self.watch.read()(Access::Flush(barrier)).map(drop)
    }

    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        self.held.write().retain(|at, _| !(first..first + count).contains(at));
        Ok(())
    }
}
