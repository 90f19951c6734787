//! Unmarked pieces and deleted torrents, and the calls that wait for them.

use super::*;

#[test]
fn unmarked_or_deleted_content_never_reaches_the_store_below() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = create(&*cache, 1, 4 * STRIPE);
    put(&*content, 1, 0..PIECE);
    put(&*content, 1, 2 * PIECE..3 * PIECE);
    assert!(content.mark_complete(0).unwrap());
    assert!(content.mark_incomplete(0).unwrap());
    assert_eq!(first_missing(&*content, 0..PIECE), Some(0));
    let gone = create(&*cache, 2, 4 * STRIPE);
    put(&*gone, 2, 0..PIECE);
    assert!(gone.mark_complete(0).unwrap());
    assert!(cache.delete(&hash(2)).unwrap());
    assert!(matches!(gone.read(0, &mut [0]), Err(Error::Deleted)));
    cache.flush().unwrap();
    assert_eq!(
        *shared.calls.lock(),
        [StoreCall::Write { torrent: hash(1), range: 2 * PIECE..3 * PIECE, aligned: true }, StoreCall::Flush,]
    );
    assert_eq!(cache.statistics().unwritten, 0);
}

#[test]
fn unmark_and_delete_wait_for_writes_in_progress() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = create(&*cache, 1, 4 * STRIPE);
        shared.close();
        put(&*content, 1, 0..STRIPE);
        shared.wait_inside(1);
        let deleting = aside(&cache, |cache| assert!(cache.delete(&hash(1)).unwrap()));
        waits(&deleting);
        shared.open();
        ends(&deleting);
        assert!(matches!(content.pieces(), Err(Error::Deleted)));
        // A new one of the same info hash has nothing of the old one.
        let content = create(&*cache, 1, 4 * STRIPE);
        assert_eq!(first_missing(&*content, 0..STRIPE), Some(0));
    });
}

#[test]
fn a_long_delete_keeps_no_other_torrent_waiting() {
    let (cache, shared) =
        cached(with(StripeCacheOptions::new(), |options| options.write_memory = 2 * STRIPE));
    let (other, gone) = (create(&*cache, 1, 8 * STRIPE), create(&*cache, 2, 8 * STRIPE));
    shared.close();
    put(&*other, 1, 0..STRIPE);
    shared.wait_inside(1);
    // It is whole, and no thread has time for it before it is deleted.
    put(&*gone, 2, 0..STRIPE);
    shared.set(CallKind::Delete, CallFault::Waits);
    let deleting = aside(&cache, |cache| assert!(cache.delete(&hash(2)).unwrap()));
    shared.wait_inside(2);
    shared.clear(CallKind::Write);
    shared.clear(CallKind::Read);
    while cache.statistics().unwritten > STRIPE {
        thread::yield_now();
    }
    for stripe in 1..5 {
        put(&*other, 1, stripe * STRIPE..stripe * STRIPE + 64 * KIB);
    }
    let asked = shared.asked.load(Relaxed);
    // There is memory for no more, unless some of that is written.
    ends(&aside(&other, |other| put(other, 1, 5 * STRIPE..5 * STRIPE + 64 * KIB)));
    assert!(shared.asked.load(Relaxed) - asked < 100, "no thread asks again and again");
    // Others come and go meanwhile.
    let naming = aside(&cache, |cache| {
        create(cache, 3, STRIPE);
        assert!(matches!(cache.open(&hash(4)), Err(Error::NotFound(_))));
    });
    ends(&naming);
    // A picker calls from any thread.
    shared.set(CallKind::Open, CallFault::Waits);
    ends(&aside(&cache, |cache| assert!(affinity(cache, 4).is_empty())));
    shared.open();
    ends(&deleting);
    assert!(matches!(gone.pieces(), Err(Error::Deleted)));
    cache.flush().unwrap();
    assert!(shared.writes().iter().all(|(torrent, _)| *torrent == hash(1)));
}

#[test]
fn a_delete_that_fails_leaves_everything() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = create(&*cache, 1, 4 * STRIPE);
        let other = create(&*cache, 2, 4 * STRIPE);
        shared.close();
        put(&*other, 2, 0..STRIPE);
        shared.wait_inside(1);
        // Whole, and still to be written.
        put(&*content, 1, 0..STRIPE);
        put(&*content, 1, STRIPE..STRIPE + PIECE);
        assert!(content.mark_complete(8).unwrap());
        shared.set(CallKind::Delete, CallFault::Fails);
        assert!(matches!(cache.delete(&hash(1)), Err(Error::Io { .. })));
        shared.open();
        while cache.statistics().unwritten > CHUNK {
            thread::yield_now();
        }
        holds(&*content, 1, 0..STRIPE + PIECE);
        cache.flush().unwrap();
        assert_eq!(cache.inner().open(&hash(1)).unwrap().pieces().unwrap().count(), 1);
        shared.clear(CallKind::Delete);
        assert!(cache.delete(&hash(1)).unwrap());
    });
}

#[test]
fn a_delete_that_fails_when_the_torrent_is_gone_has_deleted_it() {
    bounded(|| {
        for anew in [false, true] {
            let (cache, shared) =
                cached(with(StripeCacheOptions::new(), |options| options.write_memory = STRIPE));
            let content = create(&*cache, 1, 4 * STRIPE);
            put(&*content, 1, 0..STRIPE - 1);
            shared.set(CallKind::Deleted, CallFault::Fails);
            if anew {
                // Not even whether it is there can be said.
                shared.set(CallKind::Open, CallFault::Fails);
            }
            assert!(matches!(cache.delete(&hash(1)), Err(Error::Io { .. })));
            shared.how.lock().clear();
            if !anew {
                assert!(matches!(content.write(0, &[1]), Err(Error::Deleted)));
                assert!(matches!(content.read(0, &mut [1]), Err(Error::Deleted)));
                assert!(matches!(cache.open(&hash(1)), Err(Error::NotFound(_))));
                cache.flush().unwrap();
                assert!(!cache.delete(&hash(1)).unwrap());
            }
            // One that is created anew has all the memory.
            let fresh = create(&*cache, 1, 4 * STRIPE);
            assert!(matches!(content.pieces(), Err(Error::Deleted)));
            assert_eq!(cache.statistics().unwritten, 0);
            assert_eq!(first_missing(&*fresh, 0..STRIPE), Some(0));
            put(&*fresh, 1, 0..3 * STRIPE);
            cache.flush().unwrap();
            holds(&*fresh, 1, 0..3 * STRIPE);
        }
    });
}

#[test]
fn taking_back_waits_for_a_mark_that_is_being_passed_on() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = create(&*cache, 1, 4 * STRIPE);
    put(&*content, 1, 0..4 * PIECE);
    // Its bytes are in memory: a thread passes it on after it has written them.
    assert!(content.mark_complete(2).unwrap());
    shared.set(CallKind::Mark, CallFault::Waits);
    let flushing = aside(&cache, |cache| cache.flush().unwrap());
    shared.wait_inside(1);
    waits(&flushing);
    let taking = aside(&content, |content| assert!(content.mark_incomplete(2).unwrap()));
    waits(&taking);
    shared.open();
    [flushing, taking].iter().for_each(ends);
    let below = cache.inner().open(&hash(1)).unwrap();
    assert_eq!((content.pieces().unwrap().count(), below.pieces().unwrap().count()), (0, 0));
    assert_eq!(first_missing(&*content, 0..4 * PIECE), Some(2 * PIECE));
}
