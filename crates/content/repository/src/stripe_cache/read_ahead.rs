//! Stripes that are read ahead of requests.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::{Condvar, Mutex};
use zerocopy::IntoBytes;

use crate::{
    Result,
    block::{SECTOR, Sector, sectors},
};

/// A torrent by its serial number, and a byte of it.
type Key = (u64, u64);

/// Parts of stripes, in a bounded amount of memory. The least recently read ones are dropped first.
#[derive(Debug)]
pub(super) struct ReadAhead {
    most: u64,
    stripe: u64,
    table: Mutex<Table>,
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// The state of a range.
pub(super) enum Lookup<'a> {
    There(Arc<ReadBlock>),
    /// Another thread is reading it.
    Coming(Arc<PendingRead>),
    /// The caller has to read it, into the memory of a dropped block if one is as large.
    Started(StartedRead<'a>, Vec<Sector>),
    /// Only what is needed should be read.
    Nothing,
}

/// A read that others may wait for. When it is dropped, they get the result.
pub(super) struct StartedRead<'a> {
    ahead: &'a ReadAhead,
    key: Key,
    reading: Arc<PendingRead>,
    /// `None` if it was not tried.
    tried: Option<Option<Arc<ReadBlock>>>,
}

#[derive(Debug, Default)]
struct Table {
    /// By torrent and first byte. No two share a byte, and none lies in two stripes.
    entries: BTreeMap<Key, Entry>,
    /// Blocks in memory, the oldest first.
    ages: BTreeMap<u64, Key>,
    clock: u64,
    /// Memory of all blocks, including reads in progress that were forgotten meanwhile.
    taken: u64,
    score: ReadAheadScore,
}

#[derive(Debug)]
enum Entry {
    Reading(Arc<PendingRead>),
    There {
        range: Range<u64>,
        /// `None` if it could not be read.
        block: Option<Arc<ReadBlock>>,
        age: u64,
        /// Bytes of it that were requested.
        wanted: u64,
    },
}

/// Whether whole stripes are worth their memory: not if they are dropped before much of them was requested,
/// because there is too little memory for all concurrent reads.
#[derive(Debug, Default)]
struct ReadAheadScore {
    /// Bytes of dropped blocks, and how many of these were requested.
    gone: u64,
    wanted: u64,
    narrow: bool,
}

/// The amount that is read ahead where whole stripes are not worth it. 128 MiB are then enough for 512
/// readers, and a disk that moves its head in 12 ms and reads 150 MB/s spends an eighth of its time on
/// reading. A request for half of that or more does not go through this memory: there is little to read
/// ahead.
const NARROW: u64 = 256 << 10;

/// Bytes of a torrent, all of them of complete pieces.
pub(super) struct ReadBlock {
    range: Range<u64>,
    sectors: Vec<Sector>,
}

#[derive(Debug)]
pub(super) struct PendingRead {
    range: Range<u64>,
    wanted: AtomicU64,
    /// `Some(None)` if it failed, or was not tried.
    done: Mutex<Option<Option<Arc<ReadBlock>>>>,
    finished: Condvar,
}

impl ReadBlock {
    /// A part of it.
    pub(super) fn bytes(&self, part: &Range<u64>) -> &[u8] {
        let from = (part.start - self.range.start) as usize;
        &self.sectors.as_bytes()[from..from + (part.end - part.start) as usize]
    }
}

debug_as!(ReadBlock, it, "{:?}", it.range);

const fn memory_for(range: &Range<u64>) -> u64 {
    (range.end - range.start).next_multiple_of(SECTOR as u64)
}

impl ReadAhead {
    pub(super) fn new(most: u64, stripe: u64) -> Self {
        Self {
            most,
            stripe,
            table: Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    pub(super) fn taken(&self) -> u64 {
        self.table.lock().taken
    }

    /// The block in memory that contains `part`, which lies in a stripe.
    pub(super) fn get(&self, torrent: u64, part: &Range<u64>) -> Option<Arc<ReadBlock>> {
        let block = self.table.lock().get(torrent, part)?;
        self.hits.fetch_add(1, Relaxed);
        Some(block)
    }

    /// The state of `part`, which lies in a stripe. If there is nothing, begins a read of it and of the range
    /// `around` it.
    pub(super) fn find(
        &self,
        torrent: u64,
        part: &Range<u64>,
        around: impl FnOnce() -> Option<Range<u64>>,
    ) -> Lookup<'_> {
        let mut table = self.table.lock();
        if let Some(block) = table.get(torrent, part) {
            drop(table);
            self.hits.fetch_add(1, Relaxed);
            return Lookup::There(block);
        }
        match table.covering(torrent, part) {
            Some((_, Entry::Reading(reading))) => {
                reading.wanted.fetch_add(part.end - part.start, Relaxed);
                return Lookup::Coming(Arc::clone(reading));
            }
            // It could not be read. It is dropped when it is the oldest, and then tried again.
            Some((_, Entry::There { .. })) => return Lookup::Nothing,
            None => {}
        }
        let asked = part.end - part.start;
        if table.score.narrow && 2 * asked >= NARROW {
            table.score.gone(asked, 0, self.most);
            return Lookup::Nothing;
        }
        let Some(mut range) = around() else {
            return Lookup::Nothing;
        };
        let limit = if table.score.narrow { NARROW.min(self.most) } else { self.most };
        if range.end - range.start > limit {
            range.start = range.start.max(part.start / SECTOR as u64 * SECTOR as u64);
            range.end = range.end.min(part.end.max(range.start + limit));
        }
        let others = table.overlapping(torrent, &range, self.stripe);
        let reading = |key: &Key| matches!(table.entries.get(key), Some(Entry::Reading(_)));
        if others.iter().any(reading) {
            return Lookup::Nothing;
        }
        others.into_iter().for_each(|key| _ = table.forget(key));
        let memory = memory_for(&range);
        let Some(spare) = table.make_room(memory, self.most) else {
            return Lookup::Nothing;
        };
        table.taken += memory;
        let key = (torrent, range.start);
        let wanted = AtomicU64::new(part.end - part.start);
        let reading =
            Arc::new(PendingRead { range, wanted, done: Mutex::default(), finished: Condvar::new() });
        table.entries.insert(key, Entry::Reading(Arc::clone(&reading)));
        Lookup::Started(StartedRead { ahead: self, key, reading, tried: None }, spare)
    }

    /// The block of `found`. If it has to be read, `read` is called with its first byte. `None` if only the
    /// requested bytes should be read.
    pub(super) fn block(
        &self,
        found: Lookup<'_>,
        read: impl FnOnce(u64, &mut [u8]) -> Result<()>,
    ) -> Option<Arc<ReadBlock>> {
        match found {
            Lookup::There(block) => Some(block),
            Lookup::Coming(reading) => {
                let mut done = reading.done.lock();
                reading.finished.wait_while(&mut done, |done| done.is_none());
                let block = done.clone().flatten()?;
                self.hits.fetch_add(1, Relaxed);
                Some(block)
            }
            Lookup::Started(started, spare) => self.read(started, spare, read),
            Lookup::Nothing => None,
        }
    }

    fn read(
        &self,
        mut started: StartedRead<'_>,
        spare: Vec<Sector>,
        read: impl FnOnce(u64, &mut [u8]) -> Result<()>,
    ) -> Option<Arc<ReadBlock>> {
        let range = started.reading.range.clone();
        let len = (range.end - range.start) as usize;
        let count = len.div_ceil(SECTOR);
        let mut sectors = if spare.len() == count {
            spare
        } else {
            // Before the next allocation.
            drop(spare);
            sectors(count)
        };
        let read = read(range.start, &mut sectors.as_mut_bytes()[..len]);
        let block = read.ok().map(|()| Arc::new(ReadBlock { range, sectors }));
        self.misses.fetch_add(1, Relaxed);
        if block.is_some() {
            self.bytes.fetch_add(len as u64, Relaxed);
        }
        started.tried = Some(block.clone());
        block
    }

    /// Forgets a range of a torrent. Reads in progress still get their bytes.
    pub(super) fn forget(&self, torrent: u64, range: &Range<u64>) {
        let mut table = self.table.lock();
        table.overlapping(torrent, range, self.stripe).into_iter().for_each(|key| _ = table.forget(key));
    }
}

impl Drop for StartedRead<'_> {
    fn drop(&mut self) {
        let Self { ahead, key, reading, tried } = self;
        let tried = tried.take();
        let mut table = ahead.table.lock();
        table.taken -= memory_for(&reading.range);
        // Unless it was forgotten meanwhile.
        if matches!(table.entries.get(key), Some(Entry::Reading(own)) if Arc::ptr_eq(own, reading)) {
            table.entries.remove(key);
            if let Some(block) = tried.clone() {
                let age = table.tick();
                let wanted = reading.wanted.load(Relaxed);
                let entry = Entry::There { range: reading.range.clone(), block, age, wanted };
                table.taken += entry.memory();
                table.ages.insert(age, *key);
                table.entries.insert(*key, entry);
            }
        }
        drop(table);
        *reading.done.lock() = Some(tried.flatten());
        reading.finished.notify_all();
    }
}

impl Entry {
    fn range(&self) -> &Range<u64> {
        match self {
            Self::Reading(reading) => &reading.range,
            Self::There { range, .. } => range,
        }
    }

    /// The memory that it takes. A range that could not be read counts too, so that the number of such
    /// entries is bounded.
    fn memory(&self) -> u64 {
        match self {
            Self::There { block: None, .. } => SECTOR as u64,
            other => memory_for(other.range()),
        }
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The entry that contains all of a part, in any state.
    fn covering(&mut self, torrent: u64, part: &Range<u64>) -> Option<(Key, &mut Entry)> {
        let (&key, entry) = self.entries.range_mut((torrent, 0)..=(torrent, part.start)).next_back()?;
        let range = entry.range();
        (range.start <= part.start && part.end <= range.end).then_some((key, entry))
    }

    /// The block that contains all of a part, if it is in memory. Notes that it was requested.
    fn get(&mut self, torrent: u64, part: &Range<u64>) -> Option<Arc<ReadBlock>> {
        let (key, Entry::There { block: Some(block), wanted, .. }) = self.covering(torrent, part)? else {
            return None;
        };
        let block = Arc::clone(block);
        *wanted += part.end - part.start;
        self.touch(key);
        Some(block)
    }

    fn touch(&mut self, key: Key) {
        let now = self.tick();
        if let Some(Entry::There { age, .. }) = self.entries.get_mut(&key) {
            self.ages.remove(&std::mem::replace(age, now));
            self.ages.insert(now, key);
        }
    }

    fn overlapping(&self, torrent: u64, range: &Range<u64>, stripe: u64) -> Vec<Key> {
        let from = range.start / stripe * stripe;
        let entries = self.entries.range((torrent, from)..(torrent, range.end));
        entries.filter(|(_, entry)| entry.range().end > range.start).map(|(&key, _)| key).collect()
    }

    /// Removes an entry. Returns its block, if it has one.
    fn forget(&mut self, key: Key) -> Option<Arc<ReadBlock>> {
        let entry = self.entries.remove(&key)?;
        let memory = entry.memory();
        let Entry::There { age, block, .. } = entry else { return None };
        self.ages.remove(&age);
        self.taken -= memory;
        block
    }

    /// Forgets old blocks until there is room for `memory`; `None` if even that is not enough. Returns memory
    /// of one of them for the next read: new memory costs more than reading into it, because the system has
    /// to clear it.
    fn make_room(&mut self, memory: u64, most: u64) -> Option<Vec<Sector>> {
        if memory > most {
            return None;
        }
        let mut spare = Vec::new();
        while self.taken + memory > most {
            let (_, &oldest) = self.ages.first_key_value()?;
            if let Some(Entry::There { range, block: Some(_), wanted, .. }) = self.entries.get(&oldest) {
                self.score.gone(range.end - range.start, *wanted, most);
            }
            // Unless a reader still copies from it.
            if let Some(block) = self.forget(oldest).and_then(Arc::into_inner) {
                spare = block.sectors;
            }
        }
        Some(spare)
    }
}

impl ReadAheadScore {
    /// Judges after a quarter of the memory was dropped, and tries whole stripes again after eight times the
    /// memory: if each try fails, at most a ninth more is read than without tries.
    fn gone(&mut self, bytes: u64, wanted: u64, most: u64) {
        self.gone += bytes;
        self.wanted += wanted.min(bytes);
        if self.gone >= if self.narrow { 8 * most } else { most / 4 } {
            self.narrow = !self.narrow && self.wanted < self.gone / 2;
            (self.gone, self.wanted) = (0, 0);
        }
    }
}
