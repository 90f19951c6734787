//! The layout on the device, byte by byte: `docs/formats/block-store.md` of the repository in code.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U32, U64},
};

use super::{Allocation, SECTOR, Sector};
use crate::{Geometry, InfoHash};

/// Bytes of a logical sector, the least that a device writes whole or not at all.
pub(super) const LOGICAL: usize = 512;
/// Bytes of it that are not its checksum.
pub(super) const PAYLOAD: usize = LOGICAL - 4;
/// Logical sectors of a [`Sector`].
pub(super) const LOGICAL_PER_SECTOR: usize = SECTOR / LOGICAL;
/// Torrents that a logical sector of the root names.
pub(super) const ENTRIES: usize = PAYLOAD / size_of::<RootEntry>();
/// Blocks that a logical sector of a block map names.
pub(super) const BLOCKS: usize = PAYLOAD / 4;

/// The version of the format. A number is not used again.
pub(super) const VERSION: u16 = 3;
/// Bytes of the longest label.
pub(super) const LABEL: usize = PAYLOAD - size_of::<InodeHeader>() - 2;
/// The version of an i-node. Version 1 did not have the size of blocks.
const INODE_VERSION: u8 = 2;
const ROOT_MAGIC: [u8; 8] = *b"swkproot";
const INODE_MAGIC: [u8; 8] = *b"swkpnode";

/// The position of a logical sector within its owner. Part of its checksum.
pub(super) mod index {
    /// The header of a root, plus the number of the copy.
    pub(in super::super) const ROOT: u64 = 1 << 40;
    /// The next block of the sequential allocator.
    pub(in super::super) const CURSOR: u64 = 2 << 40;
    /// The body of an i-node that lies in map blocks, plus the place in the body.
    pub(in super::super) const MAP_BLOCKS: u64 = 3 << 40;
}

/// The smallest unit with a checksum. The checksum covers the owner of the sector and its position in the
/// owner, so that no sector passes for another: not one of another torrent, of an earlier format, or of a
/// torrent that happens to look like this.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct LogicalSector {
    payload: [u8; PAYLOAD],
    checksum: U32,
}

impl LogicalSector {
    pub(super) const ZERO: Self = Self { payload: [0; PAYLOAD], checksum: U32::ZERO };

    /// A sector with `start` in front and zeroes behind.
    pub(super) fn seal(owner: u64, index: u64, start: &[u8]) -> Self {
        let mut payload = [0; PAYLOAD];
        payload[..start.len()].copy_from_slice(start);
        Self { payload, checksum: checksum(owner, index, &payload).into() }
    }

    /// The payload, if the sector belongs to `owner` at `index`.
    pub(super) fn payload(&self, owner: u64, index: u64) -> Option<&[u8; PAYLOAD]> {
        (self.checksum.get() == checksum(owner, index, &self.payload)).then_some(&self.payload)
    }

    /// The same with a checksum that fits, whatever it holds.
    #[cfg(feature = "mutants")]
    pub(super) fn reseal(&mut self, owner: u64, index: u64) {
        self.checksum = checksum(owner, index, &self.payload).into();
    }

    pub(super) const fn checksum(&self) -> u32 {
        self.checksum.get()
    }
}

fn checksum(owner: u64, index: u64, payload: &[u8; PAYLOAD]) -> u32 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&owner.to_le_bytes());
    place[8..].copy_from_slice(&index.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), payload)
}

pub(super) fn logical(sectors: &[Sector]) -> &[LogicalSector] {
    <[LogicalSector]>::ref_from_bytes(sectors.as_bytes()).expect("a sector is eight logical ones")
}

#[cfg(feature = "mutants")]
pub(super) fn logical_mut(sectors: &mut [Sector]) -> &mut [LogicalSector] {
    <[LogicalSector]>::mut_from_bytes(sectors.as_mut_bytes()).expect("a sector is eight logical ones")
}

/// A sector of eight logical ones.
pub(super) fn sector_of(make: impl FnMut(usize) -> LogicalSector) -> Sector {
    let parts: [LogicalSector; LOGICAL_PER_SECTOR] = std::array::from_fn(make);
    Sector::read_from_bytes(parts.as_bytes()).expect("a sector is eight logical ones")
}

/// The first logical sector of each copy of the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RootHeader {
    pub(super) magic: [u8; 8],
    pub(super) version: U16,
    /// The block size is 2 to this power.
    pub(super) block_shift: u8,
    /// 0 or 1.
    pub(super) copy: u8,
    pub(super) root_blocks: U32,
    /// Blocks of the device, including the root.
    pub(super) blocks: U32,
    /// Logical sectors of entries that this copy has.
    pub(super) entry_sectors: U32,
    /// CRC-32C of these sectors' checksums, and so of all entries.
    pub(super) entries_checksum: U32,
    pub(super) torrents: U32,
    /// Grows by one with each root that is written; 0 while the device is formatted.
    pub(super) generation: U64,
    /// Drawn when the device is formatted.
    pub(super) uuid: [u8; 16],
    /// 1 if blocks are chosen in order.
    pub(super) ordered: u8,
}

impl RootHeader {
    pub(super) fn new(
        block_shift: u8,
        root_blocks: u32,
        blocks: u32,
        uuid: [u8; 16],
        allocation: Allocation,
    ) -> Self {
        Self {
            magic: ROOT_MAGIC,
            version: VERSION.into(),
            block_shift,
            copy: 0,
            root_blocks: root_blocks.into(),
            blocks: blocks.into(),
            entry_sectors: U32::ZERO,
            entries_checksum: U32::ZERO,
            torrents: U32::ZERO,
            generation: U64::ZERO,
            uuid,
            ordered: u8::from(allocation == Allocation::Ordered),
        }
    }

    pub(super) const fn allocation(&self) -> Allocation {
        if self.ordered == 1 { Allocation::Ordered } else { Allocation::Sequential }
    }

    /// The owner of the logical sectors that belong to no torrent.
    pub(super) fn owner(&self) -> u64 {
        u64::from_le_bytes(self.uuid[..8].try_into().expect("eight of sixteen bytes"))
    }

    pub(super) fn seal(&self) -> Sector {
        let header = LogicalSector::seal(0, index::ROOT + u64::from(self.copy), self.as_bytes());
        sector_of(|at| if at == 0 { header } else { LogicalSector::ZERO })
    }

    /// The header that a logical sector holds, whatever its checksum says.
    pub(super) fn unchecked(sector: &LogicalSector) -> Self {
        Self::read_from_prefix(&sector.payload).expect("it is shorter than a sector").0
    }

    /// Whether a sector looks like a header, which may be damaged.
    pub(super) fn is_like(sector: &Sector) -> bool {
        let magic = sector.0[..8].iter().zip(ROOT_MAGIC);
        magic.map(|(byte, right)| (byte ^ right).count_ones()).sum::<u32>() <= 4
    }

    /// The header of a copy, if `sector` is one, of this version or an earlier one. `Err` is a later version.
    pub(super) fn parse(sector: &Sector, copy: u8) -> Result<Option<Self>, u16> {
        let Some(payload) =
            logical(std::slice::from_ref(sector))[0].payload(0, index::ROOT + u64::from(copy))
        else {
            return Ok(None);
        };
        let (header, _) = Self::read_from_prefix(payload).expect("it is shorter than a sector");
        if header.magic != ROOT_MAGIC || header.copy != copy {
            return Ok(None);
        }
        match header.version.get() {
            1..=VERSION => Ok(Some(header)),
            other => Err(other),
        }
    }
}

/// One torrent in the root. All zeroes where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RootEntry {
    info_hash: [u8; 20],
    uid: U64,
    block: U32,
    slot: U16,
    class: u8,
    /// 1 if the i-node is damaged: then only the name of the torrent is known.
    lost: u8,
}

impl RootEntry {
    pub(super) const NONE: Self =
        Self { info_hash: [0; 20], uid: U64::ZERO, block: U32::ZERO, slot: U16::ZERO, class: 0, lost: 0 };

    pub(super) fn new(info_hash: InfoHash, uid: u64, slot: Slot) -> Self {
        Self {
            info_hash: *info_hash.as_bytes(),
            uid: uid.into(),
            block: slot.block.into(),
            slot: slot.slot.into(),
            class: slot.class.0,
            lost: 0,
        }
    }

    pub(super) const fn lost(mut self) -> Self {
        self.lost = 1;
        self
    }

    /// The entries that a logical sector holds, whatever its checksum says.
    pub(super) fn unchecked(sector: &LogicalSector) -> [Self; ENTRIES] {
        <[Self; ENTRIES]>::read_from_prefix(&sector.payload).expect("as many as fit").0
    }

    pub(super) fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    pub(super) const fn is_lost(&self) -> bool {
        self.lost != 0
    }

    pub(super) const fn info_hash(&self) -> InfoHash {
        InfoHash::new(self.info_hash)
    }

    pub(super) const fn uid(&self) -> u64 {
        self.uid.get()
    }

    pub(super) const fn slot(&self) -> Slot {
        Slot { block: self.block.get(), slot: self.slot.get(), class: Class(self.class) }
    }
}

/// The first logical sector of an i-node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct InodeHeader {
    magic: [u8; 8],
    version: u8,
    /// The block size is 2 to this power.
    block_shift: u8,
    class: u8,
    /// 1 if the body lies in map blocks: then this i-node has their numbers instead of the body.
    depth: u8,
    piece_length: U32,
    length: U64,
    uid: U64,
    info_hash: [u8; 20],
}

impl InodeHeader {
    pub(super) fn new(info_hash: &InfoHash, uid: u64, geometry: Geometry, layout: &Layout) -> Self {
        Self {
            magic: INODE_MAGIC,
            version: INODE_VERSION,
            block_shift: layout.block_logical + 9,
            class: layout.class.0,
            depth: u8::from(layout.in_map_blocks()),
            piece_length: geometry.piece_length().into(),
            length: geometry.len().into(),
            uid: uid.into(),
            info_hash: *info_hash.as_bytes(),
        }
    }

    /// Whether a logical sector says that the body lies in map blocks, whatever its checksum says.
    #[cfg(feature = "mutants")]
    pub(super) fn is_deep(sector: &LogicalSector) -> bool {
        Self::read_from_prefix(&sector.payload).expect("it is shorter than a sector").0.depth == 1
    }

    /// The header in a logical sector, of any torrent, if it is one.
    pub(super) fn find(sector: &LogicalSector) -> Option<Self> {
        let (header, _) = Self::read_from_prefix(&sector.payload).expect("it is shorter than a sector");
        let is_one =
            header.magic == INODE_MAGIC && header.uid != 0 && sector.payload(header.uid.get(), 0).is_some();
        is_one.then_some(header)
    }

    /// The entry of a root for it, in a slot that begins at a logical sector of the device, and how it is
    /// laid out; `None` if blocks of this size cannot have it there.
    pub(super) fn entry(&self, at: u64, block_shift: u8) -> Option<(RootEntry, Layout)> {
        let (class, within) = (Class(self.class), at & ((1 << (block_shift - 9)) - 1));
        if class > Class::largest(block_shift) || !within.is_multiple_of(class.logical()) {
            return None;
        }
        let slot = Slot {
            block: u32::try_from(at >> (block_shift - 9)).ok()?,
            slot: (within / class.logical()) as u16,
            class,
        };
        let entry = RootEntry::new(InfoHash::new(self.info_hash), self.uid.get(), slot);
        let (_, layout) = self.measures(&entry, block_shift)?;
        Some((entry, layout))
    }

    /// The sector with a label behind the header.
    pub(super) fn seal(&self, label: &[u8]) -> LogicalSector {
        let length = (label.len() as u16).to_le_bytes();
        LogicalSector::seal(self.uid.get(), 0, &[self.as_bytes(), &length, label].concat())
    }

    /// The measures of the torrent and its label, if this is the i-node that the root means.
    pub(super) fn parse<'a>(
        sector: &'a LogicalSector,
        entry: &RootEntry,
        block_shift: u8,
    ) -> Option<(Geometry, Layout, &'a [u8])> {
        let (header, rest) = Self::read_from_prefix(sector.payload(entry.uid(), 0)?).ok()?;
        let (length, label) = U16::read_from_prefix(rest).ok()?;
        let (geometry, layout) = header.measures(entry, block_shift)?;
        Some((geometry, layout, label.get(..length.get().into()).unwrap_or_default()))
    }

    fn measures(&self, entry: &RootEntry, block_shift: u8) -> Option<(Geometry, Layout)> {
        let geometry = Geometry::new(self.length.get(), self.piece_length.get()).ok()?;
        let layout = Layout::new(geometry, block_shift)?;
        let meant = Self::new(&entry.info_hash(), entry.uid(), geometry, &layout);
        (*self == meant && layout.class == entry.slot().class).then_some((geometry, layout))
    }
}

/// The size of an i-node: one of 13, from 1 KiB to 4 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Class(pub(super) u8);

impl Class {
    /// The largest in blocks of a size: no i-node is larger than a block.
    pub(super) const fn largest(block_shift: u8) -> Self {
        Self(if block_shift < 22 { block_shift - 9 } else { 13 })
    }

    /// The smallest with room for `logical` sectors.
    fn fitting(logical: u64) -> Self {
        Self((logical.next_power_of_two().trailing_zeros() as u8).max(1))
    }

    pub(super) const fn logical(self) -> u64 {
        1 << self.0
    }

    pub(super) const fn slots(self, block_shift: u8) -> u32 {
        1 << (block_shift - 9 - self.0)
    }
}

/// Where an i-node lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Slot {
    pub(super) block: u32,
    pub(super) slot: u16,
    pub(super) class: Class,
}

impl Slot {
    /// Its first logical sector, counted from the beginning of the device.
    pub(super) const fn first(&self, block_shift: u8) -> u64 {
        ((self.block as u64) << (block_shift - 9)) + ((self.slot as u64) << self.class.0)
    }
}

/// How the body of an i-node is laid out: a block number for each of the torrent's blocks, then a bit for
/// each piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) blocks: u32,
    /// Logical sectors of the body.
    pub(super) body: u64,
    /// Map blocks for the body; 0 if it lies in the i-node.
    pub(super) map_blocks: u32,
    pub(super) class: Class,
    /// Log2 of the logical sectors of a block.
    block_logical: u8,
}

impl Layout {
    /// `None` if blocks of this size cannot hold such a torrent.
    pub(super) fn new(geometry: Geometry, block_shift: u8) -> Option<Self> {
        let blocks = u32::try_from(geometry.len().div_ceil(1 << block_shift)).ok()?;
        let bytes = 4 * u64::from(blocks) + u64::from(geometry.pieces().div_ceil(8));
        let body = bytes.div_ceil(PAYLOAD as u64);
        let (largest, block_logical) = (Class::largest(block_shift), block_shift - 9);
        let layout = |map_blocks: u32, class| Self { blocks, body, map_blocks, class, block_logical };
        if body < largest.logical() {
            return Some(layout(0, Class::fitting(1 + body)));
        }
        let map_blocks = u32::try_from(body.div_ceil(1 << block_logical)).ok()?;
        let class = Class::fitting(1 + u64::from(map_blocks).div_ceil(BLOCKS as u64));
        (class <= largest).then(|| layout(map_blocks, class))
    }

    pub(super) const fn in_map_blocks(&self) -> bool {
        self.map_blocks != 0
    }

    /// Which logical sector of the body names a block.
    pub(super) const fn of_block(block: u32) -> u64 {
        block as u64 / BLOCKS as u64
    }

    /// Which logical sector of the body has the bit of a piece.
    pub(super) const fn of_piece(&self, piece: u32) -> u64 {
        (4 * self.blocks as u64 + piece as u64 / 8) / PAYLOAD as u64
    }

    /// In which map block a logical sector of the body lies, and where in it.
    pub(super) const fn map_block_of(&self, body: u64) -> (u32, u64) {
        ((body >> self.block_logical) as u32, body & ((1 << self.block_logical) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_that_the_document_says() {
        assert_eq!(size_of::<RootHeader>(), 57);
        assert_eq!(size_of::<RootEntry>(), 36);
        assert_eq!(size_of::<InodeHeader>(), 52);
        assert_eq!((ENTRIES, BLOCKS), (14, 127));
        assert_eq!((Class::largest(22).0, Class::largest(14).0, Class::largest(26).0), (13, 5, 13));
        assert_eq!(Class(1).slots(22), 4096);
    }

    #[test]
    fn a_sector_passes_for_no_other() {
        let sector = LogicalSector::seal(7, 3, b"something");
        assert!(sector.payload(7, 3).unwrap().starts_with(b"something\0"));
        assert!(sector.payload(8, 3).is_none() && sector.payload(7, 4).is_none());
        assert!(LogicalSector::ZERO.payload(7, 3).is_none());
    }

    #[test]
    fn layouts_reach_from_a_byte_to_beyond_a_pebibyte() {
        let layout =
            |length, piece_length, shift| Layout::new(Geometry::new(length, piece_length).unwrap(), shift);
        let one = layout(1, 1, 22).unwrap();
        assert_eq!((one.blocks, one.body, one.map_blocks, one.class), (1, 1, 0, Class(1)));
        // 1 GB in pieces of 1 MiB: 239 blocks and 954 pieces are 1,076 bytes.
        let usual = layout(1_000_000_000, 1 << 20, 22).unwrap();
        assert_eq!((usual.blocks, usual.body, usual.map_blocks, usual.class), (239, 3, 0, Class(2)));
        // The largest body that lies in its i-node: 4 bytes per block, and a bit for each 256 of them.
        let most = 8191 * 508 * 2048 / (4 * 2048 + 1);
        let (inside, outside) =
            (layout(most << 22, 1 << 30, 22).unwrap(), layout((most + 1) << 22, 1 << 30, 22).unwrap());
        assert!(!inside.in_map_blocks(), "{inside:?}");
        assert_eq!((outside.map_blocks, outside.class), (1, Class(1)));
        let two_pebibytes = layout(2 << 50, 1 << 24, 22).unwrap();
        assert_eq!((two_pebibytes.blocks, two_pebibytes.map_blocks), (1 << 29, 521));
        assert_eq!(two_pebibytes.class, Class(3));
        // All that 32 bits can name.
        assert!(layout(u64::from(u32::MAX) << 22, 1 << 31, 22).is_some());
        assert_eq!(layout(1 << 54, 1 << 31, 22), None);
        // With the smallest blocks the list of map blocks must fit in an i-node of 16 KiB.
        let largest = 31 * 127 * 32 * 508;
        assert!(layout(largest / 4 * 16384 - (1 << 32), 1 << 31, 14).is_some());
        assert_eq!(layout((largest / 4 + 1) * 16384, 1 << 31, 14), None);
    }
}
