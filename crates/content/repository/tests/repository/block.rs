//! The store on a block device, beyond the suite of all stores: its geometry, its boot, its damage, its
//! sizes.

use swarmkeep_content::block::{Damage, FileDevice, Owner};

use super::*;

const KIB: u64 = 1 << 10;
const PIECE: u32 = 16 << 10;

fn device(mib: u64, options: FormatOptions) -> Arc<SparseDevice> {
    let device = Arc::new(SparseDevice::new(mib * 256));
    BlockStore::format(&*device, options).unwrap();
    device
}

/// A device of 16 MiB for each way to choose blocks.
pub(crate) fn devices(options: FormatOptions) -> [Arc<SparseDevice>; 2] {
    [Allocation::Sequential, Allocation::Ordered]
        .map(|allocation| device(16, with(options, |options| options.allocation = allocation)))
}

pub(crate) fn small() -> Arc<SparseDevice> {
    device(16, FormatOptions::new())
}

pub(crate) fn boot(device: &Arc<SparseDevice>) -> BlockStore {
    let store = BlockStore::boot(Arc::clone(device), None).unwrap();
    store.audit().unwrap();
    store
}

/// Makes a new root without torrent files. Returns the number of torrents.
pub(crate) fn salvage(device: &Arc<impl BlockDevice + 'static>) -> u32 {
    BlockStore::salvage(Arc::clone(device), &|_| None).unwrap().0
}

/// Takes in a torrent, and some of its pieces.
fn fill(store: &BlockStore, n: u64, length: u64, pieces: impl IntoIterator<Item = u32>) -> Arc<dyn Content> {
    let content = store.create(&NewTorrent::new(hash(n), length, PIECE).unwrap()).unwrap();
    for piece in pieces {
        let range = content.geometry().piece(piece).unwrap();
        content.write(range.start, &bytes(n, range)).unwrap();
        assert!(content.mark_complete(piece).unwrap());
    }
    content
}

/// Asserts that a torrent has exactly these pieces, with the right bytes.
fn assert_has(store: &BlockStore, n: u64, pieces: impl IntoIterator<Item = u32>) {
    let content = store.open(&hash(n)).unwrap();
    let has: Vec<_> = content.pieces().unwrap().iter().collect();
    assert_eq!(has, pieces.into_iter().collect::<Vec<_>>(), "torrent {n}");
    for piece in has {
        let range = content.geometry().piece(piece).unwrap();
        assert!(content.read_piece(piece).unwrap() == bytes(n, range), "piece {piece} of torrent {n}");
    }
}

#[test]
fn sequential_goes_on_where_it_left_off() {
    let device = small();
    let store = boot(&device);
    let content = fill(&store, 1, 320 * KIB, 0..20);
    let last = content.place(319 * KIB).unwrap() >> 14;
    store.flush().unwrap();
    store.delete(&hash(1)).unwrap();
    drop(store);
    let content = fill(&boot(&device), 2, 16 * KIB, [0]);
    assert_eq!(content.place(0).unwrap() >> 14, last + 2, "one block for the i-node is between");
}

#[test]
fn a_torrent_beyond_a_pebibyte_is_held() {
    // 3 PiB of device, 2 PiB + 1 B of torrent, in blocks of 4 MiB.
    let device = Arc::new(SparseDevice::new((3 << 50) / SECTOR as u64));
    BlockStore::format(&*device, FormatOptions::new()).unwrap();
    let store = boot(&device);
    assert_eq!(store.block_size(), 4 << 20);
    let length = (2_u64 << 50) + 1;
    let content = store.create(&NewTorrent::new(hash(1), length, 16 << 20).unwrap()).unwrap();
    assert_eq!(content.geometry().pieces(), (1 << 27) + 1);
    let places = [0, 1 << 40, (1 << 50) + 123, length - 70_000];
    for place in places {
        content.write(place, &bytes(1, place..place + 70_000)).unwrap();
    }
    assert!(content.mark_complete(1 << 27).unwrap(), "the last piece has one byte");
    assert!(matches!(content.mark_complete(0), Err(Error::NotWritten { at: 70_000 })));
    for place in places {
        let mut read = vec![0; 70_000];
        content.read(place, &mut read).unwrap();
        assert!(read == bytes(1, place..place + 70_000));
    }
    store.flush().unwrap();
    drop((store, content));
    let store = boot(&device);
    assert_eq!(store.report().damage, []);
    let content = store.open(&hash(1)).unwrap();
    assert_eq!((content.geometry().len(), content.pieces().unwrap().count()), (length, 1));
    let mut last = [0];
    content.read(length - 1, &mut last).unwrap();
    assert_eq!(last[..], bytes(1, length - 1..length));
    // Six blocks of content, a map block for each place and one for the bit, the slab, the root.
    let (content_blocks, maps) =
        store.owners().iter().fold((0, 0), |(content, maps), (run, owner)| match owner {
            Owner::Content(_) => (content + run.len(), maps),
            Owner::Map(_) => (content, maps + run.len()),
            _ => (content, maps),
        });
    assert!((5..=7).contains(&content_blocks) && (4..=6).contains(&maps), "{content_blocks}, {maps}");
    assert!(store.delete(&hash(1)).unwrap());
    store.audit().unwrap();
}

#[test]
fn a_damaged_sector_costs_its_contents_and_nothing_else() {
    let device = small();
    let store = boot(&device);
    for n in 0..6 {
        // 400 blocks: four sectors of map behind the header, in an i-node of 4 KiB.
        let length = if n == 5 { 400 * 16 * KIB } else { 32 * KIB };
        fill(&store, n, length, if n == 5 { vec![0, 1, 130, 399] } else { vec![0, 1] });
    }
    store.flush().unwrap();
    let slab_of = |store: &BlockStore, nth: usize| {
        let owners = store.owners();
        let blocks: Vec<_> =
            owners.iter().filter(|(_, owner)| *owner == Owner::Inodes).map(|(run, _)| run.start).collect();
        u64::from(blocks[nth]) * 4
    };
    let (small_inodes, large_inode) = (slab_of(&store, 0), slab_of(&store, 1));
    drop(store);
    // The header of the second torrent's i-node of 1 KiB, and the second sector of the large one's map:
    // blocks 127 to 253.
    corrupt(&device, small_inodes, 2);
    corrupt(&device, large_inode, 2);
    let store = boot(&device);
    assert_eq!(
        store.report().damage,
        [Damage::Map { info_hash: hash(5), sectors: 1, pieces: 1 }, Damage::Lost { info_hash: hash(1) },]
    );
    let check = |store: &BlockStore| {
        for n in [0, 2, 3, 4] {
            assert_has(store, n, [0, 1]);
        }
        assert_has(store, 5, [0, 1, 399]);
        assert!(matches!(store.open(&hash(1)), Err(Error::NotFound(_))));
        assert_eq!(store.report().lost, [hash(1)]);
    };
    check(&store);
    drop(store);
    // It is mended, and the lost torrents stay named.
    let store = boot(&device);
    assert_eq!(store.report().damage, []);
    check(&store);
    fill(&store, 1, 16 * KIB, [0]);
    drop(store);
    assert_eq!(boot(&device).report().lost, []);
}

#[test]
fn a_damaged_root_costs_the_last_change_at_most() {
    let device = small();
    let store = boot(&device);
    (0..5).for_each(|n| drop(fill(&store, n, 16 * KIB, [0])));
    store.flush().unwrap();
    store.delete(&hash(0)).unwrap();
    // Takes the room of the deleted torrent.
    fill(&store, 5, 15 * 1024 * KIB, 0..600);
    let generation = store.report().generation + 9;
    drop(store);
    // Format wrote generations 1 and 2, a flush after creations writes one, a deletion two; the odd ones lie
    // in block 1.
    let latest = if generation % 2 == 1 { 4 } else { 0 };
    for (sector, undone) in [(latest, true), (latest + 2, true), (4 - latest, false)] {
        let copy = Arc::new(SparseDevice::from_sectors(device.sectors(), all_sectors(&device)));
        corrupt(&copy, sector, 0);
        let store = boot(&copy);
        let damage = &store.report().damage[..];
        assert!(matches!(damage, [Damage::OlderRoot { alike: false, .. }]), "{damage:?}");
        assert_eq!(store.open(&hash(5)).is_err(), undone);
        (1..5).for_each(|n| assert_has(&store, n, [0]));
    }
    // Both copies: their readable sectors are combined.
    corrupt(&device, 0, 0);
    corrupt(&device, 6, 0);
    assert!(matches!(
        boot(&device).report().damage[..],
        [Damage::Root { .. } | Damage::OlderRoot { .. }, ..]
    ));
}

pub(crate) fn all_sectors(device: &SparseDevice) -> Vec<Sector> {
    let mut all = vec![Sector::ZERO; device.sectors() as usize];
    device.read(0, &mut all).unwrap();
    all
}

#[test]
fn a_device_without_a_store_is_refused_with_a_reason() {
    let refused = |device: SparseDevice| match BlockStore::boot(device, Allocation::Sequential) {
        Err(Error::NotAStore { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert!(refused(SparseDevice::new(100)).contains("format it"));
    assert!(refused(SparseDevice::new(0)).contains("format it"));
    let small = small();
    let cut = SparseDevice::from_sectors(2000, all_sectors(&small));
    assert!(refused(cut).contains("part of it is missing"), "a shorter device");
    let too_small = BlockStore::format(&SparseDevice::new(8), FormatOptions::new());
    assert!(matches!(too_small, Err(Error::Full { .. })), "{too_small:?}");
    let odd = BlockStore::format(&*small, blocks_of(20_000));
    assert!(matches!(odd, Err(Error::Unsupported(_))), "{odd:?}");
}

#[test]
fn torrents_are_found_without_a_root() {
    for (block_size, cut) in [(16_u64 << 10, 0), (16 << 10, 40), (64 << 10, 0), (256 << 10, 3), (1 << 20, 0)]
    {
        let options = blocks_of(block_size as u32);
        let device = device(128, options);
        let store = boot(&device);
        // In blocks of 16 KiB, the map of the third lies in blocks of its own.
        let lengths = [5, 300 * KIB + 7, 70_000 * KIB, 1000 * KIB];
        let pieces = [vec![0], (0..19).collect(), vec![0, 1, 130, 4374], vec![3, 60, 62]];
        for (n, (length, pieces)) in (0..).zip(lengths.into_iter().zip(&pieces)) {
            fill(&store, n, length, pieces.iter().copied());
        }
        fill(&store, 9, 40 * KIB, 0..3);
        store.flush().unwrap();
        assert!(store.delete(&hash(9)).unwrap());
        drop(store);
        // The unwritten end is gone, and all of the root.
        let per = block_size / SECTOR as u64;
        let mut all = all_sectors(&device);
        all.truncate(all.len() - (cut * per) as usize);
        all[..2 * per as usize].fill(Sector::ZERO);
        let gone = Arc::new(SparseDevice::from_sectors(all.len() as u64, all));
        let refused = BlockStore::boot(Arc::clone(&gone), Allocation::Sequential).unwrap_err();
        assert!(refused.to_string().contains("or repair it"), "{refused}");
        assert_eq!(salvage(&gone), 4, "blocks of {block_size}");
        for _ in 0..2 {
            let store = boot(&gone);
            assert_eq!((store.report().damage.len(), store.block_size() as u64), (0, block_size));
            (0..).zip(&pieces).for_each(|(n, pieces)| assert_has(&store, n, pieces.iter().copied()));
            assert_eq!(store.list().unwrap().len(), 4);
        }
    }
    assert_eq!(salvage(&Arc::new(SparseDevice::new(4096))), 0);
}

#[test]
fn torrents_of_less_than_a_block_tell_its_size_without_a_root() {
    let device = device(128, blocks_of(64 << 10));
    let store = boot(&device);
    [5, 300].into_iter().zip(1..).for_each(|(length, n)| drop(fill(&store, n, length, [0])));
    store.flush().unwrap();
    drop(store);
    device.write(0, &[&[Sector::ZERO; 32]]).unwrap();
    assert_eq!(salvage(&device), 2);
    let store = boot(&device);
    assert_eq!((&*store.report().damage, store.block_size()), (&[][..], 64 << 10));
    (1..3).for_each(|n| assert_has(&store, n, [0]));
}

#[test]
fn a_shorter_device_costs_the_content_behind_its_end() {
    let device = small();
    let store = boot(&device);
    (0..5).for_each(|n| drop(fill(&store, n, 1600 * KIB, 0..100)));
    store.flush().unwrap();
    let place = |n: u64, piece: u64| store.open(&hash(n)).unwrap().place(piece * 16 * KIB).unwrap();
    let end = place(4, 50) / SECTOR as u64;
    drop(store);
    let cut = Arc::new(SparseDevice::from_sectors(end, all_sectors(&device)));
    let refused = BlockStore::boot(Arc::clone(&cut), Allocation::Sequential).unwrap_err();
    assert!(refused.to_string().contains("repair it to keep the rest"), "{refused}");
    assert_eq!(salvage(&cut), 5);
    let store = boot(&cut);
    assert_eq!(store.report().damage, [Damage::Blocks { info_hash: hash(4), blocks: 50 }]);
    (0..4).for_each(|n| assert_has(&store, n, 0..100));
    assert_has(&store, 4, 0..50);
    drop(store);
    assert_eq!(boot(&cut).report().damage, []);
}

#[test]
fn another_format_leaves_nothing_of_the_one_before() {
    let device = small();
    fill(&boot(&device), 1, 16 * KIB, [0]);
    for block_size in [16 << 10, 64 << 10, 32 << 10] {
        BlockStore::format(&*device, blocks_of(block_size)).unwrap();
        let store = boot(&device);
        assert_eq!((store.block_size(), store.list().unwrap().len()), (block_size, 0));
        fill(&store, 2, 16 * KIB, [0]);
    }
    // Even if the first copy of the new root is lost.
    corrupt(&device, 0, 0);
    assert_eq!(boot(&device).block_size(), 32 << 10);
}

#[test]
fn a_store_in_use_is_refused_to_others_and_a_read_only_one_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let device = FileDevice::create_image(&path, 4 << 20).unwrap();
    BlockStore::format(&device, FormatOptions::new()).unwrap();
    drop(device);
    let store = BlockStore::open(&path, Allocation::Ordered).unwrap();
    fill(&store, 1, 50_000, 0..4);
    store.flush().unwrap();
    for second in [BlockStore::open(&path, Allocation::Ordered), BlockStore::open_read_only(&path)] {
        assert!(matches!(&second, Err(Error::InUse { path: of }) if *of == path), "{second:?}");
    }
    drop(store);
    let before = std::fs::read(&path).unwrap();
    let (reader, other) =
        (BlockStore::open_read_only(&path).unwrap(), BlockStore::open_read_only(&path).unwrap());
    assert_has(&reader, 1, 0..4);
    assert_has(&other, 1, 0..4);
    assert!(matches!(BlockStore::open(&path, Allocation::Ordered), Err(Error::InUse { .. })));
    let refused = reader.create(&NewTorrent::new(hash(2), 1, 1).unwrap());
    assert!(matches!(refused, Err(Error::ReadOnly { .. })), "{refused:?}");
    assert!(matches!(reader.delete(&hash(1)), Err(Error::ReadOnly { .. })));
    assert!(matches!(reader.open(&hash(1)).unwrap().mark_incomplete(0), Err(Error::ReadOnly { .. })));
    drop((reader, other));
    assert!(std::fs::read(&path).unwrap() == before);
    assert!(matches!(
        BlockStore::open(Path::new("/dev/null"), Allocation::Ordered),
        Err(Error::NotAStore { .. })
    ));
}

#[test]
fn an_image_without_room_for_it_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let error = FileDevice::create_image(&path, 1 << 60).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(!path.exists());
}
