//! A torrent that was opened: where its bytes go, and where they come from.

use std::{
    collections::BTreeSet,
    io::{IoSlice, IoSliceMut},
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    Barrier, SECTOR, Sector,
    allocator::BlockUse,
    format::{LABEL, LOGICAL_PER_SECTOR, Layout, sector_of},
    inode::{Inode, InodeState},
    mutant::Mutant,
    sectors,
    store::Store,
};
use crate::{Content, Error, Geometry, PieceBits, Result, buffers::Parts};

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

    /// A label points at nothing that the store knows of, so it may be written at any time.
    pub(super) fn set_label(&self, label: &[u8]) -> Result<()> {
        if label.len() > LABEL {
            return Err(Error::Unsupported("keep a label of more than 454 bytes"));
        }
        self.store.writable()?;
        let _inside = self.enter()?;
        let mut state = self.inode.state.lock();
        state.label = label.into();
        state.changes().sound.label = true;
        self.changed();
        Ok(())
    }

    /// Notes that the torrent has something to write. The caller holds the state, so a flush that finds the
    /// change also finds the torrent in the list.
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
            return Err(Error::Full { what: "no block is free for the written bytes" });
        }
        let mut take = || allocator.take(BlockUse::Data).expect("as many are free as counted");
        for number in map_blocks {
            state.map_blocks.set(number, take());
            let changes = if store.mutation.is(Mutant::MapBlockWithContent) {
                &mut state.changes().sound
            } else {
                &mut state.changes().fresh
            };
            changes.map_blocks.insert(number);
            // Written before any other thread can know of it.
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
                assert_ne!(place, 0, "written and readable bytes have a block");
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
        // The other bytes of the first and last sector are kept, if they were ever written.
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
        // Before the edges are unlocked: a writer that rewrites the rest of a sector must know its bytes.
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
        // Excludes writers; readers go on.
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
