//! One torrent: its i-node in memory, and the order in which its parts may be written to the device.

use std::{
    borrow::Borrow,
    collections::BTreeSet,
    hash::{Hash, Hasher},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32},
    },
};

use super::{
    format::{BLOCKS, InodeHeader, Layout, LogicalSector, PAYLOAD, Slot, index},
    mutant::{Mutant, Mutation},
};
use crate::{Geometry, InfoHash, Pieces};
use parking_lot::{Mutex, RwLock};

/// An i-node. Its changing parts are in [`InodeState`].
#[derive(Debug)]
pub(super) struct Inode {
    pub(super) info_hash: InfoHash,
    pub(super) uid: u64,
    pub(super) geometry: Geometry,
    block_shift: u8,
    pub(super) slot: Slot,
    /// Locked for reading by calls in progress, for writing by a delete or when a mark is removed.
    pub(super) gate: RwLock<()>,
    /// Whether the torrent was deleted. Then none of it is written, as its blocks may soon belong to another
    /// torrent. Its last state stays, for an older root. Changes while gate and state are locked.
    pub(super) gone: AtomicBool,
    /// Locked for writing by writes that rewrite the rest of a sector, and to mark a piece; for reading by
    /// writes of whole sectors.
    pub(super) edges: RwLock<()>,
    pub(super) state: Mutex<InodeState>,
    /// Whether it is in the list of i-nodes with unwritten changes.
    pub(super) listed: AtomicBool,
    /// Its position in the root.
    pub(super) entry: AtomicU32,
}

/// An i-node in a set, which has it by info hash.
#[derive(Debug)]
pub(super) struct InodeByHash(pub(super) Arc<Inode>);

impl Borrow<InfoHash> for InodeByHash {
    fn borrow(&self) -> &InfoHash {
        &self.0.info_hash
    }
}

impl Hash for InodeByHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.info_hash.hash(state);
    }
}

impl PartialEq for InodeByHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.info_hash == other.0.info_hash
    }
}

impl Eq for InodeByHash {}

/// The changing contents of an i-node.
#[derive(Debug)]
pub(super) struct InodeState {
    /// The torrent's blocks.
    pub(super) map: BlockMap,
    /// The blocks that the body lies in, if it does not lie in the i-node.
    pub(super) map_blocks: BlockMap,
    pub(super) pieces: Pieces,
    pub(super) label: Arc<[u8]>,
    /// Differences from the device, if any: most torrents are idle.
    pub(super) changes: Option<Box<Changes>>,
}

#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Must not be written yet: the blocks that these changes point at may not be durable.
    pub(super) fresh: ChangeSet,
    /// May be written with the next flush.
    pub(super) sound: ChangeSet,
}

#[derive(Debug, Default)]
pub(super) struct ChangeSet {
    /// Blocks of the torrent that were given a place.
    pub(super) blocks: BTreeSet<u32>,
    pub(super) pieces: BTreeSet<u32>,
    /// Blocks of the body that were given a place.
    pub(super) map_blocks: BTreeSet<u32>,
    pub(super) label: bool,
}

impl ChangeSet {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.pieces.is_empty() && self.map_blocks.is_empty() && !self.label
    }
}

impl Inode {
    /// `None` if blocks of this size cannot hold such a torrent.
    pub(super) fn new(
        info_hash: InfoHash,
        uid: u64,
        geometry: Geometry,
        block_shift: u8,
        slot: Slot,
    ) -> Option<Self> {
        let layout = Layout::new(geometry, block_shift)?;
        Some(Self {
            info_hash,
            uid,
            geometry,
            block_shift,
            slot,
            gate: RwLock::new(()),
            gone: AtomicBool::new(false),
            edges: RwLock::new(()),
            state: Mutex::new(InodeState {
                map: BlockMap::new(layout.blocks),
                map_blocks: BlockMap::new(layout.map_blocks),
                pieces: Pieces::new(geometry),
                label: Arc::default(),
                changes: None,
            }),
            listed: AtomicBool::new(false),
            entry: AtomicU32::new(0),
        })
    }

    /// How it is laid out: computed, because there may be a hundred thousand of them in memory.
    pub(super) fn layout(&self) -> Layout {
        Layout::new(self.geometry, self.block_shift).expect("it was laid out when it was made")
    }

    /// The torrent's blocks that have bytes of a range.
    pub(super) fn blocks_of(range: &Range<u64>, block_shift: u8) -> Range<u32> {
        (range.start >> block_shift) as u32..range.end.div_ceil(1 << block_shift) as u32
    }

    /// Logical sector `at` of the slot, as it may be written now.
    pub(super) fn logical(&self, state: &InodeState, at: u64, mutation: Mutation) -> LogicalSector {
        match at.checked_sub(1) {
            None => {
                InodeHeader::new(&self.info_hash, self.uid, self.geometry, &self.layout()).seal(&state.label)
            }
            Some(body) if !self.layout().in_map_blocks() => {
                LogicalSector::seal(self.uid, at, &self.body(state, body, mutation))
            }
            Some(body) => {
                let first = body * BLOCKS as u64;
                let mut payload = [0; PAYLOAD];
                for (place, number) in
                    payload.chunks_exact_mut(4).zip(first..u64::from(self.layout().map_blocks))
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
        let blocks = u64::from(self.layout().blocks);
        for (place, block) in payload.chunks_exact_mut(4).zip(first / 4..blocks) {
            let block = block as u32;
            if mutation.is(Mutant::NeighboursAsTheyAre) || !state.withholds(|changes| &changes.blocks, block)
            {
                place.copy_from_slice(&state.map.get(block).to_le_bytes());
            }
        }
        let bits_at = 4 * blocks;
        let bytes = u64::from(self.geometry.pieces().div_ceil(8));
        let range = first.max(bits_at)..(first + PAYLOAD as u64).min(bits_at + bytes);
        if !range.is_empty() {
            let place = &mut payload[(range.start - first) as usize..(range.end - first) as usize];
            state.pieces.complete().read(range.start - bits_at, place);
            if !mutation.is(Mutant::NeighboursAsTheyAre) {
                let piece = |byte: u64| ((byte - bits_at) * 8).min(u32::MAX.into()) as u32;
                for changes in state.changes.iter().flat_map(|changes| [&changes.fresh, &changes.sound]) {
                    for withheld in changes.pieces.range(piece(range.start)..piece(range.end)) {
                        let byte = u64::from(withheld / 8) - (range.start - bits_at);
                        place[byte as usize] &= !(0x80 >> (withheld % 8));
                    }
                }
            }
        }
        payload
    }

    /// The logical sectors of the body that contain the changes.
    pub(super) fn body_of(&self, changes: &ChangeSet) -> BTreeSet<u64> {
        let blocks = changes.blocks.iter().map(|&block| Layout::of_block(block));
        blocks.chain(changes.pieces.iter().map(|&piece| self.layout().of_piece(piece))).collect()
    }
}

impl InodeState {
    fn withholds(&self, what: impl Fn(&ChangeSet) -> &BTreeSet<u32>, number: u32) -> bool {
        self.changes.as_deref().is_some_and(|Changes { fresh, sound }| {
            what(fresh).contains(&number) || what(sound).contains(&number)
        })
    }

    pub(super) fn changes(&mut self) -> &mut Changes {
        self.changes.get_or_insert_default()
    }

    /// Complete pieces of which some block has no place.
    pub(super) fn pieces_without_blocks(&self, geometry: Geometry, block_shift: u8) -> Vec<u32> {
        if self.map.taken >= self.map.places {
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
/// Takes 4 bytes per place, in chunks that are allocated with their first place: a torrent of a pebibyte
/// that was hardly written takes little.
#[derive(Debug)]
pub(super) struct BlockMap {
    places: u32,
    taken: u32,
    /// Empty until one is there.
    chunks: Box<[Option<Box<[u32]>>]>,
}

impl BlockMap {
    const CHUNK: u32 = 1 << 16;

    fn new(places: u32) -> Self {
        Self { places, taken: 0, chunks: Box::default() }
    }

    pub(super) fn get(&self, place: u32) -> u32 {
        let chunk = self.chunks.get((place / Self::CHUNK) as usize).and_then(Option::as_ref);
        chunk.map_or(0, |chunk| chunk[(place % Self::CHUNK) as usize])
    }

    /// Gives a place a block, or with 0 takes it away.
    pub(super) fn set(&mut self, place: u32, block: u32) {
        if self.chunks.is_empty() {
            self.chunks = vec![None; self.places.div_ceil(Self::CHUNK) as usize].into();
        }
        let chunk = place / Self::CHUNK;
        let length = Self::CHUNK.min(self.places - chunk * Self::CHUNK);
        let chunk = self.chunks[chunk as usize].get_or_insert_with(|| vec![0; length as usize].into());
        let old = std::mem::replace(&mut chunk[(place % Self::CHUNK) as usize], block);
        self.taken = self.taken + u32::from(block != 0) - u32::from(old != 0);
    }

    /// Every block that has a place, with it.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let chunks = (0..).step_by(Self::CHUNK as usize).zip(&self.chunks);
        chunks
            .filter_map(|(first, chunk)| Some((first, chunk.as_ref()?)))
            .flat_map(|(first, chunk)| (first..).zip(chunk.iter().copied()).filter(|&(_, block)| block != 0))
    }
}
