//! Complete pieces.

use swarmkeep_content::{ContentExt, Error};

use crate::content::{Subject, kit::*};

pub(crate) fn a_piece_is_complete_once_it_was_marked(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 19 * 1000 + 1, 1000);
    let mut expected = Vec::new();
    for piece in [0, 7, 8, 15, 16, 19, 1] {
        let range = content.geometry().piece(piece).unwrap();
        put(&*content, range.clone(), Pattern(1));
        assert!(!content.pieces().unwrap().contains(piece), "piece {piece} was written and not marked");
        assert!(content.mark_complete(piece).unwrap());
        assert_reads(&*content, range, Pattern(1));
        expected.push(piece);
        expected.sort_unstable();
        assert_eq!(complete_pieces(&*content), expected);
    }
    let pieces = content.pieces().unwrap();
    assert_eq!((pieces.pieces(), pieces.count()), (20, 7));
    assert_eq!(pieces.to_bytes(), [0b1100_0001, 0b1000_0001, 0b1001_0000]);
}

pub(crate) fn a_mark_is_refused_unless_every_byte_was_written(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let length = 2 * BLOCK + 100;
    for (n, missing) in [0, 1, 511, 512, 8000, BLOCK - 1].into_iter().enumerate() {
        let content = store.new_torrent(n as u64, length, BLOCK as u32);
        assert_error!(content.mark_complete(1), Error::NotWritten { at } if at == BLOCK);
        // The pieces beside it are there.
        put(&*content, 0..BLOCK + missing, Pattern(1));
        put(&*content, BLOCK + missing + 1..length, Pattern(1));
        for _ in 0..2 {
            assert_error!(content.mark_complete(1), Error::NotWritten { at } if at == BLOCK + missing);
        }
        assert_eq!(complete_pieces(&*content), []);
        put(&*content, BLOCK + missing..BLOCK + missing + 1, Pattern(1));
        assert!(content.mark_complete(1).unwrap());
        assert_reads(&*content, 0..length, Pattern(1));
    }
}

pub(crate) fn the_last_piece_may_be_shorter(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for (n, (length, piece_length)) in MEASURES.into_iter().enumerate() {
        let content = store.new_torrent(n as u64, length, piece_length);
        let last = content.geometry().pieces() - 1;
        let range = content.geometry().piece(last).unwrap();
        assert_eq!(range.end, length);
        if range.end - range.start > 1 {
            put(&*content, range.start..length - 1, Pattern(1));
            assert_error!(content.mark_complete(last), Error::NotWritten { at } if at == length - 1);
        }
        put(&*content, length - 1..length, Pattern(1));
        assert!(content.mark_complete(last).unwrap());
        assert_reads(&*content, range, Pattern(1));
        assert_eq!(complete_pieces(&*content), [last]);
    }
}

pub(crate) fn a_repeated_mark_answers_false(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 5000, 1000);
    complete(&*content, 2, Pattern(1));
    for handle in [&content, &store.torrent(1)] {
        assert!(!handle.mark_complete(2).unwrap());
    }
    assert!(content.mark_incomplete(2).unwrap());
    for handle in [&content, &store.torrent(1)] {
        assert!(!handle.mark_incomplete(2).unwrap());
    }
    assert_error!(content.mark_complete(2), Error::NotWritten { at: 2000 });
}

pub(crate) fn pieces_that_do_not_exist_are_refused(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for (n, (length, piece_length, pieces)) in
        [(5000, 1000, 5_u32), (5001, 1000, 6), (10, 1 << 20, 1), (64, 1, 64)].into_iter().enumerate()
    {
        let content = store.new_torrent(n as u64, length, piece_length);
        put(&*content, 0..length, Pattern(1));
        for piece in [pieces, pieces + 1, pieces.next_multiple_of(8), u32::MAX] {
            let refused = |found: u32, of: u32| found == piece && of == pieces;
            assert_error!(content.mark_complete(piece), Error::NoSuchPiece { piece, pieces } if refused(piece, pieces));
            assert_error!(content.mark_incomplete(piece), Error::NoSuchPiece { piece, pieces } if refused(piece, pieces));
            assert!(!content.pieces().unwrap().contains(piece));
        }
        assert_eq!(complete_pieces(&*content), []);
        assert_reads(&*content, 0..length, Pattern(1));
    }
}

pub(crate) fn mark_incomplete_forgets_the_bytes_of_the_piece_and_no_others(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for (n, (length, piece_length)) in measures(&store).into_iter().enumerate() {
        let content = store.new_torrent(n as u64, length, piece_length);
        let (geometry, pattern) = (content.geometry(), Pattern(1));
        let middle = geometry.pieces() / 2;
        let range = geometry.piece(middle).unwrap();
        put(&*content, 0..length, pattern);
        assert!(content.mark_complete(middle).unwrap());
        if middle > 0 {
            assert!(content.mark_complete(middle - 1).unwrap());
        }
        assert!(content.mark_incomplete(middle).unwrap());
        assert_reads(&*content, 0..range.start, pattern);
        assert_reads(&*content, range.end..length, pattern);
        for at in [range.start, (range.start + range.end) / 2, range.end - 1] {
            assert_missing(&*content, at..at + 1, at, &[pattern]);
        }
        assert_missing(&*content, range.start.saturating_sub(100)..length, range.start, &[pattern]);
        assert_error!(content.mark_complete(middle), Error::NotWritten { at } if at == range.start);
    }
}

pub(crate) fn mark_incomplete_of_an_incomplete_piece_leaves_it_as_it_was(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 50_000, 10_000);
    put(&*content, 5000..20_000, Pattern(1));
    for piece in 0..5 {
        assert!(!content.mark_incomplete(piece).unwrap());
    }
    assert_reads(&*content, 5000..20_000, Pattern(1));
    assert!(content.mark_complete(1).unwrap());
    assert_missing(&*content, 5000..50_000, 20_000, &[Pattern(1)]);
}

pub(crate) fn a_piece_marked_incomplete_may_be_written_again(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 5 * BLOCK - 7, BLOCK as u32);
    for n in 1..20 {
        for piece in [1, 4] {
            complete(&*content, piece, Pattern(n));
            let range = content.geometry().piece(piece).unwrap();
            assert_reads(&*content, range.clone(), Pattern(n));
            assert_error!(content.write(range.start, &[0]), Error::Complete { .. });
            assert!(content.mark_incomplete(piece).unwrap());
            assert_missing(&*content, range.clone(), range.start, &[Pattern(n)]);
        }
    }
}
