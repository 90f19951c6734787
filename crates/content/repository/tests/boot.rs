//! Boot of a device with thousands of torrents: its reads, its memory, and the writes of a change after
//! it.

use std::{
    io::IoSlice,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use swarmkeep_content::{
    ContentRepository, InfoHash, NewTorrent,
    block::{Allocation, BlockStore, FormatOptions, SECTOR, Sector},
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use swarmkeep_kit::{
    allocations::{Counting, live},
    device::{Access, SparseDevice},
};
use swarmkeep_store_tests::with;

const TORRENTS: u32 = 20_000;
const BLOCK: u64 = 4 << 20;
/// Blocks of 1 GB.
const BLOCKS: u64 = 239;

/// Held by a test that counts bytes.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn pieces_without_bytes_take_no_memory() {
    let _alone = ALONE.lock();
    let device = Arc::new(SparseDevice::new(64 * BLOCK / SECTOR as u64));
    let options = with(FormatOptions::new(), |options| options.block_size = Some(BLOCK as u32));
    BlockStore::format(&*device, options).unwrap();
    let store = BlockStore::boot(Arc::clone(&device), None).unwrap();
    let length = u64::from(u32::MAX);
    for n in 0..2 {
        let torrent = NewTorrent::new(InfoHash::new([n; 20]), length, 1).unwrap();
        let content = store.create(&torrent).unwrap();
        content.write_at(length - 1, &[IoSlice::new(&[n])]).unwrap();
        assert!(content.mark_complete(u32::MAX - 1).unwrap());
    }
    store.flush().unwrap();
    drop(store);

    let before = live();
    let store = Arc::new(BlockStore::boot(Arc::clone(&device), None).unwrap());
    let cache = StripeCache::new(store, StripeCacheOptions::new()).unwrap();
    let torrents = [0, 1].map(|n| cache.open(&InfoHash::new([n; 20])).unwrap());
    assert!(torrents.iter().all(|content| content.pieces().unwrap().contains(u32::MAX - 1)));
    let bytes = live() - before;
    assert!(bytes < 32 << 20, "{bytes} bytes");
}

#[test]
fn boot_of_thousands_of_full_torrents_reads_each_i_node_once() {
    let _alone = ALONE.lock();
    let blocks = u64::from(TORRENTS) * BLOCKS + 200;
    let a_block = BLOCK / SECTOR as u64;
    // 20 TB, of which the lower part, content, is forgotten.
    let device = Arc::new(SparseDevice::new(blocks * a_block));
    let forgotten = 8 * a_block..u64::from(TORRENTS) * BLOCKS * a_block;
    // Reads, sectors that were read, and writes.
    let counts = Arc::<[AtomicUsize; 3]>::default();
    let counted = Arc::clone(&counts);
    let since_the_last_call = || [0, 1, 2].map(|at: usize| counts[at].swap(0, Relaxed));
    device.watch(move |access| {
        match access {
            Access::Read(sectors) => {
                counted[0].fetch_add(1, Relaxed);
                counted[1].fetch_add((sectors.end - sectors.start) as usize, Relaxed);
            }
            Access::Write(sectors) => {
                counted[2].fetch_add(1, Relaxed);
                return Ok(!forgotten.contains(&sectors.start));
            }
            Access::Flush(_) => {}
        }
        Ok(true)
    });
    let options = with(FormatOptions::new(), |options| options.torrents = Some(TORRENTS));
    BlockStore::format(&*device, options).unwrap();
    let store = BlockStore::boot(Arc::clone(&device), Allocation::Ordered).unwrap();
    let block = vec![Sector::ZERO; a_block as usize];
    let bytes = zerocopy::IntoBytes::as_bytes(&block[..]);
    let whole: Vec<_> = (0..BLOCKS).map(|_| IoSlice::new(bytes)).collect();
    for n in 0..TORRENTS {
        let mut hash = [7; 20];
        hash[..4].copy_from_slice(&n.to_be_bytes());
        let torrent = NewTorrent::new(InfoHash::new(hash), BLOCKS * BLOCK, 1 << 20).unwrap();
        let content = store.create(&torrent).unwrap();
        content.write_at(0, &whole).unwrap();
        assert!(content.mark_complete(n % 956).unwrap());
    }
    store.flush().unwrap();
    drop(store);

    since_the_last_call();
    let bytes = live();
    let store = BlockStore::boot(Arc::clone(&device), Allocation::Ordered).unwrap();
    let (memory, [reads, sectors, _]) = (live() - bytes, since_the_last_call());
    let read = sectors * SECTOR;
    println!("boot of {TORRENTS} torrents of 1 GB: {memory} bytes of memory, {reads} reads of {read} bytes");
    assert_eq!(store.report().damage, []);
    assert_eq!(store.list().unwrap().iter().map(|summary| summary.complete).sum::<u32>(), TORRENTS);
    // The map of a torrent has 239 numbers, and its pieces 120 bytes of bits; the device has 5M blocks.
    let described = TORRENTS as usize * (BLOCKS as usize * 4 + 120);
    assert!(memory < (described + 1_000 * TORRENTS as usize) as isize, "{memory} bytes of memory");
    assert!(read < 3 * described && reads < 50, "{reads} reads of {read} bytes");

    let writes = |act: &dyn Fn()| {
        since_the_last_call();
        act();
        since_the_last_call()[2]
    };
    // The i-node, and of a root the entries and the header.
    let new = NewTorrent::new(InfoHash::new([8; 20]), 1, 1).unwrap();
    assert_eq!(writes(&|| _ = store.create(&new).unwrap()), 3);
    assert_eq!(writes(&|| assert!(store.delete(&new.info_hash).unwrap())), 5);
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
