//! Refusals and losses of the store below, and how the cache reports them.

use super::*;

#[test]
fn refused_bytes_count_as_never_written_and_are_reported() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = create(&*cache, 1, 4 * STRIPE);
    let other = create(&*cache, 2, 4 * STRIPE);
    shared.close();
    // A piece that lies in no other stripe, and one that was there before.
    put(&*content, 1, 0..STRIPE);
    shared.wait_inside(1);
    for piece in 0..8 {
        assert!(content.mark_complete(piece).unwrap());
    }
    shared.set(CallKind::Write, CallFault::Fails);
    shared.open();
    settle(&cache);
    shared.clear(CallKind::Write);
    while content.pieces().unwrap().count() > 0 {
        thread::yield_now();
    }
    assert_eq!(first_missing(&*content, 0..STRIPE), Some(0));
    // Not that nothing was written: that is no reason.
    let told = content.mark_complete(0).unwrap_err();
    assert!(matches!(&told, Error::Io { source, .. } if source.raw_os_error() == Some(5)), "{told}");
    // The next write of that torrent says so and writes nothing; the one after does not.
    put(&*other, 2, 0..5);
    let told = content.write(0, &bytes(1, 0..10)).unwrap_err();
    assert!(matches!(&told, Error::Io { source, .. } if source.raw_os_error() == Some(5)), "{told}");
    assert_eq!(first_missing(&*content, 0..1), Some(0));
    put(&*content, 1, 0..PIECE);
    assert!(content.mark_complete(0).unwrap());
    // So does the next flush, which does all the rest.
    let told = cache.flush().unwrap_err();
    assert!(matches!(&told, Error::Refused { info_hash, .. } if *info_hash == hash(1)), "{told}");
    cache.flush().unwrap();
    assert_eq!(cache.inner().open(&hash(1)).unwrap().pieces().unwrap().count(), 1);
    holds(&*content, 1, 0..PIECE);
    holds(&*other, 2, 0..5);
}

#[test]
fn refused_bytes_may_be_written_again_and_older_ones_are_not_complete() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = create(&*cache, 1, 4 * STRIPE);
        // An older version of the first piece is on the store below.
        put(&*content, 9, 0..PIECE);
        cache.flush().unwrap();
        put(&*content, 1, 0..PIECE);
        put(&*content, 1, 2 * PIECE..3 * PIECE);
        assert!(content.mark_complete(0).unwrap());
        shared.set(CallKind::Write, CallFault::Fails);
        assert!(matches!(cache.flush(), Err(Error::Refused { .. })));
        shared.clear(CallKind::Write);
        assert_eq!(content.pieces().unwrap().count(), 0);
        assert_eq!(cache.inner().open(&hash(1)).unwrap().pieces().unwrap().count(), 0);
        assert_eq!(first_missing(&*content, 0..PIECE), Some(0));
        assert_eq!(first_missing(&*content, 2 * PIECE..3 * PIECE), Some(2 * PIECE));
        assert!(matches!(content.write(0, &[1]), Err(Error::Io { .. })));
        // All of it is missing, so that it is whole when all has come again, and not before.
        let before = shared.writes().len();
        put(&*content, 1, 0..PIECE);
        assert_eq!(cache.affinity(&hash(1), 1)[0].missing, STRIPE - PIECE);
        put(&*content, 1, PIECE..STRIPE);
        settle(&cache);
        assert_eq!(shared.writes()[before..], [(hash(1), 0..STRIPE)]);
        holds(&*content, 1, 0..STRIPE);
    });
}

#[test]
fn a_mark_that_the_store_below_refuses_is_taken_back_and_reported() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = create(&*cache, 1, 4 * STRIPE);
    put(&*content, 1, 0..PIECE);
    assert!(content.mark_complete(0).unwrap());
    shared.set(CallKind::Mark, CallFault::Fails);
    assert!(matches!(cache.flush(), Err(Error::Refused { .. })));
    assert_eq!(content.pieces().unwrap().count(), 0);
    holds(&*content, 1, 0..PIECE);
    // With its bytes below, it is passed on at once.
    assert!(matches!(content.mark_complete(0), Err(Error::Io { .. })));
    assert_eq!(content.pieces().unwrap().count(), 0);
    shared.clear(CallKind::Mark);
    assert!(content.mark_complete(0).unwrap());
    cache.flush().unwrap();
    assert_eq!(cache.inner().open(&hash(1)).unwrap().pieces().unwrap().count(), 1);
}

#[test]
fn each_flush_reports_the_refusals_of_one_torrent() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let torrents = [1, 2].map(|n| create(&*cache, n, 4 * STRIPE));
        for (n, content) in (1..).zip(&torrents) {
            put(&**content, n, 0..PIECE);
            assert!(content.mark_complete(0).unwrap());
        }
        shared.set(CallKind::Write, CallFault::Fails);
        // The store's own error is worse, and comes first.
        shared.set(CallKind::Flush, CallFault::Fails);
        assert!(matches!(cache.flush(), Err(Error::Io { .. })));
        shared.how.lock().clear();
        let mut told: Vec<_> = (0..2)
            .map(|_| match cache.flush() {
                Err(Error::Refused { info_hash, source }) => {
                    assert!(matches!(*source, Error::Io { .. }), "{source}");
                    info_hash
                }
                other => panic!("{other:?}"),
            })
            .collect();
        told.sort_unstable();
        assert_eq!(told, [hash(1), hash(2)]);
        cache.flush().unwrap();
    });
}

#[test]
fn two_flushes_at_once_both_report_a_refusal() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = create(&*cache, 1, 4 * STRIPE);
        put(&*content, 1, 0..PIECE);
        assert!(content.mark_complete(0).unwrap());
        shared.close();
        let both = Arc::new(Barrier::new(3));
        let flushes = [0, 1].map(|_| {
            let (cache, both) = (Arc::clone(&cache), Arc::clone(&both));
            thread::spawn(move || {
                both.wait();
                cache.flush()
            })
        });
        both.wait();
        shared.wait_inside(1);
        thread::sleep(Duration::from_millis(300));
        shared.set(CallKind::Write, CallFault::Fails);
        for flush in flushes {
            assert!(flush.join().unwrap().is_err(), "the mark was lost");
        }
        shared.how.lock().clear();
        cache.flush().unwrap();
    });
}

#[test]
fn pieces_that_the_store_below_loses_in_a_flush_are_incomplete() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = seeding(&cache, 1, 2);
        holds(&*content, 1, 0..STRIPE);
        put(&*create(&*cache, 2, STRIPE), 2, 0..1);
        // As a store does on a system that does not report which bytes have reached the disk.
        assert!(cache.inner().open(&hash(1)).unwrap().mark_incomplete(3).unwrap());
        shared.set(CallKind::Flush, CallFault::Fails);
        assert!(matches!(cache.flush(), Err(Error::Io { .. })));
        shared.how.lock().clear();
        assert!(!content.pieces().unwrap().contains(3));
        assert_eq!(first_missing(&*content, 0..STRIPE), Some(3 * PIECE));
        put(&*content, 9, 3 * PIECE..4 * PIECE);
        assert!(content.mark_complete(3).unwrap());
        cache.flush().unwrap();
        holds(&*content, 9, 3 * PIECE..4 * PIECE);
        holds(&*content, 1, 4 * PIECE..STRIPE);
    });
}

#[test]
fn a_piece_that_is_lost_while_it_is_marked_is_incomplete() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = create(&*cache, 1, STRIPE);
        shared.set(CallKind::Flush, CallFault::Waits);
        let flushing = aside(&cache, |cache| assert!(matches!(cache.flush(), Err(Error::Io { .. }))));
        shared.wait_inside(1);
        // Its bytes are in memory: a thread passes it on after it has written them.
        shared.set(CallKind::Write, CallFault::Waits);
        put(&*content, 1, 0..STRIPE);
        assert!(content.mark_complete(2).unwrap());
        shared.set(CallKind::Marked, CallFault::Waits);
        shared.clear(CallKind::Write);
        let below = cache.inner().open(&hash(1)).unwrap();
        while !below.pieces().unwrap().contains(2) {
            thread::yield_now();
        }
        assert!(below.mark_incomplete(2).unwrap());
        shared.set(CallKind::Flush, CallFault::Fails);
        let waited = flushing.recv_timeout(Duration::from_millis(100)).is_err();
        shared.clear(CallKind::Marked);
        assert!(waited, "a piece that is being marked may be lost already");
        ends(&flushing);
        shared.clear(CallKind::Flush);
        cache.flush().unwrap();
        assert_eq!((content.pieces().unwrap().count(), below.pieces().unwrap().count()), (0, 0));
    });
}

#[test]
fn after_a_refusal_the_rest_of_a_stripe_is_tried_all_the_same() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        // Pieces that lie in two stripes.
        let torrent = NewTorrent::new(hash(1), 4 * STRIPE, 96 << 10).unwrap();
        let content = cache.create(&torrent).unwrap();
        let piece = |n: u32| content.geometry().piece(n).unwrap();
        for n in [0, 2, 4] {
            put(&*content, 1, piece(n));
            assert!(content.mark_complete(n).unwrap());
        }
        *shared.bad_byte.lock() = Some(5);
        let told = cache.flush().unwrap_err();
        assert!(matches!(told, Error::Refused { info_hash, .. } if info_hash == hash(1)), "{told}");
        *shared.bad_byte.lock() = None;
        assert_eq!(content.pieces().unwrap().iter().collect::<Vec<_>>(), [2, 4]);
        assert_eq!(first_missing(&*content, piece(0)), Some(0));
        holds(&*content, 1, piece(2));
        assert!(content.write(0, &[1]).is_err());
        // If a piece is refused in one stripe, its bytes in the other are not lost.
        assert!(content.mark_incomplete(2).unwrap());
        put(&*content, 1, piece(2));
        assert!(content.mark_complete(2).unwrap());
        *shared.bad_byte.lock() = Some(STRIPE + 1);
        cache.flush().unwrap_err();
        *shared.bad_byte.lock() = None;
        assert!(!content.pieces().unwrap().contains(2));
        holds(&*content, 1, piece(2).start..STRIPE);
        assert_eq!(first_missing(&*content, piece(2)), Some(STRIPE));
        assert!(content.write(STRIPE, &[1]).is_err());
        put(&*content, 1, STRIPE..piece(2).end);
        assert!(content.mark_complete(2).unwrap());
        cache.flush().unwrap();
        assert_eq!(cache.inner().open(&hash(1)).unwrap().pieces().unwrap().count(), 2);
        holds(&*content, 1, piece(2));
        let statistics = cache.cache_statistics();
        assert_eq!((statistics.whole, statistics.partial), (0, 3), "failed writes count as neither");
    });
}

#[test]
fn a_panic_of_the_store_below_is_an_error_and_nothing_hangs() {
    bounded(|| {
        let (cache, shared) =
            cached(with(StripeCacheOptions::new(), |options| options.write_memory = STRIPE));
        let content = create(&*cache, 1, 8 * STRIPE);
        shared.set(CallKind::Write, CallFault::Panics);
        put(&*content, 1, 0..STRIPE);
        let told = cache.flush().unwrap_err();
        assert!(format!("{told:?}").contains("as it was told"), "{told:?}");
        shared.clear(CallKind::Write);
        assert!(content.write(0, &[1]).is_err());
        put(&*content, 1, 0..2 * STRIPE);
        shared.set(CallKind::Mark, CallFault::Panics);
        assert!(content.mark_complete(0).is_err() || cache.flush().is_err());
        let _ = (cache.flush(), content.write(0, &[1]));
        assert_eq!(content.pieces().unwrap().count(), 0);
        shared.clear(CallKind::Mark);
        put(&*content, 1, 0..8 * STRIPE);
        assert!(content.mark_complete(0).unwrap());
        cache.flush().unwrap();
        // A panic of a read reaches the caller.
        shared.set(CallKind::Read, CallFault::Panics);
        let reader = Arc::clone(&content);
        assert!(thread::spawn(move || reader.read(0, &mut [0])).join().is_err());
        shared.clear(CallKind::Read);
        holds(&*content, 1, 0..PIECE);
        assert!(content.mark_incomplete(0).unwrap());
        shared.set(CallKind::Delete, CallFault::Panics);
        let deleted = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || cache.delete(&hash(1)))
        };
        assert!(!matches!(deleted.join(), Ok(Ok(_))));
        shared.clear(CallKind::Delete);
        holds(&*content, 1, PIECE..STRIPE);
        put(&*content, 1, 0..STRIPE);
        assert!(cache.delete(&hash(1)).unwrap());
    });
}
