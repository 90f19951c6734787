//! What reaches a device or files, written down: wrappers that pass everything on.

use std::{
    io::{self, IoSlice, IoSliceMut},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use swarmkeep_content::{
    Capabilities, Content, ContentRepository, Geometry, InfoHash, NewTorrent, PieceBits, Result, Statistics,
    Summary,
    block::{Barrier, BlockDevice, SECTOR, Sector},
};

use crate::content::disk::{Access, Action};

/// What was done, in the order in which it was begun, while it is on.
#[derive(Debug)]
pub(crate) struct Trace {
    on: AtomicBool,
    accesses: Mutex<Vec<Access>>,
    writes: AtomicU64,
    flushes: AtomicU64,
}

impl Trace {
    /// Takes memory for so many accesses at once, so that what it takes is no part of what is measured.
    pub(crate) fn with_room_for(accesses: usize) -> Arc<Self> {
        let nothing = Access { at: 0, len: 0, action: Action::Flush, whose: 0 };
        // Pages that were never touched are no memory yet.
        let mut touched = vec![nothing; accesses];
        touched.clear();
        Arc::new(Self {
            on: AtomicBool::new(false),
            accesses: Mutex::new(touched),
            writes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
        })
    }

    pub(crate) fn turn(&self, on: bool) {
        self.on.store(on, Relaxed);
    }

    fn add(&self, access: Access) {
        if !self.on.load(Relaxed) {
            return;
        }
        match access.action {
            Action::Write => _ = self.writes.fetch_add(1, Relaxed),
            Action::Flush => _ = self.flushes.fetch_add(1, Relaxed),
            Action::Read => {}
        }
        self.accesses.lock().push(access);
    }

    /// Calls that wrote.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Relaxed)
    }

    /// Calls that flushed.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Relaxed)
    }

    pub(crate) fn take(&self) -> Vec<Access> {
        std::mem::take(&mut self.accesses.lock())
    }
}

/// A device whose accesses are written down by byte of the device.
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
        let (at, len) = (first * SECTOR as u64, (into.len() * SECTOR) as u64);
        self.trace.add(Access { at, len, action: Action::Read, whose: 0 });
        self.device.read(first, into)
    }

    fn write(&self, first: u64, parts: &[&[Sector]]) -> io::Result<()> {
        let sectors: usize = parts.iter().map(|part| part.len()).sum();
        let (at, len) = (first * SECTOR as u64, (sectors * SECTOR) as u64);
        self.trace.add(Access { at, len, action: Action::Write, whose: 0 });
        self.device.write(first, parts)
    }

    fn flush(&self, barrier: Barrier) -> io::Result<()> {
        self.trace.add(Access { at: 0, len: 0, action: Action::Flush, whose: 0 });
        self.device.flush(barrier)
    }

    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        self.device.discard(first, count)
    }
}

/// A store whose accesses are written down by byte of a torrent; whose it is tells [`number`].
#[derive(Debug)]
pub(crate) struct TracedRepository<R> {
    pub(crate) inner: R,
    pub(crate) trace: Arc<Trace>,
}

#[derive(Debug)]
struct TracedContent {
    inner: Arc<dyn Content>,
    whose: u32,
    trace: Arc<Trace>,
}

/// What the torrent with this number is called.
pub(crate) fn info_hash(number: u32) -> InfoHash {
    let mut bytes = [0x5b; 20];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    InfoHash::new(bytes)
}

/// The number of the torrent that is called so.
pub(crate) fn number(info_hash: &InfoHash) -> u32 {
    let bytes = info_hash.as_bytes();
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

impl<R> TracedRepository<R> {
    fn content(&self, info_hash: &InfoHash, inner: Arc<dyn Content>) -> Arc<dyn Content> {
        Arc::new(TracedContent { inner, whose: number(info_hash), trace: Arc::clone(&self.trace) })
    }
}

impl<R: ContentRepository> ContentRepository for TracedRepository<R> {
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        Ok(self.content(&torrent.info_hash, self.inner.create(torrent)?))
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        Ok(self.content(info_hash, self.inner.open(info_hash)?))
    }

    fn list(&self) -> Result<Vec<Summary>> {
        self.inner.list()
    }

    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        self.inner.delete(info_hash)
    }

    fn flush(&self) -> Result<()> {
        self.trace.add(Access { at: 0, len: 0, action: Action::Flush, whose: 0 });
        self.inner.flush()
    }

    fn statistics(&self) -> Statistics {
        self.inner.statistics()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

impl Content for TracedContent {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        self.trace.add(Access { at: offset, len, action: Action::Write, whose: self.whose });
        self.inner.write_at(offset, buffers)
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        self.trace.add(Access { at: offset, len, action: Action::Read, whose: self.whose });
        self.inner.read_at(offset, buffers)
    }

    fn mark_complete(&self, piece: u32) -> Result<bool> {
        self.inner.mark_complete(piece)
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        self.inner.mark_incomplete(piece)
    }

    fn pieces(&self) -> Result<PieceBits> {
        self.inner.pieces()
    }

    fn place(&self, offset: u64) -> Option<u64> {
        self.inner.place(offset)
    }
}

#[cfg(test)]
mod tests {
    use swarmkeep_content::{ContentConfig, ContentExt, Memory, block::sectors};

    use super::*;
    use crate::content::device::ZeroDevice;

    fn access(action: Action, at: u64, len: u64, whose: u32) -> Access {
        Access { at, len, action, whose }
    }

    #[test]
    fn of_a_device_every_call_is_written_down_by_byte_while_it_is_on() {
        let trace = Trace::with_room_for(4);
        let device = TracedDevice { device: ZeroDevice::new(1 << 20), trace: Arc::clone(&trace) };
        let mut some = sectors(3);
        some[0].0.fill(7);
        device.write(1, &[&some]).unwrap();
        trace.turn(true);
        device.write(5, &[&some, &some[..1]]).unwrap();
        device.flush(Barrier::Data).unwrap();
        device.read(2, &mut some[..2]).unwrap();
        trace.turn(false);
        device.read(5, &mut some).unwrap();
        assert_eq!(some[0].0, [7; SECTOR], "it is passed on");
        assert_eq!((trace.writes(), trace.flushes()), (1, 1));
        assert_eq!(
            trace.take(),
            [
                access(Action::Write, 20480, 16384, 0),
                access(Action::Flush, 0, 0, 0),
                access(Action::Read, 8192, 8192, 0)
            ]
        );
    }

    #[test]
    fn of_a_store_every_access_is_written_down_by_byte_of_the_torrent() {
        let trace = Trace::with_room_for(4);
        let store =
            TracedRepository { inner: Memory::new(&ContentConfig::new("")), trace: Arc::clone(&trace) };
        trace.turn(true);
        let [one, other] = [3, 70_000].map(|n| {
            assert_eq!(number(&info_hash(n)), n);
            store.create(&NewTorrent::new(info_hash(n), 100_000, 16384).unwrap()).unwrap()
        });
        one.write_at(16384, &[IoSlice::new(&[1; 16384]), IoSlice::new(&[2; 100])]).unwrap();
        other.write(0, &[3; 10]).unwrap();
        store.open(&info_hash(3)).unwrap().read(16400, &mut [0; 20]).unwrap();
        store.flush().unwrap();
        assert_eq!(
            trace.take(),
            [
                access(Action::Write, 16384, 16484, 3),
                access(Action::Write, 0, 10, 70_000),
                access(Action::Read, 16400, 20, 3),
                access(Action::Flush, 0, 0, 0)
            ]
        );
    }
}
