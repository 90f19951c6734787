//! From a device to a store: chooses the root, reads the i-nodes, and finds the free blocks, at which nothing
//! points.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use parking_lot::{Mutex, RwLock};
use swarmkeep_bittorrent::counted;
use zerocopy::FromBytes;

use super::{
    Allocation, Barrier, BlockDevice, SECTOR, Sector,
    allocator::Allocator,
    find::{BootRefusal, ChosenRoot, find_root},
    format::{
        BLOCKS, InodeHeader, LOGICAL_PER_SECTOR, Layout, LogicalSector, PAYLOAD, RootEntry, Slot, index,
        logical,
    },
    inode::{BlockMap, Inode, InodeByHash, InodeState},
    mutant::{Mutant, Mutation},
    root::Root,
    sectors,
    slabs::Slabs,
    store::{CURSOR, Metadata, Store},
};
use crate::{Counters, Error, InfoHash, PieceBits, Pieces, Result};

/// Up to this many unreadable sectors count as bad sectors, and their contents are lost. More mean a failing
/// device or cable, which may be readable tomorrow: then nothing is given up.
pub(super) const MOST_UNREADABLE: u32 = 16;

/// Damage that boot found. Each kind costs the named things, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// No whole root was found: the readable parts of the copies were combined. Torrents may be missing, and
    /// deleted torrents may be back.
    #[error("both copies of the root are damaged: up to {} may be missing", counted(*entries as usize, "torrent"))]
    Root {
        /// Torrents' worth of entries that are lost.
        entries: u64,
    },
    /// A copy of the root is damaged. If it named other torrents and was the latest copy, the latest creates
    /// and deletes are undone.
    #[error("a copy of the root is damaged: {}", if *alike {
        "the other copy names the same torrents".to_owned()
    } else {
        format!("changes after generation {generation} may be missing")
    })]
    OlderRoot {
        /// The generation that boot chose.
        generation: u64,
        /// Whether both copies named the same torrents.
        alike: bool,
    },
    /// The i-node of a torrent cannot be read: nothing is known of the torrent but its name.
    #[error("{info_hash} is lost: its i-node cannot be read")]
    Lost {
        /// The torrent.
        info_hash: InfoHash,
    },
    /// Part of a torrent's map cannot be read: its blocks are lost, and the pieces in them incomplete.
    #[error("{info_hash}: {} of its map cannot be read, which costs {}", counted(*sectors as usize, "sector"), counted(*pieces as usize, "complete piece"))]
    Map {
        /// The torrent.
        info_hash: InfoHash,
        /// How many logical sectors of its map.
        sectors: u64,
        /// How many pieces were complete, as far as is known, and are no longer.
        pieces: u64,
    },
    /// A torrent's map names blocks that are not its own. The blocks are removed from it, and the pieces in
    /// them are incomplete.
    #[error("{info_hash}: its map names {} of others", counted(*blocks as usize, "block"))]
    Blocks {
        /// The torrent.
        info_hash: InfoHash,
        /// How many blocks.
        blocks: u64,
    },
}

/// The findings of boot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BootReport {
    /// The generation of the root that boot chose.
    pub generation: u64,
    /// The damage, in the order it was found.
    pub damage: Vec<Damage>,
    /// Torrents of which only the info hash is known, lost now or earlier.
    pub lost: Vec<InfoHash>,
    /// Why the store is read-only, if parts of the device could not be read: then it is not known which
    /// blocks are free.
    pub read_only: Option<&'static str>,
}

/// Whether a store may be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Write,
    Read,
}

pub(super) fn boot(
    device: Arc<dyn BlockDevice>,
    allocation: Option<Allocation>,
    access: Access,
    mutation: Mutation,
) -> Result<(Store, BootReport), BootRefusal> {
    if access == Access::Write {
        // A process that was killed may have left writes in the cache of the device, which are read and not
        // durable.
        device.flush(Barrier::Opened).map_err(Error::io("flushing the device"))?;
    }
    let root = find_root(&*device, mutation)?;
    let (has, needs) =
        (device.sectors(), u64::from(root.header.blocks.get()) << (root.header.block_shift - 12));
    if has < needs {
        let [has, needs] = [has, needs].map(|sectors| sectors * SECTOR as u64);
        return Err(BootRefusal::Because(format!(
            "it has {has} bytes, and the store on it needs {needs}: part of it is missing; repair it to keep the rest"
        )));
    }
    boot_root(&device, root, allocation, access, mutation)
}

/// Boots with a root that the device need not have.
pub(super) fn boot_root(
    device: &Arc<dyn BlockDevice>,
    ChosenRoot { header, entries, differing, damage }: ChosenRoot,
    allocation: Option<Allocation>,
    access: Access,
    mutation: Mutation,
) -> Result<(Store, BootReport), BootRefusal> {
    let report = BootReport { generation: header.generation.get(), damage, ..BootReport::default() };
    let alike = differing.as_ref().is_some_and(BTreeSet::is_empty);
    let mut boot = Boot {
        allocator: Allocator::new(
            2 * header.root_blocks.get(),
            header.blocks.get(),
            allocation.unwrap_or(header.allocation()),
        ),
        root: Root::new(header, entries, differing, mutation),
        device: &**device,
        slabs: Slabs::default(),
        inodes: Vec::new(),
        mends: Vec::new(),
        lost: Vec::new(),
        forgotten: HashMap::new(),
        unreadable: 0,
        alike,
        mutation,
        report,
    };
    let entries = boot.claim_slots();
    boot.read_inodes(&entries);
    boot.read_map_blocks();
    boot.claim_blocks();
    boot.drop_pieces_without_blocks();
    boot.finish(device, access)
}

/// A store that is being read.
struct Boot<'a> {
    device: &'a dyn BlockDevice,
    allocator: Allocator,
    slabs: Slabs,
    root: Root,
    inodes: Vec<Arc<Inode>>,
    /// I-nodes that differ from the device, and the logical sectors of their bodies that differ.
    mends: Vec<(Arc<Inode>, BTreeSet<u64>)>,
    /// Entries of the root whose i-nodes are damaged, and the slots that no other entry uses.
    lost: Vec<(u32, Option<Slot>)>,
    /// Torrents of which only the name is known, and their positions in the root.
    forgotten: HashMap<InfoHash, u32>,
    /// Sectors that the device did not give.
    unreadable: u32,
    /// Whether both copies of the root say the same.
    alike: bool,
    mutation: Mutation,
    report: BootReport,
}

impl Boot<'_> {
    const fn shift(&self) -> u8 {
        self.root.header().block_shift
    }

    /// Marks the blocks of i-nodes. The entries that can be right, in the order of the device.
    fn claim_slots(&mut self) -> Vec<u32> {
        let mut entries: Vec<_> = self.root.iter().map(|(at, _)| at).collect();
        entries.sort_unstable_by_key(|&at| (self.root.get(at).slot(), at));
        let mut names = HashSet::new();
        entries.retain(|&at| {
            let entry = self.root.get(at);
            if entry.is_lost() {
                self.forgotten.insert(entry.info_hash(), at);
                return false;
            }
            let (slot, shift) = (entry.slot(), self.root.header().block_shift);
            let possible = (1..=super::format::Class::largest(shift).0).contains(&slot.class.0)
                && u32::from(slot.slot) < slot.class.slots(shift)
                && entry.uid() != 0
                && names.insert(entry.info_hash());
            let claimed = possible && self.claim_slot(slot);
            if !claimed {
                self.lost.push((at, None));
            }
            claimed
        });
        entries
    }

    fn claim_slot(&mut self, slot: Slot) -> bool {
        match self.slabs.class_of(slot.block) {
            None if self.allocator.claim(slot.block) => {
                self.slabs.add(slot.block, slot.class, self.shift());
            }
            Some(class) if class == slot.class => {}
            _ => return false,
        }
        self.slabs.claim(slot)
    }

    /// Reads i-nodes, with few large reads.
    fn read_inodes(&mut self, entries: &[u32]) {
        /// No more is read at once, and no gap is read over that is larger.
        const MOST: u64 = 1024;
        const GAP: u64 = 16;
        let shift = self.shift();
        let sectors_of = |root: &Root, at: u32| {
            let (slot, per) = (root.get(at).slot(), LOGICAL_PER_SECTOR as u64);
            let first = slot.first(shift);
            first / per..(first + slot.class.logical()).div_ceil(per)
        };
        let mut at = 0;
        while at < entries.len() {
            let mut run = sectors_of(&self.root, entries[at]);
            let mut end = at + 1;
            while let Some(&entry) = entries.get(end) {
                let next = sectors_of(&self.root, entry);
                if next.start > run.end + GAP || next.end - run.start > MOST {
                    break;
                }
                (run.end, end) = (next.end, end + 1);
            }
            let read = self.read(run.start, (run.end - run.start) as usize);
            for &place in &entries[at..end] {
                let entry = self.root.get(place);
                let first = (entry.slot().first(shift) - run.start * LOGICAL_PER_SECTOR as u64) as usize;
                let slot = &logical(&read)[first..first + entry.slot().class.logical() as usize];
                self.read_inode(place, &entry, slot);
            }
            at = end;
        }
    }

    /// Reads sectors. An unreadable sector is returned as zeroes, which are never valid.
    fn read(&mut self, first: u64, count: usize) -> Vec<Sector> {
        let mut read = sectors(count);
        if self.device.read(first, &mut read).is_err() {
            for (at, sector) in (first..).zip(&mut read) {
                if self.device.read(at, std::slice::from_mut(sector)).is_err() {
                    *sector = Sector::ZERO;
                    self.unreadable += 1;
                }
            }
        }
        read
    }

    fn read_inode(&mut self, place: u32, entry: &RootEntry, slot: &[LogicalSector]) {
        let parsed = InodeHeader::parse(&slot[0], entry, self.shift());
        let Some((geometry, layout, label)) = parsed else {
            self.lost.push((place, Some(entry.slot())));
            return;
        };
        let inode = Inode::new(entry.info_hash(), entry.uid(), geometry, self.shift(), entry.slot());
        let inode = inode.expect("its header was laid out");
        inode.entry.store(place, Relaxed);
        inode.state.lock().label = label.into();
        let inode = Arc::new(inode);
        let mut body = Body::new(&inode, self.mutation);
        let body_sectors = if layout.in_map_blocks() {
            u64::from(layout.map_blocks).div_ceil(BLOCKS as u64)
        } else {
            layout.body
        };
        for (at, sector) in (0..body_sectors).zip(&slot[1..]) {
            if layout.in_map_blocks() {
                body.map_blocks(at, sector);
            } else {
                body.sector(at, sector, 1 + at);
            }
        }
        self.take_body(body);
        self.slabs.occupy(&inode);
        self.inodes.push(inode);
    }

    fn take_body(&mut self, body: Body<'_>) {
        let (damaged, inode) = (body.damaged.clone(), Arc::clone(body.inode));
        body.finish();
        if !damaged.is_empty() {
            let damage = Damage::Map { info_hash: inode.info_hash, sectors: damaged.len() as u64, pieces: 0 };
            self.report.damage.push(damage);
            self.mends.push((inode, damaged));
        }
    }

    /// Reads the bodies that do not lie in their i-nodes.
    fn read_map_blocks(&mut self) {
        for inode in self.inodes.clone().iter().filter(|inode| inode.layout().in_map_blocks()) {
            if !self.claim_map(inode, |state| &mut state.map_blocks).is_empty() {
                // The i-node itself names them, and is written as a whole.
                self.mends.push((Arc::clone(inode), BTreeSet::new()));
            }
            let named: Vec<_> = inode.state.lock().map_blocks.iter().collect();
            let mut body = Body::new(inode, self.mutation);
            let shift = self.shift();
            for (number, block) in named {
                let read = self.read(u64::from(block) << (shift - 12), 1 << (shift - 12));
                let first = u64::from(number) << (shift - 9);
                for (at, sector) in (first..inode.layout().body).zip(logical(&read)) {
                    body.sector(at, sector, index::MAP_BLOCKS + at);
                }
            }
            self.take_body(body);
        }
    }

    fn claim_block(&mut self, block: u32) -> bool {
        self.allocator.claim(block)
            || (self.mutation.is(Mutant::SharedBlocks) && block < self.root.header().blocks.get())
    }

    /// Marks the blocks that a map of an i-node names. A block that is not free is not the torrent's: it is
    /// removed from the map, and its place returned.
    fn claim_map(&mut self, inode: &Inode, map: fn(&mut InodeState) -> &mut BlockMap) -> Vec<u32> {
        let mut state = inode.state.lock();
        let map = map(&mut state);
        let strange = map.iter().filter(|&(_, block)| !self.claim_block(block));
        let strange: Vec<_> = strange.map(|(place, _)| place).collect();
        strange.iter().for_each(|&place| map.set(place, 0));
        if !strange.is_empty() {
            let blocks = strange.len() as u64;
            self.report.damage.push(Damage::Blocks { info_hash: inode.info_hash, blocks });
        }
        strange
    }

    /// Marks the blocks of content.
    fn claim_blocks(&mut self) {
        for inode in self.inodes.clone() {
            let strange = self.claim_map(&inode, |state| &mut state.map);
            if !strange.is_empty() {
                let named_at = strange.into_iter().map(Layout::of_block).collect();
                self.mends.push((inode, named_at));
            }
        }
    }

    /// A have-bit may be durable before the map entry that was written with it, and a map may have lost a
    /// sector.
    fn drop_pieces_without_blocks(&mut self) {
        if self.mutation.is(Mutant::BitsWithoutBlocks) {
            return;
        }
        let maps = self.report.damage.iter().enumerate().filter_map(|(at, damage)| match damage {
            Damage::Map { info_hash, .. } => Some((*info_hash, at)),
            _ => None,
        });
        let maps: HashMap<_, _> = maps.collect();
        for inode in &self.inodes {
            let mut state = inode.state.lock();
            let dropped = state.pieces_without_blocks(inode.geometry, self.root.header().block_shift);
            if dropped.is_empty() {
                continue;
            }
            state.drop_pieces(inode.geometry, &dropped);
            if let Some(Damage::Map { pieces, .. }) =
                maps.get(&inode.info_hash).map(|&at| &mut self.report.damage[at])
            {
                *pieces += dropped.len() as u64;
            }
            let said_at = dropped.iter().map(|&piece| inode.layout().of_piece(piece)).collect();
            self.mends.push((Arc::clone(inode), said_at));
        }
    }

    fn finish(
        mut self,
        device: &Arc<dyn BlockDevice>,
        access: Access,
    ) -> Result<(Store, BootReport), BootRefusal> {
        for &(at, _) in &self.lost {
            let entry = self.root.get(at);
            self.report.damage.push(Damage::Lost { info_hash: entry.info_hash() });
            self.forgotten.insert(entry.info_hash(), at);
            // Also if the i-node becomes readable later: its blocks may belong to another torrent by then.
            if !self.mutation.is(Mutant::LostNotRecorded) {
                self.root.set(at, entry.lost());
            }
        }
        let next = self.cursor();
        self.allocator.resume(next);
        self.report.read_only = match access {
            Access::Read => Some("it was opened read-only"),
            Access::Write if self.unreadable > MOST_UNREADABLE => {
                Some("the device cannot be read in many places, so the free blocks are unknown")
            }
            Access::Write => None,
        };
        let lost = self.forgotten;
        self.report.lost = lost.keys().copied().collect();
        self.report.lost.sort_unstable();
        let shape = *self.root.header();
        // A store that is only read writes no root.
        let root = if access == Access::Read { Root::empty(shape, self.mutation) } else { self.root };
        #[expect(clippy::mutable_key_type, reason = "the info hash of an i-node never changes")]
        let torrents = self.inodes.into_iter().map(InodeByHash).collect();
        let store = Store {
            device: Arc::clone(device),
            shape,
            names: Mutex::new(()),
            torrents: RwLock::new(torrents),
            meta: Mutex::new(Metadata { root, slabs: self.slabs, lost, cursor: next }),
            changed: Mutex::new(Vec::new()),
            allocator: Mutex::new(self.allocator),
            counters: Counters::default(),
            read_only: Mutex::new(self.report.read_only),
            mutation: self.mutation,
        };
        let merged = self.report.damage.iter().any(|damage| matches!(damage, Damage::Root { .. }));
        let roots =
            match (merged, self.alike || self.mutation.is(Mutant::OlderRootLeft), self.lost.is_empty()) {
                // Neither copy is whole, or neither has the losses.
                (true, ..) | (_, _, false) => 2,
                // Torrents that only the older copy names were deleted: their blocks become free.
                (_, false, _) => 1,
                _ => 0,
            };
        if self.report.read_only.is_none()
            && mend(&store, &self.mends, roots, &self.lost, self.mutation).is_err()
        {
            self.report.read_only = *store.read_only.lock();
        }
        Ok((store, self.report))
    }

    fn cursor(&self) -> u32 {
        let mut read = sectors(1);
        if self.device.read(CURSOR, &mut read).is_err() {
            return 0;
        }
        let payload = logical(&read)[0].payload(self.root.header().owner(), index::CURSOR);
        payload.map_or(0, |payload| u32::from_le_bytes(payload[..4].try_into().expect("four bytes")))
    }
}

/// Writes the corrections of boot to the device, before anything else is written.
fn mend(
    store: &Store,
    mends: &[(Arc<Inode>, BTreeSet<u64>)],
    roots: u32,
    lost: &[(u32, Option<Slot>)],
    mutation: Mutation,
) -> Result<()> {
    let mut meta = store.meta.lock();
    if !mutation.is(Mutant::NothingMended) {
        store.mend(&meta, mends)?;
    }
    if roots == 2 {
        meta.root.forget_what_is_written();
    }
    for _ in 0..roots {
        store.write_root(&mut meta, Barrier::Mended)?;
    }
    for slot in lost.iter().filter_map(|&(_, slot)| slot) {
        let block = meta.slabs.release(slot);
        block.into_iter().for_each(|block| store.allocator.lock().release(block));
    }
    Ok(())
}

/// The body of an i-node as it is read.
struct Body<'a> {
    inode: &'a Arc<Inode>,
    state: parking_lot::MutexGuard<'a, InodeState>,
    bits: PieceBits,
    damaged: BTreeSet<u64>,
    mutation: Mutation,
}

impl<'a> Body<'a> {
    fn new(inode: &'a Arc<Inode>, mutation: Mutation) -> Self {
        let mut state = inode.state.lock();
        let bits = state.pieces.take_complete();
        Self { inode, bits, state, damaged: BTreeSet::new(), mutation }
    }

    fn payload<'s>(&mut self, at: u64, sector: &'s LogicalSector, index: u64) -> Option<&'s [u8; PAYLOAD]> {
        if self.mutation.is(Mutant::AnyInode) {
            return Some(<[u8; PAYLOAD]>::ref_from_prefix(zerocopy::IntoBytes::as_bytes(sector)).ok()?.0);
        }
        let payload = sector.payload(self.inode.uid, index);
        if payload.is_none() {
            self.damaged.insert(at);
        }
        payload
    }

    /// Takes a logical sector of block numbers and have-bits.
    fn sector(&mut self, at: u64, sector: &LogicalSector, index: u64) {
        let Some(payload) = self.payload(at, sector, index) else { return };
        let blocks = u64::from(self.inode.layout().blocks);
        let first = at * PAYLOAD as u64;
        for (place, number) in (first / 4..blocks).zip(numbers(payload)) {
            if number != 0 {
                self.state.map.set(place as u32, number);
            }
        }
        let bits_at = 4 * blocks;
        for (byte, &bits) in (first..).zip(payload).filter(|&(byte, &bits)| byte >= bits_at && bits != 0) {
            for bit in (0..8).filter(|bit| bits & (0x80 >> bit) != 0) {
                let piece = (byte - bits_at) * 8 + bit;
                if piece < self.inode.geometry.pieces().into() {
                    self.bits.insert(piece as u32);
                }
            }
        }
    }

    /// Takes a logical sector of the numbers of map blocks.
    fn map_blocks(&mut self, at: u64, sector: &LogicalSector) {
        let Some(payload) = self.payload(at, sector, 1 + at) else { return };
        let count = u64::from(self.inode.layout().map_blocks);
        for (place, number) in (at * BLOCKS as u64..count).zip(numbers(payload)) {
            if number != 0 {
                self.state.map_blocks.set(place as u32, number);
            }
        }
    }

    fn finish(mut self) {
        self.state.pieces = Pieces::with_complete(self.inode.geometry, self.bits);
    }
}

pub(super) fn numbers(payload: &[u8]) -> impl Iterator<Item = u32> + '_ {
    payload.chunks_exact(4).map(|number| u32::from_le_bytes(number.try_into().expect("four bytes")))
}
