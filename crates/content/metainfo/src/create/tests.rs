//! Torrent files that were made, read again.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::*;
use swarmkeep_bittorrent::bencode::Value;

use crate::{Metainfo, folded};

/// A file's bytes, which tell where they are from.
fn content(path: &[&str], length: u64) -> Vec<u8> {
    let seed = Sha256::digest(path.join("/"));
    (0..length).map(|at| seed[at as usize % 32] ^ (at / 32) as u8 ^ (at >> 13) as u8).collect()
}

/// Hashes all pieces and gives the torrent file.
fn made(mut creation: Creation, backwards: bool) -> Vec<u8> {
    let count = creation.piece_count();
    for nth in 0..count {
        let piece = if backwards { count - 1 - nth } else { nth };
        let mut hasher = creation.hasher(piece).unwrap();
        for segment in creation.segments(piece) {
            let file = creation.files().get(segment.file).unwrap();
            let bytes = content(&file.path(), file.length());
            bytes[segment.offset as usize..][..segment.length as usize]
                .chunks(10_007)
                .for_each(|part| hasher.update(part));
        }
        let hash = hasher.finish().unwrap();
        creation.set(hash);
    }
    creation.finish().unwrap()
}

/// All bytes in their order, with the padding.
fn flat(files: &FileList) -> Vec<u8> {
    let bytes = |file: File<'_>| match file.is_padding() {
        true => vec![0; file.length() as usize],
        false => content(&file.path(), file.length()),
    };
    files.iter().flat_map(bytes).collect()
}

fn assert_canonical(value: Value<'_>) {
    if let Some(dict) = value.dict() {
        let keys: Vec<_> = dict.iter().map(|(key, _)| key).collect();
        assert!(keys.is_sorted_by(|one, other| one < other), "{value:?}");
        dict.iter().for_each(|(_, value)| assert_canonical(value));
    }
    value.list().into_iter().flat_map(|list| list.iter()).for_each(assert_canonical);
}

fn info_of(torrent: &[u8]) -> Value<'_> {
    Value::parse(torrent).unwrap().dict().unwrap().get(b"info").unwrap()
}

fn some_files() -> impl Strategy<Value = Vec<(Vec<&'static str>, u64, bool)>> {
    let name = prop::sample::select(vec!["a", "b", "a.b", "a-b", "ab", "\u{e9}", "z", "0"]);
    let path = prop::collection::vec(name, 1..4);
    let around = |length: u64| length.saturating_sub(1)..length + 2;
    let length = prop_oneof![
        Just(0),
        1_u64..5,
        around(16 << 10),
        around(32 << 10),
        around(48 << 10),
        around(64 << 10),
        1_u64..150_000
    ];
    prop::collection::vec((path, length, any::<bool>()), 1..9)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_made_torrent_is_read_as_it_was_meant_and_every_piece_verifies(
        files in some_files(),
        format in prop::sample::select(vec![Format::V1, Format::V2, Format::Hybrid]),
        shift in 14_u32..18,
        odd in 1_u32..60_000,
        private: bool,
    ) {
        let piece_length = if format == Format::V1 && odd % 2 == 0 { odd.max(1000) } else { 1 << shift };
        let mut files = files;
        files[0].1 = files[0].1.max(1);
        // Some paths are twice there, or are folders of others: those are refused, one by one.
        let mut builder = Creation::builder("torrent", format);
        builder.piece_length(piece_length).private(private);
        let mut taken = BTreeMap::new();
        for (path, length, executable) in &files {
            let mut with = builder.clone();
            match with.file(path, *length, *executable).build() {
                Ok(_) => {
                    builder = with;
                    taken.insert(path.clone(), (*length, *executable));
                }
                Err(Error::Path { fault, .. }) => {
                    prop_assert!(matches!(fault, PathFault::Twice(_) | PathFault::Folder), "{fault}");
                }
                Err(other) => panic!("{other}"),
            }
        }
        let creation = builder.build().unwrap();
        let torrent = made(creation.clone(), false);
        assert_canonical(Value::parse(&torrent).unwrap());
        let metainfo = Metainfo::parse(&torrent).unwrap();
        let info = metainfo.info();
        prop_assert_eq!(info.files(), creation.files());
        prop_assert_eq!((info.piece_length(), info.piece_count()), (piece_length, creation.piece_count()));
        prop_assert_eq!((info.has_v1(), info.is_private()), (format.has_v1(), private));
        prop_assert_eq!(info.info_hash_v2().is_some(), format.has_v2());
        prop_assert!(info.knows_hashes());

        let read: BTreeMap<_, _> = info
            .files()
            .iter()
            .filter(|file| !file.is_padding())
            .map(|file| (file.path()[1..].to_vec(), (file.length(), file.is_executable())))
            .collect();
        prop_assert_eq!(&read, &taken);

        let flat = flat(info.files());
        for piece in 0..info.piece_count() {
            let range = info.piece_range(piece).unwrap();
            let bytes = &flat[range.start as usize..range.end as usize];
            prop_assert!(info.verify(piece, bytes), "piece {}", piece);
            let mut other = bytes.to_vec();
            other[0] ^= 1;
            prop_assert!(!info.verify(piece, &other));
        }
        if format.has_v1() {
            let plain: Vec<u8> = flat.chunks(piece_length as usize).flat_map(Sha1::digest).collect();
            let pieces = info_of(&torrent).dict().unwrap().get(b"pieces").unwrap();
            prop_assert_eq!(pieces.bytes(), Some(&plain[..]));
        }

        // Neither the order of files nor the order of pieces makes a difference.
        let mut other = Creation::builder("torrent", format);
        other.piece_length(piece_length).private(private);
        for (path, (length, executable)) in taken.iter().rev() {
            other.file(path, *length, *executable);
        }
        prop_assert_eq!(made(other.build().unwrap(), true), torrent);
    }
}

fn single(format: Format, length: u64) -> CreationBuilder {
    let mut builder = Creation::builder("one.bin", format);
    builder.file([""; 0], length, true);
    builder
}

#[test]
fn a_single_file_lies_in_no_folder_and_has_no_padding() {
    for format in [Format::V1, Format::V2, Format::Hybrid] {
        let torrent = made(single(format, 100_000).build().unwrap(), false);
        let metainfo = Metainfo::parse(&torrent).unwrap();
        let files = metainfo.info().files();
        assert_eq!((files.count(), files.length()), (1, 100_000), "{format:?}");
        assert_eq!(files.get(0).unwrap().path(), ["one.bin"]);
        assert!(files.get(0).unwrap().is_executable());
        // And one in a folder lies there, but where v2 cannot say so.
        let mut folder = Creation::builder("one.bin", format);
        let torrent = made(folder.file(["one.bin"], 100_000, false).build().unwrap(), false);
        let metainfo = Metainfo::parse(&torrent).unwrap();
        let path = metainfo.info().files().get(0).unwrap().path();
        assert_eq!(path, if format == Format::V2 { &["one.bin"][..] } else { &["one.bin"; 2] });
        let mut deeper = Creation::builder("one.bin", format);
        let torrent = made(deeper.file(["a", "a"], 5, false).build().unwrap(), false);
        let metainfo = Metainfo::parse(&torrent).unwrap();
        assert_eq!(metainfo.info().files().get(0).unwrap().path(), ["one.bin", "a", "a"]);
    }
}

#[test]
fn the_fields_of_a_torrent_are_where_they_belong() {
    let plain = made(single(Format::Hybrid, 20_000).build().unwrap(), false);
    let mut builder = single(Format::Hybrid, 20_000);
    builder.tier(["udp:a", "udp:b"]).tier([""; 0]).tier(["udp:c"]);
    builder.comment("c").created_by("p").creation_date(-5);
    let torrent = made(builder.build().unwrap(), false);
    let metainfo = Metainfo::parse(&torrent).unwrap();
    assert_eq!(metainfo.tiers(), [vec!["udp:a", "udp:b"], vec!["udp:c"]]);
    assert_eq!(info_of(&torrent).encoded(), info_of(&plain).encoded());
    let dict = Value::parse(&torrent).unwrap().dict().unwrap();
    assert_eq!(dict.get(b"announce").and_then(Value::text), Some("udp:a"));
    assert_eq!(dict.get(b"comment").and_then(Value::text), Some("c"));
    assert_eq!(dict.get(b"created by").and_then(Value::text), Some("p"));
    assert_eq!(dict.get(b"creation date").and_then(Value::integer), Some(-5));
    // One tracker is in `announce` alone.
    let one = made(single(Format::V1, 5).tier(["udp:a"]).build().unwrap(), false);
    assert!(Value::parse(&one).unwrap().dict().unwrap().get(b"announce-list").is_none());
    assert_eq!(Metainfo::parse(&one).unwrap().tiers(), [["udp:a"]]);
    // Another source is another torrent.
    let sourced = made(single(Format::Hybrid, 20_000).source("S").build().unwrap(), false);
    assert_eq!(info_of(&sourced).dict().unwrap().get(b"source").and_then(Value::text), Some("S"));
    assert_canonical(Value::parse(&sourced).unwrap());
}

#[test]
fn names_are_kept_byte_for_byte_also_if_they_cannot_be_written() {
    let long = [b'x'; 300];
    let names: [&[u8]; 10] =
        [b"A", b"Re: x", b"Vol. 1.", b"What?.txt", b"a", b"a\nb", b"a\\b", b"aux.txt", &long, b"\xff\xfe"];
    for format in [Format::V1, Format::V2, Format::Hybrid] {
        let mut builder = Creation::builder(b"\xfftorrent", format);
        for name in names {
            builder.file([b"folder?\xff", name], 5, false);
        }
        let torrent = made(builder.build().unwrap(), false);
        let metainfo = Metainfo::parse(&torrent).unwrap();
        let files = metainfo.info().files();
        assert_eq!(metainfo.info().name(), "_torrent");
        let mut written = BTreeSet::new();
        for (file, name) in files.iter().filter(|file| !file.is_padding()).zip(names) {
            let original: [&[u8]; 3] = [b"\xfftorrent", b"folder?\xff", name];
            assert_eq!(file.original_path().unwrap(), original);
            assert!(written.insert(folded(&file.path().join("/"))) || !names::IGNORES_CASE);
            assert!(file.path().iter().all(|name| names::check(name.as_bytes()).is_ok()));
        }
    }
}

#[test]
fn impossible_torrents_are_refused_before_anything_is_hashed() {
    let refused = |builder: &CreationBuilder| builder.build().unwrap_err();
    let builder = |name: &str| Creation::builder(name, Format::V1);
    assert_eq!(refused(&builder("n")), Error::NoFiles);
    assert_eq!(
        refused(builder("..").file(["a"], 1, false)),
        Error::Name { name: "..".into(), fault: PathFault::Dots }
    );
    let path = |path: &[&[u8]]| match refused(builder("n").file(["ok"], 1, false).file(path, 1, false)) {
        Error::Path { fault, .. } => fault,
        other => panic!("{other}"),
    };
    assert_eq!(path(&[b".."]), PathFault::Dots);
    assert_eq!(path(&[b"a/b"]), PathFault::Separator);
    assert_eq!(path(&[b"a\0"]), PathFault::Control);
    assert_eq!(path(&[b"ok"]), PathFault::Twice(0));
    assert_eq!(path(&[b"ok", b"a"]), PathFault::Folder);
    assert_eq!(path(&[]), PathFault::Folder);
    assert!(matches!(refused(&single(Format::V1, 0)), Error::Field { key: "length", .. }));
    for (format, length) in [
        (Format::V1, 0),
        (Format::V1, (1 << 30) + 1),
        (Format::V2, 8192),
        (Format::Hybrid, 48 << 10),
        (Format::V2, 0),
    ] {
        let error = refused(single(format, 5).piece_length(length));
        assert!(matches!(error, Error::Field { key: "piece length", .. }), "{format:?} {length}: {error}");
    }
    let error = refused(single(Format::Hybrid, 1 << 40).piece_length(16 << 10));
    assert_eq!(error.to_string(), "`piece length` is too short: the hashes take too much room");
    for (format, length) in [(Format::V1, 1 << 38), (Format::V2, (1 << 37) + 1)] {
        let error = refused(single(format, length).piece_length(16 << 10));
        assert_eq!(error.to_string(), "`piece length` is too short: the hashes take too much room");
    }
    assert_eq!(refused(single(Format::V1, 1 << 40).piece_length(1)), Error::TooMany("pieces"));
    assert_eq!(refused(single(Format::V1, u64::MAX).piece_length(1 << 30)), Error::TooMany("bytes"));
    assert_eq!(refused(single(Format::V1, 1).tier(["a\nb"])), Error::Tracker("a\\nb".into()));
    assert_eq!(refused(single(Format::V1, 1).tier(vec!["a"; 257])), Error::TooMany("trackers"));
}

#[test]
fn a_piece_of_other_bytes_than_its_own_has_no_hash_and_without_it_there_is_no_torrent() {
    let creation = single(Format::Hybrid, 20_000).build().unwrap();
    let hashed = |bytes: &[u8]| {
        let mut hasher = creation.hasher(1).unwrap();
        hasher.update(bytes);
        hasher.finish()
    };
    assert_eq!(creation.piece_count(), 2);
    let length = 20_000 - (16 << 10);
    assert_eq!((hashed(&[7; 1]), hashed(&vec![7; length + 1])), (None, None));
    let hash = hashed(&vec![7; length]).unwrap();
    assert!(creation.hasher(2).is_none() && creation.segments(2).next().is_none());
    let mut incomplete = creation.clone();
    incomplete.set(hash);
    assert_eq!(incomplete.finish(), Err(Error::Unhashed(0)));
}

#[test]
fn pieces_are_as_long_as_those_of_most_torrents() {
    let kib = |total| piece_length_for(total) >> 10;
    assert_eq!([0, 1, 64 << 20].map(kib), [16; 3]);
    assert_eq!(kib((64 << 20) + 1), 32);
    assert_eq!([1 << 30, 4 << 30, 16 << 30, 64 << 30].map(kib), [256, 1024, 4096, 16384]);
    // Longer than any torrent of the table.
    assert_eq!([100 << 30, 1 << 40, 2 << 40].map(kib), [16384; 3]);
    assert_eq!([(2 << 40) + 1, 4 << 40].map(kib), [32768; 2]);
    assert_eq!([1 << 50, u64::MAX].map(kib), [1 << 20; 2]);
    for shift in 0..64 {
        for total in [(1_u64 << shift) - 1, 1 << shift, (1 << shift) + 1] {
            let length = piece_length_for(total);
            assert!(length.is_power_of_two() && (BLOCK..=LONGEST_PIECE).contains(&length));
        }
    }
}
