//! Images that hold anything at all under checksums that fit, for tests of boot (feature `mutants`): a fuzzer
//! finds no CRC-32C.

use zerocopy::{IntoBytes, little_endian::U32};

use super::{
    Sector,
    boot::numbers,
    format::{LOGICAL_PER_SECTOR, RootEntry, RootHeader, index, logical_mut},
    root::{HEAD, checksum_of, entry_sector},
    store::CURSOR,
};

/// Writes the matching checksum to every logical sector that boot would look at.
#[doc(hidden)]
pub fn forge(image: &mut [Sector]) {
    let all = logical_mut(image);
    let per = LOGICAL_PER_SECTOR as u64;
    // Where the second copy lies the first one says, or nothing does.
    let Some(first) = all.first().map(RootHeader::unchecked) else { return };
    if !(14..=26).contains(&first.block_shift) {
        return;
    }
    let block = 1_u64 << (first.block_shift - 9);
    for copy in [0_u8, 1] {
        let at = u64::from(copy) * block;
        let Some(mut header) = all.get(at as usize).map(RootHeader::unchecked) else { continue };
        header.copy = copy;
        if header.block_shift != first.block_shift
            || header.root_blocks.get() == 0
            || header.root_blocks.get() > 64
        {
            continue;
        }
        let owner = header.owner();
        let mut checksums = Vec::new();
        let room = u64::from(header.root_blocks.get()) * block - HEAD * per;
        for nth in 0..u64::from(header.entry_sectors.get()).min(room) {
            let at = entry_sector(&header, nth / per) * per + nth % per;
            let Some(sector) = all.get_mut(at as usize) else { break };
            sector.reseal(owner, nth);
            checksums.push(U32::new(sector.checksum()));
            for entry in RootEntry::unchecked(sector) {
                forge_inode(all, &entry, first.block_shift);
            }
        }
        header.entries_checksum = checksum_of(&checksums).into();
        let sealed = header.seal();
        all[at as usize..][..LOGICAL_PER_SECTOR]
            .copy_from_slice(super::format::logical(std::slice::from_ref(&sealed)));
        if let Some(cursor) = all.get_mut((CURSOR * per) as usize) {
            cursor.reseal(owner, index::CURSOR);
        }
    }
}

fn forge_inode(all: &mut [super::format::LogicalSector], entry: &RootEntry, block_shift: u8) {
    let slot = entry.slot();
    if !(1..=13).contains(&slot.class.0) {
        return;
    }
    let first = slot.first(block_shift);
    let mut map_blocks = Vec::new();
    for at in 0..slot.class.logical() {
        let Some(sector) = all.get_mut((first + at) as usize) else { return };
        sector.reseal(entry.uid(), at);
        map_blocks.extend(numbers(sector.as_bytes()).take(if at == 0 { 0 } else { 8 }));
    }
    // If the body lies in map blocks, these are the map blocks. Otherwise they are content, which may be
    // anything.
    if super::format::InodeHeader::is_deep(&all[first as usize]) {
        let block = 1_u64 << (block_shift - 9);
        for (number, map_block) in (0..).zip(map_blocks).filter(|&(_, map_block)| map_block > 1) {
            for at in 0..block {
                if let Some(sector) = all.get_mut((u64::from(map_block) * block + at) as usize) {
                    sector.reseal(entry.uid(), index::MAP_BLOCKS + number * block + at);
                }
            }
        }
    }
}
