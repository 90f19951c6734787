//! Other programs read our torrents, and `seedkeep` reads theirs.

use std::{fs::File, path::Path, process::Command};

use serde_json::Value;
use swarmkeep_metainfo::Info;
use swarmkeep_store_tests::{
    programs::{ARIA2, LIBTORRENT, MKFS_EXT4, MKSWAP, PYTHON, TRANSMISSION_SHOW, Trial, find},
    tests,
};

use crate::common::{Ended, FORMATS, Folder, done, ended, read, scratch, seedkeep};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [ARIA2]: aria2_reads_ours;
        [LIBTORRENT]: libtorrent_makes_the_same_torrents_and_reads_ours;
        [MKFS_EXT4, MKSWAP]: devices_of_real_programs_are_named_and_not_formatted;
        [TRANSMISSION_SHOW]: transmission_reads_ours
    }
}

/// Makes a torrent of a path, and reads ours and its magnet link: prints the info hashes of all three.
const MAKE_AND_READ: &str = r#"
import json, sys
import libtorrent as lt

path, piece_length, format, ours, link = sys.argv[1:]
flags = {"--v1": lt.create_torrent.v1_only, "--v2": lt.create_torrent.v2_only, "--hybrid": 0}[format]
files = lt.file_storage()
lt.add_files(files, path)
# v1 in the order of v2: without it, that in which the folder lists them.
if format == "--v1":
    entries = [(files.file_path(i), files.file_size(i), files.file_flags(i)) for i in range(files.num_files())]
    files = lt.file_storage()
    for name, size, flag in sorted(entries, key=lambda entry: [part.encode() for part in entry[0].split("/")]):
        files.add_file(name, size, flag)
torrent = lt.create_torrent(files, int(piece_length), flags)
lt.set_piece_hashes(torrent, path.rsplit("/", 1)[0])

def hashes(found):
    return [str(found.v1) if found.has_v1() else None, str(found.v2) if found.has_v2() else None]

info = lt.torrent_info(ours)
magnet = lt.parse_magnet_uri(link)
print(json.dumps({
    "theirs": hashes(lt.torrent_info(torrent.generate()).info_hashes()),
    "ours": hashes(info.info_hashes()),
    "magnet": hashes(magnet.info_hashes),
    "tiers": [[tracker.url, tracker.tier] for tracker in info.trackers()],
    "trackers": magnet.trackers,
    "name": magnet.name,
}))
"#;

fn libtorrent_makes_the_same_torrents_and_reads_ours() {
    let folder: &Path = &Folder(scratch());
    for (path, piece_length) in
        [("some", 16 << 10), ("some", 64 << 10), ("some/a.b", 32 << 10), ("some/run", 16 << 10)]
    {
        for format in FORMATS {
            let words = "--json --force -o made --tracker udp://t.example:1/x,http://b.example/a?b=c --tracker udp://c.example:2";
            let told = done(folder, &format!("create {path} {format} --piece-length {piece_length} {words}"));
            let told: Value = serde_json::from_str(&told.out).unwrap();
            let link = told["magnet"].as_str().unwrap();
            let whole = folder.join(path).to_str().unwrap().to_owned();
            let length = piece_length.to_string();
            let arguments = ["-c", MAKE_AND_READ, &whole, &length, format, "made", link];
            let read = ended(Command::new(PYTHON).args(arguments).current_dir(folder));
            assert_eq!(read.code, 0, "{}", read.errors);
            let read: Value = serde_json::from_str(&read.out).unwrap();
            assert_eq!(read["theirs"], read["ours"], "{path} {format} {piece_length}");
            assert_eq!(read["magnet"], read["ours"]);
            let [v1, v2] = [&read["ours"][0], &read["ours"][1]];
            assert_eq!((v1.is_string(), v2.is_string()), (format != "--v2", format != "--v1"));
            assert_eq!(v2, &told["info_hash_v2"]);
            assert!(v1.is_null() || v1 == &told["info_hash"]);
            let urls = ["udp://t.example:1/x", "http://b.example/a?b=c", "udp://c.example:2"];
            // libtorrent shuffles each tier.
            let mut tiers = read["tiers"].as_array().unwrap().clone();
            tiers.sort_by_key(|tracker| urls.iter().position(|url| tracker[0] == *url));
            let expected = urls.iter().zip([0, 0, 1]).map(|(url, tier)| serde_json::json!([url, tier]));
            assert_eq!(tiers, expected.collect::<Vec<_>>());
            assert_eq!(read["trackers"], Value::from(urls.to_vec()));
            assert_eq!(read["name"], told["name"]);
        }
    }
}

/// A program prints what is expected of torrents of v1, and of hybrids if it reads one that libtorrent made.
fn reads_ours(command: &[&str], reads: impl Fn(&Ended) -> bool, expected: impl Fn(&Info) -> String) {
    let folder: &Path = &Folder(scratch());
    let show =
        |path: &Path| ended(Command::new(command[0]).args(&command[1..]).arg(path).current_dir(folder));
    let hybrid = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/torrents/some-hybrid.torrent");
    let formats = if reads(&show(&hybrid)) { &["--v1", "--hybrid"][..] } else { &["--v1"] };
    for (path, format) in
        ["some", "some/a.b"].iter().flat_map(|path| formats.iter().map(move |it| (path, it)))
    {
        let options = "--force -o made --private --tracker udp://t.example:1 --comment words";
        done(folder, &format!("create {path} {format} {options}"));
        let shown = show(Path::new("made"));
        assert_eq!(shown.code, 0, "{}", shown.errors);
        for expected in expected(read(&folder.join("made")).info()).split('|') {
            assert!(shown.out.contains(expected), "{expected}: {}", shown.out);
        }
    }
}

fn transmission_reads_ours() {
    // Transmission 3.00 reads no hybrids.
    reads_ours(
        &["transmission-show"],
        |shown| shown.code == 0,
        |info| {
            let (hash, pieces) = (info.info_hash(), info.piece_count());
            format!("Hash: {hash}|Piece Count: {pieces}|Privacy: Private|udp://t.example:1|Comment: words")
        },
    );
}

fn aria2_reads_ours() {
    // aria2 1.36 takes every hybrid for another torrent.
    let hash = "Info Hash: 6913a13f298073ff086a8163eef06f8964f00dda";
    reads_ours(
        &["aria2c", "--show-files"],
        |shown| shown.out.contains(hash),
        |info| {
            let (hash, pieces, name) = (info.info_hash(), info.piece_count(), info.name());
            format!("Info Hash: {hash}|The Number of Pieces: {pieces}|udp://t.example:1|Name: {name}")
        },
    );
}

fn devices_of_real_programs_are_named_and_not_formatted() {
    let folder: &Path = &Folder(tempfile::tempdir().unwrap());
    for (program, name) in [("mkfs.ext4", "an ext2, ext3 or ext4 file system"), ("mkswap", "swap space")] {
        let path = folder.join(program);
        File::create(&path).unwrap().set_len(16 << 20).unwrap();
        let made = ended(Command::new(find(program).unwrap()).arg("-q").arg(&path));
        assert_eq!(made.code, 0, "{}", made.errors);
        let refused = ended(&mut seedkeep(folder, &format!("store format {program}")));
        assert!(refused.code == 1 && refused.errors.contains(name), "{}", refused.errors);
    }
}
