//! Bytes that can be read, and bytes that must not be.

use std::io::IoSliceMut;

use swarmkeep_content::{ContentExt, Error};

use crate::content::{Subject, kit::*};

pub(crate) fn buffers_are_filled_one_after_another(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let mut draw = Draw::new(5);
    for (n, (length, piece_length)) in MEASURES.into_iter().enumerate() {
        let content = store.new_torrent(n as u64, length, piece_length);
        let pattern = Pattern(n as u16);
        put(&*content, 0..length, pattern);
        for _ in 0..40 {
            let start = draw.below(length);
            let end = start + 1 + draw.below((length - start).min(70_000));
            let mut buffers: Vec<_> =
                draw.split(end - start).into_iter().map(|len| vec![0xa5; len]).collect();
            let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
            content.read_at(start, &mut slices).unwrap();
            assert_bytes(&buffers.concat(), start, pattern);
        }
    }
    // More buffers than an operating system accepts at once.
    let content = store.new_torrent(100, 10_000, 1000);
    put(&*content, 0..10_000, Pattern(1));
    let mut buffers = vec![[0; 5]; 2000];
    content
        .read_at(0, &mut buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect::<Vec<_>>())
        .unwrap();
    assert_bytes(buffers.as_flattened(), 0, Pattern(1));
}

pub(crate) fn any_range_of_complete_pieces_can_be_read(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    for (n, (length, piece_length)) in measures(&store).into_iter().enumerate() {
        let content = store.new_torrent(n as u64, length, piece_length);
        let pattern = Pattern(n as u16);
        (0..content.geometry().pieces()).for_each(|piece| complete(&*content, piece, pattern));
        let edges = boundaries(content.geometry(), store.stripe());
        for &start in &edges {
            for &end in edges.iter().filter(|&&end| end >= start && end - start <= 1 << 17) {
                assert_reads(&*content, start..end, pattern);
            }
        }
        for piece in [0, content.geometry().pieces() / 2, content.geometry().pieces() - 1] {
            let range = content.geometry().piece(piece).unwrap();
            assert_bytes(&content.read_piece(piece).unwrap(), range.start, pattern);
        }
    }
}

pub(crate) fn a_byte_that_was_never_written_is_an_error_that_names_the_first(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 300_000, 50_000);
    let own = [Pattern(1)];
    for (range, first) in [(0..1, 0), (0..300_000, 0), (299_999..300_000, 299_999), (4000..5000, 4000)] {
        assert_missing(&*content, range, first, &own);
    }
    // Holes of all sorts: within a sector and a page, across them, across pieces, at the end.
    let holes =
        [100..101, 511..513, 4096..8192, 20_000..20_003, 49_999..50_001, 60_000..110_000, 299_999..300_000];
    let mut start = 0;
    for hole in &holes {
        put(&*content, start..hole.start, Pattern(1));
        start = hole.end;
    }
    for hole in &holes {
        for range in [
            hole.clone(),
            hole.start..hole.start + 1,
            hole.end - 1..hole.end,
            hole.start.saturating_sub(50)..hole.end,
            hole.start.saturating_sub(50)..(hole.end + 50).min(300_000),
        ] {
            let first = range.start.max(hole.start);
            assert_missing(&*content, range, first, &own);
        }
        assert_reads(&*content, hole.start.saturating_sub(50)..hole.start, Pattern(1));
    }
    assert_missing(&*content, 0..300_000, 100, &own);
    // Bytes that were filled in can be read one by one.
    put(&*content, 100..101, Pattern(1));
    put(&*content, 512..513, Pattern(1));
    assert_missing(&*content, 0..300_000, 511, &own);
    put(&*content, 511..512, Pattern(1));
    assert_missing(&*content, 0..300_000, 4096, &own);
    // A complete piece beside one that is not.
    put(&*content, 4096..8192, Pattern(1));
    put(&*content, 20_000..20_003, Pattern(1));
    put(&*content, 49_999..50_000, Pattern(1));
    assert!(content.mark_complete(0).unwrap());
    assert_missing(&*content, 0..300_000, 50_000, &own);
}

pub(crate) fn errors_of_a_read_name_the_first_byte_across_buffers(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 20_000, 5000);
    put(&*content, 0..7000, Pattern(1));
    put(&*content, 7001..20_000, Pattern(1));
    let mut buffers = [vec![0xa5; 6999], vec![], vec![0xa5; 1], vec![0xa5; 3000]];
    let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
    assert_error!(content.read_at(0, &mut slices), Error::NotWritten { at: 7000 });
}

pub(crate) fn a_read_out_of_range_is_refused(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 10_000, 4096);
    put(&*content, 0..10_000, Pattern(1));
    for at in [5001, 9999, 10_000, 10_001, 1 << 32, 1 << 63, u64::MAX - 4999, u64::MAX] {
        let (mut first, mut second) = ([0xa5; 1000], [0xa5; 4000]);
        assert_error!(
            content.read_at(at, &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)]),
            Error::OutOfRange { offset, len: 5000, length: 10_000 } if offset == at
        );
    }
}

pub(crate) fn a_read_of_nothing_is_answered_wherever_it_lies_in_the_torrent(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let content = store.new_torrent(1, 10_000, 1000);
    put(&*content, 0..500, Pattern(1));
    for at in [0, 499, 500, 5000, 9999, 10_000] {
        content.read_at(at, &mut []).unwrap();
        content.read_at(at, &mut [IoSliceMut::new(&mut []), IoSliceMut::new(&mut [])]).unwrap();
    }
    assert_error!(content.read_at(10_001, &mut []), Error::OutOfRange { .. });
}

pub(crate) fn torrents_are_apart(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let contents: Vec<_> = (0..12).map(|n| store.new_torrent(n, 40_000 + 1111 * n, 7777)).collect();
    // In turn, so that their bytes lie among one another.
    for start in (0..40_000).step_by(5000) {
        for (n, content) in contents.iter().enumerate() {
            put(&**content, start..start + 5000, Pattern(n as u16));
        }
    }
    for (n, content) in contents.iter().enumerate() {
        assert_reads(&**content, 0..40_000, Pattern(n as u16));
        assert_eq!(content.mark_complete(2).ok(), Some(true));
    }
    assert!(contents[5].mark_incomplete(2).unwrap());
    for (n, content) in contents.iter().enumerate() {
        let missing = content.read(2 * 7777, &mut [0]).is_err();
        assert_eq!(missing, n == 5, "torrent {n}");
    }
}

pub(crate) fn no_bytes_of_another_torrent_are_ever_read(subject: &dyn Subject) {
    let (_folder, store) = Folder::opened(subject);
    let stripe = store.stripe().max(16 * BLOCK);
    let length = 3 * stripe / 2 + 4321;
    for round in 0..3_u16 {
        // The first torrents fill the room that later ones are given.
        let old = 10 * round;
        for n in old..old + 3 {
            let content = store.new_torrent(n.into(), length, BLOCK as u32);
            put(&*content, 0..length, Pattern(n));
            (0..20).for_each(|piece| assert!(content.mark_complete(piece).unwrap()));
        }
        for n in old..old + 3 {
            assert!(store.delete(&hash(n.into())).unwrap());
        }
        let new = old + 5;
        let content = store.new_torrent(new.into(), length, BLOCK as u32);
        assert_untouched(&*content);
        // One byte of a block, a few of its middle, a whole one: the bytes beside them are the old torrents'.
        let mut own = [Pattern(new)];
        let written = [0..1, BLOCK + 5000..BLOCK + 5100, 5 * BLOCK..6 * BLOCK, stripe - 1..stripe + 1];
        for range in &written {
            put(&*content, range.clone(), own[0]);
        }
        for range in &written {
            assert_reads(&*content, range.clone(), own[0]);
        }
        let mut at = 0;
        while at < length {
            let end = (at + BLOCK).min(length);
            let mut bytes = vec![0xa5; (end - at) as usize];
            let first = (at..end).find(|byte| !written.iter().any(|range| range.contains(byte)));
            match (content.read(at, &mut bytes), first) {
                (Ok(()), None) => assert_bytes(&bytes, at, own[0]),
                (Err(Error::NotWritten { at }), Some(first)) => assert_eq!(at, first),
                (result, _) => panic!("a read of {at}..{end}: {result:?}, {:02x?}", &bytes[..16]),
            }
            assert_nothing_of_others(&bytes, &own);
            at = end;
        }
        for piece in [0, 1, content.geometry().pieces() - 1] {
            assert_error!(content.mark_complete(piece), Error::NotWritten { .. });
        }
        // Nor by way of a piece that was complete itself.
        complete(&*content, 9, own[0]);
        assert!(content.mark_incomplete(9).unwrap());
        own = [Pattern(new + 1)];
        put(&*content, 9 * BLOCK + 700..9 * BLOCK + 800, own[0]);
        assert_missing(&*content, 9 * BLOCK..10 * BLOCK, 9 * BLOCK, &[own[0], Pattern(new)]);
        assert_missing(&*content, 9 * BLOCK + 700..10 * BLOCK, 9 * BLOCK + 800, &[own[0], Pattern(new)]);
        assert_reads(&*content, 9 * BLOCK + 700..9 * BLOCK + 800, own[0]);
        assert!(store.delete(&hash(new.into())).unwrap());
    }
}
