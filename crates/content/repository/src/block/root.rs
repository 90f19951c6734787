//! The root: all torrents, and the places of their i-nodes. Two copies, written in turn.

use std::{collections::BTreeSet, ops::Range};

use super::{
    Barrier, BlockDevice, Sector,
    format::{ENTRIES, LOGICAL_PER_SECTOR, LogicalSector, RootEntry, RootHeader, logical, sector_of},
    mutant::{Mutant, Mutation},
};
use zerocopy::{FromBytes, IntoBytes, little_endian::U32};

/// Sectors in front of a copy's entries: its header, and one that the first copy keeps the allocator's cursor
/// in.
pub(super) const HEAD: u64 = 2;

/// The root in memory.
#[derive(Debug)]
pub(super) struct Root {
    header: RootHeader,
    entries: Vec<RootEntry>,
    free: BTreeSet<u32>,
    /// Sectors of entries that a copy does not have yet as they are now.
    dirty: [BTreeSet<u64>; 2],
    torrents: u32,
    checksums: Vec<U32>,
    mutation: Mutation,
}

impl Root {
    /// A root without torrents, of which nothing is written yet.
    pub(super) fn empty(header: RootHeader, mutation: Mutation) -> Self {
        Self::new(header, Vec::new(), None, mutation)
    }

    /// Writes the entries, and empty ones behind them, over all that both copies have room for, and no
    /// header: whatever is not valid there later is damaged, and not merely unwritten.
    pub(super) fn fill(&mut self, device: &dyn BlockDevice) -> std::io::Result<()> {
        for copy in [0, 1] {
            let header = RootHeader { copy, ..self.header };
            self.write_entries(device, &header, 0..entry_sectors(&header))?;
        }
        self.dirty.iter_mut().for_each(BTreeSet::clear);
        Ok(())
    }

    /// The root as a copy has it. The other copy has other entries in the sectors `differing`; if that is
    /// unknown, in all.
    pub(super) fn new(
        header: RootHeader,
        entries: Vec<RootEntry>,
        differing: Option<BTreeSet<u64>>,
        mutation: Mutation,
    ) -> Self {
        let mut root = Self {
            header,
            free: BTreeSet::new(),
            dirty: [BTreeSet::new(), BTreeSet::new()],
            torrents: entries.iter().filter(|entry| !entry.is_none()).count() as u32,
            checksums: Vec::new(),
            entries,
            mutation,
        };
        let sectors = root.entries.len().div_ceil(ENTRIES * LOGICAL_PER_SECTOR) as u64;
        root.dirty[usize::from(1 - header.copy)] = differing.unwrap_or_else(|| (0..sectors).collect());
        root.entries.resize(sectors as usize * ENTRIES * LOGICAL_PER_SECTOR, RootEntry::NONE);
        root.free = (0..).zip(&root.entries).filter(|(_, entry)| entry.is_none()).map(|(at, _)| at).collect();
        (0..sectors).for_each(|sector| root.seal(sector));
        root
    }

    pub(super) const fn header(&self) -> &RootHeader {
        &self.header
    }

    pub(super) fn generation(&self) -> u64 {
        self.header.generation.get()
    }

    /// The number of a free entry, if there is room for one.
    fn place(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            let sectors = self.entries.len().div_ceil(ENTRIES * LOGICAL_PER_SECTOR) as u64;
            if sectors >= entry_sectors(&self.header) {
                return None;
            }
            let first = self.entries.len() as u32;
            self.entries.resize(self.entries.len() + ENTRIES * LOGICAL_PER_SECTOR, RootEntry::NONE);
            self.free.extend(first..self.entries.len() as u32);
            self.touch(first);
        }
        self.free.pop_first()
    }

    /// Adds a torrent, with the next [`write`](Self::write); `None` if the root is full.
    pub(super) fn add(&mut self, entry: RootEntry) -> Option<u32> {
        let at = self.place()?;
        self.torrents += 1;
        self.set(at, entry);
        Some(at)
    }

    /// Takes a torrent out, with the next [`write`](Self::write).
    pub(super) fn remove(&mut self, at: u32) {
        self.torrents -= 1;
        self.set(at, RootEntry::NONE);
        self.free.insert(at);
    }

    /// Changes an entry, with the next [`write`](Self::write).
    pub(super) fn set(&mut self, at: u32, entry: RootEntry) {
        self.entries[at as usize] = entry;
        self.touch(at);
    }

    /// Whether the older copy lacks something.
    pub(super) fn is_lopsided(&self) -> bool {
        !self.dirty[usize::from(1 - self.header.copy)].is_empty()
    }

    /// Writes all of it again, in both copies.
    pub(super) fn forget_what_is_written(&mut self) {
        let sectors = (self.checksums.len() / LOGICAL_PER_SECTOR) as u64;
        self.dirty.iter_mut().for_each(|dirty| dirty.extend(0..sectors));
    }

    fn touch(&mut self, at: u32) {
        let sector = u64::from(at) / (ENTRIES * LOGICAL_PER_SECTOR) as u64;
        self.dirty.iter_mut().for_each(|dirty| {
            dirty.insert(sector);
        });
        self.seal(sector);
    }

    pub(super) fn get(&self, at: u32) -> RootEntry {
        self.entries[at as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &RootEntry)> {
        (0..).zip(&self.entries).filter(|(_, entry)| !entry.is_none())
    }

    /// Writes the next generation over the older copy, and flushes.
    pub(super) fn write(&mut self, device: &dyn BlockDevice, barrier: Barrier) -> std::io::Result<()> {
        let in_place = self.mutation.is(Mutant::RootInPlace);
        let copy = if in_place { self.header.copy } else { 1 - self.header.copy };
        let used = self.checksums.len();
        let header = RootHeader {
            copy,
            generation: (self.generation() + 1).into(),
            torrents: self.torrents.into(),
            entry_sectors: (used as u32).into(),
            entries_checksum: checksum_of(&self.checksums).into(),
            ..self.header
        };
        let dirty = std::mem::take(&mut self.dirty[usize::from(copy)]);
        self.write_entries(device, &header, dirty)?;
        device.write(first_sector(&header), &[&[header.seal()]])?;
        device.flush(barrier)?;
        self.header = header;
        Ok(())
    }

    /// Writes sectors of entries, and sectors between them where a second call would take longer.
    fn write_entries(
        &self,
        device: &dyn BlockDevice,
        header: &RootHeader,
        sectors: impl IntoIterator<Item = u64>,
    ) -> std::io::Result<()> {
        for run in runs(header, sectors) {
            let first = entry_sector(header, run.start);
            let run: Vec<_> = run.map(|sector| self.sector(sector)).collect();
            device.write(first, &[&run])?;
        }
        Ok(())
    }

    fn seal(&mut self, sector: u64) {
        let sealed = self.sector(sector);
        let first = sector as usize * LOGICAL_PER_SECTOR;
        self.checksums.resize(self.checksums.len().max(first + LOGICAL_PER_SECTOR), U32::ZERO);
        for (checksum, logical) in
            self.checksums[first..].iter_mut().zip(logical(std::slice::from_ref(&sealed)))
        {
            *checksum = logical.checksum().into();
        }
    }

    fn sector(&self, sector: u64) -> Sector {
        let first = sector as usize * LOGICAL_PER_SECTOR;
        sector_of(|at| {
            let entries = self.entries.get((first + at) * ENTRIES..).and_then(|rest| rest.get(..ENTRIES));
            let entries = entries.unwrap_or(&[RootEntry::NONE; ENTRIES]);
            LogicalSector::seal(self.header.owner(), (first + at) as u64, entries.as_bytes())
        })
    }
}

#[derive(Debug)]
pub(super) struct RootCopy {
    pub(super) header: RootHeader,
    /// The logical sectors of entries; `None` where one is damaged.
    pub(super) sectors: Vec<Option<Box<[RootEntry; ENTRIES]>>>,
    /// Whether the copy is complete: all sectors come from the same write.
    pub(super) whole: bool,
}

impl RootCopy {
    /// The sectors whose entries differ in another copy. `None` if that is unknown: an incomplete copy must
    /// differ somewhere.
    pub(super) fn differing(&self, other: &Self) -> Option<BTreeSet<u64>> {
        let logical = 0..self.sectors.len().max(other.sectors.len());
        let differing = logical.filter(|&at| self.sectors.get(at) != other.sectors.get(at));
        let differing: BTreeSet<_> = differing.map(|at| (at / LOGICAL_PER_SECTOR) as u64).collect();
        (other.whole || !differing.is_empty()).then_some(differing)
    }

    /// The torrents that it names, if none of its sectors is damaged.
    pub(super) fn entries(&self) -> Option<Vec<RootEntry>> {
        let sectors =
            self.sectors.iter().map(|sector| sector.as_deref().copied()).collect::<Option<Vec<_>>>()?;
        Some(sectors.into_iter().flatten().filter(|entry| !entry.is_none()).collect())
    }

    /// Reads the entries of a copy.
    pub(super) fn read(device: &dyn BlockDevice, header: RootHeader) -> Self {
        let used =
            u64::from(header.entry_sectors.get()).min(entry_sectors(&header) * LOGICAL_PER_SECTOR as u64);
        let (mut sectors, mut checksums) = (Vec::new(), Vec::new());
        for run in runs(&header, 0..used.div_ceil(LOGICAL_PER_SECTOR as u64)) {
            let (mut read, first) =
                (super::sectors((run.end - run.start) as usize), entry_sector(&header, run.start));
            if device.read(first, &mut read).is_err() {
                // One by one, so that a sector that cannot be read costs itself.
                for (at, one) in (first..).zip(&mut read) {
                    if device.read(at, std::slice::from_mut(one)).is_err() {
                        *one = Sector::ZERO;
                    }
                }
            }
            for logical in logical(&read) {
                let entries = logical.payload(header.owner(), sectors.len() as u64).map(|payload| {
                    let (entries, _) =
                        <[RootEntry; ENTRIES]>::read_from_prefix(payload).expect("as many as fit");
                    Box::new(entries)
                });
                sectors.push(entries);
                checksums.push(U32::new(logical.checksum()));
            }
        }
        sectors.truncate(used as usize);
        checksums.truncate(used as usize);
        let whole = sectors.iter().all(Option::is_some)
            && used == u64::from(header.entry_sectors.get())
            && checksum_of(&checksums) == header.entries_checksum.get();
        Self { header, sectors, whole }
    }
}

pub(super) fn checksum_of(checksums: &[U32]) -> u32 {
    crc32c::crc32c(checksums.as_bytes())
}

pub(super) fn first_sector(header: &RootHeader) -> u64 {
    u64::from(header.copy) << (header.block_shift - 12)
}

/// How many sectors of entries a copy has room for.
pub(super) fn entry_sectors(header: &RootHeader) -> u64 {
    (u64::from(header.root_blocks.get()) << (header.block_shift - 12)) - HEAD
}

/// Where a sector of a copy's entries lies. The first block of each copy lies in front: a copy must be found
/// before it is known how many it has.
pub(super) fn entry_sector(header: &RootHeader, sector: u64) -> u64 {
    let (at, shift) = (HEAD + sector, header.block_shift - 12);
    let (block, within) = (at >> shift, at & ((1 << shift) - 1));
    let further = u64::from(header.root_blocks.get()) - 1;
    let block = match block.checked_sub(1) {
        None => u64::from(header.copy),
        Some(block) => 2 + u64::from(header.copy) * further + block,
    };
    (block << shift) + within
}

/// Sectors of entries in runs that lie together on the device, of at most 4 MiB. A gap of 1 MiB belongs to a
/// run: a disk takes as long for it as for another call.
fn runs(header: &RootHeader, sectors: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
    const MOST: u64 = 1024;
    const GAP: u64 = 256;
    let mut runs: Vec<Range<u64>> = Vec::new();
    for sector in sectors {
        match runs.last_mut() {
            Some(run)
                if sector - run.start < MOST
                    && sector - run.end <= GAP
                    && entry_sector(header, run.start) + (sector - run.start)
                        == entry_sector(header, sector) =>
            {
                run.end = sector + 1;
            }
            _ => runs.push(sector..sector + 1),
        }
    }
    runs
}
