//! One torrent: its i-node in memory, and what of it may be written to the device when.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64},
};

use parking_lot::{Mutex, RwLock};
use zerocopy::IntoBytes;

use super::{
    format::{BLOCKS, InodeHeader, Layout, LogicalSector, PAYLOAD, Slot, index},
    mutant::{Mutant, Mutation},
};
use crate::{Geometry, InfoHash, Pieces};

/// An i-node. What it says changes in [`InodeState`]; what it is does not.
#[derive(Debug)]
pub(super) struct Inode {
    pub(super) info_hash: InfoHash,
    pub(super) uid: u64,
    pub(super) geometry: Geometry,
    pub(super) layout: Layout,
    pub(super) slot: Slot,
    /// Held for reading by whoever is at work in the torrent, for writing by who deletes it or takes back a
    /// mark. Whether the torrent is there.
    pub(super) gate: RwLock<bool>,
    /// Held for writing by writes that rewrite the rest of a sector, and by who marks a piece; for reading by
    /// writes of whole sectors.
    pub(super) edges: RwLock<()>,
    pub(super) state: Mutex<InodeState>,
    /// Whether it is in the list of those that have something to write.
    pub(super) listed: AtomicBool,
    /// Where it stands in the root.
    pub(super) entry: AtomicU64,
}

/// What an i-node says.
#[derive(Debug)]
pub(super) struct InodeState {
    /// The torrent's blocks.
    pub(super) map: BlockMap,
    /// The blocks that the body lies in, if it does not lie in the i-node.
    pub(super) map_blocks: BlockMap,
    pub(super) pieces: Pieces,
    /// What has changed, and must not be written yet: what it points at may not be durable.
    pub(super) fresh: Changes,
    /// What has changed and may be written with the next flush.
    pub(super) sound: Changes,
    /// Nothing more is written of it: what it points at may be somebody else's soon. What it said last stays,
    /// for an older root.
    pub(super) deleted: bool,
}

/// What differs from what is on the device.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Blocks of the torrent that were given a place.
    pub(super) blocks: BTreeSet<u32>,
    /// Pieces that were marked.
    pub(super) pieces: BTreeSet<u32>,
    /// Blocks of the body that were given a place.
    pub(super) map_blocks: BTreeSet<u32>,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.pieces.is_empty() && self.map_blocks.is_empty()
    }
}

impl Inode {
    pub(super) fn new(info_hash: InfoHash, uid: u64, geometry: Geometry, layout: Layout, slot: Slot) -> Self {
        Self {
            info_hash,
            uid,
            geometry,
            layout,
            slot,
            gate: RwLock::new(true),
            edges: RwLock::new(()),
            state: Mutex::new(InodeState {
                map: BlockMap::new(layout.blocks),
                map_blocks: BlockMap::new(layout.map_blocks),
                pieces: Pieces::new(geometry),
                fresh: Changes::default(),
                sound: Changes::default(),
                deleted: false,
            }),
            listed: AtomicBool::new(false),
            entry: AtomicU64::new(0),
        }
    }

    /// The torrent's blocks that have bytes of a range.
    pub(super) fn blocks_of(range: &Range<u64>, block_shift: u8) -> Range<u32> {
        (range.start >> block_shift) as u32..range.end.div_ceil(1 << block_shift) as u32
    }

    /// Logical sector `at` of the slot, as it may be written now.
    pub(super) fn logical(&self, state: &InodeState, at: u64, mutation: Mutation) -> LogicalSector {
        match at.checked_sub(1) {
            None => {
                let header = InodeHeader::new(&self.info_hash, self.uid, self.geometry, &self.layout);
                LogicalSector::seal(self.uid, 0, header.as_bytes())
            }
            Some(body) if !self.layout.in_map_blocks() => {
                LogicalSector::seal(self.uid, at, &self.body(state, body, mutation))
            }
            Some(body) => {
                let first = body * BLOCKS as u64;
                let mut payload = [0; PAYLOAD];
                for (place, number) in
                    payload.chunks_exact_mut(4).zip(first..u64::from(self.layout.map_blocks))
                {
                    let number = number as u32;
                    if !state.withholds(|changes| &changes.map_blocks, number) {
                        place.copy_from_slice(&state.map_blocks.get(number).to_le_bytes());
                    }
                }
                LogicalSector::seal(self.uid, at, &payload)
            }
        }
    }

    /// Logical sector `body` of the body, where that lies in map blocks, as it may be written now.
    pub(super) fn mapped(&self, state: &InodeState, body: u64, mutation: Mutation) -> LogicalSector {
        LogicalSector::seal(self.uid, index::MAP_BLOCKS + body, &self.body(state, body, mutation))
    }

    fn body(&self, state: &InodeState, body: u64, mutation: Mutation) -> [u8; PAYLOAD] {
        let mut payload = [0; PAYLOAD];
        let first = body * PAYLOAD as u64;
        let blocks = u64::from(self.layout.blocks);
        for (place, block) in payload.chunks_exact_mut(4).zip(first / 4..blocks) {
            let block = block as u32;
            if mutation.is(Mutant::NeighboursAsTheyAre) || !state.withholds(|changes| &changes.blocks, block)
            {
                place.copy_from_slice(&state.map.get(block).to_le_bytes());
            }
        }
        let bits = state.pieces.complete().as_bytes();
        let bits_at = 4 * blocks;
        let range = first.max(bits_at)..(first + PAYLOAD as u64).min(bits_at + bits.len() as u64);
        if !range.is_empty() {
            let bits = &bits[(range.start - bits_at) as usize..(range.end - bits_at) as usize];
            let place = &mut payload[(range.start - first) as usize..(range.end - first) as usize];
            place.copy_from_slice(bits);
            if !mutation.is(Mutant::NeighboursAsTheyAre) {
                let piece = |byte: u64| ((byte - bits_at) * 8).min(u32::MAX.into()) as u32;
                for changes in [&state.fresh, &state.sound] {
                    for withheld in changes.pieces.range(piece(range.start)..piece(range.end)) {
                        let byte = u64::from(withheld / 8) - (range.start - bits_at);
                        place[byte as usize] &= !(0x80 >> (withheld % 8));
                    }
                }
            }
        }
        payload
    }

    /// Which logical sectors of the body say what has changed.
    pub(super) fn body_of(&self, changes: &Changes) -> BTreeSet<u64> {
        let blocks = changes.blocks.iter().map(|&block| Layout::of_block(block));
        blocks.chain(changes.pieces.iter().map(|&piece| self.layout.of_piece(piece))).collect()
    }
}

impl InodeState {
    fn withholds(&self, what: impl Fn(&Changes) -> &BTreeSet<u32>, number: u32) -> bool {
        what(&self.fresh).contains(&number) || what(&self.sound).contains(&number)
    }

    /// Complete pieces of which some block has no place.
    pub(super) fn pieces_without_blocks(&self, geometry: Geometry, block_shift: u8) -> Vec<u32> {
        if !self.map.has_holes() {
            return Vec::new();
        }
        let whole = |piece: &u32| {
            let range = geometry.piece(*piece).expect("the bits are those of the torrent's pieces");
            Inode::blocks_of(&range, block_shift).all(|block| self.map.get(block) != 0)
        };
        self.pieces.complete().iter().filter(|piece| !whole(piece)).collect()
    }

    /// Forgets that pieces are complete.
    pub(super) fn drop_pieces(&mut self, geometry: Geometry, pieces: &[u32]) {
        let mut bits = self.pieces.take_complete();
        for &piece in pieces {
            bits.remove(piece);
        }
        self.pieces = Pieces::with_complete(geometry, bits);
    }
}

/// Block numbers by place in the torrent, 0 where there is none: block 0 is the root.
///
/// Takes 4 bytes a place, in chunks that are there once a place of them is: a torrent of a pebibyte that was
/// hardly written takes little.
#[derive(Debug)]
pub(super) struct BlockMap {
    places: u32,
    taken: u32,
    chunks: Vec<Option<Box<[u32]>>>,
}

impl BlockMap {
    const CHUNK: u32 = 1 << 16;

    fn new(places: u32) -> Self {
        Self { places, taken: 0, chunks: vec![None; places.div_ceil(Self::CHUNK) as usize] }
    }

    pub(super) fn get(&self, place: u32) -> u32 {
        let chunk = &self.chunks[(place / Self::CHUNK) as usize];
        chunk.as_ref().map_or(0, |chunk| chunk[(place % Self::CHUNK) as usize])
    }

    /// Gives a place a block, or with 0 takes it away.
    pub(super) fn set(&mut self, place: u32, block: u32) {
        let chunk = place / Self::CHUNK;
        let length = Self::CHUNK.min(self.places - chunk * Self::CHUNK);
        let chunk = self.chunks[chunk as usize].get_or_insert_with(|| vec![0; length as usize].into());
        let old = std::mem::replace(&mut chunk[(place % Self::CHUNK) as usize], block);
        self.taken = self.taken + u32::from(block != 0) - u32::from(old != 0);
    }

    pub(super) const fn has_holes(&self) -> bool {
        self.taken < self.places
    }

    /// Every block that has a place, with it.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let chunks = (0..).step_by(Self::CHUNK as usize).zip(&self.chunks);
        chunks
            .filter_map(|(first, chunk)| Some((first, chunk.as_ref()?)))
            .flat_map(|(first, chunk)| (first..).zip(chunk.iter().copied()).filter(|&(_, block)| block != 0))
    }
}
