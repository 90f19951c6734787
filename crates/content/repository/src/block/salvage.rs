//! A store without a root: finds the i-nodes on the device, and makes a new root that names them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use swarmkeep_metainfo::{Info, Metainfo};

use super::{
    Allocation, Barrier, BlockDevice, BlockStore, MOST_TORRENTS, Sector,
    boot::{Access, MOST_UNREADABLE, boot_root, numbers},
    find::{BLOCK_SHIFTS, BootRefusal, ChosenRoot, find_root},
    format::{
        BLOCKS, ENTRIES, InodeHeader, LOGICAL_PER_SECTOR, Layout, PAYLOAD, RootEntry, RootHeader, index,
        logical,
    },
    mutant::Mutation,
    root::{Root, entry_sectors},
    root_blocks, sectors,
};
use crate::{ContentRepository, Error, InfoHash, NewTorrent, Result, random::random, verify};

/// Sectors that are read at once.
const CHUNK: u64 = 1024;
/// I-nodes that decide the size of the blocks.
const SAMPLE: usize = 1000;
/// Sectors of the root in blocks of any size: no content lies there.
const SURELY_ROOT: u64 = 8;
/// I-nodes of one torrent whose pieces are verified, and pieces of each.
const MOST_VERIFIED: (usize, usize) = (16, 4);

/// Finds the metainfo of a torrent, if its torrent file is at hand.
type TorrentFiles<'a> = dyn Fn(&InfoHash) -> Option<Metainfo> + 'a;

/// Gives a device a root that boot accepts. Returns the number of torrents that it names, and of i-nodes that
/// were left out without proof. Boot then judges the pieces. If there is no torrent, nothing is written.
pub(super) fn salvage(
    device: &Arc<dyn BlockDevice>,
    torrent_files: &TorrentFiles<'_>,
) -> Result<(u32, u32), BootRefusal> {
    let (header, entries, undecided) = match find_root(device, Mutation::default()) {
        Ok(ChosenRoot { header, entries, .. }) => {
            let blocks = blocks_of(device, header.block_shift).min(header.blocks.get());
            (RootHeader { blocks: blocks.into(), ..header }, entries, 0)
        }
        Err(BootRefusal::Rootless(_)) => match look(device, torrent_files)? {
            Some(found) => found,
            None => return Ok((0, 0)),
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
    Ok((torrents, undecided))
}

fn blocks_of(device: &dyn BlockDevice, shift: u8) -> u32 {
    u32::try_from(device.sectors() >> (shift - 12)).unwrap_or(u32::MAX)
}

/// Reads all of the device. A root for the torrents that are on it, its entries, and how many i-nodes had to
/// be left out without proof.
fn look(
    device: &Arc<dyn BlockDevice>,
    torrent_files: &TorrentFiles<'_>,
) -> Result<Option<(RootHeader, Vec<RootEntry>, u32)>, BootRefusal> {
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
    let (mut entries, lowest, undecided) = scan.choose(&found, torrent_files);
    let wanted = root_blocks(entries.len() as u32, shift);
    let hinted = hint.root_blocks.get();
    let possible = hinted <= root_blocks(MOST_TORRENTS, shift) && hinted <= lowest / 2;
    let root = if possible { wanted.max(hinted) } else { wanted.min(lowest / 2) };
    let header = RootHeader::new(shift, root, blocks, random()?, hint.allocation());
    entries.truncate(entry_sectors(&header) as usize * LOGICAL_PER_SECTOR * ENTRIES);
    Ok(Some((header, entries, undecided)))
}

struct FoundInode {
    /// Its first logical sector, counted from the beginning of the device.
    at: u64,
    header: InodeHeader,
}

/// The device, and how it is cut.
#[derive(Clone, Copy)]
struct Scan<'a> {
    device: &'a Arc<dyn BlockDevice>,
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

    /// The entries of the i-nodes that contradict no stronger one, the lowest block that they use, and the
    /// number of i-nodes whose contradictions were resolved without proof. Content may look like an i-node.
    fn choose(&mut self, found: &[FoundInode], files: &TorrentFiles<'_>) -> (Vec<RootEntry>, u32, u32) {
        let inodes: Vec<_> = found.iter().filter_map(|found| self.entry(found)).collect();
        let all: HashSet<_> = inodes.iter().map(|(entry, _)| *entry).collect();
        let named = self.named(2 << (self.shift - 12), |entry| all.contains(entry));
        let mut candidates = self.candidates(&inodes, &named, files);
        candidates.sort_by_key(|it| (Reverse(it.strength), it.entry.slot()));
        let (mut chosen, mut strengths, mut undecided) = (Vec::new(), Vec::new(), 0);
        let (mut names, mut slabs, mut content) = (HashMap::new(), HashMap::new(), HashMap::new());
        for Candidate { entry, claims, strength } in candidates {
            let of = |at: Option<&u32>| at.map(|&at| strengths[at as usize]);
            let [around, same] = [of(content.get(&entry.slot().block)), of(names.get(&entry.info_hash()))];
            // The first of those that contradict it is the strongest.
            let shared = claims.iter().flat_map(|at| [slabs.get(at), content.get(at)]).flatten().min();
            let strongest: Option<Strength> = around.max(same).max(of(shared));
            if around.or(same).is_some() || of(shared) > Some(strength) {
                // Bytes of a piece that verifies are content, whatever they look like.
                let is_content = around.is_some_and(|around| around.evidence[0]);
                let is_alike = strongest.is_some_and(|other| other.evidence == strength.evidence);
                undecided += u32::from(is_alike && !is_content);
                continue;
            }
            let at = chosen.len() as u32;
            names.insert(entry.info_hash(), at);
            slabs.entry(entry.slot().block).or_insert(at);
            claims.iter().for_each(|&block| _ = content.entry(block).or_insert(at));
            chosen.push(entry);
            strengths.push(strength);
        }
        let lowest = slabs.into_keys().chain(content.into_keys()).min().unwrap_or(2);
        (chosen, lowest, undecided)
    }

    /// I-nodes and their strengths. Pieces are verified of those that contradict others.
    fn candidates(
        &mut self,
        inodes: &[(RootEntry, Layout)],
        named: &HashSet<RootEntry>,
        torrent_files: &TorrentFiles<'_>,
    ) -> Vec<Candidate> {
        let claims = self.claims(inodes);
        let (mut claimed, mut slots) = (HashMap::new(), HashMap::new());
        for ((entry, _), claims) in inodes.iter().zip(&claims) {
            *slots.entry(entry.slot().block).or_insert(0) += 1;
            claims.iter().for_each(|block| *claimed.entry(*block).or_insert(0) += 1);
        }
        let count = |of: &HashMap<u32, u64>, block: u32| of.get(&block).copied().unwrap_or(0);
        let others = |block: u32| (count(&claimed, block) + count(&slots, block)).saturating_sub(1);
        let candidate = |(&(entry, _), claims): (&(RootEntry, Layout), Vec<u32>)| {
            let inside = count(&claimed, entry.slot().block);
            let contradictions = Reverse(inside + claims.iter().map(|&block| others(block)).sum::<u64>());
            let evidence = [false, named.contains(&entry)];
            Candidate { entry, claims, strength: Strength { evidence, outside: inside == 0, contradictions } }
        };
        let mut candidates: Vec<_> = inodes.iter().zip(claims).map(candidate).collect();
        candidates.sort_by_key(|it| (it.entry.info_hash(), Reverse(it.strength)));
        for same in candidates.chunk_by_mut(|a, b| a.entry.info_hash() == b.entry.info_hash()) {
            if same.len() == 1 && same[0].strength.contradictions.0 == 0 {
                continue;
            }
            let Some(metainfo) = torrent_files(&same[0].entry.info_hash()) else { continue };
            // One without blocks has no piece.
            for it in same.iter_mut().filter(|it| !it.claims.is_empty()).take(MOST_VERIFIED.0) {
                let verified = self.verifies(it.entry, metainfo.info(), |block| others(block) > 0);
                it.strength.evidence[0] = verified.unwrap_or(false);
            }
        }
        candidates
    }

    /// Whether more of its pieces verify than do not, of the first that are complete: of those with blocks
    /// that are `disputed`, or of all if there are none.
    fn verifies(
        &self,
        entry: RootEntry,
        info: &Info,
        disputed: impl Fn(u32) -> bool,
    ) -> Result<bool, BootRefusal> {
        let blocks = blocks_of(self.device, self.shift);
        let header = RootHeader::new(self.shift, 1, blocks, [0; 16], Allocation::default());
        // In a root of its own, no other i-node has its blocks.
        let root = ChosenRoot { header, entries: vec![entry], differing: None, damage: Vec::new() };
        let (store, report) = boot_root(self.device, root, None, Access::Read, Mutation::default())?;
        let content =
            BlockStore { store: Arc::new(store), report: Arc::new(report) }.open(&entry.info_hash())?;
        let (new, geometry) = (NewTorrent::of(info)?, content.geometry());
        let is_disputed = |&piece: &u32| {
            geometry.piece(piece).is_ok_and(|range| {
                let mut blocks = range.start >> self.shift..=(range.end - 1) >> self.shift;
                let place = |block| content.place(block << self.shift);
                blocks.any(|at| place(at).is_some_and(|place| disputed((place >> self.shift) as u32)))
            })
        };
        let (mut pieces, rest): (Vec<_>, Vec<_>) = content.pieces()?.iter().partition(is_disputed);
        if pieces.is_empty() {
            pieces = rest;
        }
        pieces.truncate(MOST_VERIFIED.1);
        let mut chunk = Vec::new();
        let right = |piece: &&u32| matches!(verify(&*content, Some(info), **piece, &mut chunk), Ok(true));
        let right = pieces.iter().filter(right).count();
        Ok((new.info_hash, new.geometry) == (entry.info_hash(), geometry) && 2 * right > pieces.len())
    }

    /// The entries of a damaged root in the first `sectors` of the device.
    fn named(&mut self, sectors: u64, can_be: impl Fn(&RootEntry) -> bool) -> HashSet<RootEntry> {
        let read = self.read(0, sectors.min(self.device.sectors())).unwrap_or_default();
        logical(&read).iter().flat_map(RootEntry::unchecked).filter(can_be).collect()
    }
}

/// A possible i-node, with the blocks that it claims.
struct Candidate {
    entry: RootEntry,
    claims: Vec<u32>,
    strength: Strength,
}

/// How likely a candidate is an i-node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Strength {
    /// Whether its pieces verify, and whether an entry of the old root names it.
    evidence: [bool; 2],
    /// Whether it lies in no other's blocks.
    outside: bool,
    /// How often others claim or lie in its blocks.
    contradictions: Reverse<u64>,
}
