//! Reading ahead, and reads from memory.

use super::*;

#[test]
fn a_read_loads_its_stripe_and_later_reads_come_from_memory() {
    let (cache, shared) = cached(with(StripeCacheOptions::new(), |options| options.read_memory = 2 * STRIPE));
    let content = seeding(&cache, 1, 4);
    for block in (0..16).rev() {
        holds(&*content, 1, STRIPE + block * 16 * KIB..STRIPE + (block + 1) * 16 * KIB);
    }
    assert_eq!(shared.reads(), [STRIPE..2 * STRIPE]);
    let statistics = cache.cache_statistics();
    assert_eq!((statistics.hits, statistics.misses, statistics.read_ahead), (15, 1, STRIPE));
    // Two stripes find room; the one that was read least recently goes.
    holds(&*content, 1, 2 * STRIPE..2 * STRIPE + 1);
    holds(&*content, 1, STRIPE..STRIPE + 1);
    holds(&*content, 1, 3 * STRIPE..3 * STRIPE + 1);
    assert_eq!(cache.cache_statistics().read_memory, 2 * STRIPE);
    holds(&*content, 1, STRIPE..STRIPE + 1);
    assert_eq!(shared.reads().len(), 3);
    holds(&*content, 1, 2 * STRIPE..2 * STRIPE + 1);
    assert_eq!(shared.reads().len(), 4);
}

#[test]
fn reading_ahead_stops_at_an_incomplete_piece() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = create(&*cache, 1, 4 * STRIPE);
    for piece in [1, 2, 3, 5, 6] {
        put(&*content, 1, piece * PIECE..(piece + 1) * PIECE);
    }
    for piece in [1, 2, 3, 6] {
        assert!(content.mark_complete(piece).unwrap());
    }
    cache.flush().unwrap();
    holds(&*content, 1, 2 * PIECE..2 * PIECE + 1);
    // Nothing ahead of a piece that may still be written to.
    holds(&*content, 1, 5 * PIECE..5 * PIECE + 1);
    assert_eq!(shared.reads(), [PIECE..4 * PIECE, 5 * PIECE..5 * PIECE + 1]);
    // Pieces that were completed since are read ahead too.
    put(&*content, 1, 4 * PIECE..5 * PIECE);
    assert!(content.mark_complete(4).unwrap());
    assert!(content.mark_complete(5).unwrap());
    holds(&*content, 1, PIECE..7 * PIECE);
    cache.flush().unwrap();
    holds(&*content, 1, 4 * PIECE..5 * PIECE);
    assert_eq!(*shared.reads().last().unwrap(), PIECE..7 * PIECE);
}

#[test]
fn bytes_in_memory_are_read_without_the_store_below() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = seeding(&cache, 1, 2);
        let in_memory = |range: Range<u64>| {
            let mut into = vec![0; (range.end - range.start) as usize];
            let there = cache.read_in_memory(&hash(1), range.start, &mut into);
            assert!(!there || into == bytes(1, range), "other bytes");
            there
        };
        assert!(!in_memory(0..16 * KIB), "nothing was read");
        holds(&*content, 1, 0..16 * KIB);
        // Every call of the store below waits from here on.
        shared.close();
        assert!(in_memory(100..STRIPE));
        assert!(!in_memory(STRIPE - 1..STRIPE + 1) && !in_memory(2 * STRIPE - 1..2 * STRIPE + 1));
        assert!(!cache.read_in_memory(&hash(2), 0, &mut [0]));
        shared.open();
        assert!(content.mark_incomplete(3).unwrap());
        assert!(!in_memory(3 * PIECE..4 * PIECE));
        holds(&*content, 1, 4 * PIECE..STRIPE);
        assert!(in_memory(4 * PIECE..STRIPE));
        shared.close();
        put(&*content, 9, 3 * PIECE..4 * PIECE);
        assert!(!in_memory(4 * PIECE..STRIPE), "some of the stripe is being written");
        shared.open();
        cache.flush().unwrap();
        assert!(!in_memory(3 * PIECE..4 * PIECE), "the piece is not complete");
        assert!(cache.delete(&hash(1)).unwrap());
        assert!(!in_memory(4 * PIECE..STRIPE));
    });
}

#[test]
fn readers_of_one_stripe_share_one_read() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = seeding(&cache, 1, 4);
        shared.close();
        let start = Arc::new(Barrier::new(8));
        let readers: Vec<_> = (0..8)
            .map(|reader| {
                let (content, start) = (Arc::clone(&content), Arc::clone(&start));
                thread::spawn(move || {
                    start.wait();
                    holds(&*content, 1, reader * PIECE..(reader + 1) * PIECE);
                })
            })
            .collect();
        shared.wait_inside(1);
        thread::sleep(Duration::from_millis(50));
        shared.open();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(shared.reads(), [0..STRIPE]);
        assert_eq!(cache.cache_statistics().hits, 7);
    });
}

#[test]
fn a_stripe_that_cannot_be_read_ahead_is_not_tried_again_and_again() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = seeding(&cache, 1, 1);
        *shared.bad_byte.lock() = Some(5 * PIECE + 7);
        for block in 0..10 {
            holds(&*content, 1, block * 16 * KIB..(block + 1) * 16 * KIB);
        }
        let ahead = shared.reads().iter().filter(|range| **range == (0..STRIPE)).count();
        assert_eq!((ahead, shared.reads().len()), (1, 11));
        assert!(matches!(content.read(5 * PIECE, &mut [0; 16]), Err(Error::Io { .. })));
        // Nor by readers that waited for it.
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = seeding(&cache, 1, 1);
        *shared.bad_byte.lock() = Some(5 * PIECE + 7);
        shared.close();
        let readers = [0, 1, 2, 3].map(|reader| {
            aside(&content, move |content| holds(content, 1, reader * PIECE..reader * PIECE + 10))
        });
        shared.wait_inside(1);
        thread::sleep(Duration::from_millis(50));
        shared.open();
        readers.iter().for_each(ends);
        let ahead = shared.reads().iter().filter(|range| **range == (0..STRIPE)).count();
        assert_eq!(ahead, 1);
        // A piece that comes anew makes it worth another attempt.
        *shared.bad_byte.lock() = None;
        assert!(content.mark_incomplete(5).unwrap());
        put(&*content, 1, 5 * PIECE..6 * PIECE);
        assert!(content.mark_complete(5).unwrap());
        cache.flush().unwrap();
        holds(&*content, 1, 0..10);
        assert_eq!(shared.reads().last(), Some(&(0..STRIPE)));
    });
}

#[test]
fn a_read_that_fails_leaves_no_reader_waiting_for_its_stripe() {
    for how in [CallFault::Fails, CallFault::Panics] {
        bounded(move || {
            let (cache, shared) = cached(StripeCacheOptions::new());
            let content = create(&*cache, 1, STRIPE);
            for piece in [0, 2] {
                put(&*content, 1, piece * PIECE..(piece + 1) * PIECE);
                assert!(content.mark_complete(piece as u32).unwrap());
            }
            cache.flush().unwrap();
            put(&*content, 1, PIECE..2 * PIECE);
            assert!(content.mark_complete(1).unwrap());
            // Both sides of the bytes in memory are read ahead; the first ends the read.
            shared.set(CallKind::Read, how);
            let reader = Arc::clone(&content);
            let read = thread::spawn(move || reader.read(0, &mut vec![0; 3 * PIECE as usize]));
            assert!(!matches!(read.join(), Ok(Ok(()))));
            shared.clear(CallKind::Read);
            ends(&aside(&content, |content| holds(content, 1, 2 * PIECE..3 * PIECE)));
            holds(&*content, 1, 0..3 * PIECE);
            assert_eq!(shared.reads().last(), Some(&(0..PIECE)), "the other side was read ahead");
            assert!(cache.delete(&hash(1)).unwrap());
            assert_eq!(cache.cache_statistics().read_memory, 0);
        });
    }
}

#[test]
fn either_side_of_an_incomplete_piece_is_read_ahead_once() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = seeding(&cache, 1, 1);
    assert!(content.mark_incomplete(4).unwrap());
    for block in 0..8 {
        holds(&*content, 1, block * 16 * KIB..(block + 1) * 16 * KIB);
        if block < 6 {
            holds(&*content, 1, 5 * PIECE + block * 16 * KIB..5 * PIECE + (block + 1) * 16 * KIB);
        }
    }
    assert_eq!(shared.reads(), [0..4 * PIECE, 5 * PIECE..STRIPE]);
    // When it has come, all is one again.
    put(&*content, 1, 4 * PIECE..5 * PIECE);
    assert!(content.mark_complete(4).unwrap());
    cache.flush().unwrap();
    holds(&*content, 1, 0..STRIPE);
    holds(&*content, 1, 4 * PIECE..5 * PIECE);
    assert_eq!(shared.reads()[2..], [0..STRIPE]);
}

#[test]
fn more_readers_than_there_is_memory_for_read_little_ahead() {
    // 4 MiB, as large stripes are, and memory for four of them; 16 peers fetch a torrent each, block by
    // block.
    let large = 4 << 20;
    let options = with(StripeCacheOptions::new(), |options| {
        (options.stripe, options.read_memory) = (Some(large as u32), 4 * large);
    });
    let (cache, shared) = over(memory(None), options);
    let peers: Vec<_> = (0..16)
        .map(|n| {
            let content = create(&*cache, n, 2 * large);
            put(&*content, n, 0..2 * large);
            (0..content.geometry().pieces()).for_each(|piece| assert!(content.mark_complete(piece).unwrap()));
            content
        })
        .collect();
    cache.flush().unwrap();
    for block in 0..2 * large / (16 * KIB) {
        for (n, content) in (0..).zip(&peers) {
            holds(&**content, n, block * 16 * KIB..(block + 1) * 16 * KIB);
        }
    }
    let read: u64 = shared.reads().iter().map(|range| range.end - range.start).sum();
    println!("{:.1} bytes read for each that was asked for", read as f64 / (16 * 2 * large) as f64);
    assert!(read < 3 * 16 * 2 * large);
    // Fewer peers have whole stripes again, sooner or later.
    let before = shared.reads().len();
    for _ in 0..2 {
        for (n, content) in (0..).zip(&peers) {
            for block in 0..2 * large / (16 * KIB) {
                holds(&**content, n, block * 16 * KIB..(block + 1) * 16 * KIB);
            }
        }
    }
    assert!(shared.reads()[before..].contains(&(0..large)), "it never tries again");
    assert_eq!(*shared.reads().last().unwrap(), large..2 * large);
}
