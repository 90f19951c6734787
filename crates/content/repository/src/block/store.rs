//! The store at work: who holds which block, and in which order things are written.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io::{IoSlice, IoSliceMut},
    mem,
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    Barrier, BlockDevice, SECTOR, Sector,
    allocator::{Allocator, Use},
    format::{
        LABEL, LOGICAL_PER_SECTOR, Layout, LogicalSector, RootEntry, RootHeader, Slot, index, sector_of,
    },
    inode::{Changes, Inode, InodeState, Named},
    mutant::{Mutant, Mutation},
    root::Root,
    sectors,
    slabs::Slabs,
};
use crate::{
    Content, Counters, Error, Geometry, InfoHash, NewTorrent, PieceBits, Result, Statistics, Summary,
    buffers::Parts,
};

/// The sector that says where the sequential allocator goes on.
pub(super) const CURSOR: u64 = 1;

/// What the handles of a store share. Locks are taken in the order of the fields; a torrent's gate comes
/// after `names`, then its edges, and its state before `changed`.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) shape: RootHeader,
    /// Held by who creates or deletes.
    pub(super) names: Mutex<()>,
    /// Held by who writes anything that is not content.
    pub(super) meta: Mutex<Meta>,
    pub(super) torrents: RwLock<HashSet<Named>>,
    /// Who has something that is not on the device.
    pub(super) changed: Mutex<Vec<Arc<Inode>>>,
    pub(super) allocator: Mutex<Allocator>,
    pub(super) counters: Counters,
    /// Why nothing more is written, if so.
    pub(super) read_only: Mutex<Option<&'static str>>,
    pub(super) mutation: Mutation,
}

/// What is known of the device but for content.
#[derive(Debug)]
pub(super) struct Meta {
    pub(super) root: Root,
    pub(super) slabs: Slabs,
    /// Torrents of which nothing is known but the name, and where they stand in the root.
    pub(super) lost: HashMap<InfoHash, u32>,
    /// What the device was last told about the cursor.
    pub(super) cursor: u32,
}

impl Store {
    pub(super) const fn block_shift(&self) -> u8 {
        self.shape.block_shift
    }

    pub(super) const fn sectors_per_block(&self) -> u64 {
        1 << (self.shape.block_shift - 12)
    }

    fn writable(&self) -> Result<()> {
        match *self.read_only.lock() {
            Some(why) => Err(Error::ReadOnly { why }),
            None => Ok(()),
        }
    }

    /// What to do with an error of the device while it is told what the store holds: from there on it is not
    /// known what it says.
    fn give_up<T>(&self, result: std::io::Result<T>, what: &'static str) -> Result<T> {
        result.map_err(|source| {
            *self.read_only.lock() = Some("the device failed while it was written to");
            Error::Io { what, source }
        })
    }

    fn flush_device(&self, barrier: Barrier) -> Result<()> {
        self.counters.flushed();
        self.give_up(self.device.flush(barrier), "flushing the device")
    }

    pub(super) fn write_root(&self, meta: &mut Meta, barrier: Barrier) -> Result<()> {
        self.writable()?;
        self.counters.flushed();
        let written = meta.root.write(&*self.device, barrier);
        self.give_up(written, "writing the root")
    }

    /// Frees all that a deleted torrent held.
    fn release(&self, meta: &mut Meta, inode: &Inode) {
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

    const fn first_sector(&self, block: u32) -> u64 {
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
        let uid = random_uid()?;
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
        self.torrents.write().insert(Named(Arc::clone(&inode)));
        Ok(inode)
    }

    pub(super) fn inode(&self, info_hash: &InfoHash) -> Option<Arc<Inode>> {
        self.torrents.read().get(info_hash).map(|Named(inode)| Arc::clone(inode))
    }

    /// The lowest free slot for such an i-node, in a new block if need be.
    fn take_slot(&self, meta: &mut Meta, layout: Layout) -> Option<Slot> {
        meta.slabs.take(layout.class).or_else(|| {
            let block = self.allocator.lock().take(Use::Inodes)?;
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

    /// A label points at nothing that this store knows of, so it may be written at any time.
    pub(super) fn set_label(self: &Arc<Self>, inode: Arc<Inode>, label: &[u8]) -> Result<()> {
        if label.len() > LABEL {
            return Err(Error::Unsupported("keep a label of more than 454 bytes"));
        }
        self.writable()?;
        let handle = Handle { inode, store: Arc::clone(self) };
        let _inside = handle.enter()?;
        let mut state = handle.inode.state.lock();
        state.label = label.into();
        state.changes().sound.label = true;
        handle.changed();
        Ok(())
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

    /// Writes what may be written, then flushes: what was written before, content or not, is durable from
    /// then on.
    ///
    /// What changed in i-nodes takes two of these steps: the first makes the content durable, the second what
    /// vouches for it. Called again and again, each flush does both, for two generations of changes.
    pub(super) fn step(&self, meta: &mut Meta, barrier: Barrier) -> Result<()> {
        // Whoever had `meta` before may have failed: what it moved on to be written is not known to be
        // durable.
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

    /// Writes sectors of i-nodes, those that follow each other at once.
    fn write_places(&self, meta: &Meta, places: BTreeMap<u64, SectorContent>) -> std::io::Result<()> {
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

    pub(super) fn write_slab_sectors(&self, meta: &Meta, range: Range<u64>) -> std::io::Result<()> {
        self.write_places(meta, range.map(|at| (at, SectorContent::Slab)).collect())
    }

    /// A sector of a block of i-nodes as it may be written now: a device writes it whole, and others than the
    /// one meant may lie in it.
    fn slab_sector(&self, meta: &Meta, at: u64) -> Sector {
        let (block, within) = ((at / self.sectors_per_block()) as u32, at % self.sectors_per_block());
        sector_of(|part| match meta.slabs.at(block, within * LOGICAL_PER_SECTOR as u64 + part as u64) {
            Some((inode, logical)) => inode.logical(&inode.state.lock(), logical, self.mutation),
            None => LogicalSector::ZERO,
        })
    }

    /// Writes i-nodes whose bodies do not stand on the device as they are taken to be, and flushes.
    pub(super) fn mend(&self, meta: &Meta, mends: &[(Arc<Inode>, BTreeSet<u64>)]) -> Result<()> {
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

    /// Where the sequential allocator goes on may be lost: the search for free blocks then begins elsewhere.
    fn write_cursor(&self, meta: &mut Meta) -> std::io::Result<()> {
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
            // What was created last stands in one copy of the root alone: a bad sector there would cost it.
            self.write_root(&mut meta, Barrier::Root)?;
        }
        Ok(())
    }

    pub(super) fn list(&self) -> Vec<Summary> {
        let torrents = self.torrents.read();
        let mut all: Vec<_> = torrents
            .iter()
            .map(|Named(inode)| Summary {
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

/// What lies in a sector that is written.
enum SectorContent {
    /// I-nodes.
    Slab,
    /// Part of an i-node's body, from that logical sector of it on.
    Mapped(Arc<Inode>, u64),
}

/// A torrent that was opened.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) inode: Arc<Inode>,
    pub(super) store: Arc<Store>,
}

impl Handle {
    /// Keeps the torrent from being marked or deleted.
    fn enter(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let gate = self.inode.gate.read();
        if self.inode.gone.load(Relaxed) { Err(Error::Deleted) } else { Ok(gate) }
    }

    /// Keeps all other calls out of the torrent.
    fn enter_alone(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        let gate = self.inode.gate.write();
        if self.inode.gone.load(Relaxed) { Err(Error::Deleted) } else { Ok(gate) }
    }

    /// Notes that the torrent has something to write. Whoever calls it holds the state: a flush that finds
    /// the change finds the torrent listed.
    fn changed(&self) {
        if !self.inode.listed.swap(true, Relaxed) {
            self.store.changed.lock().push(Arc::clone(&self.inode));
        }
    }

    /// Blocks of a range that have no place, and map blocks for it that have none.
    fn unplaced(&self, state: &InodeState, range: &Range<u64>) -> (Vec<u32>, Vec<u32>) {
        let (inode, store) = (&*self.inode, &*self.store);
        let blocks: Vec<_> =
            Inode::blocks_of(range, store.block_shift()).filter(|&block| state.map.get(block) == 0).collect();
        let mut map_blocks = Vec::new();
        if inode.layout().in_map_blocks() {
            let of_blocks = blocks.iter().map(|&block| Layout::of_block(block));
            let of_pieces = inode.geometry.pieces_of(range).map(|piece| inode.layout().of_piece(piece));
            map_blocks.extend(of_blocks.chain(of_pieces).map(|body| inode.layout().map_block_of(body).0));
            map_blocks.sort_unstable();
            map_blocks.dedup();
            map_blocks.retain(|&number| state.map_blocks.get(number) == 0);
        }
        (blocks, map_blocks)
    }

    /// Gives every block of a range a place; all, or none.
    fn place_blocks(&self, range: &Range<u64>) -> Result<()> {
        let store = &*self.store;
        let mut guard = self.inode.state.lock();
        let state = &mut *guard;
        state.pieces.check_write(range)?;
        let (blocks, map_blocks) = self.unplaced(state, range);
        if blocks.is_empty() && map_blocks.is_empty() {
            return Ok(());
        }
        let mut allocator = store.allocator.lock();
        if (allocator.count() as usize) < blocks.len() + map_blocks.len() {
            return Err(Error::Full { what: "no block is free for what is written" });
        }
        let mut take = || allocator.take(Use::Data).expect("as many are free as counted");
        for number in map_blocks {
            state.map_blocks.set(number, take());
            let changes = if store.mutation.is(Mutant::MapBlockWithContent) {
                &mut state.changes().sound
            } else {
                &mut state.changes().fresh
            };
            changes.map_blocks.insert(number);
            // Written before anybody else can know of it.
            self.write_empty_map_block(state, number)?;
        }
        for block in blocks {
            state.map.set(block, take());
            state.changes().fresh.blocks.insert(block);
        }
        self.changed();
        Ok(())
    }

    fn write_empty_map_block(&self, state: &InodeState, number: u32) -> Result<()> {
        if self.store.mutation.is(Mutant::MapBlockAsFound) {
            return Ok(());
        }
        let sectors_per_block = self.store.sectors_per_block();
        let first = u64::from(number) << (self.store.block_shift() - 9);
        let block: Vec<_> = (0..sectors_per_block)
            .map(|sector| first + sector * LOGICAL_PER_SECTOR as u64)
            .map(|body| sector_of(|at| self.inode.mapped(state, body + at as u64, self.store.mutation)))
            .collect();
        let written =
            self.store.device.write(self.store.first_sector(state.map_blocks.get(number)), &[&block]);
        self.store.give_up(written, "writing a map block")
    }

    /// A range in parts of one block each, with the sectors that have bytes of the part.
    fn parts(&self, range: &Range<u64>) -> Vec<(Range<u64>, u64)> {
        let shift = self.store.block_shift();
        let state = self.inode.state.lock();
        Inode::blocks_of(range, shift)
            .map(|block| {
                let start = u64::from(block) << shift;
                let part = range.start.max(start)..range.end.min(start + (1 << shift));
                let place = state.map.get(block);
                assert_ne!(place, 0, "what is written or readable has a block");
                let first = self.store.first_sector(place) + (part.start - start) / SECTOR as u64;
                (part, first)
            })
            .collect()
    }

    fn write_part(&self, part: &Range<u64>, first: u64, buffers: &[&[u8]]) -> std::io::Result<()> {
        let aligned: Option<Vec<&[Sector]>> =
            buffers.iter().map(|bytes| <[Sector]>::ref_from_bytes(bytes).ok()).collect();
        if let Some(parts) = aligned.filter(|_| part.start.is_multiple_of(SECTOR as u64)) {
            return self.store.device.write(first, &parts);
        }
        let covering = part.start / SECTOR as u64..part.end.div_ceil(SECTOR as u64);
        let mut bounce = sectors((covering.end - covering.start) as usize);
        let start = covering.start * SECTOR as u64;
        // What else the first sector and the last hold stays, if it was ever written.
        for edge in BTreeSet::from([covering.start, covering.end - 1]) {
            let sector = edge * SECTOR as u64..(edge + 1) * SECTOR as u64;
            let others = [sector.start..part.start.max(sector.start), part.end.min(sector.end)..sector.end];
            let known = {
                let state = self.inode.state.lock();
                others.iter().any(|other| state.pieces.knows_any_of(other))
            };
            if known {
                let at = (edge - covering.start) as usize;
                self.store.device.read(first + at as u64, &mut bounce[at..=at])?;
            }
        }
        let mut into = &mut bounce.as_mut_bytes()[(part.start - start) as usize..(part.end - start) as usize];
        for bytes in buffers {
            let (now, later) = into.split_at_mut(bytes.len());
            now.copy_from_slice(bytes);
            into = later;
        }
        self.store.device.write(first, &[&bounce])
    }

    fn read_part(&self, part: &Range<u64>, first: u64, buffers: &mut [&mut [u8]]) -> std::io::Result<()> {
        if let [bytes] = buffers
            && part.start.is_multiple_of(SECTOR as u64)
            && let Ok(into) = <[Sector]>::mut_from_bytes(bytes)
        {
            return self.store.device.read(first, into);
        }
        let covering = part.start / SECTOR as u64..part.end.div_ceil(SECTOR as u64);
        let mut bounce = sectors((covering.end - covering.start) as usize);
        self.store.device.read(first, &mut bounce)?;
        let start = (part.start - covering.start * SECTOR as u64) as usize;
        let mut from = &bounce.as_bytes()[start..];
        for bytes in buffers {
            let (now, later) = from.split_at(bytes.len());
            bytes.copy_from_slice(now);
            from = later;
        }
        Ok(())
    }
}

impl Content for Handle {
    fn geometry(&self) -> Geometry {
        self.inode.geometry
    }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let range = self.inode.geometry.range(offset, len)?;
        let _inside = self.enter()?;
        self.inode.state.lock().pieces.check_write(&range)?;
        if range.is_empty() {
            return Ok(());
        }
        self.store.writable()?;
        let unit = SECTOR as u64;
        let whole = range.start.is_multiple_of(unit)
            && (range.end.is_multiple_of(unit) || range.end == self.inode.geometry.len());
        let (_shared, _alone);
        if whole {
            _shared = self.inode.edges.read();
        } else {
            _alone = self.inode.edges.write();
        }
        self.place_blocks(&range)?;
        let mut rest = Parts::new(buffers.iter().map(|buffer| &**buffer));
        let mut done = Ok(());
        for (part, first) in self.parts(&range) {
            done = self.write_part(&part, first, &rest.take(part.end - part.start));
            if done.is_err() {
                break;
            }
        }
        // Before the edges are let go: who rewrites the rest of a sector must know what it holds.
        let mut state = self.inode.state.lock();
        match done {
            Ok(()) => state.pieces.wrote(range),
            Err(_) => state.pieces.lost(range),
        }
        drop(state);
        done.map_err(Error::io("writing content"))?;
        self.store.counters.wrote(len);
        Ok(())
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let range = self.inode.geometry.range(offset, len)?;
        let _inside = self.enter()?;
        self.inode.state.lock().pieces.check_read(&range)?;
        if range.is_empty() {
            return Ok(());
        }
        let mut rest = Parts::new(buffers.iter_mut().map(|buffer| &mut **buffer));
        for (part, first) in self.parts(&range) {
            let mut now = rest.take(part.end - part.start);
            self.read_part(&part, first, &mut now).map_err(Error::io("reading content"))?;
        }
        self.store.counters.read(len);
        Ok(())
    }

    fn mark_complete(&self, piece: u32) -> Result<bool> {
        let _inside = self.enter()?;
        // Nobody writes meanwhile; who reads may go on.
        let _edges = self.inode.edges.write();
        let mut state = self.inode.state.lock();
        if !state.pieces.complete().contains(piece) {
            self.store.writable()?;
        }
        let new = state.pieces.mark_complete(piece)?;
        if new {
            let early = self.store.mutation.is(Mutant::HaveBitsWithData);
            let changes = state.changes();
            let changes = if early { &mut changes.sound } else { &mut changes.fresh };
            changes.pieces.insert(piece);
            self.changed();
        }
        Ok(new)
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        let _alone = self.enter_alone()?;
        let mut state = self.inode.state.lock();
        if !state.pieces.complete().contains(piece) {
            return state.pieces.mark_incomplete(piece);
        }
        self.store.writable()?;
        state.pieces.mark_incomplete(piece)?;
        let changes = state.changes();
        let unwritten = changes.fresh.pieces.remove(&piece) | changes.sound.pieces.remove(&piece);
        if !unwritten {
            changes.sound.pieces.insert(piece);
        }
        if !unwritten {
            self.changed();
        }
        drop(state);
        if !unwritten && !self.store.mutation.is(Mutant::ClearedLater) {
            self.store.step(&mut self.store.meta.lock(), Barrier::Cleared)?;
        }
        Ok(true)
    }

    fn pieces(&self) -> Result<PieceBits> {
        let _inside = self.enter()?;
        Ok(self.inode.state.lock().pieces.complete().clone())
    }

    fn place(&self, offset: u64) -> Option<u64> {
        let _inside = self.enter().ok()?;
        if offset >= self.inode.geometry.len() {
            return None;
        }
        let shift = self.store.block_shift();
        let block = (offset >> shift) as u32;
        let place = self.inode.state.lock().map.get(block);
        (place != 0).then(|| (u64::from(place) << shift) + (offset & ((1 << shift) - 1)))
    }

    fn room_for(&self, range: Range<u64>) -> u64 {
        let (blocks, map_blocks) = self.unplaced(&self.inode.state.lock(), &range);
        ((blocks.len() + map_blocks.len()) as u64) << self.store.block_shift()
    }
}

/// What tells an i-node from all others, ever.
fn random_uid() -> Result<u64> {
    loop {
        match getrandom::u64() {
            Ok(0) => {}
            Ok(uid) => return Ok(uid),
            Err(error) => {
                return Err(Error::Io {
                    what: "drawing a random number",
                    source: std::io::Error::other(error),
                });
            }
        }
    }
}
