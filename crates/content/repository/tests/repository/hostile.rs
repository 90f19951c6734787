//! Earlier faults of the store on a block device: content that looks like metadata, damaged roots, devices
//! that fail, races of threads.

use swarmkeep_kit::device::Access;
use swarmkeep_metainfo::{Creation, Format};

use super::{
    block::{all_sectors, boot, devices, salvage, small},
    *,
};

fn seal(owner: u64, index: u64, payload: &[u8]) -> [u8; 512] {
    let mut all = Vec::new();
    all.extend(owner.to_le_bytes());
    all.extend(index.to_le_bytes());
    let mut sector = [0; 512];
    sector[..payload.len()].copy_from_slice(payload);
    all.extend(&sector[..508]);
    sector[508..].copy_from_slice(&crc32c::crc32c(&all).to_le_bytes());
    sector
}

/// The header of a copy of a root of `[root, all]` blocks, with `entry_sectors` sectors of entries.
fn header(
    [shift, copy]: [u8; 2],
    blocks: [u32; 2],
    entry_sectors: u32,
    generation: u64,
    uuid: [u8; 16],
) -> [u8; 512] {
    let mut h = Vec::new();
    h.extend(b"swkproot");
    h.extend(3_u16.to_le_bytes());
    h.extend([shift, copy]);
    h.extend(blocks.map(u32::to_le_bytes).as_flattened());
    h.extend(entry_sectors.to_le_bytes());
    h.extend(crc32c::crc32c(&[]).to_le_bytes());
    h.extend(0_u32.to_le_bytes());
    h.extend(generation.to_le_bytes());
    h.extend(uuid);
    seal(0, (1 << 40) + u64::from(copy), &h)
}

/// The header of an i-node without a label, in blocks of 16 KiB.
fn inode(
    [class, depth]: [u8; 2],
    length: u64,
    piece_length: u32,
    (uid, info_hash): (u64, InfoHash),
) -> [u8; 512] {
    let mut h = Vec::new();
    h.extend(b"swkpnode");
    h.extend([2, 14]);
    h.extend([class, depth]);
    h.extend(piece_length.to_le_bytes());
    h.extend(length.to_le_bytes());
    h.extend(uid.to_le_bytes());
    h.extend(info_hash.as_bytes());
    seal(uid, 0, &h)
}

#[test]
fn content_never_passes_for_a_root() {
    for device in devices(FormatOptions::new()) {
        let store = boot(&device);
        let victim = store.create(&NewTorrent::new(hash(7), 16 << 10, 16 << 10).unwrap()).unwrap();
        // A stranger's torrent: each block begins with a header, for a size of blocks that fits some place.
        let hostile = store.create(&NewTorrent::new(hash(1), 1 << 20, 16 << 10).unwrap()).unwrap();
        for piece in 0..64_u64 {
            let mut bytes = vec![0; 16 << 10];
            // The stranger does not know where it will lie: all are for 64 KiB, where one of them lands.
            bytes[..512].copy_from_slice(&header([16, 1], [1, 3], 0, 1 << 40, [9; 16]));
            hostile.write(piece << 14, &bytes).unwrap();
            hostile.mark_complete(piece as u32).unwrap();
        }
        victim.write(0, &[1; 16 << 10]).unwrap();
        victim.mark_complete(0).unwrap();
        store.flush().unwrap();
        assert!((0..64).any(|piece| hostile.place(piece << 14) == Some(1 << 16)));
        drop((victim, hostile, store));
        corrupt(&device, 0, 0);
        for _ in 0..2 {
            assert_eq!(boot(&device).list().unwrap().len(), 2);
        }
        corrupt(&device, 0, 0);
        corrupt(&device, 4, 0);
        let refused = BlockStore::boot(Arc::clone(&device), None);
        assert!(matches!(refused, Err(Error::NotAStore { .. })), "{refused:?}");
        assert_eq!(salvage(&device), 2);
        assert_eq!(boot(&device).list().unwrap().len(), 2);
    }
}

#[test]
fn content_never_chooses_the_size_of_blocks() {
    // The blocks of the larger one are named in a map block.
    let cases = [(true, 64 << 10), (false, 2 << 30)]
        .map(|case| devices(blocks_of(64 << 10)).map(|device| (device, case)));
    for (device, (root_is_gone, mut length)) in cases.into_iter().flatten() {
        let store = boot(&device);
        let mut hostile = vec![0; 64 << 10];
        for (uid, slot) in (1..=20).zip(hostile.chunks_exact_mut(2048)) {
            let body = [1, 2, 3].map(|index| seal(uid, index, &[]));
            slot[..512].copy_from_slice(&inode([2, 0], 200 << 14, 16 << 10, (uid, hash(uid << 32))));
            slot[512..].copy_from_slice(body.as_flattened());
        }
        for n in 1..4 {
            let content = store.create(&NewTorrent::new(hash(n), length, 64 << 10).unwrap()).unwrap();
            content.write(0, &hostile).unwrap();
            content.mark_complete(0).unwrap();
            (hostile, length) = (vec![0; 64 << 10], 64 << 10);
        }
        store.flush().unwrap();
        let before = store.list().unwrap();
        drop(store);
        if root_is_gone {
            device.write(0, &[&[Sector::ZERO; 32]]).unwrap();
        } else {
            corrupt(&device, 0, 0);
            corrupt(&device, 16, 0);
        }
        assert_eq!(salvage(&device), 3);
        assert_eq!(boot(&device).list().unwrap(), before);
    }
}

/// I-nodes in content say that their maps lie in blocks that they name many times.
#[test]
fn content_does_not_say_how_long_a_salvage_takes() {
    for device in devices(FormatOptions::new()) {
        let store = boot(&device);
        let content = store.create(&NewTorrent::new(hash(1), 64 << 10, 16 << 10).unwrap()).unwrap();
        let mut hostile = vec![0; 64 << 10];
        for (uid, slot) in (1..).zip(hostile.chunks_exact_mut(1024)) {
            let map_blocks: Vec<_> = (0..65).flat_map(|at| (10 + at % uid as u32).to_le_bytes()).collect();
            slot[..512].copy_from_slice(&inode([1, 1], 4 << 30, 16 << 20, (uid, hash(uid << 32))));
            slot[512..].copy_from_slice(&seal(uid, 1, &map_blocks));
        }
        content.write(0, &hostile).unwrap();
        (0..4).for_each(|piece| _ = content.mark_complete(piece).unwrap());
        store.flush().unwrap();
        drop((content, store));
        device.write(0, &[&[Sector::ZERO; 8]]).unwrap();
        let read = sectors_read(&device);
        assert_eq!(salvage(&device), 1);
        let read = read.load(SeqCst);
        assert!(read < 2 * device.sectors(), "{read} sectors of {}", device.sectors());
    }
}

/// A torrent of 8 pieces of two blocks each.
fn metainfo(n: u64) -> Metainfo {
    let mut builder = Creation::builder("it", Format::V1);
    builder.piece_length(32 << 10).file(["it"], 256 << 10, false);
    let mut creation = builder.build().unwrap();
    for piece in 0..8 {
        let mut hasher = creation.hasher(piece as u32).unwrap();
        hasher.update(&bytes(n, piece << 15..(piece + 1) << 15));
        creation.set(hasher.finish().unwrap());
    }
    Metainfo::parse(&creation.finish().unwrap()).unwrap()
}

/// A torrent has a block of each of two deleted ones, of which all other pieces are right. Old entries name
/// these, and there are more forgeries of its i-node than are verified. Only the disputed pieces, in all of
/// their blocks, say which one is real.
#[test]
fn a_torrent_with_blocks_of_deleted_ones_is_the_one_that_verifies_in_them() {
    for is_known in [true, false] {
        let [_, device] = devices(FormatOptions::new());
        let store = boot(&device);
        let torrents = [1, 2, 3].map(metainfo);
        let hashes = torrents.each_ref().map(|it| it.info().info_hash());
        let create = |nth: usize| store.create(&NewTorrent::of(torrents[nth].info()).unwrap()).unwrap();
        let [low, high] = [0, 1].map(create);
        let entries = [2, 6].map(|at| sector(&device, at));
        let contents = [low, high, create(2)];
        let fill = |torrent: usize, blocks: &[u64]| {
            let content = &contents[torrent];
            for at in blocks.iter().map(|block| block << 14) {
                content.write(at, &bytes(torrent as u64 + 1, at..at + (16 << 10))).unwrap();
            }
            (0..8).for_each(|piece| _ = content.mark_complete(piece));
            store.flush().unwrap();
        };
        for deleted in [0, 1] {
            // The lowest block is the second one of a piece.
            fill(deleted, &[13, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15]);
        }
        let (before, free) =
            (all_sectors(&device), contents[1].place(15 << 14).unwrap() as usize / SECTOR + 4);
        for (deleted, block) in [(1, 0), (0, 1)] {
            assert!(store.delete(&hashes[deleted]).unwrap());
            fill(2, &[block]);
        }
        let mut image = all_sectors(&device);
        // As without discards, and if the writes that erase i-nodes do not arrive.
        for (now, before) in image.iter_mut().zip(&before) {
            for (now, before) in now.0.chunks_exact_mut(512).zip(before.0.chunks_exact(512)) {
                if now.iter().all(|byte| *byte == 0) {
                    now.copy_from_slice(before);
                }
            }
        }
        image[..8].fill(Sector::ZERO);
        if is_known {
            [image[2], image[6]] = entries;
            for (uid, forged) in (1..=20).zip(&mut image[free..]) {
                let inode = inode([1, 0], 256 << 10, 32 << 10, (uid << 32, hashes[2]));
                forged.0[..512].copy_from_slice(&inode);
            }
        }
        device.write(0, &[&image]).unwrap();
        let at_hand = if is_known { &torrents[..] } else { &torrents[..2] };
        let file = |it: &InfoHash| at_hand.iter().find(|file| file.info().info_hash() == *it).cloned();
        let salvaged = BlockStore::salvage(Arc::clone(&device), &file).unwrap();
        assert_eq!(salvaged, if is_known { (1, 0) } else { (2, 1) });
        let complete = || boot(&device).open(&hashes[2]).unwrap().pieces().unwrap().count();
        assert!(!is_known || complete() == 1);
    }
}

#[test]
fn torrents_created_after_both_roots_were_damaged_stay() {
    for later in 1..4 {
        let device = small();
        let store = boot(&device);
        // More than one sector of 4 KiB of entries: later torrents touch the second alone.
        for n in 0..120 {
            store.create(&NewTorrent::new(hash(1000 + n), 100, 100).unwrap()).unwrap();
        }
        drop(store);
        corrupt(&device, 2, 0);
        corrupt(&device, 6, 1);
        let store = boot(&device);
        for n in 100..100 + later {
            let new = store.create(&NewTorrent::new(hash(n), 100, 100).unwrap()).unwrap();
            new.write(0, &[3; 100]).unwrap();
            new.mark_complete(0).unwrap();
        }
        store.flush().unwrap();
        drop(store);
        let store = boot(&device);
        for n in 100..100 + later {
            assert!(store.open(&hash(n)).is_ok(), "{n} of {later} is gone");
        }
    }
}

/// One bad sector in the durable copy, and a crash while the other is written: the other sectors of the
/// durable copy count.
#[test]
fn a_bad_sector_and_a_torn_root_cost_no_more_than_that_sector() {
    let device = small();
    let store = boot(&device);
    for n in 0..15 {
        store.create(&NewTorrent::new(hash(n), 100, 100).unwrap()).unwrap();
    }
    // Torrent 14 is acknowledged: it stands in logical sector 1 of the newer copy.
    let before: Vec<_> = (0..8).map(|at| sector(&device, at)).collect();
    store.create(&NewTorrent::new(hash(15), 100, 100).unwrap()).unwrap();
    drop(store);
    // The crash: of the last root its header arrives, its entries do not.
    let changed = |at: usize| sector(&device, at as u64) != before[at];
    let (newest, newest_entries) = if changed(0) { (0, 2) } else { (4, 6) };
    device.write(newest_entries, &[&[before[newest_entries as usize]]]).unwrap();
    assert!(changed(newest as usize));
    // And the durable copy has a bad logical sector, of torrents 0 to 13.
    corrupt(&device, 8 - newest_entries, 0);
    let store = boot(&device);
    assert!(
        store.open(&hash(14)).is_ok(),
        "torrent 14 stands in a good sector of the durable copy, and is gone"
    );
}

/// The number of sectors of the device that are read from now on.
pub(crate) fn sectors_read(device: &SparseDevice) -> Arc<AtomicU64> {
    let read = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&read);
    device.watch(move |access| {
        if let Access::Read(sectors) = access {
            count.fetch_add(sectors.end - sectors.start, SeqCst);
        }
        Ok(true)
    });
    read
}

fn refuse_to_read(device: &SparseDevice, sector: u64) {
    device.watch(move |access| match access {
        Access::Read(sectors) if sectors.contains(&sector) => Err(io::Error::from_raw_os_error(5)),
        _ => Ok(true),
    });
}

/// A flush that waited while another failed does not report the lost changes as durable.
#[test]
fn a_flush_behind_one_that_failed_fails_too() {
    let device = small();
    let store = boot(&device);
    let content = store.create(&NewTorrent::new(hash(1), 100, 100).unwrap()).unwrap();
    content.write(0, &[1; 100]).unwrap();
    content.mark_complete(0).unwrap();
    // The next flush waits at the gate when it is under way, once more before it goes on, and fails.
    let gate = Arc::new(std::sync::Barrier::new(2));
    let (armed, at_gate) = (AtomicBool::new(true), Arc::clone(&gate));
    device.watch(move |access| {
        if matches!(access, Access::Flush(_)) && armed.swap(false, SeqCst) {
            at_gate.wait();
            at_gate.wait();
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(true)
    });
    let flush = || {
        let store = store.clone();
        thread::spawn(move || store.flush())
    };
    let first = flush();
    gate.wait();
    let second = flush();
    thread::sleep(Duration::from_millis(200));
    gate.wait();
    assert!(matches!(first.join().unwrap(), Err(Error::Io { .. })));
    let told = "the device dropped the content, and its have-bit was written and reported durable";
    assert!(second.join().unwrap().is_err(), "{told}");
}

#[test]
fn an_audit_beside_writes_ends() {
    let store = boot(&small());
    thread::scope(|scope| {
        scope.spawn(|| (0..1000).for_each(|_| _ = store.audit()));
        for _ in 0..20 {
            let content = store.create(&NewTorrent::new(hash(1), 8 << 20, 16 << 10).unwrap()).unwrap();
            (0..512).for_each(|piece| content.write(piece << 14, &[1; 100]).unwrap());
            store.delete(&hash(1)).unwrap();
        }
    });
}

/// A header with valid checksums and the last generation there is.
#[test]
fn the_last_generation_is_not_overflown() {
    let device = small();
    let mut read = sector(&device, 0);
    let uuid: [u8; 16] = read.0[40..56].try_into().unwrap();
    let blocks = u32::from_le_bytes(read.0[16..20].try_into().unwrap());
    read.0[..512].copy_from_slice(&header([14, 0], [1, blocks], 0, u64::MAX, uuid));
    device.write(0, &[&[read]]).unwrap();
    let store = boot(&device);
    store.create(&NewTorrent::new(hash(1), 100, 100).unwrap()).unwrap();
    drop(store);
    assert!(boot(&device).open(&hash(1)).is_ok(), "acknowledged and gone: the generation went around");
}

/// A few bytes on a huge sparse image, that say that the root has one block more than for the most torrents
/// there may be.
#[test]
fn a_header_does_not_say_how_much_memory_boot_takes() {
    let device = Arc::new(SparseDevice::new(1 << 30));
    let mut sector = Sector::ZERO;
    sector.0[..512].copy_from_slice(&header([22, 0], [148, 1 << 20], 1 << 31, 1, [9; 16]));
    device.write(0, &[&[sector]]).unwrap();
    let refused = BlockStore::boot(Arc::clone(&device), Allocation::Sequential).unwrap_err();
    assert!(matches!(refused, Error::NotAStore { .. }), "{refused}");
}

/// Of the headers and entries of the root, the other copy says the same. Without the cursor, the search for
/// free blocks begins at the front.
#[test]
fn a_read_error_of_a_copy_of_the_root_or_of_the_cursor_costs_nothing() {
    for bad in [0, 1, 2, 4, 6] {
        let device = small();
        let store = boot(&device);
        store.create(&NewTorrent::new(hash(1), 100, 100).unwrap()).unwrap();
        store.flush().unwrap();
        drop(store);
        refuse_to_read(&device, bad);
        let store = BlockStore::boot(Arc::clone(&device), None).unwrap();
        assert!(store.open(&hash(1)).is_ok() && store.report().read_only.is_none());
        let told = format!("{:?}", store.report().damage.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(!told.contains("undone") && !told.contains("may be missing"), "{bad}: {told}");
    }
}

#[test]
fn a_sector_that_cannot_be_read_costs_its_torrent() {
    let device = small();
    let store = boot(&device);
    // I-nodes of 1 KiB: four of them share a sector.
    for n in 0..9 {
        store.create(&NewTorrent::new(hash(n), 100, 100).unwrap()).unwrap();
    }
    store.flush().unwrap();
    drop(store);
    refuse_to_read(&device, 8);
    let store = BlockStore::boot(Arc::clone(&device), Allocation::Sequential).unwrap();
    assert_eq!(store.report().read_only, None);
    assert_eq!(store.report().lost, [0, 1, 2, 3].map(hash));
    assert_eq!(store.list().unwrap().len(), 5);
    let content = store.create(&NewTorrent::new(hash(20), 100, 100).unwrap()).unwrap();
    content.write(0, &[1; 100]).unwrap();
    content.mark_complete(0).unwrap();
    store.flush().unwrap();
    store.audit().unwrap();
}

/// A map that names another torrent's block, under checksums that fit: the block stays with one of them.
#[test]
fn a_block_that_two_torrents_claim_is_one_of_theirs() {
    use swarmkeep_content::block::{Damage, Mutant, forge, sectors};

    let device = small();
    let store = boot(&device);
    let places = [1, 2].map(|n| {
        let content = store.create(&NewTorrent::new(hash(n), 16 << 10, 16 << 10).unwrap()).unwrap();
        content.write(0, &[n as u8; 16 << 10]).unwrap();
        content.mark_complete(0).unwrap();
        content.place(0).unwrap() >> 14
    });
    store.flush().unwrap();
    drop(store);
    let mut image = sectors(device.sectors() as usize);
    device.read(0, &mut image).unwrap();
    // The i-nodes of both lie in the first block behind the roots; the map of the second is the fourth
    // logical sector there.
    let map = &mut image[8].0[3 * 512..3 * 512 + 4];
    assert_eq!(map, u32::try_from(places[1]).unwrap().to_le_bytes());
    map.copy_from_slice(&u32::try_from(places[0]).unwrap().to_le_bytes());
    forge(&mut image);
    let forged = || SparseDevice::from_sectors(device.sectors(), image.clone());
    let store = BlockStore::boot(forged(), Allocation::Sequential).unwrap();
    store.audit().unwrap();
    assert_eq!(store.report().damage, [Damage::Blocks { info_hash: hash(2), blocks: 1 }]);
    assert_eq!(store.open(&hash(1)).unwrap().read_piece(0).unwrap(), vec![1; 16 << 10]);
    assert_eq!(store.open(&hash(2)).unwrap().pieces().unwrap().count(), 0);
    // Without that look at boot, both would have it.
    let shared =
        BlockStore::boot_mutant(forged(), Allocation::Sequential, Some(Mutant::SharedBlocks)).unwrap();
    assert!(shared.audit().is_err());
}

#[test]
fn an_error_of_the_medium_names_the_device_or_the_file() {
    use swarmkeep_content::{ContentConfig, block::FileDevice, files};

    let folder = tempfile::tempdir().unwrap();
    let (image, file) = (folder.path().join("image"), folder.path().join("files").join(hash(1).to_string()));
    let new = NewTorrent::new(hash(1), 16 << 10, 16 << 10).unwrap();
    let device = FileDevice::create_image(&image, 1 << 20).unwrap();
    BlockStore::format(&device, FormatOptions::new()).unwrap();
    let block = BlockStore::boot(device, None).unwrap();
    std::fs::create_dir(folder.path().join("files")).unwrap();
    let config = ContentConfig::new(folder.path().join("files"));
    let plain = files::FileStore::open(&config, files::Allocation::Sparse).unwrap();
    let content = plain.create(&new).unwrap();
    let paths = plain.paths(&hash(1)).unwrap();
    let file = paths.first().map_or(file, |(_, path)| path.clone());
    for (content, path) in [(block.create(&new).unwrap(), image), (content, file)] {
        content.write(0, &[1; 16 << 10]).unwrap();
        // Another program truncates it.
        std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        let told = content.read(0, &mut [0; 16 << 10]).unwrap_err();
        assert!(
            matches!(told, Error::Io { .. }) && told.to_string().contains(path.to_str().unwrap()),
            "{told}"
        );
    }
    let missing = folder.path().join("missing");
    let told = FileDevice::open(&missing, true).unwrap_err().to_string();
    assert!(told.contains(missing.to_str().unwrap()), "{told}");
}
