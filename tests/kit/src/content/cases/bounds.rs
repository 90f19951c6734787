//! The meaning of a capacity, and the errors when it is used up. A store without one refuses it, which each
//! case asserts.

use std::{sync::Arc, thread};

use swarmkeep_content::{Content, ContentExt, Error, Statistics};

use crate::content::{Subject, kit::*};

/// How much is written at once to fill a store: a piece of the torrents that fill it.
fn unit(store: &Store) -> u64 {
    (store.stripe() / 4).max(1 << 16)
}

struct FilledStore {
    contents: Vec<Arc<dyn Content>>,
    bytes: u64,
}

/// Writes torrents from number `first` on, unit by unit, until the store is full.
fn fill(folder: &Folder<'_>, store: &Store, first: u64) -> FilledStore {
    let unit = unit(store);
    let mut filled = FilledStore { contents: Vec::new(), bytes: 0 };
    for n in first.. {
        assert!(filled.bytes <= folder.capacity(), "it holds {} bytes and is not full", filled.bytes);
        let content = match store.create(&torrent(n, 8 * unit, unit as u32)) {
            Ok(content) => content,
            Err(Error::Full { .. }) => return filled,
            Err(other) => panic!("{other}"),
        };
        filled.contents.push(Arc::clone(&content));
        for piece in 0..8 {
            let range = piece * unit..(piece + 1) * unit;
            match content.write(range.start, &Pattern(n as u16).bytes(range.clone())) {
                Ok(()) => {}
                Err(Error::Full { .. }) => return filled,
                Err(other) => panic!("{other}"),
            }
            filled.bytes += unit;
            assert_within(folder, &store.statistics());
        }
    }
    unreachable!("a store is full before the numbers end")
}

#[track_caller]
fn assert_within(folder: &Folder<'_>, statistics: &Statistics) {
    let free = statistics.free.expect("a store with a capacity knows its free bytes");
    let capacity = folder.capacity();
    assert!(statistics.used + free <= capacity, "{} used and {free} free of {capacity}", statistics.used);
}

fn assert_all_there(filled: &FilledStore, first: u64, unit: u64) {
    let mut left = filled.bytes;
    for (n, content) in (first..).zip(&filled.contents) {
        let here = left.min(8 * unit);
        assert_reads(&**content, 0..here, Pattern(n as u16));
        if here < 8 * unit {
            assert_missing(&**content, here..8 * unit, here, &[Pattern(n as u16)]);
        }
        left -= here;
    }
}

pub(crate) fn a_capacity_that_is_not_declared_is_refused(subject: &dyn Subject) {
    let Some(folder) = Folder::bounded(subject) else { return };
    let store = folder.open();
    assert!(store.capabilities().bounded);
    put(&*store.new_torrent(1, 10_000, 1000), 0..10_000, Pattern(1));
}

pub(crate) fn free_is_returned_where_a_capacity_was_given(subject: &dyn Subject) {
    let Some(folder) = Folder::bounded(subject) else { return };
    let store = folder.open();
    let before = store.statistics();
    assert_within(&folder, &before);
    let unit = unit(&store);
    put(&*store.new_torrent(1, 2 * unit, unit as u32), 0..2 * unit, Pattern(1));
    let after = store.statistics();
    assert_within(&folder, &after);
    assert!(after.free < before.free && after.used > before.used, "{before:?}, {after:?}");
}

pub(crate) fn a_capacity_is_kept(subject: &dyn Subject) {
    let Some(folder) = Folder::bounded(subject) else { return };
    let store = folder.open();
    let filled = fill(&folder, &store, 0);
    assert!(filled.bytes <= folder.capacity());
    assert!(filled.bytes >= folder.capacity() / 4, "it is full with {} bytes", filled.bytes);
    assert_all_there(&filled, 0, unit(&store));
}

pub(crate) fn a_capacity_is_kept_by_racing_writes(subject: &dyn Subject) {
    let Some(folder) = Folder::bounded(subject) else { return };
    let store = folder.open();
    let unit = unit(&store);
    let contents: Vec<_> =
        (0..8).map_while(|n| store.create(&torrent(n, folder.capacity() / 4, unit as u32)).ok()).collect();
    thread::scope(|scope| {
        for (n, content) in contents.iter().enumerate() {
            let (folder, store) = (&folder, &store);
            scope.spawn(move || {
                for piece in 0..content.geometry().pieces() {
                    let range = content.geometry().piece(piece).unwrap();
                    match content.write(range.start, &Pattern(n as u16).bytes(range.clone())) {
                        Ok(()) => assert_within(folder, &store.statistics()),
                        Err(Error::Full { .. }) => break,
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    let mut held = 0;
    for (n, content) in contents.iter().enumerate() {
        let mut there = 0;
        while there < content.geometry().len() && content.read(there, &mut [0]).is_ok() {
            there = (there + unit).min(content.geometry().len());
        }
        assert_reads(&**content, 0..there, Pattern(n as u16));
        held += there;
    }
    assert!(held <= folder.capacity(), "{held} bytes in a store of {}", folder.capacity());
}

pub(crate) fn a_write_without_room_changes_nothing(subject: &dyn Subject) {
    let Some(folder) = Folder::bounded(subject) else { return };
    let store = folder.open();
    let (stripe, unit) = (store.stripe().max(unit(&store)), unit(&store));
    let empty = store.statistics().used;
    let spare = store.new_torrent(1000, 4 * stripe, unit as u32);
    let is_set_aside = store.statistics().used >= empty + 4 * stripe;
    put(&*spare, 0..1000, Pattern(1000));
    let filled = fill(&folder, &store, 0);
    if is_set_aside {
        // Then nothing but a create is ever without room.
        put(&*spare, 1000..4 * stripe, Pattern(1000));
        assert_reads(&*spare, 0..4 * stripe, Pattern(1000));
        assert_all_there(&filled, 0, unit);
        return;
    }
    for start in [500, 1000, stripe - 700] {
        let bytes = Pattern(1001).bytes(start..start + 3 * stripe);
        for _ in 0..2 {
            assert_error!(spare.write(start, &bytes), Error::Full { .. });
        }
        assert_reads(&*spare, 0..1000, Pattern(1000));
        assert_missing(&*spare, 0..2 * stripe, 1000, &[Pattern(1000)]);
        for at in [1000, stripe - 700, stripe - 1, stripe, 2 * stripe, 3 * stripe] {
            assert_missing(&*spare, at..at + 1, at, &[Pattern(1000)]);
        }
    }
    assert_all_there(&filled, 0, unit);
    assert_within(&folder, &store.statistics());
}

pub(crate) fn a_create_without_room_leaves_nothing(subject: &dyn Subject) {
    let Some(folder) = Folder::bounded(subject) else { return };
    let store = folder.open();
    fill(&folder, &store, 0);
    let before = store.list().unwrap().len();
    let mut created = 0;
    for n in 2000..2200 {
        match store.create(&torrent(n, 100_000, 100)) {
            Ok(content) => {
                created += 1;
                assert_untouched(&*content);
            }
            Err(Error::Full { .. }) => {
                assert_error!(store.open(&hash(n)), Error::NotFound(_));
                assert!(!store.delete(&hash(n)).unwrap());
            }
            Err(other) => panic!("{other}"),
        }
        assert_within(&folder, &store.statistics());
    }
    assert_eq!(store.list().unwrap().len(), before + created);
    assert_eq!(store.statistics().torrents as usize, before + created);
}

pub(crate) fn a_full_store_reads_marks_and_flushes(subject: &dyn Subject) {
    let Some(folder) = Folder::bounded(subject) else { return };
    let store = folder.open();
    let unit = unit(&store);
    let filled = fill(&folder, &store, 0);
    let mut left = filled.bytes;
    for content in &filled.contents {
        for piece in 0..8 {
            if left > 0 {
                assert!(content.mark_complete(piece).unwrap());
                left -= unit;
            } else {
                assert_error!(content.mark_complete(piece), Error::NotWritten { .. });
            }
        }
    }
    assert_all_there(&filled, 0, unit);
    store.flush().unwrap();
    let (torrents, bytes) = (filled.contents.len() as u64, filled.bytes);
    drop(filled);
    let store = folder.again(store);
    if !store.is_durable() {
        store.assert_empty();
        return;
    }
    assert_within(&folder, &store.statistics());
    let contents: Vec<_> = (0..torrents).map(|n| store.torrent(n)).collect();
    let complete: usize = contents.iter().map(|content| complete_pieces(&**content).len()).sum();
    assert_eq!(complete as u64, bytes / unit);
    assert_all_there(&FilledStore { contents, bytes }, 0, unit);
    // It is about as full as it was.
    let more = fill(&folder, &store, 500);
    assert!(more.bytes <= folder.capacity() / 8, "{} bytes more", more.bytes);
}

pub(crate) fn room_that_was_freed_is_used_again(subject: &dyn Subject) {
    let Some(folder) = Folder::bounded(subject) else { return };
    let mut store = folder.open();
    let unit = unit(&store);
    let empty = store.statistics();
    let mut first = None;
    // Fewer where a filling takes long.
    for round in 0..((1 << 27) / folder.capacity()).clamp(3, 12) {
        let filled = fill(&folder, &store, 100 * round);
        let first = *first.get_or_insert(filled.bytes);
        assert!(
            filled.bytes + first / 16 >= first,
            "round {round}: {} bytes, and {first} at first",
            filled.bytes
        );
        if round % 2 == 1 {
            assert_all_there(&filled, 100 * round, unit);
            filled.contents.iter().for_each(|content| drop(content.mark_complete(0)));
            store.flush().unwrap();
        }
        let torrents = filled.contents.len() as u64;
        // Some of the handles outlive their torrents.
        let kept = (round % 3 == 0).then_some(filled);
        for n in 0..torrents {
            assert!(store.delete(&hash(100 * round + n)).unwrap());
        }
        drop(kept);
        let now = store.statistics();
        assert!(now.used <= empty.used + folder.capacity() / 16, "{} used when all is deleted", now.used);
        assert_within(&folder, &now);
        if round == 1 {
            store = folder.again(store);
        }
    }
}

pub(crate) fn a_piece_marked_incomplete_can_be_written_in_a_full_store(subject: &dyn Subject) {
    let Some(folder) = Folder::bounded(subject) else { return };
    let store = folder.open();
    let unit = unit(&store);
    let filled = fill(&folder, &store, 0);
    let content = &filled.contents[0];
    assert!(content.mark_complete(2).unwrap());
    for n in 1..4 {
        assert!(content.mark_incomplete(2).unwrap());
        put(&**content, 2 * unit..3 * unit, Pattern(n));
        assert!(content.mark_complete(2).unwrap());
        assert_reads(&**content, 2 * unit..3 * unit, Pattern(n));
    }
}

pub(crate) fn a_capacity_too_small_for_anything_is_full_at_once_or_when_written_to(subject: &dyn Subject) {
    let Some(_) = Folder::bounded(subject) else { return };
    let folder = Folder::unlimited(subject);
    let mut config = folder.config();
    for capacity in [0, 1] {
        config.capacity = Some(capacity);
        match subject.open(&config) {
            Err(Error::Full { .. }) => {}
            Err(other) => panic!("a capacity of {capacity}: {other}"),
            Ok(store) => match store.create(&torrent(capacity, 10_000, 1000)) {
                Err(Error::Full { .. }) => assert_eq!(store.list().unwrap(), []),
                Err(other) => panic!("a capacity of {capacity}: {other}"),
                Ok(content) => {
                    assert_error!(content.write(0, &[1; 5000]), Error::Full { .. });
                    assert_untouched(&*content);
                }
            },
        }
    }
}

pub(crate) fn unwritten_bytes_never_exceed_most_unwritten(subject: &dyn Subject) {
    let folder = Folder::unlimited(subject);
    let store = folder.open();
    let most = store.statistics().most_unwritten;
    let check = |store: &Store| {
        let now = store.statistics();
        assert_eq!(now.most_unwritten, most);
        assert!(now.unwritten <= most, "{} bytes are unwritten, and {most} may be", now.unwritten);
    };
    // More than may be held back, unless that is very much.
    let total = (3 * most).clamp(4 << 20, 256 << 20);
    let unit = (1 << 18).min(total / 16);
    let length = (total / 4).next_multiple_of(unit);
    thread::scope(|scope| {
        for n in 0..4 {
            let (store, check) = (&store, &check);
            scope.spawn(move || {
                let content = store.new_torrent(n, length, unit as u32);
                for piece in 0..content.geometry().pieces() {
                    put(&*content, content.geometry().piece(piece).unwrap(), Pattern(n as u16));
                    check(store);
                }
            });
        }
    });
    for n in 0..4 {
        assert_reads(&*store.torrent(n), 0..length, Pattern(n as u16));
    }
    store.flush().unwrap();
    check(&store);
}

pub(crate) fn a_write_larger_than_most_unwritten_goes_through(subject: &dyn Subject) {
    let folder = Folder::unlimited(subject);
    let store = folder.open();
    let most = store.statistics().most_unwritten;
    let length = (most + 12_345).min(128 << 20);
    let content = store.new_torrent(1, length, 1 << 20);
    let writer = Arc::clone(&content);
    // A write that is bounded by back-pressure must not wait for itself.
    within(PATIENCE, "a large write", move || put(&*writer, 0..length, Pattern(1)));
    assert_reads(&*content, 0..length, Pattern(1));
    let statistics = store.statistics();
    assert!(statistics.unwritten <= most, "{statistics:?} after {PATIENCE:?} at most");
}
