//! The content of a store that is opened again.

use swarmkeep_content::{ContentExt, Error};

use crate::content::{Subject, kit::*};

/// Runs `check` on the store that two processes find: one that comes when this one has ended here and now,
/// and one that comes when the store was closed. In a store that is not durable they find nothing.
fn outlive(folder: &Folder<'_>, store: Store, check: impl Fn(&Store)) -> Store {
    let copy = folder.copy();
    for (folder, store) in [(&copy, copy.open()), (folder, folder.again(store))] {
        if !store.is_durable() {
            store.assert_empty();
        } else {
            check(&store);
            // Once more: opening it has not changed it.
            check(&folder.again(store));
        }
    }
    folder.open()
}

pub(crate) fn what_was_flushed_is_there_when_the_store_is_opened_again(subject: &dyn Subject) {
    let (folder, store) = Folder::opened(subject);
    let measures = measures(&store);
    for (n, &(length, piece_length)) in measures.iter().enumerate() {
        let content = store.new_torrent(n as u64, length, piece_length);
        put(&*content, 0..length, Pattern(n as u16));
        for piece in (0..content.geometry().pieces()).filter(|piece| piece % 3 != 1) {
            assert!(content.mark_complete(piece).unwrap());
        }
    }
    let before = store.list().unwrap();
    store.flush().unwrap();
    outlive(&folder, store, |store| {
        assert_eq!(store.list().unwrap(), before);
        for n in 0..measures.len() {
            let content = store.torrent(n as u64);
            let (geometry, pattern) = (content.geometry(), Pattern(n as u16));
            let pieces = content.pieces().unwrap();
            for piece in 0..geometry.pieces() {
                assert_eq!(pieces.contains(piece), piece % 3 != 1, "piece {piece} of {geometry:?}");
                let range = geometry.piece(piece).unwrap();
                if piece % 3 != 1 {
                    assert_reads(&*content, range.clone(), pattern);
                    assert_error!(content.write(range.start, &[1]), Error::Complete { .. });
                }
            }
        }
    });
}

pub(crate) fn bytes_of_incomplete_pieces_do_not_outlive_the_store(subject: &dyn Subject) {
    let (folder, store) = Folder::opened(subject);
    let length = 5 * BLOCK + 10;
    let content = store.new_torrent(1, length, BLOCK as u32);
    let other = store.new_torrent(2, length, BLOCK as u32);
    put(&*content, 0..length, Pattern(1));
    put(&*other, 0..length, Pattern(2));
    assert!(content.mark_complete(3).unwrap());
    drop((content, other));
    store.flush().unwrap();
    outlive(&folder, store, |store| {
        assert_untouched(&*store.torrent(2));
        let content = store.torrent(1);
        assert_eq!(complete_pieces(&*content), [3]);
        for at in [0, 512, BLOCK - 1, BLOCK, 2 * BLOCK, 3 * BLOCK - 1, 4 * BLOCK, 5 * BLOCK, length - 1] {
            assert_missing(&*content, at..at + 1, at, &[Pattern(1)]);
        }
        assert_missing(&*content, 3 * BLOCK..length, 4 * BLOCK, &[Pattern(1)]);
        for piece in [0, 1, 2, 4, 5] {
            assert_error!(content.mark_complete(piece), Error::NotWritten { .. });
        }
    });
}

pub(crate) fn what_was_not_flushed_may_survive_and_reads_as_when_it_was_marked(subject: &dyn Subject) {
    let (folder, store) = Folder::opened(subject);
    let length = 40 * BLOCK - 3;
    let content = store.new_torrent(1, length, BLOCK as u32);
    (0..20).for_each(|piece| complete(&*content, piece, Pattern(1)));
    store.flush().unwrap();
    for piece in 20..40 {
        // Written more than once before it is marked.
        put(&*content, content.geometry().piece(piece).unwrap(), Pattern(2));
        complete(&*content, piece, Pattern(1));
    }
    drop(content);
    outlive(&folder, store, |store| {
        let content = store.torrent(1);
        let pieces = complete_pieces(&*content);
        assert!((0..20).all(|piece| pieces.contains(&piece)), "of the flushed ones {pieces:?} are left");
        for piece in pieces {
            assert_reads(&*content, content.geometry().piece(piece).unwrap(), Pattern(1));
        }
    });
}

pub(crate) fn a_torrent_is_there_after_create_returned(subject: &dyn Subject) {
    let (folder, mut store) = Folder::opened(subject);
    for n in 0..4 {
        store.new_torrent(n, 1000 * (n + 1), 300);
        store = outlive(&folder, store, |store| {
            assert_eq!(store.list().unwrap().len() as u64, n + 1);
            for n in 0..=n {
                let content = store.torrent(n);
                assert_eq!(
                    (content.geometry().len(), content.geometry().piece_length()),
                    (1000 * (n + 1), 300)
                );
                assert_untouched(&*content);
            }
        });
        if !store.is_durable() {
            return;
        }
    }
}

pub(crate) fn a_torrent_is_gone_after_delete_returned(subject: &dyn Subject) {
    let (folder, mut store) = Folder::opened(subject);
    for n in 0..5 {
        complete(&*store.new_torrent(n, 30_000, BLOCK as u32), 0, Pattern(n as u16));
    }
    store.flush().unwrap();
    for n in [2, 0, 4] {
        assert_eq!(store.delete(&hash(n)).ok(), Some(true));
        store = outlive(&folder, store, |store| {
            assert_error!(store.open(&hash(n)), Error::NotFound(_));
            assert!(!store.delete(&hash(n)).unwrap());
            assert_reads(&*store.torrent(1), 0..BLOCK, Pattern(1));
            assert_reads(&*store.torrent(3), 0..BLOCK, Pattern(3));
        });
        if !store.is_durable() {
            return;
        }
    }
    assert_eq!(store.list().unwrap().len(), 2);
    // Created anew after it was deleted: nothing of the old one comes back.
    store.new_torrent(2, 30_000, BLOCK as u32);
    outlive(&folder, store, |store| assert_untouched(&*store.torrent(2)));
}

pub(crate) fn a_piece_is_incomplete_after_mark_incomplete_returned(subject: &dyn Subject) {
    let (folder, store) = Folder::opened(subject);
    let length = 6 * BLOCK;
    let content = store.new_torrent(1, length, BLOCK as u32);
    (0..6).for_each(|piece| complete(&*content, piece, Pattern(1)));
    store.flush().unwrap();
    for piece in [1, 4] {
        assert!(content.mark_incomplete(piece).unwrap());
    }
    // Written anew and not marked.
    put(&*content, 4 * BLOCK..5 * BLOCK, Pattern(2));
    drop(content);
    outlive(&folder, store, |store| {
        let content = store.torrent(1);
        assert_eq!(complete_pieces(&*content), [0, 2, 3, 5]);
        for piece in [0, 2, 3, 5] {
            assert_reads(&*content, content.geometry().piece(piece).unwrap(), Pattern(1));
        }
        for at in [BLOCK, 2 * BLOCK - 1, 4 * BLOCK, 5 * BLOCK - 1] {
            assert_missing(&*content, at..at + 1, at, &[Pattern(1), Pattern(2)]);
        }
    });
}

pub(crate) fn a_piece_that_was_written_anew_reads_so_when_the_store_is_opened_again(subject: &dyn Subject) {
    let (folder, mut store) = Folder::opened(subject);
    store.new_torrent(1, 3 * BLOCK, BLOCK as u32);
    for n in 1..4 {
        let content = store.torrent(1);
        complete(&*content, 1, Pattern(n));
        if n == 1 {
            complete(&*content, 0, Pattern(1));
        }
        store.flush().unwrap();
        drop(content);
        store = outlive(&folder, store, |store| {
            let content = store.torrent(1);
            assert_reads(&*content, 0..BLOCK, Pattern(1));
            assert_reads(&*content, BLOCK..2 * BLOCK, Pattern(n));
        });
        if !store.is_durable() {
            return;
        }
        assert!(store.torrent(1).mark_incomplete(1).unwrap());
    }
}

pub(crate) fn a_store_can_be_opened_again_and_again(subject: &dyn Subject) {
    let (folder, mut store) = Folder::opened(subject);
    let length = 12 * BLOCK + 1;
    store.new_torrent(100, length, BLOCK as u32);
    for round in 0..12_u32 {
        let content = store.torrent(100);
        complete(&*content, round, Pattern(1));
        let n = u64::from(round);
        complete(&*store.new_torrent(n, 20_000, 10_000), 1, Pattern(round as u16));
        if round >= 2 {
            assert!(store.delete(&hash(n - 2)).unwrap());
        }
        store.flush().unwrap();
        drop(content);
        store = folder.again(store);
        if !store.is_durable() {
            store.assert_empty();
            return;
        }
        let content = store.torrent(100);
        assert_eq!(complete_pieces(&*content), (0..=round).collect::<Vec<_>>());
        assert_reads(&*content, 0..u64::from(round + 1) * BLOCK, Pattern(1));
        assert_reads(&*store.torrent(n), 10_000..20_000, Pattern(round as u16));
        assert_eq!(store.list().unwrap().len(), 2 + usize::from(round > 0));
    }
}

pub(crate) fn a_flush_covers_all_torrents(subject: &dyn Subject) {
    let (folder, store) = Folder::opened(subject);
    for n in 0..30 {
        let content = store.new_torrent(n, 2 * BLOCK, BLOCK as u32);
        complete(&*content, (n % 2) as u32, Pattern(n as u16));
    }
    store.flush().unwrap();
    // With nothing to do, it does no harm.
    store.flush().unwrap();
    outlive(&folder, store, |store| {
        for n in 0..30 {
            let content = store.torrent(n);
            let piece = (n % 2) as u32;
            assert_eq!(complete_pieces(&*content), [piece]);
            assert_reads(&*content, content.geometry().piece(piece).unwrap(), Pattern(n as u16));
        }
    });
}

pub(crate) fn a_label_that_was_flushed_is_there_when_the_store_is_opened_again(subject: &dyn Subject) {
    let (folder, store) = Folder::opened(subject);
    let most = store.capabilities().label as usize;
    let label = |n: u64| vec![n as u8; most * (n % 3) as usize / 2];
    for n in 0..20 {
        complete(&*store.new_torrent(n, 1000, 100), 3, Pattern(n as u16));
        if most > 0 {
            store.set_label(&hash(n), &[99]).unwrap();
            store.set_label(&hash(n), &label(n)).unwrap();
        }
    }
    store.flush().unwrap();
    outlive(&folder, store, |store| {
        for n in 0..20 {
            assert_eq!(*store.label(&hash(n)).unwrap(), *label(n), "torrent {n}");
            assert_eq!(complete_pieces(&*store.torrent(n)), [3]);
        }
    });
}
