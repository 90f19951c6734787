//! Torrents go, and their room with them.

use swarmkeep_content::{ContentExt, Error, Geometry};

use crate::content::{Subject, kit::*};

pub(crate) fn delete_forgets_a_torrent_and_says_whether_there_was_one(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for round in 0..3 {
        assert!(!store.delete(&hash(1)).unwrap());
        let content = store.new_torrent(1, 50_000, BLOCK as u32);
        put(&*content, 0..20_000, Pattern(round));
        assert!(store.delete(&hash(1)).unwrap());
        assert!(!store.delete(&hash(1)).unwrap());
        assert_error!(store.open(&hash(1)), Error::NotFound(of) if of == hash(1));
        assert_eq!(store.list().unwrap(), []);
    }
}

pub(crate) fn delete_leaves_other_torrents_alone(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let contents: Vec<_> = (0..9).map(|n| store.new_torrent(n, 60_000, BLOCK as u32)).collect();
    for piece in 0..3 {
        for (n, content) in contents.iter().enumerate() {
            complete(&**content, piece, Pattern(n as u16));
        }
    }
    for n in [4, 0, 8] {
        assert!(store.delete(&hash(n)).unwrap());
    }
    for n in [1, 2, 3, 5, 6, 7] {
        let pattern = Pattern(n as u16);
        for content in [&contents[n], &store.torrent(n as u64)] {
            assert_reads(&**content, 0..3 * BLOCK, pattern);
            assert_eq!(complete_pieces(&**content), [0, 1, 2]);
        }
        put(&*contents[n], 3 * BLOCK..60_000, pattern);
        assert_reads(&*contents[n], 0..60_000, pattern);
    }
}

pub(crate) fn handles_of_a_deleted_torrent_answer_deleted(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let first = store.new_torrent(1, 50_000, 10_000);
    let second = store.torrent(1);
    complete(&*first, 0, Pattern(1));
    put(&*first, 10_000..25_000, Pattern(1));
    store.delete(&hash(1)).unwrap();
    let assert_gone = || {
        for handle in [&first, &second] {
            assert_error!(handle.write(30_000, &[1, 2, 3]), Error::Deleted);
            assert_error!(handle.read(0, &mut [0; 100]), Error::Deleted);
            assert_error!(handle.read(40_000, &mut [0; 100]), Error::Deleted);
            assert_error!(handle.mark_complete(1), Error::Deleted);
            assert_error!(handle.mark_complete(0), Error::Deleted);
            assert_error!(handle.mark_incomplete(0), Error::Deleted);
            assert_error!(handle.pieces(), Error::Deleted);
            assert_eq!(handle.geometry(), Geometry::new(50_000, 10_000).unwrap());
            let _ = handle.place(0);
        }
    };
    assert_gone();
    // One created anew has nothing to do with them.
    let new = store.new_torrent(1, 50_000, 10_000);
    assert_gone();
    complete(&*new, 0, Pattern(2));
    put(&*new, 10_000..20_000, Pattern(2));
    assert_gone();
    assert_reads(&*new, 0..20_000, Pattern(2));
    assert_eq!(complete_pieces(&*new), [0]);
    assert_missing(&*new, 20_000..25_000, 20_000, &[Pattern(2)]);
    store.flush().unwrap();
    store.delete(&hash(1)).unwrap();
    assert_gone();
}

pub(crate) fn a_torrent_created_anew_has_nothing_of_the_old(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for (n, (length, piece_length)) in
        [(100_000, 10_000), (100_000, 10_000), (99_000, 3000), (200_000, 1 << 17)].into_iter().enumerate()
    {
        let content = store.new_torrent(1, length, piece_length);
        assert_eq!(content.geometry(), Geometry::new(length, piece_length).unwrap());
        assert_untouched(&*content);
        let pattern = Pattern(n as u16);
        put(&*content, 5000..5001, pattern);
        assert_missing(&*content, 0..length, 0, &[pattern]);
        assert_missing(&*content, 5000..length, 5001, &[pattern]);
        put(&*content, 0..length, pattern);
        (0..content.geometry().pieces() - 1).for_each(|piece| assert!(content.mark_complete(piece).unwrap()));
        if n % 2 == 1 {
            store.flush().unwrap();
        }
        store.delete(&hash(1)).unwrap();
    }
}
