//! Accesses to a device or files, recorded in their order by wrappers that pass everything on.

use std::{
    io::{self, IoSlice, IoSliceMut},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use swarmkeep_content::{
    Content, ContentRepository, InfoHash, NewTorrent, Result,
    block::{Barrier, BlockDevice, SECTOR, Sector},
    forward,
};

use crate::content::disk::Access;

/// The accesses since it was switched on.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    on: AtomicBool,
    accesses: Mutex<Vec<Access>>,
}

impl Trace {
    pub(crate) fn turn_on(&self) {
        self.on.store(true, Relaxed);
    }

    fn add(&self, at: u64, len: u64) {
        if self.on.load(Relaxed) {
            self.accesses.lock().push(Access { at, len });
        }
    }

    /// Switches it off. Returns the accesses.
    pub(crate) fn take(&self) -> Vec<Access> {
        self.on.store(false, Relaxed);
        std::mem::take(&mut self.accesses.lock())
    }
}

/// A device whose accesses are recorded.
#[derive(Debug)]
pub(crate) struct TracedDevice<D> {
    pub(crate) device: D,
    pub(crate) trace: Arc<Trace>,
}

impl<D: BlockDevice> BlockDevice for TracedDevice<D> {
    fn sectors(&self) -> u64 {
        self.device.sectors()
    }

    fn read(&self, first: u64, into: &mut [Sector]) -> io::Result<()> {
        self.trace.add(first * SECTOR as u64, (into.len() * SECTOR) as u64);
        self.device.read(first, into)
    }

    fn write(&self, first: u64, parts: &[&[Sector]]) -> io::Result<()> {
        let sectors: usize = parts.iter().map(|part| part.len()).sum();
        self.trace.add(first * SECTOR as u64, (sectors * SECTOR) as u64);
        self.device.write(first, parts)
    }

    fn flush(&self, barrier: Barrier) -> io::Result<()> {
        self.device.flush(barrier)
    }

    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        self.device.discard(first, count)
    }
}

/// A store of torrents of `size` bytes, whose accesses are recorded as if the torrents lay one after another.
#[derive(Debug)]
pub(crate) struct TracedRepository<R> {
    pub(crate) inner: R,
    pub(crate) size: u64,
    pub(crate) trace: Arc<Trace>,
}

#[derive(Debug)]
struct TracedContent {
    inner: Arc<dyn Content>,
    begins: u64,
    trace: Arc<Trace>,
}

/// The info hash of the torrent with this number.
pub(crate) fn info_hash(number: u32) -> InfoHash {
    let mut bytes = [0x5b; 20];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    InfoHash::new(bytes)
}

/// The number of the torrent with this info hash.
pub(crate) fn number(info_hash: &InfoHash) -> u32 {
    let bytes = info_hash.as_bytes();
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

impl<R> TracedRepository<R> {
    fn content(&self, info_hash: &InfoHash, inner: Arc<dyn Content>) -> Arc<dyn Content> {
        let begins = u64::from(number(info_hash)) * self.size;
        Arc::new(TracedContent { inner, begins, trace: Arc::clone(&self.trace) })
    }
}

impl<R: ContentRepository> ContentRepository for TracedRepository<R> {
    forward! { it, it.inner; list, delete, flush, statistics, capabilities }

    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        Ok(self.content(&torrent.info_hash, self.inner.create(torrent)?))
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        Ok(self.content(info_hash, self.inner.open(info_hash)?))
    }
}

impl Content for TracedContent {
    forward! { it, it.inner; geometry, mark_complete, mark_incomplete, pieces, place }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        self.trace.add(self.begins + offset, len);
        self.inner.write_at(offset, buffers)
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        self.trace.add(self.begins + offset, len);
        self.inner.read_at(offset, buffers)
    }
}

#[cfg(test)]
mod tests {
    use swarmkeep_content::{
        ContentConfig, ContentExt, Memory,
        block::{FileDevice, sectors},
    };

    use super::*;

    fn access(at: u64, len: u64) -> Access {
        Access { at, len }
    }

    #[test]
    fn calls_to_a_device_are_recorded_by_byte_while_the_trace_is_on() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let trace = Arc::new(Trace::default());
        let device = FileDevice::open(image.path(), true).unwrap();
        let device = TracedDevice { device, trace: Arc::clone(&trace) };
        let mut some = sectors(3);
        some[0].0.fill(7);
        device.write(1, &[&some]).unwrap();
        trace.turn_on();
        device.write(5, &[&some, &some[..1]]).unwrap();
        device.flush(Barrier::Data).unwrap();
        device.read(2, &mut some[..2]).unwrap();
        assert_eq!(trace.take(), [access(20480, 16384), access(8192, 8192)]);
        device.read(5, &mut some).unwrap();
        assert_eq!((some[0].0, trace.take()), ([7; SECTOR], vec![]));
    }

    #[test]
    fn accesses_to_a_store_are_recorded_as_if_torrents_lay_one_after_another() {
        let trace = Arc::new(Trace::default());
        let inner = Memory::new(&ContentConfig::new(""));
        let store = TracedRepository { inner, size: 100_000, trace: Arc::clone(&trace) };
        trace.turn_on();
        let [one, other] = [3, 70_000].map(|n| {
            assert_eq!(number(&info_hash(n)), n);
            store.create(&NewTorrent::new(info_hash(n), 100_000, 16384).unwrap()).unwrap()
        });
        one.write_at(16384, &[IoSlice::new(&[1; 16384]), IoSlice::new(&[2; 100])]).unwrap();
        other.write(0, &[3; 10]).unwrap();
        store.open(&info_hash(3)).unwrap().read(16400, &mut [0; 20]).unwrap();
        store.flush().unwrap();
        assert_eq!(trace.take(), [access(316_384, 16484), access(7_000_000_000, 10), access(316_400, 20)]);
    }
}
