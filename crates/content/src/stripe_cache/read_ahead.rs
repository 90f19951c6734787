//! Stripes that were read ahead of who asks for them.

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

/// A torrent by its serial number, and a stripe of it.
pub(super) type Key = (u64, u64);

/// Parts of stripes, at most one of each, in a bounded amount of memory. Those that nobody has read for the longest time go first.
#[derive(Debug)]
pub(super) struct ReadAhead {
    most: u64,
    table: Mutex<Table>,
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<Key, Entry>,
    /// Those that are there, the oldest first.
    ages: BTreeMap<u64, Key>,
    clock: u64,
    /// Memory of those that are there and those that are being read, even if they were forgotten meanwhile.
    taken: u64,
}

#[derive(Debug)]
enum Entry {
    Reading(Arc<Reading>),
    There { block: Arc<Block>, age: u64 },
}

/// Bytes of a torrent, all of them of complete pieces.
pub(super) struct Block {
    range: Range<u64>,
    sectors: Vec<Sector>,
}

#[derive(Debug)]
struct Reading {
    range: Range<u64>,
    /// `Some(None)` if it failed.
    done: Mutex<Option<Option<Arc<Block>>>>,
    told: Condvar,
}

impl Block {
    /// A part of it.
    pub(super) fn bytes(&self, part: &Range<u64>) -> &[u8] {
        let from = (part.start - self.range.start) as usize;
        &self.sectors.as_bytes()[from..from + (part.end - part.start) as usize]
    }

    fn memory(&self) -> u64 {
        memory_for(&self.range)
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.range)
    }
}

const fn memory_for(range: &Range<u64>) -> u64 {
    (range.end - range.start).next_multiple_of(SECTOR as u64)
}

const fn covers(range: &Range<u64>, part: &Range<u64>) -> bool {
    range.start <= part.start && part.end <= range.end
}

impl ReadAhead {
    pub(super) fn new(most: u64) -> Self {
        Self {
            most,
            table: Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Bytes of memory that are taken.
    pub(super) fn taken(&self) -> u64 {
        self.table.lock().taken
    }

    /// A block that has all of `part`: one that is there, or one that somebody is reading just now, or `around`, which is then read
    /// by `read`. `None` if there is no memory for it: then only what is needed should be read.
    pub(super) fn get(
        &self,
        key: Key,
        part: &Range<u64>,
        around: &Range<u64>,
        read: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Option<Arc<Block>>> {
        let reading = loop {
            let mut table = self.table.lock();
            match table.entries.get(&key) {
                Some(Entry::There { block, .. }) if covers(&block.range, part) => {
                    let block = Arc::clone(block);
                    table.touch(key);
                    self.hits.fetch_add(1, Relaxed);
                    return Ok(Some(block));
                }
                Some(Entry::Reading(reading)) if covers(&reading.range, part) => {
                    let reading = Arc::clone(reading);
                    drop(table);
                    let mut done = reading.done.lock();
                    reading.told.wait_while(&mut done, |done| done.is_none());
                    if let Some(Some(block)) = &*done {
                        self.hits.fetch_add(1, Relaxed);
                        return Ok(Some(Arc::clone(block)));
                    }
                    // Its error is its reader's: whoever comes next tries anew.
                }
                Some(Entry::Reading(_)) => return Ok(None),
                Some(Entry::There { .. }) | None => {
                    table.forget(key);
                    let memory = memory_for(around);
                    if !table.make_room(memory, self.most) {
                        return Ok(None);
                    }
                    table.taken += memory;
                    let reading = Arc::new(Reading {
                        range: around.clone(),
                        done: Mutex::default(),
                        told: Condvar::new(),
                    });
                    table.entries.insert(key, Entry::Reading(Arc::clone(&reading)));
                    break reading;
                }
            }
        };
        self.misses.fetch_add(1, Relaxed);
        let len = (around.end - around.start) as usize;
        let mut sectors = sectors(len.div_ceil(SECTOR));
        let read = read(&mut sectors.as_mut_bytes()[..len]);
        let block = read.map(|()| Arc::new(Block { range: around.clone(), sectors }));
        let mut table = self.table.lock();
        // Unless it was forgotten meanwhile.
        let wanted =
            matches!(table.entries.get(&key), Some(Entry::Reading(own)) if Arc::ptr_eq(own, &reading));
        if wanted {
            table.entries.remove(&key);
        }
        match &block {
            Ok(block) if wanted => {
                let age = table.tick();
                table.ages.insert(age, key);
                table.entries.insert(key, Entry::There { block: Arc::clone(block), age });
            }
            _ => table.taken -= memory_for(around),
        }
        drop(table);
        if block.is_ok() {
            self.bytes.fetch_add(len as u64, Relaxed);
        }
        *reading.done.lock() = Some(block.as_ref().ok().cloned());
        reading.told.notify_all();
        block.map(Some)
    }

    /// Forgets stripes of a torrent. Who reads one of them just now still gets what he reads.
    pub(super) fn forget(&self, torrent: u64, stripes: Range<u64>) {
        let mut table = self.table.lock();
        let keys = table.entries.range((torrent, stripes.start)..(torrent, stripes.end));
        let keys: Vec<_> = keys.map(|(&key, _)| key).collect();
        keys.into_iter().for_each(|key| table.forget(key));
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn touch(&mut self, key: Key) {
        let now = self.tick();
        if let Some(Entry::There { age, .. }) = self.entries.get_mut(&key) {
            self.ages.remove(&std::mem::replace(age, now));
            self.ages.insert(now, key);
        }
    }

    fn forget(&mut self, key: Key) {
        if let Some(Entry::There { block, age }) = self.entries.remove(&key) {
            self.ages.remove(&age);
            self.taken -= block.memory();
        }
    }

    /// Forgets old ones until there is so much room; `false` if even that does not make it.
    fn make_room(&mut self, memory: u64, most: u64) -> bool {
        if memory > most {
            return false;
        }
        while self.taken + memory > most {
            let Some((_, &oldest)) = self.ages.first_key_value() else {
                return false;
            };
            self.forget(oldest);
        }
        true
    }
}
