//! Gathering, the time of writes, and their order.

use super::*;

#[test]
fn a_whole_stripe_is_written_with_one_call_of_aligned_memory() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = create(&*cache, 1, 2 * STRIPE + 40_000);
    let mut blocks: Vec<_> = (0..STRIPE / (16 * KIB)).collect();
    Draw::new(1).shuffle(&mut blocks);
    for block in blocks {
        assert_eq!(shared.writes(), []);
        put(&*content, 1, block * 16 * KIB..(block + 1) * 16 * KIB);
    }
    settle(&cache);
    let whole = |range| StoreCall::Write { torrent: hash(1), range, aligned: true };
    assert_eq!(*shared.calls.lock(), [whole(0..STRIPE)]);
    // The last one is shorter, and no less whole.
    put(&*content, 1, 2 * STRIPE..2 * STRIPE + 40_000);
    settle(&cache);
    assert_eq!(shared.writes()[1..], [(hash(1), 2 * STRIPE..2 * STRIPE + 40_000)]);
    let statistics = cache.cache_statistics();
    assert_eq!((statistics.whole, statistics.partial, statistics.calls), (2, 0, 2));
    holds(&*content, 1, 0..STRIPE);
    holds(&*content, 1, 2 * STRIPE..2 * STRIPE + 40_000);
}

#[test]
fn all_whole_stripes_are_written_in_the_order_of_their_places() {
    for places in [
        None,
        Some(
            (|torrent: InfoHash, offset| {
                // Backwards, and the torrents interleaved.
                (1 << 40) - 2 * offset - u64::from(torrent.as_bytes()[7])
            }) as fn(InfoHash, u64) -> u64,
        ),
    ] {
        bounded(move || {
            let (cache, shared) = cached(StripeCacheOptions::new());
            *shared.places.lock() = places;
            let torrents = [1, 2].map(|n| create(&*cache, n, 16 * STRIPE));
            shared.close();
            put(&*torrents[0], 1, 0..STRIPE);
            shared.wait_inside(1);
            let mut stripes: Vec<_> = (1..16).flat_map(|stripe| [(0, stripe), (1, stripe)]).collect();
            Draw::new(7).shuffle(&mut stripes);
            for (torrent, stripe) in stripes {
                put(&*torrents[torrent], torrent as u64 + 1, stripe * STRIPE..(stripe + 1) * STRIPE);
            }
            shared.open();
            settle(&cache);
            let writes = shared.writes();
            assert_eq!(writes.len(), 31);
            let key = |(torrent, range): &(InfoHash, Range<u64>)| {
                (places.map(|place| place(*torrent, range.start)), *torrent, range.start)
            };
            assert!(writes[1..].is_sorted_by_key(key), "{writes:?}");
        });
    }
}

#[test]
fn a_flush_writes_everything_in_order_then_marks_then_flushes() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = create(&*cache, 1, 8 * STRIPE);
    for stripe in [5, 2, 7, 0] {
        put(&*content, 1, stripe * STRIPE..stripe * STRIPE + PIECE);
        put(&*content, 1, stripe * STRIPE + 2 * PIECE..stripe * STRIPE + 3 * PIECE + 5);
        assert!(content.mark_complete((stripe * STRIPE / PIECE) as u32).unwrap());
    }
    assert_eq!(*shared.calls.lock(), []);
    cache.flush().unwrap();
    let runs = [0, 2, 5, 7]
        .map(|stripe| stripe * STRIPE)
        .map(|start| [(hash(1), start..start + PIECE), (hash(1), start + 2 * PIECE..start + 3 * PIECE + 5)]);
    assert_eq!(shared.writes(), runs.as_flattened());
    let calls = shared.calls.lock().clone();
    assert_eq!(calls.last(), Some(&StoreCall::Flush));
    for piece in [0, 16, 40, 56] {
        let mark = calls.iter().position(|call| *call == StoreCall::Mark(piece)).unwrap();
        let start = u64::from(piece) * PIECE;
        let write = |call: &StoreCall| matches!(call, StoreCall::Write { range, .. } if range.start == start);
        assert!(mark > calls.iter().position(write).unwrap(), "{calls:?}");
    }
    assert_eq!(cache.inner().list().unwrap()[0].complete, 4);
    assert_eq!(cache.statistics().unwritten, 0);
    let statistics = cache.cache_statistics();
    assert_eq!((statistics.whole, statistics.partial, statistics.calls), (0, 4, 8));
    cache.flush().unwrap();
    assert_eq!(shared.writes().len(), 8, "nothing is written twice");
}

#[test]
fn a_stripe_that_is_not_whole_waits_until_it_is_old_and_so_do_its_pieces() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        // Every eighth piece lies in two stripes.
        let torrent = NewTorrent::new(hash(1), 8 * STRIPE, STRIPE as u32 / 8 - 1000).unwrap();
        let content = cache.create(&torrent).unwrap();
        let end = content.geometry().piece(8).unwrap().end;
        put(&*content, 1, 0..end);
        (0..9).for_each(|piece| assert!(content.mark_complete(piece).unwrap()));
        let below = || cache.inner().open(&hash(1)).unwrap().pieces().unwrap();
        assert!(cache.flush_older(Duration::from_secs(3600)).unwrap(), "something waits");
        assert_eq!(shared.writes(), [(hash(1), 0..STRIPE)]);
        assert_eq!(shared.calls.lock().last(), Some(&StoreCall::Flush));
        assert!(below().iter().eq(0..8), "the last is not all there");
        assert!(content.pieces().unwrap().contains(8));
        thread::sleep(Duration::from_millis(20));
        assert!(!cache.flush_older(Duration::from_millis(20)).unwrap());
        assert_eq!(shared.writes()[1..], [(hash(1), STRIPE..end)]);
        assert!(below().iter().eq(0..9));
    });
}

#[test]
fn at_the_limit_a_write_waits_and_memory_stays_below_it() {
    bounded(|| {
        let (cache, shared) =
            cached(with(StripeCacheOptions::new(), |options| options.write_memory = 2 * STRIPE));
        assert_eq!(cache.statistics().most_unwritten, 2 * STRIPE);
        let content = create(&*cache, 1, 8 * STRIPE);
        shared.close();
        put(&*content, 1, 0..STRIPE);
        put(&*content, 1, STRIPE..2 * STRIPE);
        assert_eq!(cache.statistics().unwritten, 2 * STRIPE);
        shared.wait_inside(1);
        let writer = aside(&content, |content| put(content, 1, 4 * STRIPE..4 * STRIPE + 1));
        waits(&writer);
        // Bytes in memory are overwritten without more memory.
        put(&*content, 1, STRIPE..STRIPE + 100);
        assert_eq!(cache.statistics().unwritten, 2 * STRIPE);
        shared.open();
        ends(&writer);
        holds(&*content, 1, 4 * STRIPE..4 * STRIPE + 1);
        cache.flush().unwrap();
        holds(&*content, 1, 0..2 * STRIPE);
    });
}

#[test]
fn without_whole_stripes_the_ones_that_miss_least_make_room() {
    bounded(|| {
        const STRIPE: u64 = 4 * CHUNK;
        let options = with(StripeCacheOptions::new(), |options| {
            (options.stripe, options.write_memory) = (Some(STRIPE as u32), 8 * CHUNK);
        });
        let (cache, shared) = cached(options);
        let content = create(&*cache, 1, 8 * STRIPE);
        put(&*content, 1, 0..CHUNK);
        put(&*content, 1, STRIPE..STRIPE + 3 * CHUNK);
        put(&*content, 1, 2 * STRIPE..2 * STRIPE + 2 * CHUNK);
        put(&*content, 1, 3 * STRIPE..3 * STRIPE + 2 * CHUNK);
        assert_eq!(shared.writes(), []);
        put(&*content, 1, 4 * STRIPE..4 * STRIPE + 1);
        assert_eq!(shared.writes(), [(hash(1), STRIPE..STRIPE + 3 * CHUNK)]);
        // It now misses but one chunk, and goes as soon as that has come.
        put(&*content, 1, STRIPE + 3 * CHUNK..2 * STRIPE);
        while shared.writes().len() < 2 {
            thread::yield_now();
        }
        assert_eq!(shared.writes()[1..], [(hash(1), STRIPE + 3 * CHUNK..2 * STRIPE)]);
    });
}

#[test]
fn bytes_written_again_meanwhile_are_read_at_once_and_written_last() {
    bounded(|| {
        let (cache, shared) = over(memory(None), StripeCacheOptions::new());
        let content = create(&*cache, 1, 4 * STRIPE);
        shared.close();
        put(&*content, 1, 0..STRIPE);
        shared.wait_inside(1);
        put(&*content, 9, PIECE..2 * PIECE);
        holds(&*content, 9, PIECE..2 * PIECE);
        holds(&*content, 1, 2 * PIECE..STRIPE);
        // It is due, but does not overtake.
        assert!(content.mark_complete(1).unwrap());
        let asked = shared.asked.load(Relaxed);
        thread::sleep(Duration::from_millis(50));
        assert_eq!(shared.writes(), [(hash(1), 0..STRIPE)]);
        assert!(shared.asked.load(Relaxed) - asked < 10, "no thread asks again and again");
        shared.open();
        cache.flush().unwrap();
        assert_eq!(shared.writes(), [(hash(1), 0..STRIPE), (hash(1), PIECE..2 * PIECE)]);
        holds(&*content, 9, PIECE..2 * PIECE);
    });
}

#[test]
fn a_whole_stripe_that_begins_anew_waits_until_it_is_whole_again() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let (content, other) = (create(&*cache, 1, 4 * STRIPE), create(&*cache, 2, 4 * STRIPE));
        shared.close();
        put(&*other, 2, 0..STRIPE);
        shared.wait_inside(1);
        put(&*content, 1, 0..STRIPE);
        for piece in 0..8 {
            assert!(content.mark_complete(piece).unwrap());
        }
        for piece in 0..8 {
            assert!(content.mark_incomplete(piece).unwrap());
        }
        put(&*content, 1, 0..16 * KIB);
        shared.open();
        // A later stripe has been written, so this one would be.
        put(&*other, 2, 2 * STRIPE..3 * STRIPE);
        while cache.statistics().unwritten > CHUNK {
            thread::yield_now();
        }
        assert_eq!(shared.writes(), [(hash(2), 0..STRIPE), (hash(2), 2 * STRIPE..3 * STRIPE)]);
    });
}

#[test]
fn one_write_that_stalls_keeps_no_thread_from_making_room() {
    let options = with(StripeCacheOptions::new(), |options| options.write_memory = 2 * STRIPE);
    let (cache, shared) = over(memory(None), options);
    let (stalled, other) = (create(&*cache, 1, 8 * STRIPE), create(&*cache, 2, 8 * STRIPE));
    shared.set(CallKind::WriteOf(hash(1)), CallFault::Waits);
    put(&*stalled, 1, 0..STRIPE);
    shared.wait_inside(1);
    for stripe in 0..4 {
        put(&*other, 2, stripe * STRIPE..stripe * STRIPE + 64 * KIB);
    }
    ends(&aside(&other, |other| put(other, 2, 4 * STRIPE..4 * STRIPE + 64 * KIB)));
    shared.open();
    cache.flush().unwrap();
    holds(&*other, 2, 4 * STRIPE..4 * STRIPE + 64 * KIB);
}

#[test]
fn memory_goes_to_the_call_that_waited_first() {
    const STRIPE: u64 = 2 * CHUNK;
    let options = with(StripeCacheOptions::new(), |options| {
        (options.stripe, options.write_memory) = (Some(STRIPE as u32), 2 * STRIPE);
    });
    let (cache, shared) = cached(options);
    let torrents = [1, 2, 3].map(|n| create(&*cache, n, 8 * STRIPE));
    // Half of the memory is stuck, and half can be taken back chunk by chunk.
    shared.close();
    put(&*torrents[2], 3, 0..STRIPE);
    shared.wait_inside(1);
    for stripe in [0, 1] {
        put(&*torrents[0], 1, stripe * STRIPE..stripe * STRIPE + CHUNK);
    }
    for piece in (0..8).chain(16..24) {
        assert!(torrents[0].mark_complete(piece).unwrap());
    }
    // The first wants most: no other overtakes it.
    let writers = [STRIPE, 1, 1].map(|len| {
        let start = if len == 1 { 5 * STRIPE } else { 2 * STRIPE };
        let told = aside(&torrents[1], move |content| put(content, 2, start..start + len));
        waits(&told);
        told
    });
    let take_back = |pieces: Range<u32>| {
        pieces.for_each(|piece| assert!(torrents[0].mark_incomplete(piece).unwrap()));
    };
    take_back(0..8);
    take_back(16..22);
    writers.iter().for_each(waits);
    take_back(22..24);
    ends(&writers[0]);
    writers[1..].iter().for_each(waits);
    shared.open();
    writers[1..].iter().for_each(ends);
}
