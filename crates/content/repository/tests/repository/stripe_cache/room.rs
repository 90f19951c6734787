//! Stores below that may have too little room.

use super::*;

/// A cache over files, with a recorder between them.
fn over_files(
    folder: &tempfile::TempDir,
    allocation: files::Allocation,
    capacity: u64,
) -> (Arc<StripeCache>, Arc<Probe>) {
    let config = with(ContentConfig::new(folder.path()), |config| config.capacity = Some(capacity));
    over(Box::new(FileStore::open(&config, allocation).unwrap()), StripeCacheOptions::new())
}

#[test]
fn files_with_just_enough_room_are_written_in_whole_stripes() {
    let large = 4 << 20;
    for (allocation, length, calls) in
        [(files::Allocation::Sparse, 16 * large, 160), (files::Allocation::Preallocated, 4 * large, 4)]
    {
        let folder = tempfile::tempdir().unwrap();
        // The state takes less than a sector a piece. Where files are sparse, the last pieces find that most
        // of the room is kept for the others, and those are written out once or twice before they are whole.
        let (cache, shared) = over_files(&folder, allocation, length + 4096);
        let torrent = NewTorrent::new(hash(1), length, 256 << 10).unwrap();
        let content = cache.create(&torrent).unwrap();
        let mut pieces: Vec<_> = (0..content.geometry().pieces()).collect();
        Draw::new(5).shuffle(&mut pieces);
        for piece in pieces {
            let piece = content.geometry().piece(piece).unwrap();
            for start in piece.step_by(16 << 10) {
                put(&*content, 1, start..start + 16 * KIB);
            }
        }
        for piece in 0..content.geometry().pieces() {
            assert!(content.mark_complete(piece).unwrap());
        }
        cache.flush().unwrap();
        let statistics = cache.cache_statistics();
        println!("{allocation:?}: {statistics:?}");
        assert!(shared.writes().len() <= calls, "{statistics:?}");
        holds(&*content, 1, 0..length);
    }
}

#[test]
fn no_room_of_the_store_below_is_promised_twice() {
    bounded(|| {
        // A write that begins in a stripe that has its block and ends in one that has none.
        let device = Arc::new(SparseDevice::new(64 * 64));
        BlockStore::format(&*device, blocks_of(STRIPE as u32)).unwrap();
        let store = BlockStore::boot(device, Allocation::Sequential).unwrap();
        let (cache, _) =
            over(Box::new(store), with(StripeCacheOptions::new(), |options| options.threads = 1));
        let content = create(&*cache, 1, 200 * STRIPE);
        let free = cache.statistics().free.unwrap() / STRIPE;
        let placed = free / 2 + 1;
        for stripe in 0..placed {
            put(&*content, 1, 2 * stripe * STRIPE..(2 * stripe + 1) * STRIPE);
        }
        cache.flush().unwrap();
        for stripe in 0..placed {
            let end = (2 * stripe + 1) * STRIPE;
            match content.write(end - PIECE, &bytes(1, end - PIECE..end + 100)) {
                Ok(()) => {}
                Err(Error::Full { .. }) => break,
                Err(error) => panic!("{error}"),
            }
            // The first stripe is written, and its reserved room released.
            assert!(content.mark_complete(((end - 1) / PIECE) as u32).unwrap());
            while cache.statistics().unwritten > (stripe + 1) * CHUNK {
                thread::yield_now();
            }
        }
        // Whatever was taken finds its place.
        cache.flush().unwrap();
    });
}

#[test]
fn writes_that_go_through_at_once_all_end() {
    for seed in 0..3 {
        bounded(move || {
            // Room for 10 stripes, of which eight threads want 40.
            let options = with(StripeCacheOptions::new(), |options| options.write_memory = 2 * STRIPE);
            let (cache, _) = over(memory(Some(10 * STRIPE)), options);
            let threads: Vec<_> = (0..8)
                .map(|thread| {
                    let cache = Arc::clone(&cache);
                    let content = create(&*cache, thread, 5 * STRIPE);
                    thread::spawn(move || {
                        let mut draw = Draw::new(seed * 8 + thread);
                        let mut kept = Vec::new();
                        for _ in 0..40 {
                            let start = draw.below(5 * STRIPE / PIECE) * PIECE;
                            match content.write(start, &bytes(thread, start..start + PIECE)) {
                                Ok(()) => kept.push(start),
                                Err(Error::Full { .. }) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                        kept.into_iter().for_each(|start| holds(&*content, thread, start..start + PIECE));
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            // No byte that was accepted is refused later.
            cache.flush().unwrap();
            assert!(cache.statistics().used <= 10 * STRIPE);
        });
    }
}

#[test]
fn a_write_that_goes_through_makes_way_again_for_later_writes() {
    bounded(|| {
        let options = with(StripeCacheOptions::new(), |options| options.threads = 1);
        let (cache, shared) = over(memory(Some(3 * STRIPE)), options);
        let torrents = [1, 2].map(|n| create(&*cache, n, 2 * STRIPE));
        put(&*torrents[1], 2, STRIPE..2 * STRIPE);
        cache.flush().unwrap();
        // It has room for the one stripe, and still asks for the other, which needs none. Neither is whole
        // then, nor written by itself.
        shared.set(CallKind::RoomAt(STRIPE), CallFault::Waits);
        let gathering = aside(&torrents[1], |content| put(content, 2, PIECE..2 * STRIPE));
        shared.wait_inside(1);
        let through = aside(&torrents[0], |content| put(content, 1, 0..PIECE));
        waits(&through);
        shared.open();
        [gathering, through].iter().for_each(ends);
        cache.flush().unwrap();
        holds(&*torrents[0], 1, 0..PIECE);
        holds(&*torrents[1], 2, PIECE..2 * STRIPE);
    });
}
