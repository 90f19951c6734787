//! A store without a root: finds the i-nodes on the device, and makes a new root that names them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
};

use super::{
    Barrier, BlockDevice, MOST_TORRENTS, Sector,
    boot::{BootReport, MOST_UNREADABLE, numbers},
    find::{BLOCK_SHIFTS, BootRefusal, ChosenRoot, find_root},
    format::{
        BLOCKS, ENTRIES, InodeHeader, LOGICAL_PER_SECTOR, Layout, PAYLOAD, RootEntry, RootHeader, index,
        logical,
    },
    mutant::Mutation,
    root::{Root, entry_sectors},
    root_blocks, sectors,
};
use crate::{Error, Result, random::random};

/// Sectors that are read at once.
const CHUNK: u64 = 1024;
/// I-nodes that decide the size of the blocks.
const SAMPLE: usize = 1000;
/// Sectors of the root in blocks of any size: no content lies there.
const SURELY_ROOT: u64 = 8;

/// Gives a device a root that boot accepts. Returns the number of torrents that it names. Boot then judges
/// their pieces. If there is no torrent, nothing is written.
pub(super) fn salvage(device: &dyn BlockDevice) -> Result<u32, BootRefusal> {
    let mut report = BootReport::default();
    let (header, entries) = match find_root(device, Mutation::default(), &mut report) {
        Ok(ChosenRoot { header, entries, .. }) => {
            let blocks = blocks_of(device, header.block_shift).min(header.blocks.get());
            (RootHeader { blocks: blocks.into(), ..header }, entries)
        }
        Err(BootRefusal::Rootless(_)) => match look(device)? {
            Some(found) => found,
            None => return Ok(0),
        },
        Err(refused) => return Err(refused),
    };
    let torrents = entries.iter().filter(|entry| !entry.is_none()).count() as u32;
    let mut root = Root::new(header, entries, None, Mutation::default());
    (|| {
        // All entries are durable before a header can be found.
        root.fill(device)?;
        device.flush(Barrier::Formatted)?;
        root.write(device, Barrier::Formatted)?;
        root.write(device, Barrier::Formatted)
    })()
    .map_err(Error::io("writing the root"))?;
    Ok(torrents)
}

fn blocks_of(device: &dyn BlockDevice, shift: u8) -> u32 {
    u32::try_from(device.sectors() >> (shift - 12)).unwrap_or(u32::MAX)
}

/// Reads all of the device. A root for the torrents that are on it, and its entries.
fn look(device: &dyn BlockDevice) -> Result<Option<(RootHeader, Vec<RootEntry>)>, BootRefusal> {
    let mut first = vec![Sector::ZERO];
    let _ = device.read(0, &mut first);
    let hint = RootHeader::unchecked(&logical(&first)[0]);
    let mut scan = Scan { device, unreadable: 0, shift: 0 };
    let found = scan.inodes()?;
    let named = scan.named(SURELY_ROOT, |entry| !entry.is_none());
    // I-nodes of another size are content. An entry of the old root decides which size is the store's, then
    // the number of i-nodes, then the damaged header.
    let hinted = Some(hint.block_shift).filter(|shift| BLOCK_SHIFTS.contains(shift));
    let nothing = (false, (0, Reverse(0), 0));
    let mut best = nothing;
    for shift in hinted.into_iter().chain(BLOCK_SHIFTS) {
        let mut other = Scan { shift, ..scan };
        let is_named = found.iter().any(|found| other.entry(found).is_some_and(|it| named.contains(&it.0)));
        let agreeing = (is_named, other.agreement(&found[..found.len().min(SAMPLE)]));
        if agreeing > best {
            (best, scan) = (agreeing, other);
        }
    }
    if best == nothing {
        return Ok(None);
    }
    let (shift, blocks) = (scan.shift, blocks_of(device, scan.shift));
    let (mut entries, lowest) = scan.choose(&found);
    let wanted = root_blocks(entries.len() as u32, shift);
    let hinted = hint.root_blocks.get();
    let possible = hinted <= root_blocks(MOST_TORRENTS, shift) && hinted <= lowest / 2;
    let root = if possible { wanted.max(hinted) } else { wanted.min(lowest / 2) };
    let header = RootHeader::new(shift, root, blocks, random()?, hint.allocation());
    entries.truncate(entry_sectors(&header) as usize * LOGICAL_PER_SECTOR * ENTRIES);
    Ok(Some((header, entries)))
}

struct FoundInode {
    /// Its first logical sector, counted from the beginning of the device.
    at: u64,
    header: InodeHeader,
}

/// The device, and how it is cut.
#[derive(Clone, Copy)]
struct Scan<'a> {
    device: &'a dyn BlockDevice,
    unreadable: u32,
    shift: u8,
}

impl Scan<'_> {
    /// Every logical sector that is the first of an i-node, wherever it lies.
    fn inodes(&mut self) -> Result<Vec<FoundInode>> {
        let mut found = Vec::new();
        let end = self.device.sectors();
        for first in (0..end).step_by(CHUNK as usize) {
            let read = self.read(first, CHUNK.min(end - first))?;
            let places = first * LOGICAL_PER_SECTOR as u64..;
            let inodes = places
                .zip(logical(&read))
                .filter_map(|(at, sector)| Some(FoundInode { at, header: InodeHeader::find(sector)? }));
            found.extend(inodes.take(MOST_TORRENTS as usize - found.len()));
        }
        Ok(found)
    }

    fn read(&mut self, first: u64, count: u64) -> Result<Vec<Sector>> {
        let mut read = sectors(count as usize);
        if self.device.read(first, &mut read).is_ok() {
            return Ok(read);
        }
        for (at, sector) in (first..).zip(&mut read) {
            if let Err(source) = self.device.read(at, std::slice::from_mut(sector)) {
                self.unreadable += 1;
                if self.unreadable > MOST_UNREADABLE {
                    return Err(Error::Io { what: "looking for i-nodes", source });
                }
                *sector = Sector::ZERO;
            }
        }
        Ok(read)
    }

    /// The entry of a root for an i-node, if it is one of a store with blocks of this size.
    fn entry(&self, found: &FoundInode) -> Option<(RootEntry, Layout)> {
        found.header.entry(found.at, self.shift).filter(|(entry, ..)| entry.slot().block >= 2)
    }

    /// The payloads of logical sectors in a row; `None` where one is damaged.
    fn payloads(&mut self, first: u64, count: u64, uid: u64, index: u64) -> Vec<Option<[u8; PAYLOAD]>> {
        let per = LOGICAL_PER_SECTOR as u64;
        let covering = first / per..(first + count).div_ceil(per);
        let read = self.read(covering.start, covering.end - covering.start).unwrap_or_default();
        let row = logical(&read).iter().skip((first % per) as usize).take(count as usize);
        (index..).zip(row).map(|(index, sector)| sector.payload(uid, index).copied()).collect()
    }

    /// Three numbers: i-nodes of this block size plus i-nodes in blocks of their torrents; how often two
    /// i-nodes in no torrent's blocks name the same block; i-nodes in no torrent's blocks.
    fn agreement(&mut self, found: &[FoundInode]) -> (usize, Reverse<usize>, usize) {
        let inodes: Vec<_> = found.iter().filter_map(|found| self.entry(found)).collect();
        let claims = self.claims(&inodes);
        let claimed: HashSet<_> = claims.iter().flatten().copied().collect();
        let is_inside = |found: &&FoundInode| claimed.contains(&((found.at >> (self.shift - 9)) as u32));
        let explained = found.iter().filter(|found| is_inside(found) || self.entry(found).is_some()).count();
        let (mut contradictions, mut outside, mut once) = (0, 0, HashSet::new());
        for ((entry, _), claims) in inodes.iter().zip(claims) {
            if !claimed.contains(&entry.slot().block) {
                outside += 1;
                contradictions += claims.into_iter().filter(|&block| !once.insert(block)).count();
            }
        }
        (explained, Reverse(contradictions), outside)
    }

    /// The blocks that i-nodes say are their torrents'.
    fn claims(&mut self, inodes: &[(RootEntry, Layout)]) -> Vec<Vec<u32>> {
        let (blocks, per) = (blocks_of(self.device, self.shift), 1_u64 << (self.shift - 9));
        let (mut claims, mut mapped) = (Vec::<Vec<u32>>::new(), BTreeMap::<u32, Vec<(usize, u64)>>::new());
        for (at, (entry, layout)) in inodes.iter().enumerate() {
            let first = entry.slot().first(self.shift) + 1;
            let (sectors, most) = if layout.in_map_blocks() {
                (entry.slot().class.logical() - 1, layout.map_blocks)
            } else {
                (layout.body, layout.blocks)
            };
            let row = self.payloads(first, sectors, entry.uid(), 1);
            let row: Vec<_> = row.into_iter().map(|payload| payload.unwrap_or([0; PAYLOAD])).collect();
            let named = (0..).zip(numbers(row.as_flattened())).take(most as usize);
            let named: Vec<_> = named.filter(|(_, block)| (2..blocks).contains(block)).collect();
            if layout.in_map_blocks() {
                named.iter().for_each(|&(number, block)| mapped.entry(block).or_default().push((at, number)));
            }
            claims.push(named.into_iter().map(|(_, block)| block).collect());
        }
        // Content may name a block many times: it is read once, and is the map block of one of them.
        for (block, owners) in mapped {
            let read =
                self.read(u64::from(block) << (self.shift - 12), 1 << (self.shift - 12)).unwrap_or_default();
            let sealed = |&(at, number): &(usize, u64), count: u64| {
                let bodies = number * per..number * per + count;
                let sectors = bodies.zip(logical(&read));
                sectors.filter_map(move |(body, sector)| {
                    Some((body, sector.payload(inodes[at].0.uid(), index::MAP_BLOCKS + body)?))
                })
            };
            let is_its = |owner: &&(usize, u64)| sealed(owner, LOGICAL_PER_SECTOR as u64).next().is_some();
            let Some(owner) = owners.iter().find(is_its) else { continue };
            for (body, payload) in sealed(owner, per) {
                let behind = u64::from(inodes[owner.0].1.blocks).saturating_sub(body * BLOCKS as u64);
                let named = numbers(payload).take(behind.min(BLOCKS as u64) as usize);
                claims[owner.0].extend(named.filter(|block| (2..blocks).contains(block)));
            }
        }
        claims
    }

    /// The entries of i-nodes, and the lowest block that they use. Content may look like an i-node, so an
    /// i-node that lies in a block of another torrent has no entry.
    fn choose(&mut self, found: &[FoundInode]) -> (Vec<RootEntry>, u32) {
        let inodes: Vec<_> = found.iter().filter_map(|found| self.entry(found)).collect();
        let all: HashSet<_> = inodes.iter().map(|(entry, _)| *entry).collect();
        let named = self.named(2 << (self.shift - 12), |entry| all.contains(entry));
        let mut candidates = Candidates::default();
        for ((entry, _), mut claims) in inodes.iter().zip(self.claims(&inodes)) {
            claims.retain(|&block| block != entry.slot().block);
            candidates.add(*entry, claims);
        }
        let (mut chosen, mut taken, mut names) = (Vec::new(), HashSet::new(), HashSet::new());
        // First i-nodes that a root named, then i-nodes outside of content, then, of two that claim each
        // other, the first on the device.
        let mut next: BTreeSet<_> = named.iter().map(|entry| entry.slot().block).collect();
        let unclaimed = candidates.waiting.keys().filter(|&block| !candidates.claimed.contains_key(block));
        candidates.free = unclaimed.copied().collect();
        loop {
            let mut claimed = Vec::new();
            for block in next {
                let mut inodes = candidates.remove(block);
                inodes.sort_by_key(|(entry, _)| (!named.contains(entry), entry.slot()));
                for (entry, claims) in inodes {
                    if names.insert(entry.info_hash()) {
                        chosen.push(entry);
                        claimed.extend(claims);
                    }
                }
            }
            claimed.retain(|&block| taken.insert(block));
            claimed.into_iter().for_each(|block| drop(candidates.remove(block)));
            next = std::mem::take(&mut candidates.free);
            if next.is_empty() {
                let Some((&lowest, _)) = candidates.waiting.first_key_value() else { break };
                next.insert(lowest);
            }
        }
        let used = taken.into_iter().chain(chosen.iter().map(|entry| entry.slot().block));
        let lowest = used.min().unwrap_or(2).max(2);
        (chosen, lowest)
    }

    /// The entries of a damaged root in the first `sectors` of the device.
    fn named(&mut self, sectors: u64, can_be: impl Fn(&RootEntry) -> bool) -> HashSet<RootEntry> {
        let read = self.read(0, sectors.min(self.device.sectors())).unwrap_or_default();
        logical(&read).iter().flat_map(RootEntry::unchecked).filter(can_be).collect()
    }
}

/// I-nodes that may be content of others.
#[derive(Default)]
struct Candidates {
    /// By the blocks that they lie in, each with the blocks that it claims.
    waiting: BTreeMap<u32, Vec<(RootEntry, Vec<u32>)>>,
    /// How often each block is claimed.
    claimed: HashMap<u32, u32>,
    /// Blocks of candidates that no other candidate claims.
    free: BTreeSet<u32>,
}

impl Candidates {
    fn add(&mut self, entry: RootEntry, claims: Vec<u32>) {
        claims.iter().for_each(|&block| *self.claimed.entry(block).or_default() += 1);
        self.waiting.entry(entry.slot().block).or_default().push((entry, claims));
    }

    /// Removes the candidates in a block. Blocks that only they claimed become free.
    fn remove(&mut self, block: u32) -> Vec<(RootEntry, Vec<u32>)> {
        let inodes = self.waiting.remove(&block).unwrap_or_default();
        for claim in inodes.iter().flat_map(|(_, claims)| claims) {
            let times = self.claimed.get_mut(claim).expect("it was counted");
            *times -= 1;
            if *times == 0 && self.waiting.contains_key(claim) {
                self.free.insert(*claim);
            }
        }
        inodes
    }
}
