//! The store at work: the owners of blocks, and the order of writes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    mem,
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use parking_lot::{Mutex, RwLock};

use super::{
    Barrier, BlockDevice, Sector,
    allocator::{Allocator, BlockUse},
    format::{LOGICAL_PER_SECTOR, Layout, LogicalSector, RootEntry, RootHeader, Slot, index, sector_of},
    inode::{Changes, Inode, InodeByHash, InodeState},
    mutant::{Mutant, Mutation},
    root::Root,
    slabs::Slabs,
};
use crate::{Counters, Error, InfoHash, NewTorrent, Result, Statistics, Summary, random::random};

/// The sector with the next block of the sequential allocator.
pub(super) const CURSOR: u64 = 1;

/// Shared by the handles of a store. Locks are taken in the order of the fields; a torrent's gate comes after
/// `names`, then its edges, and its state before `changed`.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) shape: RootHeader,
    /// Locked to create and to delete.
    pub(super) names: Mutex<()>,
    /// Locked to write anything except content.
    pub(super) meta: Mutex<Metadata>,
    pub(super) torrents: RwLock<HashSet<InodeByHash>>,
    /// Torrents with changes that are not on the device.
    pub(super) changed: Mutex<Vec<Arc<Inode>>>,
    pub(super) allocator: Mutex<Allocator>,
    pub(super) counters: Counters,
    /// Why nothing more is written, if so.
    pub(super) read_only: Mutex<Option<&'static str>>,
    pub(super) mutation: Mutation,
}

/// The contents of the device, except content.
#[derive(Debug)]
pub(super) struct Metadata {
    pub(super) root: Root,
    pub(super) slabs: Slabs,
    /// Torrents of which only the name is known, and their positions in the root.
    pub(super) lost: HashMap<InfoHash, u32>,
    /// The cursor that is on the device.
    pub(super) cursor: u32,
}

impl Store {
    pub(super) const fn block_shift(&self) -> u8 {
        self.shape.block_shift
    }

    pub(super) const fn sectors_per_block(&self) -> u64 {
        1 << (self.shape.block_shift - 12)
    }

    pub(super) fn writable(&self) -> Result<()> {
        match *self.read_only.lock() {
            Some(why) => Err(Error::ReadOnly { why }),
            None => Ok(()),
        }
    }

    /// Handles an error of a write of metadata: from then on the contents of the device are unknown, so the
    /// store becomes read-only.
    pub(super) fn give_up<T>(&self, result: std::io::Result<T>, what: &'static str) -> Result<T> {
        result.map_err(|source| {
            let error = Error::io(what)(source);
            *self.read_only.lock() = Some(match error {
                Error::Full { .. } => {
                    "the file system of the image is full; the store is whole when it is opened again"
                }
                _ => "the device failed while it was written to",
            });
            error
        })
    }

    fn flush_device(&self, barrier: Barrier) -> Result<()> {
        self.counters.flushed();
        self.give_up(self.device.flush(barrier), "flushing the device")
    }

    pub(super) fn write_root(&self, meta: &mut Metadata, barrier: Barrier) -> Result<()> {
        self.writable()?;
        self.counters.flushed();
        let written = meta.root.write(&*self.device, barrier);
        self.give_up(written, "writing the root")
    }

    /// Frees all that a deleted torrent held.
    fn release(&self, meta: &mut Metadata, inode: &Inode) {
        let state = inode.state.lock();
        let mut blocks: Vec<_> =
            state.map.iter().chain(state.map_blocks.iter()).map(|(_, block)| block).collect();
        blocks.extend(meta.slabs.release(inode.slot));
        // A search for i-nodes does not find this one any more.
        let first = inode.slot.first(self.block_shift()) / LOGICAL_PER_SECTOR as u64;
        let _ = self.write_slab_sectors(meta, first..first + 1);
        blocks.sort_unstable();
        let mut runs: Vec<Range<u32>> = Vec::new();
        for &block in &blocks {
            match runs.last_mut() {
                Some(run) if run.end == block => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        for run in runs {
            let (first, count) = (self.first_sector(run.start), run.len() as u64 * self.sectors_per_block());
            // Only the device's own bookkeeping is at stake.
            let _ = self.device.discard(first, count);
        }
        let mut allocator = self.allocator.lock();
        blocks.into_iter().for_each(|block| allocator.release(block));
    }

    pub(super) const fn first_sector(&self, block: u32) -> u64 {
        (block as u64) << (self.shape.block_shift - 12)
    }

    pub(super) fn create(self: &Arc<Self>, new: &NewTorrent) -> Result<Arc<Inode>> {
        let _names = self.names.lock();
        if self.torrents.read().contains(&new.info_hash) {
            return Err(Error::Exists(new.info_hash));
        }
        self.writable()?;
        let layout = Layout::new(new.geometry, self.block_shift()).ok_or(Error::Full {
            what: "the torrent is larger than a store with blocks of this size can hold",
        })?;
        // No i-node has the number 0.
        let uid = u64::from_le_bytes(random()?).max(1);
        let mut meta = self.meta.lock();
        let slot = self
            .take_slot(&mut meta, layout)
            .ok_or(Error::Full { what: "no block is free for the i-node of a torrent" })?;
        let inode = Inode::new(new.info_hash, uid, new.geometry, self.block_shift(), slot);
        let inode = Arc::new(inode.expect("it was laid out above"));
        let entry = RootEntry::new(new.info_hash, uid, slot);
        let at = match meta.lost.remove(&new.info_hash) {
            Some(at) => {
                meta.root.set(at, entry);
                Some(at)
            }
            None => meta.root.add(entry),
        };
        let Some(at) = at else {
            let block = meta.slabs.release(slot);
            block.into_iter().for_each(|block| self.allocator.lock().release(block));
            return Err(Error::Full { what: "the root has no room for another torrent" });
        };
        inode.entry.store(at, Relaxed);
        meta.slabs.occupy(&inode);
        if self.mutation.is(Mutant::RootBeforeInode) {
            self.write_root(&mut meta, Barrier::Root)?;
        }
        let first = slot.first(self.block_shift()) / LOGICAL_PER_SECTOR as u64;
        let count = layout.class.logical().div_ceil(LOGICAL_PER_SECTOR as u64);
        let written = self.write_slab_sectors(&meta, first..first + count);
        self.give_up(written, "writing an i-node")?;
        self.flush_device(Barrier::Inode)?;
        if !self.mutation.is(Mutant::RootBeforeInode) {
            self.write_root(&mut meta, Barrier::Root)?;
        }
        drop(meta);
        self.torrents.write().insert(InodeByHash(Arc::clone(&inode)));
        Ok(inode)
    }

    pub(super) fn inode(&self, info_hash: &InfoHash) -> Option<Arc<Inode>> {
        self.torrents.read().get(info_hash).map(|InodeByHash(inode)| Arc::clone(inode))
    }

    /// The lowest free slot for such an i-node, in a new block if need be.
    fn take_slot(&self, meta: &mut Metadata, layout: Layout) -> Option<Slot> {
        meta.slabs.take(layout.class).or_else(|| {
            let block = self.allocator.lock().take(BlockUse::Inodes)?;
            meta.slabs.add(block, layout.class, self.block_shift());
            meta.slabs.take(layout.class)
        })
    }

    pub(super) fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        let _names = self.names.lock();
        let Some(inode) = self.inode(info_hash) else {
            return self.delete_lost(info_hash);
        };
        self.writable()?;
        let _alone = inode.gate.write();
        let mut meta = self.meta.lock();
        self.torrents.write().remove(info_hash);
        {
            let _state = inode.state.lock();
            inode.gone.store(true, Relaxed);
        }
        let at = inode.entry.load(Relaxed);
        meta.root.remove(at);
        if self.mutation.is(Mutant::ReuseBeforeRoot) {
            self.release(&mut meta, &inode);
            // As if the flush had been forgotten: the root says so some time later.
            return Ok(true);
        }
        self.write_root(&mut meta, Barrier::Root)?;
        if self.mutation.is(Mutant::ReuseAfterOneRoot) {
            self.release(&mut meta, &inode);
            return Ok(true);
        }
        // It is gone, and the older copy still names it: should that be needed one day, it must not find
        // others there.
        self.write_root(&mut meta, Barrier::Root)?;
        self.release(&mut meta, &inode);
        Ok(true)
    }

    /// Forgets the name of a torrent of which nothing else is known.
    fn delete_lost(&self, info_hash: &InfoHash) -> Result<bool> {
        let mut meta = self.meta.lock();
        if !meta.lost.contains_key(info_hash) {
            return Ok(false);
        }
        self.writable()?;
        let at = meta.lost.remove(info_hash).expect("it was there");
        meta.root.remove(at);
        self.write_root(&mut meta, Barrier::Root)?;
        Ok(true)
    }

    /// Writes the changes that may be written, then flushes: all earlier writes, content or not, are durable
    /// from then on.
    ///
    /// A change of an i-node takes two of these steps: the first makes the content durable, the second the
    /// change itself. If called repeatedly, each flush does both, for two generations of changes.
    pub(super) fn step(&self, meta: &mut Metadata, barrier: Barrier) -> Result<()> {
        // The previous holder of `meta` may have failed: the changes that it made ready may not be durable.
        self.writable()?;
        let changed = mem::take(&mut *self.changed.lock());
        let mut writing = BTreeMap::<u64, SectorContent>::new();
        for inode in changed {
            let mut state = inode.state.lock();
            if inode.gone.load(Relaxed) {
                continue;
            }
            let Changes { fresh, sound } = *state.changes.take().unwrap_or_default();
            if fresh.is_empty() {
                inode.listed.store(false, Relaxed);
            } else {
                state.changes().sound = fresh;
                self.changed.lock().push(Arc::clone(&inode));
            }
            let first = inode.slot.first(self.block_shift());
            let bodies = inode.body_of(&sound);
            writing.extend(bodies.into_iter().filter_map(|body| self.place_of(&inode, &state, body)));
            let heads = sound.map_blocks.iter().map(|&number| 1 + Layout::of_block(number));
            for logical in heads.chain(sound.label.then_some(0)) {
                writing.insert((first + logical) / LOGICAL_PER_SECTOR as u64, SectorContent::Slab);
            }
        }
        let written = self.write_places(meta, writing).and_then(|()| self.write_cursor(meta));
        self.give_up(written, "writing i-nodes")?;
        self.flush_device(barrier)
    }

    /// Writes sectors of i-nodes, adjacent ones together.
    fn write_places(&self, meta: &Metadata, places: BTreeMap<u64, SectorContent>) -> std::io::Result<()> {
        let (mut first, mut run) = (0, Vec::new());
        for (at, place) in places {
            if at != first + run.len() as u64 || run.len() == 256 {
                self.write_run(first, &run)?;
                (first, run) = (at, Vec::new());
            }
            run.push(match place {
                SectorContent::Slab => self.slab_sector(meta, at),
                SectorContent::Mapped(inode, body) => {
                    let state = inode.state.lock();
                    sector_of(|at| inode.mapped(&state, body + at as u64, self.mutation))
                }
            });
        }
        self.write_run(first, &run)
    }

    fn write_run(&self, first: u64, run: &[Sector]) -> std::io::Result<()> {
        if run.is_empty() { Ok(()) } else { self.device.write(first, &[run]) }
    }

    pub(super) fn write_slab_sectors(&self, meta: &Metadata, range: Range<u64>) -> std::io::Result<()> {
        self.write_places(meta, range.map(|at| (at, SectorContent::Slab)).collect())
    }

    /// A sector of a block of i-nodes as it may be written now: a device writes it whole, and it may contain
    /// several i-nodes.
    fn slab_sector(&self, meta: &Metadata, at: u64) -> Sector {
        let (block, within) = ((at / self.sectors_per_block()) as u32, at % self.sectors_per_block());
        sector_of(|part| match meta.slabs.at(block, within * LOGICAL_PER_SECTOR as u64 + part as u64) {
            Some((inode, logical)) => inode.logical(&inode.state.lock(), logical, self.mutation),
            None => LogicalSector::ZERO,
        })
    }

    /// Writes i-nodes whose bodies on the device differ from those in memory, and flushes.
    pub(super) fn mend(&self, meta: &Metadata, mends: &[(Arc<Inode>, BTreeSet<u64>)]) -> Result<()> {
        if mends.is_empty() {
            return Ok(());
        }
        let mut writing = BTreeMap::new();
        for (inode, bodies) in mends {
            let first = inode.slot.first(self.block_shift());
            if inode.layout().in_map_blocks() {
                let slot = first..first + inode.layout().class.logical();
                writing.extend(slot.map(|at| (at / LOGICAL_PER_SECTOR as u64, SectorContent::Slab)));
            }
            let state = inode.state.lock();
            writing.extend(bodies.iter().filter_map(|&body| self.place_of(inode, &state, body)));
        }
        let written = self.write_places(meta, writing);
        self.give_up(written, "mending i-nodes")?;
        self.flush_device(Barrier::Mended)
    }

    /// The sector that has a logical sector of a body, if it has a place.
    fn place_of(&self, inode: &Arc<Inode>, state: &InodeState, body: u64) -> Option<(u64, SectorContent)> {
        if !inode.layout().in_map_blocks() {
            let first = inode.slot.first(self.block_shift());
            return Some(((first + 1 + body) / LOGICAL_PER_SECTOR as u64, SectorContent::Slab));
        }
        let (number, within) = inode.layout().map_block_of(body);
        let block = state.map_blocks.get(number);
        let within = within / LOGICAL_PER_SECTOR as u64;
        let first = (u64::from(number) << (self.block_shift() - 9)) + within * LOGICAL_PER_SECTOR as u64;
        (block != 0)
            .then(|| (self.first_sector(block) + within, SectorContent::Mapped(Arc::clone(inode), first)))
    }

    /// The cursor may be lost: then the search for free blocks begins elsewhere.
    fn write_cursor(&self, meta: &mut Metadata) -> std::io::Result<()> {
        let next = self.allocator.lock().next();
        if mem::replace(&mut meta.cursor, next) == next {
            return Ok(());
        }
        let logical = LogicalSector::seal(self.shape.owner(), index::CURSOR, &next.to_le_bytes());
        let sector = sector_of(|at| if at == 0 { logical } else { LogicalSector::ZERO });
        self.device.write(CURSOR, &[&[sector]])
    }

    pub(super) fn flush(&self) -> Result<()> {
        self.writable()?;
        let mut meta = self.meta.lock();
        self.step(&mut meta, Barrier::Data)?;
        if !self.changed.lock().is_empty() {
            self.step(&mut meta, Barrier::Maps)?;
        }
        if meta.root.is_lopsided() {
            // The latest torrents are in one copy of the root only: a bad sector there would lose them.
            self.write_root(&mut meta, Barrier::Root)?;
        }
        Ok(())
    }

    pub(super) fn list(&self) -> Vec<Summary> {
        let torrents = self.torrents.read();
        let mut all: Vec<_> = torrents
            .iter()
            .map(|InodeByHash(inode)| Summary {
                info_hash: inode.info_hash,
                geometry: inode.geometry,
                complete: inode.state.lock().pieces.complete().count(),
            })
            .collect();
        all.sort_unstable_by_key(|summary| summary.info_hash);
        all
    }

    pub(super) fn statistics(&self) -> Statistics {
        let block = 1_u64 << self.block_shift();
        let free = u64::from(self.allocator.lock().count());
        Statistics {
            torrents: self.torrents.read().len() as u64,
            used: (u64::from(self.shape.blocks.get()) - free) * block,
            free: Some(free * block),
            ..self.counters.statistics()
        }
    }
}

enum SectorContent {
    /// I-nodes.
    Slab,
    /// Part of an i-node's body, from that logical sector of it on.
    Mapped(Arc<Inode>, u64),
}
