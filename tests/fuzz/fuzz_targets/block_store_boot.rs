//! Any image, raw or as a real one with changes under matching checksums: boot answers, its state agrees with
//! itself, and a second boot has the same state.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use swarmkeep_content::{
    ContentExt, ContentRepository, InfoHash, NewTorrent,
    block::{Allocation, BlockDevice, BlockStore, FormatOptions, SECTOR, Sector, forge, sectors},
};
use swarmkeep_kit::device::SparseDevice;

const SECTORS: u64 = 64 * 4;

/// Torrents of all kinds, the largest with a map of its own.
static REAL: LazyLock<Vec<Sector>> = LazyLock::new(|| {
    let device = Arc::new(SparseDevice::new(SECTORS));
    let mut options = FormatOptions::new();
    options.block_size = Some(16 << 10);
    BlockStore::format(&*device, options).unwrap();
    let store = BlockStore::boot(Arc::clone(&device), Allocation::Sequential).unwrap();
    for (n, length) in [(1, 100_000), (2, 1), (3, 40_000), (4, 70 << 20), (5, 3 << 20)] {
        let torrent = NewTorrent::new(InfoHash::new([n; 20]), length, 16 << 10).unwrap();
        let content = store.create(&torrent).unwrap();
        for piece in 0..content.geometry().pieces().min(3) {
            let range = content.geometry().piece(piece).unwrap();
            content.write(range.start, &vec![n; (range.end - range.start) as usize]).unwrap();
            content.mark_complete(piece).unwrap();
        }
    }
    store.flush().unwrap();
    let mut all = sectors(SECTORS as usize);
    device.read(0, &mut all).unwrap();
    all
});

fuzz_target!(|input: &[u8]| {
    let Some((&kind, input)) = input.split_first() else { return };
    let mut image = if kind & 1 == 0 {
        let mut image = sectors(input.len().div_ceil(SECTOR).min(1024));
        for (sector, bytes) in image.iter_mut().zip(input.chunks(SECTOR)) {
            sector.0[..bytes.len()].copy_from_slice(bytes);
        }
        image
    } else {
        let mut image = REAL.clone();
        // Changes of eight bytes: place, kind, and value. Metadata is in the first sectors of blocks.
        for change in input.chunks_exact(8) {
            let sector = usize::from(change[0]) % image.len();
            let at = usize::from(u16::from_le_bytes([change[1], change[2]])) % SECTOR;
            let end = (at + usize::from(change[3] % 5)).min(SECTOR);
            for (byte, new) in image[sector].0[at..end].iter_mut().zip(&change[4..]) {
                *byte = *new;
            }
        }
        image
    };
    if kind & 2 != 0 {
        forge(&mut image);
    }
    let device = Arc::new(SparseDevice::from_sectors(image.len() as u64, image));
    let Ok(store) = BlockStore::boot(Arc::clone(&device), Allocation::Ordered) else { return };
    store.audit().unwrap();
    for damage in &store.report().damage {
        let _ = damage.to_string();
    }
    let describe = |store: &BlockStore| (store.list().unwrap(), store.owners(), store.report().lost.clone());
    let found = describe(&store);
    for summary in &found.0 {
        let content = store.open(&summary.info_hash).unwrap();
        for piece in content.pieces().unwrap().iter().take(4) {
            // Pieces may be long: their ends are enough.
            let range = content.geometry().piece(piece).unwrap();
            let mut byte = [0];
            content.read(range.start, &mut byte).unwrap();
            content.read(range.end - 1, &mut byte).unwrap();
        }
    }
    drop(store);
    let again = BlockStore::boot(Arc::clone(&device), Allocation::Ordered).unwrap();
    again.audit().unwrap();
    assert_eq!(describe(&again), found);
    // It works on.
    let torrent = NewTorrent::new(InfoHash::new([0xfe; 20]), 20_000, 16 << 10).unwrap();
    if let Ok(content) = again.create(&torrent)
        && content.write(0, &[7; 20_000]).is_ok()
    {
        content.mark_complete(1).unwrap();
    }
    for summary in &found.0 {
        again.delete(&summary.info_hash).unwrap();
    }
    again.flush().unwrap();
    again.audit().unwrap();
});
