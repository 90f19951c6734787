//! Torrents are created, opened and listed.

use std::thread;

use swarmkeep_content::{ContentExt, Error, Geometry, InfoHash, NewTorrent, Summary};

use crate::content::{Subject, kit::*};

pub(crate) fn a_new_store_holds_nothing(subject: &dyn Subject) {
    let folder = Folder::unlimited(subject);
    let store = folder.open();
    assert_eq!(store.list().unwrap(), []);
    assert_eq!(store.statistics().torrents, 0);
    assert!(!store.delete(&hash(1)).unwrap());
    store.flush().unwrap();
}

pub(crate) fn capabilities_have_a_stripe_that_is_a_power_of_two(subject: &dyn Subject) {
    let folder = Folder::new(subject);
    let stripe = folder.open().stripe();
    assert!(stripe.is_power_of_two() && stripe >= BLOCK, "a stripe of {stripe}");
}

pub(crate) fn labels_are_kept_as_declared(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let most = store.capabilities().label as usize;
    let label = |n: u64| store.label(&hash(n)).unwrap();
    for n in [1, 2] {
        store.new_torrent(n, 10_000, 1000);
        assert!(label(n).is_empty());
    }
    for length in [1, most / 2, most].into_iter().filter(|length| (1..=most).contains(length)) {
        store.set_label(&hash(1), &vec![length as u8; length]).unwrap();
        assert_eq!((&*label(1), &*label(2)), (&*vec![length as u8; length], &[][..]));
    }
    let before = label(1);
    assert_error!(store.set_label(&hash(1), &vec![7; most + 1]), Error::Unsupported(_));
    assert_eq!(label(1), before);
    assert_error!(store.label(&hash(3)), Error::NotFound(of) if of == hash(3));
    assert!(store.set_label(&hash(3), &[7]).is_err());
    assert_untouched(&*store.torrent(1));
    assert!(store.delete(&hash(1)).unwrap());
    store.new_torrent(1, 10_000, 1000);
    assert!(label(1).is_empty(), "the label of a torrent that was deleted");
}

pub(crate) fn create_takes_in_a_torrent_of_which_nothing_is_written_and_no_piece_complete(
    subject: &dyn Subject,
) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 100_001, 4096);
    assert_untouched(&*content);
    assert_untouched(&*store.torrent(1));
    assert_eq!(content.pieces().unwrap().pieces(), 25);
}

pub(crate) fn torrents_of_all_measures_are_taken_in(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let measures = measures(&store);
    for (n, &(length, piece_length)) in measures.iter().enumerate() {
        let content = store.new_torrent(n as u64, length, piece_length);
        assert_eq!(content.geometry(), Geometry::new(length, piece_length).unwrap());
        assert_untouched(&*content);
        put(&*content, length - 1..length, Pattern(n as u16));
    }
    for (n, &(length, piece_length)) in measures.iter().enumerate() {
        let content = store.torrent(n as u64);
        assert_eq!(content.geometry(), Geometry::new(length, piece_length).unwrap());
        assert_reads(&*content, length - 1..length, Pattern(n as u16));
    }
}

pub(crate) fn bytes_beyond_four_gibibytes_have_places_of_their_own(subject: &dyn Subject) {
    let folder = Folder::unlimited(subject);
    let store = folder.open();
    // Modulo 4 GiB, the last range overlaps the end of the first.
    let (length, edge) = ((1_u64 << 32) + 25_333, 1_u64 << 32);
    let content = store.new_torrent(1, length, 1 << 24);
    let ranges = [0..20_000, edge - 10_000..edge + 10_000, length - 9999..length];
    for range in ranges.clone() {
        put(&*content, range, Pattern(1));
    }
    for range in ranges {
        assert_reads(&*content, range.clone(), Pattern(1));
        if range.end < length {
            assert_missing(&*content, range.start..range.end + 1, range.end, &[Pattern(1)]);
        }
    }
}

pub(crate) fn create_of_a_torrent_that_is_there_is_refused_and_leaves_it_as_it_was(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 50_000, BLOCK as u32);
    complete(&*content, 0, Pattern(1));
    put(&*content, 20_000..30_000, Pattern(1));
    for (length, piece_length) in [(50_000, BLOCK as u32), (7, 1), (1 << 20, 1 << 16)] {
        assert_error!(store.create(&torrent(1, length, piece_length)), Error::Exists(of) if of == hash(1));
        for handle in [&content, &store.torrent(1)] {
            assert_eq!(handle.geometry(), Geometry::new(50_000, BLOCK as u32).unwrap());
            assert_eq!(complete_pieces(&**handle), [0]);
            assert_reads(&**handle, 0..BLOCK, Pattern(1));
            assert_reads(&**handle, 20_000..30_000, Pattern(1));
        }
    }
    assert_eq!(store.list().unwrap().len(), 1);
}

pub(crate) fn open_of_an_unknown_torrent_is_refused(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    store.new_torrent(1, 1000, 100);
    for _ in 0..2 {
        assert_error!(store.open(&hash(2)), Error::NotFound(of) if of == hash(2));
    }
    assert_eq!(store.list().unwrap().len(), 1);
}

pub(crate) fn handles_of_a_torrent_show_the_same_bytes_and_pieces(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let first = store.new_torrent(1, 100_000, BLOCK as u32);
    let second = store.torrent(1);
    complete(&*first, 2, Pattern(1));
    put(&*second, 70_000..75_000, Pattern(1));
    let third = store.torrent(1);
    for handle in [&first, &second, &third] {
        assert_eq!(complete_pieces(&**handle), [2]);
        assert_reads(&**handle, 2 * BLOCK..3 * BLOCK, Pattern(1));
        assert_reads(&**handle, 70_000..75_000, Pattern(1));
    }
    assert!(third.mark_incomplete(2).unwrap());
    for handle in [first, second, third] {
        assert_eq!(complete_pieces(&*handle), []);
        assert_missing(&*handle, 2 * BLOCK..2 * BLOCK + 1, 2 * BLOCK, &[]);
    }
}

pub(crate) fn torrents_differ_by_every_byte_of_their_info_hash(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let nearly = |byte: usize| {
        let mut bytes = [0x80; 20];
        if let Some(byte) = bytes.get_mut(byte) {
            *byte = 0x81;
        }
        InfoHash::new(bytes)
    };
    for byte in 0..=20 {
        let content = store.create(&NewTorrent::new(nearly(byte), 1000, 1000).unwrap()).unwrap();
        put(&*content, 0..1000, Pattern(byte as u16));
    }
    for byte in 0..=20 {
        assert_reads(&*store.open(&nearly(byte)).unwrap(), 0..1000, Pattern(byte as u16));
    }
    let listed: Vec<_> = store.list().unwrap().iter().map(|summary| summary.info_hash).collect();
    assert_eq!(listed, [20].into_iter().chain((0..20).rev()).map(nearly).collect::<Vec<_>>());
}

pub(crate) fn list_shows_every_torrent_once_in_ascending_order_of_info_hash(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let mut there = Vec::new();
    for n in 0..40 {
        store.new_torrent(n, 1000 + n, 100);
        there.push(hash(n));
        assert_listed(&store, &there);
    }
    for n in (0..40).step_by(3) {
        assert!(store.delete(&hash(n)).unwrap());
        there.retain(|&other| other != hash(n));
        assert_listed(&store, &there);
    }
}

fn assert_listed(store: &Store, there: &[InfoHash]) {
    let listed: Vec<_> = store.list().unwrap().iter().map(|summary| summary.info_hash).collect();
    let mut expected = there.to_vec();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    assert_eq!(store.statistics().torrents, expected.len() as u64);
}

pub(crate) fn list_tells_measures_and_how_many_pieces_are_complete(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for n in 0..5 {
        let content = store.new_torrent(n, 10_000 * (n + 1), 1000);
        (0..2 * n as u32).for_each(|piece| complete(&*content, piece, Pattern(n as u16)));
        put(&*content, 9000..10_000, Pattern(n as u16));
    }
    store.torrent(4).mark_incomplete(0).unwrap();
    let mut expected: Vec<_> = [(0, 0), (1, 2), (2, 4), (3, 6), (4, 7)]
        .into_iter()
        .map(|(n, complete)| Summary {
            info_hash: hash(n),
            geometry: Geometry::new(10_000 * (n + 1), 1000).unwrap(),
            complete,
        })
        .collect();
    expected.sort_unstable_by_key(|summary| summary.info_hash);
    assert_eq!(store.list().unwrap(), expected);
}

pub(crate) fn a_thousand_torrents_are_kept_apart(subject: &dyn Subject) {
    const THREADS: u64 = 4;
    let length = |n: u64| 300 + n % 700;
    let check = |store: &Store| {
        let listed = store.list().unwrap();
        assert!(listed.is_sorted_by(|a, b| a.info_hash < b.info_hash));
        assert_eq!(listed.len(), 1000);
        for n in 0..1000 {
            let content = store.torrent(n);
            assert_eq!(content.read_piece(0).unwrap(), Pattern(n as u16).bytes(0..100), "torrent {n}");
            assert_eq!(content.geometry().len(), length(n));
            assert_eq!(complete_pieces(&*content), [0]);
        }
    };
    let (folder, store) = Folder::opened(subject);
    // On several threads, which a store that waits for its medium may let share one wait.
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                for n in (thread..1000).step_by(THREADS as usize) {
                    complete(&*store.new_torrent(n, length(n), 100), 0, Pattern(n as u16));
                }
            });
        }
    });
    check(&store);
    store.flush().unwrap();
    let store = folder.again(store);
    if store.is_durable() {
        check(&store);
    } else {
        store.assert_empty();
    }
}
