//! Torrent files of real programs, and hostile ones.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use swarmkeep_bittorrent::bencode::Writer;
use swarmkeep_content_tests::torrents::{fixture, part_of_file, piece, torrent};
use swarmkeep_kit::allocations::{Counting, Counts, of_thread};
use swarmkeep_metainfo::{
    Creation, Error, FileList, Format, Info, MOST_MEMORY, Metainfo, PathFault, Segment,
};

/// Checks that these pieces verify, whole and in parts, and that wrong bytes do not.
fn assert_verifies(info: &Info, pieces: impl IntoIterator<Item = u32>) {
    for nth in pieces {
        let mut bytes = piece(info, nth);
        assert_eq!(bytes.len(), info.piece_len(nth) as usize);
        assert!(info.verify(nth, &bytes), "piece {nth}");
        let mut check = info.check(nth).unwrap();
        bytes.chunks(4099).for_each(|part| check.update(part));
        assert!(check.clone().holds(), "piece {nth} in parts");
        check.update(&[0]);
        assert!(!check.holds(), "piece {nth} in parts, and a byte more");
        assert!(!info.verify(nth, &bytes[1..]), "piece {nth}, a byte short");
        let other = (nth + 1) % info.piece_count();
        assert!(other == nth || !info.verify(other, &bytes), "piece {nth} as {other}");
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            bytes[at] ^= 1;
            assert!(!info.verify(nth, &bytes), "piece {nth} with another byte at {at}");
            bytes[at] ^= 1;
        }
        bytes.push(0);
        assert!(!info.verify(nth, &bytes), "piece {nth}, a byte long");
    }
    assert!(!info.verify(info.piece_count(), &[]));
    assert_eq!((info.piece_len(info.piece_count()), info.piece_range(u32::MAX)), (0, None));
}

fn hex(bytes: [u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Name, info hash of v1, of v2, KiB of a piece, pieces, entries and length of each.
const TORRENTS: [(&str, &str, &str, u32, u32, usize, u64); 7] = [
    ("many-v1", "2aa9e5822cdfeb4dc84a243a8441936f83b4b9e4", "", 64, 230, 1500, 15_029_283),
    ("some-v1", "17556c9a1462b148d2cf7d742d25d0cea6b628e8", "", 48, 13, 8, 627_912),
    ("some-v2", "", "13c534deb3d0e321f9b588003d2967996c4660ac0ae1470e87e7ec5214dff2ef", 32, 23, 12, 737_281),
    (
        "some-hybrid",
        "6913a13f298073ff086a8163eef06f8964f00dda",
        "8b7171897df0dc047a182e947022bb658fef8d3578e488efce945d60d264e631",
        32,
        23,
        13,
        23 * (32 << 10),
    ),
    ("one-v2", "", "e898dbf79a411010d03414234d0aa27426e541b9121e4a8245b9bc3676700b34", 64, 16, 1, 1_000_003),
    (
        "one-hybrid",
        "a7a3bd434156d66e139a8c9211062ee41fa00295",
        "fd1648d1e81ed27e65c1c5cbed38fa48f1b8e9e99d16249833fb4a0c5f03ea96",
        64,
        16,
        1,
        1_000_003,
    ),
    ("large-v1", "a7316dc46b4eb59f1cbde7d650dd4e5003b24224", "", 1 << 10, 512, 1, 512 << 20),
];

#[test]
fn torrents_of_real_programs_have_the_hashes_that_those_tell() {
    for (name, v1, v2, kib, pieces, entries, length) in TORRENTS {
        let metainfo = torrent(name);
        let info = metainfo.info();
        let hash = if v1.is_empty() { &v2[..40] } else { v1 };
        assert_eq!(info.info_hash().to_string(), hash, "{name}");
        assert_eq!(info.info_hash_v2().map(hex).unwrap_or_default(), v2, "{name}");
        assert_eq!(info.has_v1(), !v1.is_empty(), "{name}");
        assert_eq!((info.piece_length(), info.piece_count()), (kib << 10, pieces), "{name}");
        assert_eq!((info.files().count(), info.length()), (entries, length), "{name}");
        assert_eq!(info.is_private(), name == "many-v1");
        assert!(info.knows_hashes());
    }
}

#[test]
fn torrents_of_real_programs_are_made_again_byte_for_byte() {
    // All but the large one.
    for (name, v1, v2, kib, ..) in &TORRENTS[..6] {
        let metainfo = torrent(name);
        let info = metainfo.info();
        let format = match (*v1, *v2) {
            ("", _) => Format::V2,
            (_, "") => Format::V1,
            _ => Format::Hybrid,
        };
        let mut builder = Creation::builder(info.name(), format);
        builder.piece_length(kib << 10).private(info.is_private());
        for file in info.files().iter().filter(|file| !file.is_padding()) {
            builder.file(&file.path()[1..], file.length(), file.is_executable());
        }
        let mut creation = builder.build().unwrap();
        assert_eq!(creation.files(), info.files(), "{name}");
        for nth in 0..creation.piece_count() {
            let mut hasher = creation.hasher(nth).unwrap();
            for segment in creation.segments(nth) {
                let file = info.files().get(segment.file).unwrap();
                hasher.update(&part_of_file(info, file, segment.offset, segment.length as usize));
            }
            let hash = hasher.finish().unwrap();
            creation.set(hash);
        }
        let made = creation.finish().unwrap();
        let made = Metainfo::parse(&made).unwrap();
        let same = made.info().encoded() == info.encoded();
        assert!(same, "{name}: {}", made.info().encoded().escape_ascii());
        assert_eq!(made.info(), info, "{name}, with its layers");
    }
}

#[test]
fn every_piece_of_generated_content_is_verified_and_nothing_else() {
    for (name, ..) in &TORRENTS[..6] {
        let metainfo = torrent(name);
        assert_verifies(metainfo.info(), 0..metainfo.info().piece_count());
    }
    assert_verifies(torrent("large-v1").info(), [0, 1, 255, 511]);
}

#[test]
fn an_info_dictionary_alone_verifies_pieces_by_its_own_hashes() {
    let metainfo = torrent("some-v2");
    let info = Info::parse(metainfo.info().encoded()).unwrap();
    // For files of at most one piece, the info dictionary has the hash.
    let known: Vec<_> = (0..info.piece_count()).filter(|&nth| info.verify(nth, &piece(&info, nth))).collect();
    assert_eq!(known, [4, 19, 20]);
    assert!(info.check(0).is_none());
}

#[test]
fn segments_cover_a_range_once_and_leave_out_files_without_bytes() {
    let mut files = FileList::builder();
    files.file(&["a"], 10, false).unwrap().file(&["b"], 0, false).unwrap().padding(6).unwrap();
    let files =
        files.file(&["c"], 3, false).unwrap().file(&["d"], 0, false).unwrap().clone().build().unwrap();
    let segments = |range| files.segments(range).map(|s| (s.file, s.offset, s.length)).collect::<Vec<_>>();
    assert_eq!(segments(0..19), [(0, 0, 10), (2, 0, 6), (3, 0, 3)]);
    assert_eq!(segments(9..17), [(0, 9, 1), (2, 0, 6), (3, 0, 1)]);
    assert_eq!(segments(18..u64::MAX), [(3, 2, 1)]);
    assert_eq!(segments(5..5), []);
    assert_eq!(segments(19..20), []);
    assert_eq!(files.segments(12..13).next(), Some(Segment { file: 2, offset: 2, length: 1 }));
}

/// A v1 torrent with these entries of `files`, and hashes of `pieces` pieces of 64 KiB.
fn v1(files: &[u8], pieces: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out);
    writer.dict().bytes(b"info").dict().bytes(b"files").list().put(files).end();
    writer.bytes(b"name").bytes(b"n").bytes(b"piece length").integer(1 << 16);
    writer.bytes(b"pieces").bytes(&vec![0; 20 * pieces]).end().end();
    out
}

fn v1_file(out: &mut Vec<u8>, path: &[impl AsRef<[u8]>]) {
    let mut writer = Writer::new(out);
    writer.dict().bytes(b"length").integer(0).bytes(b"path").list();
    path.iter().for_each(|name| _ = writer.bytes(name.as_ref()));
    writer.end().end();
}

/// A v2 torrent with this file tree and, if that is not empty, one more file of one byte.
fn v2(tree: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out);
    writer.dict().bytes(b"info").dict().bytes(b"file tree").dict().put(tree);
    if !tree.is_empty() {
        let hash = [7; 32];
        writer.bytes(b"~").dict().bytes(b"").dict().bytes(b"length").integer(1);
        writer.bytes(b"pieces root").bytes(&hash).end().end();
    }
    writer.end();
    writer.bytes(b"meta version").integer(2).bytes(b"name").bytes(b"n");
    writer.bytes(b"piece length").integer(1 << 16).end().bytes(b"piece layers").dict().end().end();
    out
}

fn v2_file(out: &mut Vec<u8>, name: &[u8], attributes: &[u8]) {
    let mut writer = Writer::new(out);
    writer.bytes(name).dict().bytes(b"").dict().put(attributes).bytes(b"length").integer(0).end().end();
}

/// A file of one byte: a torrent without bytes is refused.
const WITH_A_BYTE: &[u8] = b"d6:lengthi1e4:pathl1:~ee";

/// The files with these paths, and one more of one byte.
fn v1_files(paths: &[&[&[u8]]]) -> Result<FileList, Error> {
    let mut files = Vec::new();
    paths.iter().for_each(|path| v1_file(&mut files, path));
    files.extend_from_slice(WITH_A_BYTE);
    Metainfo::parse(&v1(&files, 1)).map(|metainfo| metainfo.info().files().clone())
}

#[test]
fn a_torrent_may_have_any_names_and_none_leads_out_of_its_folder() {
    let written = |paths: &[&[&[u8]]]| -> Vec<String> {
        let files = v1_files(paths).unwrap();
        for (file, path) in files.iter().zip(paths) {
            let original = [&[&b"n"[..]], *path].concat();
            let said = file.original_path();
            assert_eq!(
                said.is_some(),
                file.path().iter().map(|name| name.as_bytes()).ne(original.iter().copied())
            );
            assert!(said.is_none_or(|said| said == original));
        }
        files.iter().take(paths.len()).map(|file| file.path().join("/")).collect()
    };
    let long = [b'x'; 256];
    assert_eq!(written(&[&[b"..", b"..", b"etc"]]), ["n/_/_/etc"]);
    assert_eq!(written(&[&[b"."], &[b""], &[b"/etc"]]), ["n/_", "n/_.1", "n/_etc"]);
    assert_eq!(written(&[&[b"a", b"b\\c"], &[b"a\0b"], &[b"\xff"]]), ["n/a/b_c", "n/a_b", "n/_"]);
    assert_eq!(written(&[&[&long]]), [format!("n/{}", "x".repeat(255))]);
    assert_eq!(
        written(&[&[b"a.b"], &[b"b"], &[b"a.b"], &[b"a.1.b"]]),
        ["n/a.b", "n/b", "n/a.2.b", "n/a.1.b"]
    );
    assert_eq!(written(&[&[b"a"], &[b"a", b"b"]]), ["n/a.1", "n/a/b"]);
    let refused = |paths: &[&[&[u8]]]| match v1_files(paths) {
        Err(Error::Path { file, path, fault }) => (file, path, fault),
        other => panic!("{other:?}"),
    };
    let (deep, too_deep) = ([&b"x"[..]; 99], [&b"x"[..]; 100]);
    let wide = [&long[..255]; 9];
    assert_eq!(refused(&[&[]]), (0, String::new(), PathFault::Missing));
    assert_eq!(refused(&[&too_deep]).2, PathFault::Deep);
    assert_eq!(refused(&[&wide]).2, PathFault::Long);
    assert_eq!(refused(&[&[&b"a"[..]][..]; 40]).2, PathFault::Twice(0));
    v1_files(&[&deep, &wide[..7]]).unwrap();
    let pairs: Vec<_> = (0..2000).map(|n| format!("{}", n / 2).into_bytes()).collect();
    let mut files = Vec::new();
    pairs.iter().for_each(|name| v1_file(&mut files, &[name]));
    files.extend_from_slice(WITH_A_BYTE);
    let metainfo = Metainfo::parse(&v1(&files, 1)).unwrap();
    assert_eq!(metainfo.info().files().get(1999).unwrap().path(), ["n", "999.1"]);
}

#[test]
fn links_are_left_out_and_counted() {
    let link = "d4:attr1:l6:lengthi0e4:pathl1:be12:symlink pathl2:..1:xeed6:lengthi1e4:pathl1:aee";
    let metainfo = Metainfo::parse(&v1(link.as_bytes(), 1)).unwrap();
    assert_eq!((metainfo.info().files().count(), metainfo.info().files().links()), (1, 1));
    let metainfo = Metainfo::parse(&v2(b"1:ad0:d4:attr1:l12:symlink pathl1:xeee")).unwrap();
    assert_eq!((metainfo.info().files().count(), metainfo.info().files().links()), (1, 1));
}

#[test]
fn names_of_utf_8_are_preferred_where_they_are_some() {
    let files =
        b"d6:lengthi1e4:pathl1:\xffe10:path.utf-8l2:\xc3\xa9eed6:lengthi0e4:pathl1:ae10:path.utf-8l1:\xffee";
    let metainfo = Metainfo::parse(&v1(files, 1)).unwrap();
    let paths: Vec<_> = metainfo.info().files().iter().map(|file| file.path().join("/")).collect();
    assert_eq!(paths, ["n/é", "n/a"]);
    let named = |name: &[u8]| {
        let info = [b"d6:lengthi1e", name, b"12:piece lengthi1e6:pieces20:01234567890123456789e"].concat();
        Info::parse(&info).map(|info| info.name().to_owned())
    };
    assert_eq!(named(b"4:name1:\xff10:name.utf-82:\xc3\xa9").unwrap(), "é");
    assert_eq!(named(b"4:name1:\xff").unwrap(), "_");
    assert_eq!(named(b"4:name2:..").unwrap(), "_");
    let nothing = Error::Field { key: "name", what: "is missing or empty" };
    assert_eq!(named(b"4:name0:"), Err(nothing.clone()));
    assert_eq!(named(b"4:name2:/\0"), Err(nothing));
}

#[test]
fn errors_name_the_key_and_the_file() {
    let said = |torrent: &[u8]| Metainfo::parse(torrent).unwrap_err().to_string();
    let info = |info: &str| Info::parse(info.as_bytes()).unwrap_err().to_string();
    assert_eq!(said(b"de"), "`info` is missing");
    assert_eq!(said(b"i1e"), "`info` is not within a dictionary");
    assert_eq!(said(b"d4:info"), "not bencoded: an early end at byte 7");
    let behind = [&fixture("one-v2")[..], b"\r\n"].concat();
    assert_eq!(Metainfo::parse(&behind).unwrap(), torrent("one-v2"));
    let name = "6:lengthi5e4:name1:n";
    assert_eq!(info("d6:lengthi5ee"), "`name` is missing or empty");
    assert_eq!(info(&format!("d{name}e")), "`piece length` is missing or no integer");
    for length in ["0", "-1", "1073741825", "9223372036854775807"] {
        let said = info(&format!("d{name}12:piece lengthi{length}e6:pieces0:e"));
        assert_eq!(said, "`piece length` is not within 1 and 2^30");
    }
    assert_eq!(info(&format!("d{name}12:piece lengthi1ee")), "`pieces` is missing");
    let pieces = "12:piece lengthi4e6:pieces";
    assert_eq!(info(&format!("d{name}{pieces}3:abce")), "`pieces` is not a multiple of 20 bytes");
    let one = format!("20:{}", "x".repeat(20));
    assert_eq!(info(&format!("d{name}{pieces}{one}e")), "`pieces` has not a hash of 20 bytes for each piece");
    assert_eq!(info(&format!("d4:name1:n{pieces}0:e")), "`files` is missing, and so is `length`");
    assert_eq!(info(&format!("d5:filesle{name}{pieces}0:e")), "`files` is there, and so is `length`");
    assert_eq!(info(&format!("d5:filesle4:name1:n{pieces}0:e")), "no files");
    let negative = info(&format!("d6:lengthi-1e4:name1:n{pieces}0:e"));
    assert_eq!(negative, "file 0: `length` is negative or no integer");

    let file = |attributes: &str| format!("d{attributes}6:lengthi5e4:pathl1:aee");
    assert_eq!(said(&v1(b"i1e", 0)), "file 0: `files` has something else than a dictionary for it");
    assert_eq!(said(&v1(b"d6:lengthi-5e4:pathl1:aee", 0)), "file 0: `length` is negative");
    assert_eq!(said(&v1(b"d4:pathl1:aee", 0)), "file 0: `length` is missing or no integer");
    assert_eq!(said(&v1(b"d6:lengthi5ee", 0)), "file 0: `path` is missing or no list");
    assert_eq!(
        said(&v1(file("4:attr1:l").as_bytes(), 1)),
        "file 0: `symlink path` is missing or no list of texts"
    );
    assert_eq!(said(&v1(b"d6:lengthi0e4:pathl1:aee", 0)), "`length` is 0 in all: there is nothing to share");
    assert_eq!(said(&v1(file("4:attr1:p").as_bytes(), 1)), "no files");
    let huge = b"d6:lengthi9223372036854775807e4:pathl1:aeed6:lengthi1e4:pathl1:bee";
    assert_eq!(said(&v1(huge, 0)), "too many bytes");
}

#[test]
fn a_file_tree_is_refused_where_its_order_or_its_layers_could_mean_two_things() {
    let said = |tree: &[u8]| Metainfo::parse(&v2(tree)).unwrap_err().to_string();
    let empty = |name| format!("1:{name}d0:d6:lengthi0eee");
    let both = |one: &str, other: &str| one.to_owned() + other;
    assert!(Metainfo::parse(&v2(both(&empty("a"), &empty("b")).as_bytes())).is_ok());
    let order = "`file tree` has names that are not in order, or twice";
    assert_eq!(said(both(&empty("b"), &empty("a")).as_bytes()), order);
    assert_eq!(said(both(&empty("a"), &empty("a")).as_bytes()), order);
    assert_eq!(said(b"1:ad0:d6:lengthi0ee1:bdee"), "file 0, \"n/a\", is also the folder of another");
    assert_eq!(said(b"1:ai1e"), "`file tree` has a name without a dictionary");
    assert_eq!(said(b""), "no files");
    assert_eq!(said(b"0:d6:lengthi0ee"), "`file tree` has an empty name");
    assert_eq!(said(b"1:ad0:d6:lengthi1eee"), "file 0: `pieces root` is missing, not of 32 bytes, or zeroes");
    let long = |root: &str| format!("1:ad0:d6:lengthi65537e11:pieces root32:{}ee", root.repeat(32));
    assert_eq!(said(long("\0").as_bytes()), "file 0: `pieces root` is missing, not of 32 bytes, or zeroes");
    let layerless = Metainfo::parse(&v2(long("x").as_bytes())).unwrap();
    assert!(!layerless.info().knows_hashes() && layerless.encode().is_none());
    // The parser skips everything within unknown keys, also known names.
    let nested = b"1:ad0:d1:bd6:lengthi7e1:lli1eee6:lengthi0eee";
    assert_eq!(Metainfo::parse(&v2(nested)).unwrap().info().files().get(0).unwrap().length(), 0);
}

#[test]
fn an_info_dictionary_with_its_hashes_makes_a_torrent_file() {
    let tiers = vec![vec!["udp://a.example:1".to_owned(), "udp://b.example:2".to_owned()]];
    for name in swarmkeep_content_tests::torrents::ALL {
        let metainfo = torrent(name);
        // With its layers, as a peer has sent them.
        let made = Metainfo::new(metainfo.info().clone(), &tiers);
        assert_eq!(Metainfo::parse(&made.encode().unwrap()).unwrap(), made, "{name}");
        // Without.
        let alone = Info::parse(metainfo.info().encoded()).unwrap();
        assert_eq!(alone.files(), metainfo.info().files());
        let known = alone.knows_hashes();
        assert_eq!(known, !name.ends_with("-v2"), "{name}");
        let made = Metainfo::new(alone, &tiers);
        let read = made.encode().map(|torrent| Metainfo::parse(&torrent).unwrap());
        assert_eq!(read, known.then_some(made), "{name}");
    }
}

#[test]
fn piece_layers_and_both_parts_of_a_hybrid_must_agree() {
    let mut layer = fixture("one-v2");
    let last = layer.len() - 3;
    layer[last] ^= 1;
    let error = Metainfo::parse(&layer).unwrap_err().to_string();
    assert_eq!(error, "file 0: its piece layer does not have its `pieces root`");
    let mut other = fixture("one-v2");
    let layers = other.windows(12).position(|window| window == b"piece layers").unwrap();
    other.splice(layers + 13..layers + 13, [b"32:", &[7; 32][..], b"0:"].concat());
    let error = Metainfo::parse(&other).unwrap_err().to_string();
    assert_eq!(error, "`piece layers` has hashes of a file that is not in the torrent");
    // In v1's part, which comes last but for `name`, lengths and paths are spelled in the same way as in
    // v2's.
    let hybrid = |old: &[u8], new: &[u8]| {
        let mut bytes = fixture("some-hybrid");
        let files = bytes.windows(7).position(|window| window == b"5:files").unwrap();
        let at = files + bytes[files..].windows(old.len()).position(|window| window == old).unwrap();
        bytes.splice(at..at + old.len(), new.iter().copied());
        Metainfo::parse(&bytes).unwrap_err().to_string()
    };
    let differs = |file, what: &str| format!("file {file} is not the same in the v1 and the v2 part: {what}");
    assert_eq!(hybrid(b"5:b.bin", b"5:B.bin"), differs(3, "its path"));
    assert_eq!(hybrid(b"i163841e", b"i163840e"), differs(4, "its length"));
    assert_eq!(hybrid(b"i31071e", b"i31070e"), differs(2, "the piece that it begins with"));
    assert_eq!(hybrid(b"4:attr1:p6:lengthi31071e", b"6:lengthi31071e"), differs(1, "its path"));
    assert_eq!(
        hybrid(b"d4:attr1:p6:lengthi16383e4:pathl4:.pad5:16383ee", b"d6:lengthi0e4:pathl1:zee"),
        differs(8, "only one part has it")
    );
}

/// Deterministic hostile inputs of at least 1 MiB each, with a description.
fn hostile() -> Vec<(&'static str, Vec<u8>)> {
    const SIZE: usize = 1 << 20;
    let mut cases = Vec::new();
    let files_of = |next: &dyn Fn(usize, &mut Vec<u8>)| {
        let mut files = Vec::new();
        for nth in 0.. {
            next(nth, &mut files);
            if files.len() >= SIZE {
                break;
            }
        }
        files
    };
    let text = |nth: usize| nth.to_string().into_bytes();
    let mut of_paths = |what, path: &dyn Fn(usize) -> Vec<Vec<u8>>| {
        let files = files_of(&|nth, out| v1_file(out, &path(nth)));
        cases.push((what, v1(&[&files, WITH_A_BYTE].concat(), 1)));
    };
    of_paths("many files", &|nth| vec![text(nth)]);
    of_paths("one path again and again", &|_| vec![b"a".to_vec()]);
    of_paths("two files of each path", &|nth| vec![text(nth / 2)]);
    let is_folder = |nth: usize| [text(nth / 2), b"f".to_vec()][..1 + nth % 2].to_vec();
    of_paths("files that are folders of others", &is_folder);
    let broken =
        |nth: usize| [vec![0xff], text(nth)].concat().chunks(1).map(<[u8]>::to_vec).collect::<Vec<_>>();
    of_paths("names that cannot be written", &broken);
    of_paths("folders in folders", &|nth| [vec![text(nth)], vec![b"f".to_vec(); 98]].concat());
    let long = |nth: usize| vec![["é".repeat(100).into_bytes(), text(nth)].concat()];
    of_paths("names that are long and almost the same", &long);
    of_paths("folders of one letter in folders", &|nth| {
        let letter = |at: usize| vec![b'a' + (at % 26) as u8];
        let path = vec![letter(nth), letter(nth / 26), letter(nth / 676)];
        [path, vec![b"f".to_vec(); 96]].concat()
    });
    cases.push(("keys again and again", {
        let keys = b"6:lengthi1e".repeat(SIZE / 11);
        v1(&[b"d", &keys[..], b"4:pathl1:aee"].concat(), 1)
    }));
    cases.push(("files without bytes between two", {
        let mut files = b"d6:lengthi5e4:pathl1:aee".to_vec();
        files.extend(files_of(&|nth, out| v1_file(out, &[text(nth)])));
        files.extend(b"d6:lengthi5e4:pathl1:bee");
        v1(&files, 1)
    }));
    let (deep, ends) = (b"1:fd".repeat(98), b"e".repeat(98));
    let leaves = files_of(&|nth, out| v2_file(out, format!("{nth:07}").as_bytes(), b""));
    cases.push(("a deep tree with all files at its end", v2(&[&deep, &leaves[..], &ends].concat())));
    cases.push(("two deep trees that differ by case", {
        let leaves = &leaves[..leaves.len() / 26 / 2 * 26];
        let one = [&b"1:F"[..], b"d", &deep[4..], leaves, &ends].concat();
        let other = [&deep[..], leaves, &ends].concat();
        v2(&[one, other].concat())
    }));
    cases.push(("a value nested in each file", {
        let nested = [b"1:a".to_vec(), b"l".repeat(100), b"e".repeat(100)].concat();
        v2(&files_of(&|nth, out| v2_file(out, format!("{nth:07}").as_bytes(), &nested)))
    }));
    cases.push(("trackers", {
        let tiers = b"l1:ae".repeat(SIZE / 5);
        let one = v1(WITH_A_BYTE, 1);
        [b"d13:announce-listl", &tiers[..], b"e", &one[1..]].concat()
    }));
    cases
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The CPU time of this thread alone.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn hostile_input_takes_no_more_memory_than_is_said_and_no_longer_than_its_length_allows() {
    for (what, torrent) in hostile() {
        assert!(torrent.len() >= 1 << 20, "{what}: {} bytes", torrent.len());
        let (_parsed, Counts { live, most, .. }) = of_thread(|| Metainfo::parse(&torrent));
        let began = cpu_time();
        let parsed = Metainfo::parse(&torrent);
        let segments = parsed.as_ref().map_or(0, |metainfo| metainfo.info().files().segments(0..10).count());
        let took = cpu_time() - began;
        let began = cpu_time();
        torrent.windows(8).collect::<Vec<_>>().sort();
        let sorted = cpu_time() - began;
        let times = |bytes: isize| bytes as f64 / torrent.len() as f64;
        println!("{what}: {:.1} times its length, {:.1} at most", times(live), times(most));
        println!("{took:?}, sorted in {sorted:?}, {segments} segments, {:?}", parsed.err());
        assert!(most <= (MOST_MEMORY * torrent.len() + (64 << 10)) as isize, "{what}");
        assert!(took < 4 * sorted, "{what}: {took:?}, and {sorted:?} to sort its windows");
    }
}
