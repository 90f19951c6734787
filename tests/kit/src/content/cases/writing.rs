//! Writes, and the bytes around them.

use std::io::IoSlice;

use swarmkeep_content::{Content, ContentExt, Error, Result};

use crate::content::{Subject, kit::*};

pub(crate) fn what_was_written_can_be_read_when_the_write_returns(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 500_000, 40_000);
    let mut draw = Draw::new(1);
    for start in (0..500_000).step_by(20_000) {
        let range = start..start + draw.below(20_000) + 1;
        put(&*content, range.clone(), Pattern(1));
        assert_reads(&*content, range.clone(), Pattern(1));
        assert_reads(&*store.torrent(1), range, Pattern(1));
    }
}

pub(crate) fn lengths_are_exact(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for (n, length) in [1, 511, 512, 513, 4095, 4097, 16_383, 16_385, 100_001].into_iter().enumerate() {
        let content = store.new_torrent(n as u64, length, 1 << 14);
        assert_eq!(content.geometry().len(), length);
        put(&*content, 0..length, Pattern(1));
        assert_reads(&*content, 0..length, Pattern(1));
        for more in [1, 511, 1 << 14] {
            let range = Pattern(2).bytes(0..length + more);
            assert_error!(content.write(0, &range), Error::OutOfRange { .. });
            assert_error!(content.read(0, &mut vec![0; range.len()]), Error::OutOfRange { .. });
        }
        assert_error!(content.write(length, &[1]), Error::OutOfRange { .. });
        assert_error!(content.read(length, &mut [0]), Error::OutOfRange { .. });
        assert_reads(&*content, 0..length, Pattern(1));
    }
}

pub(crate) fn buffers_are_written_one_after_another(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let mut draw = Draw::new(2);
    for (n, (length, piece_length)) in MEASURES.into_iter().enumerate() {
        let content = store.new_torrent(n as u64, length, piece_length);
        let pattern = Pattern(n as u16);
        for _ in 0..3 {
            let mut start = 0;
            while start < length {
                let end = (start + 1 + draw.below(60_000)).min(length);
                put_in_buffers(&*content, start, &pattern.bytes(start..end), &draw.split(end - start))
                    .unwrap();
                start = end;
            }
            assert_reads(&*content, 0..length, pattern);
        }
    }
    // Empty buffers first, last and between; and more buffers than an operating system takes at once.
    let content = store.new_torrent(100, 30_000, 1000);
    put_in_buffers(&*content, 0, &Pattern(1).bytes(0..10), &[0, 0, 3, 0, 0, 0, 7, 0]).unwrap();
    put_in_buffers(&*content, 10, &Pattern(1).bytes(10..10_010), &[5; 2000]).unwrap();
    assert_reads(&*content, 0..10_010, Pattern(1));
    assert_missing(&*content, 0..30_000, 10_010, &[Pattern(1)]);
}

fn put_in_buffers(content: &dyn Content, offset: u64, mut bytes: &[u8], lengths: &[usize]) -> Result<()> {
    let mut buffers = Vec::new();
    for &length in lengths {
        let (now, later) = bytes.split_at(length);
        buffers.push(IoSlice::new(now));
        bytes = later;
    }
    content.write_at(offset, &buffers)
}

pub(crate) fn ranges_across_every_boundary_read_as_they_were_written(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for (n, (length, piece_length)) in measures(&store).into_iter().enumerate() {
        let content = store.new_torrent(n as u64, length, piece_length);
        let geometry = content.geometry();
        // Backwards, so that no write may count bytes as written that come later.
        for &at in boundaries(geometry, store.stripe()).iter().rev() {
            for len in [1, 2, 511, 512, 513, 4097] {
                let range = at.saturating_sub(len / 2)..(at + len - len / 2).min(length);
                put(&*content, range.clone(), Pattern(3));
                assert_reads(&*content, range, Pattern(3));
            }
        }
        for &at in &boundaries(geometry, store.stripe()) {
            assert_reads(&*content, at.saturating_sub(2048)..(at + 2048).min(length), Pattern(3));
        }
    }
}

pub(crate) fn pieces_of_every_length_are_written_in_any_order(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let mut draw = Draw::new(3);
    for (n, (length, piece_length)) in measures(&store).into_iter().enumerate() {
        let content = store.new_torrent(n as u64, length, piece_length);
        let pattern = Pattern(n as u16);
        let mut order: Vec<_> = (0..content.geometry().pieces()).collect();
        draw.shuffle(&mut order);
        for piece in order {
            complete(&*content, piece, pattern);
        }
        assert_eq!(content.pieces().unwrap().count(), content.geometry().pieces());
        assert_reads(&*content, 0..length, pattern);
    }
}

pub(crate) fn a_torrent_may_be_written_at_once(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for (n, (length, piece_length)) in measures(&store).into_iter().enumerate() {
        let content = store.new_torrent(n as u64, length, piece_length);
        put(&*content, 0..length, Pattern(n as u16));
        assert_reads(&*content, 0..length, Pattern(n as u16));
    }
}

pub(crate) fn written_again_a_byte_reads_as_it_was_written_last(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let length = 3 * BLOCK + 5;
    let content = store.new_torrent(1, length, BLOCK as u32);
    let mut expected = Pattern(0).bytes(0..length);
    put(&*content, 0..length, Pattern(0));
    let mut draw = Draw::new(4);
    for n in 1..200 {
        let start = draw.below(length);
        let end = start + draw.below((length - start).min(6000)) + 1;
        let bytes = Pattern(n).bytes(start..end);
        content.write(start, &bytes).unwrap();
        expected[start as usize..end as usize].copy_from_slice(&bytes);
    }
    let mut bytes = vec![0; length as usize];
    content.read(0, &mut bytes).unwrap();
    let wrong = (0..bytes.len()).find(|&at| bytes[at] != expected[at]);
    assert_eq!(wrong, None, "the first byte that is not as it was written last");
}

pub(crate) fn neighbours_of_a_write_stay_as_they_were(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for (n, (start, end)) in [(1, 2), (511, 513), (512, 1024), (4095, 4097), (5000, 9000), (16_384, 20_001)]
        .into_iter()
        .enumerate()
    {
        // Neighbours that were written.
        let content = store.new_torrent(n as u64, 60_001, 20_000);
        put(&*content, 0..60_001, Pattern(1));
        put(&*content, start..end, Pattern(2));
        assert_reads(&*content, 0..start, Pattern(1));
        assert_reads(&*content, start..end, Pattern(2));
        assert_reads(&*content, end..60_001, Pattern(1));
        // Neighbours that were not.
        let content = store.new_torrent(100 + n as u64, 60_001, 20_000);
        put(&*content, start..end, Pattern(2));
        assert_missing(&*content, start - 1..end, start - 1, &[Pattern(2)]);
        assert_missing(&*content, start..end + 1, end, &[Pattern(2)]);
        assert_reads(&*content, start..end, Pattern(2));
    }
}

pub(crate) fn a_write_of_nothing_does_nothing(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 10_000, 1000);
    complete(&*content, 3, Pattern(1));
    for at in [0, 1, 999, 3000, 3500, 9999, 10_000] {
        content.write_at(at, &[]).unwrap();
        content.write_at(at, &[IoSlice::new(&[]), IoSlice::new(&[])]).unwrap();
    }
    for at in [10_001, u64::MAX] {
        assert_error!(content.write_at(at, &[]), Error::OutOfRange { .. });
    }
    assert_eq!(complete_pieces(&*content), [3]);
    assert_reads(&*content, 3000..4000, Pattern(1));
    for at in [0, 1, 999, 2999, 4000, 9999] {
        assert_missing(&*content, at..at + 1, at, &[]);
    }
}

pub(crate) fn a_write_out_of_range_is_refused_and_changes_nothing(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 10_000, 4096);
    put(&*content, 0..9000, Pattern(1));
    let bytes = Pattern(2).bytes(0..5000);
    for at in [5001, 9999, 10_000, 10_001, 1 << 32, 1 << 63, u64::MAX - 4999, u64::MAX] {
        let lengths = [1000, 4000];
        assert_error!(
            put_in_buffers(&*content, at, &bytes, &lengths),
            Error::OutOfRange { offset, len: 5000, length: 10_000 } if offset == at
        );
    }
    assert_reads(&*content, 0..9000, Pattern(1));
    assert_missing(&*content, 0..10_000, 9000, &[Pattern(1)]);
    assert_missing(&*content, 9500..10_000, 9500, &[Pattern(1)]);
}

pub(crate) fn a_write_into_a_complete_piece_is_refused_and_changes_nothing(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 90_000, 10_000);
    put(&*content, 0..25_000, Pattern(1));
    complete(&*content, 3, Pattern(1));
    complete(&*content, 5, Pattern(1));
    complete(&*content, 8, Pattern(1));
    let mut draw = Draw::new(8);
    for (start, end, first) in [
        (30_000, 30_001, 3),
        (39_999, 40_000, 3),
        (32_000, 35_000, 3),
        (20_000, 30_001, 3),
        (39_999, 47_000, 3),
        (0, 90_000, 3),
        (41_000, 50_001, 5),
        (89_999, 90_000, 8),
    ] {
        let bytes = Pattern(2).bytes(start..end);
        for lengths in [vec![bytes.len()], draw.split(end - start), draw.split(end - start)] {
            let refused = put_in_buffers(&*content, start, &bytes, &lengths);
            assert_error!(refused, Error::Complete { piece } if piece == first);
        }
    }
    assert_eq!(complete_pieces(&*content), [3, 5, 8]);
    assert_reads(&*content, 0..25_000, Pattern(1));
    for piece in [3, 5, 8] {
        assert_reads(&*content, content.geometry().piece(piece).unwrap(), Pattern(1));
    }
    for at in [25_000, 29_999, 40_000, 45_000, 49_999, 60_000, 79_999] {
        assert_missing(&*content, at..at + 1, at, &[Pattern(1)]);
    }
}
