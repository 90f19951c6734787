//! Statistics, and other things that stores tell about themselves.

use std::io::{IoSlice, IoSliceMut};

use swarmkeep_content::ContentExt;

use crate::content::{Subject, kit::*};

pub(crate) fn statistics_count_calls_and_bytes(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 100_000, 10_000);
    let counts = || {
        let now = store.statistics();
        (now.reads, now.bytes_read, now.writes, now.bytes_written)
    };
    assert_eq!(counts(), (0, 0, 0, 0));
    let bytes = Pattern(1).bytes(0..100_000);
    content.write(0, &bytes[..15_000]).unwrap();
    assert_eq!(counts(), (0, 0, 1, 15_000));
    content
        .write_at(15_000, &[IoSlice::new(&bytes[15_000..15_001]), IoSlice::new(&bytes[15_001..50_000])])
        .unwrap();
    assert_eq!(counts(), (0, 0, 2, 50_000));
    content.read(7, &mut [0; 777]).unwrap();
    assert_eq!(counts(), (1, 777, 2, 50_000));
    let (mut first, mut second) = ([0; 10], [0; 5000]);
    content.read_at(9999, &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)]).unwrap();
    assert_eq!(counts(), (2, 5787, 2, 50_000));
    // A refused call counts no bytes, and a mark is no read.
    assert!(content.mark_complete(0).unwrap());
    assert!(content.write(0, &[1; 100]).is_err() && content.write(99_999, &[1; 2]).is_err());
    assert!(content.read(49_999, &mut [0; 2]).is_err() && content.read(99_999, &mut [0; 2]).is_err());
    let (_, read, _, written) = counts();
    assert_eq!((read, written), (5787, 50_000));
}

pub(crate) fn statistics_tell_how_many_torrents_there_are(subject: &dyn Subject) {
    let (folder, store) = Folder::opened(subject);
    for n in 0..10 {
        store.new_torrent(n, 1000, 100);
        assert!(store.create(&torrent(n, 1000, 100)).is_err());
        assert_eq!(store.statistics().torrents, n + 1);
    }
    for n in 0..10 {
        assert!(store.delete(&hash(n)).unwrap());
        assert!(!store.delete(&hash(n)).unwrap());
        assert_eq!(store.statistics().torrents, 9 - n);
    }
    store.new_torrent(1, 1000, 100);
    let store = folder.again(store);
    assert_eq!(store.statistics().torrents, u64::from(store.is_durable()));
}

pub(crate) fn used_rises_with_what_is_written_and_falls_with_what_is_deleted(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let length = 2 * store.stripe().max(1 << 19);
    let empty = store.statistics().used;
    let mut before = empty;
    for n in 0..3 {
        put(&*store.new_torrent(n, length, 1 << 18), 0..length, Pattern(n as u16));
        store.flush().unwrap();
        let now = store.statistics().used;
        assert!(now >= before + length, "{before}, and then {now} with {length} more");
        before = now;
    }
    for n in 0..3 {
        assert!(store.delete(&hash(n)).unwrap());
        let now = store.statistics().used;
        assert!(now + length <= before, "{before}, and then {now} with {length} fewer");
        before = now;
    }
    assert!(before <= empty + length / 4, "{before} when all is gone, {empty} at first");
}

pub(crate) fn room_is_returned_that_is_enough_for_a_write(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let stripe = store.stripe();
    let length = 7 * stripe + 777;
    let content = store.new_torrent(1, length, BLOCK as u32);
    complete(&*content, (5 * stripe / BLOCK) as u32, Pattern(1));
    for range in [
        0..1,
        1..BLOCK,
        stripe - 1..stripe + 1,
        stripe + 5..stripe + 5 + 3 * BLOCK,
        stripe + BLOCK..stripe + 2 * BLOCK,
        2 * stripe..3 * stripe,
        length - 100..length,
    ] {
        store.flush().unwrap();
        let (before, room) = (store.statistics().used, content.room_for(range.clone()));
        let middle = range.start + (range.end - range.start) / 2;
        let halves = [range.start..middle, middle..range.end].map(|half| content.room_for(half));
        assert!(
            halves.iter().all(|half| *half <= room),
            "{halves:?} for halves of {range:?}, {room} for all"
        );
        assert!(halves[0] + halves[1] >= room, "{halves:?} for halves of {range:?}, {room} for all");
        put(&*content, range.clone(), Pattern(2));
        store.flush().unwrap();
        let now = store.statistics().used;
        assert!(now <= before + room, "{range:?} took {}, and should have taken {room}", now - before);
    }
}

pub(crate) fn statistics_count_flushes(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 4 * BLOCK, BLOCK as u32);
    for piece in 0..4 {
        let before = store.statistics().flushes;
        complete(&*content, piece, Pattern(1));
        store.flush().unwrap();
        assert!(store.statistics().flushes > before);
    }
}

pub(crate) fn places_are_returned_for_bytes_of_the_torrent_alone(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let length = store.stripe() + 5000;
    let content = store.new_torrent(1, length, BLOCK as u32);
    complete(&*content, 0, Pattern(1));
    put(&*content, length - 100..length, Pattern(1));
    store.flush().unwrap();
    // Any answer for these is allowed, but no panic.
    for at in [0, 1, BLOCK, store.stripe(), length - 1] {
        let _ = content.place(at);
    }
    for at in [length, length + 1, 1 << 40, u64::MAX] {
        assert_eq!(content.place(at), None, "byte {at} of {length}");
    }
    store.delete(&hash(1)).unwrap();
    assert_eq!(content.place(0), None);
}
