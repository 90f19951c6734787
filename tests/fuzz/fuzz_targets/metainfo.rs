//! Any torrent file, as one and as an info dictionary alone. Nothing panics, parsed torrents are safe to
//! write to a disk, and their bytes lie where they should. And any magnet link.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use swarmkeep_bittorrent::bencode::Value;
use swarmkeep_metainfo::{FileList, Info, LONGEST_PIECE, Magnet, Metainfo};

fuzz_target!(|message: &[u8]| {
    if let Ok(metainfo) = Metainfo::parse(message) {
        assert!(metainfo.tiers().iter().all(|tier| !tier.is_empty()));
        assert_holds(metainfo.info());
        let alone = Info::parse(metainfo.info().encoded()).expect("it stood in a torrent");
        assert_eq!(alone.files(), metainfo.info().files());
        assert_eq!(alone.info_hash(), metainfo.info().info_hash());
    }
    if let Ok(info) = Info::parse(message) {
        assert_eq!(info.encoded(), message);
        assert_holds(&info);
    }
    if let Ok(magnet) = String::from_utf8_lossy(message).parse::<Magnet>() {
        assert_eq!(magnet.to_string().parse(), Ok(magnet));
    }
    // Covers keys that the fuzzer finds: most of its changes to a whole torrent break the hashes.
    if let Ok(value) = Value::parse(message)
        && let Some(files) = value.list()
    {
        let mut list = FileList::builder();
        for file in files.iter() {
            let Some(names) = file.list() else { continue };
            let mut names: Vec<_> = names.iter().collect();
            let length = names.pop().and_then(Value::integer).map_or(0, i64::cast_unsigned);
            let path: Vec<_> = names.into_iter().filter_map(Value::text).collect();
            let added = if path.is_empty() { list.padding(length) } else { list.file(&path, length, false) };
            drop(added.map(drop));
        }
        if let Ok(list) = list.build() {
            assert_safe(&list);
            assert_contiguous(&list);
        }
    }
});

fn assert_holds(info: &Info) {
    assert_safe(info.files());
    assert_contiguous(info.files());
    assert!((1..=LONGEST_PIECE).contains(&info.piece_length()));
    let count = u64::from(info.piece_count());
    assert_eq!(count, info.length().div_ceil(info.piece_length().into()));
    let pieces: Vec<_> = (0..count.min(50)).chain(count.saturating_sub(50)..count).collect();
    for &piece in &pieces {
        let range = info.piece_range(piece as u32).expect("it is below the count");
        assert_eq!(range.start, piece * u64::from(info.piece_length()));
        assert!(range.start < range.end && range.end <= info.length());
        assert_eq!(range.end - range.start, info.piece_len(piece as u32).into());
        let last = piece + 1 == count;
        assert!(!info.has_v1() || last || range.end - range.start == info.piece_length().into());
        if !info.has_v1() {
            let files = info.files();
            let parts: Vec<_> = files.segments(range).collect();
            assert!(parts.len() == 1 && !files.get(parts[0].file).unwrap().is_padding());
        }
        assert!(info.check(piece as u32).is_some() || !info.knows_hashes());
    }
    for &piece in pieces.iter().take(4).filter(|&&piece| info.piece_len(piece as u32) <= 1 << 16) {
        let data = vec![0; info.piece_len(piece as u32) as usize];
        let whole = info.verify(piece as u32, &data);
        let parts = info.check(piece as u32).is_some_and(|mut check| {
            data.chunks(1000).for_each(|part| check.update(part));
            check.holds()
        });
        assert_eq!(whole, parts);
    }
    assert!(info.piece_range(info.piece_count()).is_none());
    assert!(info.check(info.piece_count()).is_none());
}

/// Whether every file stays where it is put, next to the others. Said again in other words than the
/// library's.
fn assert_safe(list: &FileList) {
    let (mut files, mut folders) = (HashSet::new(), HashSet::new());
    for file in list.iter() {
        let path = file.path();
        assert_eq!(path.is_empty(), file.is_padding());
        if file.is_padding() {
            continue;
        }
        for name in &path {
            assert!((1..=255).contains(&name.len()) && !matches!(*name, "." | ".."));
            assert!(!name.contains(['/', '\\']));
            assert!(!name.chars().any(|letter| letter < ' ' || letter == '\x7f'));
        }
        for end in 1..path.len() {
            folders.insert(path[..end].to_vec());
        }
        assert!(files.insert(path), "twice");
    }
    assert!(!files.is_empty());
    assert!(files.is_disjoint(&folders), "a file that is also a folder");
}

/// Whether the files follow each other, and any range lies in them once.
fn assert_contiguous(list: &FileList) {
    let mut at = 0;
    for (nth, file) in list.iter().enumerate() {
        assert_eq!((file.index(), file.offset(), file.range()), (nth, at, at..at + file.length()));
        at += file.length();
    }
    assert_eq!(at, list.length());
    assert!(list.get(list.count()).is_none());
    let (third, end) = (at / 3, at);
    for range in
        [0..end, third..end - third, third..third, 0..1, end.saturating_sub(1)..u64::MAX, end..u64::MAX]
    {
        let mut next = range.start;
        for segment in list.segments(range.clone()) {
            let file = list.get(segment.file).unwrap();
            assert!(segment.length > 0);
            assert_eq!(file.offset() + segment.offset, next);
            next += segment.length;
            assert!(next <= file.range().end);
        }
        assert_eq!(next, range.end.min(end).max(range.start));
    }
}
