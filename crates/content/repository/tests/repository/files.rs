//! The store in plain files, beyond the suite of all stores: names, changes of the files by other programs,
//! full disks, crashes.

mod damage;
mod room;

use std::{
    collections::BTreeSet,
    env,
    io::{BufRead, BufReader, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc,
};

use rustix::time::{ClockId, clock_gettime};
use swarmkeep::{Random, SplitMix64};
use swarmkeep_content::{
    FileList,
    files::{Allocation, Damage, FileStore, HIDDEN},
};
use swarmkeep_metainfo::Info;

use super::*;

const BOTH: [Allocation; 2] = [Allocation::Sparse, Allocation::Preallocated];
const PIECE: u32 = 16 << 10;

fn open(folder: &Path) -> FileStore {
    FileStore::open(&ContentConfig::new(folder), Allocation::Sparse).unwrap()
}

fn temporary() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn hash(n: u8) -> InfoHash {
    InfoHash::new([n; 20])
}

fn fixture(name: &str) -> Arc<Info> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/torrents");
    let torrent = fs::read(folder.join(name).with_extension("torrent")).unwrap();
    Metainfo::parse(&torrent).unwrap().into_info()
}

/// The content of all files of a torrent: each file that is no padding is SplitMix64 of its number among
/// these.
fn content(files: &FileList) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(files.length() as usize);
    let mut number = 0;
    for file in files.iter() {
        let end = bytes.len() + file.length() as usize;
        if !file.is_padding() {
            number += 1;
            let mut numbers = SplitMix64::new(number);
            while bytes.len() < end {
                bytes.extend_from_slice(&numbers.next_u64().to_le_bytes());
            }
        }
        bytes.resize(end, 0);
    }
    bytes
}

fn list(files: &[(&str, u64)]) -> FileList {
    let mut list = FileList::builder();
    for (path, length) in files {
        list.file(&path.split('/').collect::<Vec<_>>(), *length, false).unwrap();
    }
    list.build().unwrap()
}

fn torrent(n: u8, files: &[(&str, u64)]) -> NewTorrent {
    NewTorrent::with_files(hash(n), PIECE, list(files)).unwrap()
}

fn put(content: &dyn Content, bytes: &[u8], pieces: impl IntoIterator<Item = u32>) {
    for piece in pieces {
        let range = content.geometry().piece(piece).unwrap();
        content.write(range.start, &bytes[range.start as usize..range.end as usize]).unwrap();
        assert!(content.mark_complete(piece).unwrap());
    }
}

/// Takes in a torrent with all its pieces.
fn fill(store: &FileStore, new: &NewTorrent) -> (Arc<dyn Content>, Vec<u8>) {
    let bytes = content(new.files.as_ref().unwrap());
    let content = store.create(new).unwrap();
    put(&*content, &bytes, 0..content.geometry().pieces());
    store.flush().unwrap();
    (content, bytes)
}

fn complete(content: &dyn Content) -> Vec<u32> {
    content.pieces().unwrap().iter().collect()
}

fn files_below(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(now) = folders.pop() {
        for entry in fs::read_dir(now).unwrap() {
            let path = entry.unwrap().path();
            if path.symlink_metadata().unwrap().is_dir() {
                folders.extend((path.file_name().unwrap() != HIDDEN).then(|| path.clone()));
            } else {
                found.insert(path.strip_prefix(folder).unwrap().to_owned());
            }
        }
    }
    found
}

/// The names that lie in a folder, but for the store's own.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != HIDDEN)
        .collect();
    names.sort();
    names
}

fn state(folder: &Path, info_hash: InfoHash) -> PathBuf {
    folder.join(HIDDEN).join("torrents").join(info_hash.to_string())
}

#[test]
fn torrents_of_real_programs_lie_on_the_disk_as_they_would_without_a_store() {
    for allocation in BOTH {
        for name in ["many-v1", "some-v1", "some-v2", "some-hybrid", "one-v2", "one-hybrid"] {
            let info = fixture(name);
            let bytes = content(info.files());
            let folder = temporary();
            let open = || FileStore::open(&ContentConfig::new(folder.path()), allocation).unwrap();
            let store = open();
            let torrent = store.create(&NewTorrent::of(&info).unwrap()).unwrap();
            let mut pieces: Vec<_> = (0..info.piece_count()).collect();
            Draw::new(7).shuffle(&mut pieces);
            let (early, late) = pieces.split_at(pieces.len() / 2);
            put(&*torrent, &bytes, early.iter().copied());
            store.flush().unwrap();
            put(&*torrent, &bytes, late.iter().copied());
            store.flush().unwrap();
            drop((torrent, store));

            let store = open();
            assert_eq!(store.report().damage, []);
            let torrent = store.open(&info.info_hash()).unwrap();
            assert_eq!(torrent.pieces().unwrap().count(), info.piece_count());
            for piece in 0..info.piece_count() {
                let read = torrent.read_piece(piece).unwrap();
                let there = info.piece_range(piece).unwrap();
                assert!(info.verify(piece, &read[..(there.end - there.start) as usize]), "{name}, {piece}");
            }
            let mut expected = BTreeSet::new();
            for file in info.files().iter().filter(|file| !file.is_padding()) {
                let path = PathBuf::from_iter(file.path());
                let on_disk = fs::read(folder.path().join(&path)).unwrap();
                let range = file.range();
                assert!(on_disk == bytes[range.start as usize..range.end as usize], "{name}: {path:?}");
                let mode = fs::metadata(folder.path().join(&path)).unwrap().permissions().mode();
                assert_eq!(mode & 0o100 != 0, file.is_executable(), "{path:?}");
                expected.insert(path);
            }
            assert_eq!(files_below(folder.path()), expected, "{name}");
            let paths = store.paths(&info.info_hash()).unwrap();
            let root = folder.path().canonicalize().unwrap();
            assert!(
                paths.iter().map(|(_, path)| path.strip_prefix(&root).unwrap()).eq(info
                    .files()
                    .iter()
                    .filter(|file| !file.is_padding())
                    .map(|file| PathBuf::from_iter(file.path())))
            );
            assert!(store.delete(&info.info_hash()).unwrap());
            assert_eq!(names(folder.path()), [""; 0], "{name}");
        }
    }
}

#[test]
fn a_torrent_with_a_name_that_is_taken_gets_a_number() {
    let folder = temporary();
    fs::write(folder.path().join("mine.txt"), "precious").unwrap();
    fs::create_dir(folder.path().join("Photos v. 1")).unwrap();
    let long = "x".repeat(255);
    fs::write(folder.path().join(&long), "precious").unwrap();
    let store = open(folder.path());
    let files = [
        (1, vec![("t/a", 10)], "t".to_owned()),
        (2, vec![("t/a", 20)], "t (2)".to_owned()),
        // Where upper and lower case make no difference it would be the same.
        (3, vec![("T/b", 30)], "T (3)".to_owned()),
        (4, vec![("mine.txt", 8)], "mine (2).txt".to_owned()),
        (5, vec![("Photos v. 1/a", 8)], "Photos v. 1 (2)".to_owned()),
        (11, vec![(&long, 8)], format!("{} (2)", &long[..251])),
        // No one folder in common.
        (6, vec![("x", 8), ("y", 8)], hash(6).to_string()),
        (7, vec![(".swarmkeep/torrents/x", 8)], ".swarmkeep (2)".to_owned()),
        (8, vec![(".Swarmkeep", 8)], ".Swarmkeep (3)".to_owned()),
    ];
    for (n, files, top) in &files {
        fill(&store, &torrent(*n, files));
        assert!(folder.path().join(top).exists(), "{files:?}");
        for ((_, path), (_, length)) in store.paths(&hash(*n)).unwrap().iter().zip(files) {
            assert!(path.starts_with(folder.path().canonicalize().unwrap().join(top)), "{path:?}");
            assert_eq!(fs::metadata(path).unwrap().len(), *length);
        }
    }
    // One that has another's info hash for a name does not take that one's place.
    fill(&store, &torrent(9, &[(&*hash(10).to_string(), 5)]));
    let unnamed = store.create(&NewTorrent::new(hash(10), 9, PIECE).unwrap()).unwrap();
    put(&*unnamed, b"123456789", [0]);
    let path = folder.path().join(HIDDEN).join(hash(10).to_string());
    assert_eq!(fs::read(path.canonicalize().unwrap()).unwrap(), b"123456789");
    assert_eq!(store.paths(&hash(10)).unwrap(), [(0, path.canonicalize().unwrap())]);
    store.flush().unwrap();
    drop((unnamed, store));
    let store = open(folder.path());
    assert_eq!(store.report().damage, []);
    assert!(store.list().unwrap().iter().all(|summary| summary.complete == 1));
    for n in 1..=11 {
        assert!(store.delete(&hash(n)).unwrap());
    }
    assert_eq!(names(folder.path()), ["Photos v. 1", "mine.txt", &long]);
    assert_eq!(fs::read(folder.path().join("mine.txt")).unwrap(), b"precious");
    assert_eq!(names(&folder.path().join(HIDDEN)), ["lock", "making", "torrents"]);
}

#[test]
fn a_torrent_that_has_no_place_is_refused_and_leaves_nothing() {
    let folder = temporary();
    let store = open(folder.path());
    let in_the_way = ["", HIDDEN].map(|above| folder.path().join(above).join(hash(1).to_string()));
    in_the_way.iter().for_each(|path| fs::create_dir(path).unwrap());
    for new in [NewTorrent::new(hash(1), 10, PIECE).unwrap(), torrent(1, &[("x", 1), ("y", 1)])] {
        let before = store.statistics();
        match store.create(&new) {
            Err(Error::Occupied { path }) => assert!(path.ends_with(hash(1).to_string())),
            other => panic!("{other:?}"),
        }
        assert_eq!((store.statistics().torrents, store.statistics().used), (0, before.used));
        assert!(fs::read_dir(folder.path().join(HIDDEN).join("making")).unwrap().next().is_none());
        assert!(fs::read_dir(folder.path().join(HIDDEN).join("torrents")).unwrap().next().is_none());
    }
    in_the_way.iter().for_each(|path| fs::remove_dir(path).unwrap());
    store.create(&NewTorrent::new(hash(1), 10, PIECE).unwrap()).unwrap();
}

#[test]
fn no_symbolic_link_is_followed_out_of_the_folder() {
    let (folder, outside) = (temporary(), temporary());
    let (inside, outside) = (folder.path(), outside.path());
    let files = [("t/a/one", 100), ("t/b/two", 100), ("t/three", 100)];
    fs::create_dir_all(outside.join("a")).unwrap();
    for path in ["a/one", "two", "three"] {
        fs::write(outside.join(path), [7; 100]).unwrap();
    }
    let plant = |link: &str, to: &Path| {
        let link = inside.join(link);
        if link.is_dir() {
            fs::remove_dir_all(&link).unwrap()
        } else {
            fs::remove_file(&link).unwrap()
        }
        symlink(to, link).unwrap();
    };
    let store = open(inside);
    let (content, bytes) = fill(&store, &torrent(1, &files));
    assert!(content.mark_incomplete(0).unwrap());
    drop((content, store));
    plant("t/b", outside);
    plant("t/three", &outside.join("three"));
    let store = open(inside);
    let content = store.open(&hash(1)).unwrap();
    content.write(0, &bytes[..100]).unwrap();
    for at in [100, 200] {
        assert!(matches!(content.write(at, &bytes[..100]), Err(Error::Io { .. })), "at {at}");
        assert!(matches!(content.read(at, &mut [0]), Err(Error::NotWritten { .. })), "at {at}");
    }
    // The folder above all, too, while it is open.
    fs::rename(inside.join("t"), inside.join("was")).unwrap();
    symlink(outside, inside.join("t")).unwrap();
    drop((content, store));
    let store = open(inside);
    assert!(store.delete(&hash(1)).unwrap());
    for path in ["a/one", "two", "three"] {
        assert_eq!(fs::read(outside.join(path)).unwrap(), [7; 100], "{path}");
    }
    assert!(inside.join("was/a/one").exists());
    drop(store);
    // And the store's own folder.
    fs::remove_dir_all(inside.join(HIDDEN)).unwrap();
    symlink(outside, inside.join(HIDDEN)).unwrap();
    let refused = FileStore::open(&ContentConfig::new(inside), Allocation::Sparse);
    assert!(matches!(refused, Err(Error::NotAStore { .. })), "{refused:?}");
    assert!(!outside.join("lock").exists());
}

const FEW_DESCRIPTORS: &str = "SWARMKEEP_TEST_FEW_DESCRIPTORS_IN";

#[test]
fn a_torrent_of_too_many_pieces_is_refused() {
    let folder = temporary();
    let store = open(folder.path());
    let refused = store.create(&NewTorrent::new(hash(1), 1 << 41, 16 << 10).unwrap());
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    assert_eq!((store.statistics().used, names(folder.path()).len()), (0, 0));
}

#[test]
fn delete_leaves_the_files_of_others() {
    let folder = temporary();
    let store = open(folder.path());
    fill(&store, &torrent(1, &[("t/a/b/one", 10), ("t/c/two", 10), ("t/d/three", 10), ("t/four", 10)]));
    fs::write(folder.path().join("t/a/mine"), "mine").unwrap();
    fs::create_dir(folder.path().join("t/c/empty")).unwrap();
    fs::remove_file(folder.path().join("t/four")).unwrap();
    fs::create_dir(folder.path().join("t/four")).unwrap();
    fs::write(folder.path().join("t/four/mine"), "mine").unwrap();
    // In the place of a file, and not of its length.
    fs::write(folder.path().join("t/d/three"), "mine").unwrap();
    assert!(store.delete(&hash(1)).unwrap());
    let stays = ["t/a/mine", "t/d/three", "t/four/mine"].map(PathBuf::from);
    assert_eq!(files_below(folder.path()), BTreeSet::from(stays));
    assert_eq!(names(&folder.path().join("t")), ["a", "c", "d", "four"]);
    assert_eq!(names(&folder.path().join("t/a")), ["mine"]);
    assert!(!state(folder.path(), hash(1)).exists());
}

#[test]
fn padding_is_not_on_the_disk_and_is_zeroes_or_counts_as_never_written() {
    let folder = temporary();
    let store = open(folder.path());
    let mut files = FileList::builder();
    files.file(&["t", "a"], 100, false).unwrap().padding(u64::from(PIECE) - 100).unwrap();
    files.file(&["t", "b"], 100, false).unwrap().padding(28).unwrap();
    let new = NewTorrent::with_files(hash(1), PIECE, files.build().unwrap()).unwrap();
    let torrent = store.create(&new).unwrap();
    assert!(matches!(torrent.read(100, &mut [0]), Err(Error::NotWritten { at: 100 })));
    let mut piece = vec![0; PIECE as usize];
    piece[..100].fill(7);
    piece[200] = 1;
    torrent.write(0, &piece).unwrap();
    assert!(matches!(torrent.mark_complete(0), Err(Error::NotWritten { at: 100 })));
    piece[200] = 0;
    torrent.write(0, &piece).unwrap();
    assert!(torrent.mark_complete(0).unwrap());
    assert!(torrent.read_piece(0).unwrap() == piece);
    torrent.write(u64::from(PIECE), &[9; 100]).unwrap();
    torrent.write(u64::from(PIECE) + 100, &[0; 28]).unwrap();
    assert!(torrent.mark_complete(1).unwrap());
    store.flush().unwrap();
    assert_eq!(files_below(folder.path()), BTreeSet::from(["t/a", "t/b"].map(PathBuf::from)));
    drop((torrent, store));
    let store = open(folder.path());
    let torrent = store.open(&hash(1)).unwrap();
    assert!(torrent.read_piece(0).unwrap() == piece);
    assert_eq!(torrent.read_piece(1).unwrap(), [&[9; 100][..], &[0; 28]].concat());
}

#[test]
fn a_folder_has_one_store_at_a_time() {
    let folder = temporary();
    let store = open(folder.path());
    let again = FileStore::open(&ContentConfig::new(folder.path()), Allocation::Sparse);
    match again {
        Err(Error::InUse { path }) => assert_eq!(path, folder.path().canonicalize().unwrap()),
        other => panic!("{other:?}"),
    }
    let content = store.create(&NewTorrent::new(hash(1), 10, PIECE).unwrap()).unwrap();
    content.write(0, &[1]).unwrap();
    drop((content, store));
    open(folder.path());
}

#[test]
fn opening_takes_time_in_proportion_to_the_torrents() {
    // Where that can be had, in memory, which creates many files in little time.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| temporary());
    // The time of this thread alone, whatever else the machine does.
    let cpu_time = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let opened_with = |torrents: Range<u32>| {
        let store = open(folder.path());
        for n in torrents.clone() {
            let mut bytes = [0; 20];
            bytes[..4].copy_from_slice(&n.to_le_bytes());
            let names: Vec<_> = (0..5).map(|file| format!("{n:05}/folder/{file}")).collect();
            let files: Vec<_> = names.iter().map(|name| (&**name, 1 << 20)).collect();
            let new = NewTorrent::with_files(InfoHash::new(bytes), 1 << 18, list(&files)).unwrap();
            store.create(&new).unwrap();
        }
        drop(store);
        let began = cpu_time();
        let store = open(folder.path());
        let took = cpu_time() - began;
        assert_eq!(store.statistics().torrents, u64::from(torrents.end));
        took
    };
    let (few, all) = (opened_with(0..400), opened_with(400..3200));
    println!("torrents of 5 files: 400 are opened in {few:?}, 3,200 in {all:?}");
    // Eight times as many, with room for a factor of four.
    assert!(all < 32 * few, "{few:?}, and {all:?} for eight times as many");
}

const KILLED: &str = "SWARMKEEP_TEST_KILLED_IN";

/// Writes, marks, unmarks, flushes, creates and deletes at random, and prints durable changes, until it is
/// killed.
fn work_until_killed(folder: &Path, seed: u64) {
    let mut draw = Draw::new(seed);
    let info = fixture("some-hybrid");
    let bytes = content(info.files());
    let store = open(folder);
    let main = store.open(&info.info_hash()).unwrap();
    let mut out = std::io::stdout();
    let mut say = |line: String| {
        out.write_all(line.as_bytes()).unwrap();
        out.flush().unwrap();
    };
    let mut has: BTreeSet<u32> = complete(&*main).into_iter().collect();
    say(format!("has {}\n", has.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")));
    loop {
        let piece = draw.below(info.piece_count().into()) as u32;
        match draw.below(20) {
            0 | 1 => {
                store.flush().unwrap();
                say(format!("has {}\n", has.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")));
            }
            2 => {
                if has.contains(&piece) {
                    say(format!("loses {piece}\n"));
                    assert!(main.mark_incomplete(piece).unwrap());
                    say(format!("lost {piece}\n"));
                    has.remove(&piece);
                    // Bytes that do not match the have-bit.
                    let range = main.geometry().piece(piece).unwrap();
                    main.write(range.start, &vec![0xee; (range.end - range.start) as usize]).unwrap();
                }
            }
            3 => {
                let n = draw.below(3) as u8;
                say(format!("makes {n}\n"));
                match store.create(&torrent(n, &[("extra/a", 1000), ("extra/b/c", 50_000)])) {
                    Ok(content) => {
                        say(format!("made {n}\n"));
                        content.write(0, &[n; 2000]).unwrap();
                    }
                    Err(Error::Exists(_)) => {
                        say(format!("deletes {n}\n"));
                        assert!(store.delete(&hash(n)).unwrap());
                        say(format!("deleted {n}\n"));
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            _ if has.contains(&piece) => {}
            _ => {
                let range = main.geometry().piece(piece).unwrap();
                main.write(range.start, &bytes[range.start as usize..range.end as usize]).unwrap();
                say(format!("marks {piece}\n"));
                assert!(main.mark_complete(piece).unwrap());
                has.insert(piece);
            }
        }
    }
}

#[test]
fn durable_pieces_outlive_a_process_that_is_killed() {
    if let Some(folder) = env::var_os(KILLED) {
        let seed = env::var("SWARMKEEP_TEST_SEED").unwrap().parse().unwrap();
        work_until_killed(Path::new(&folder), seed);
    }
    let rounds: u64 = env::var("SWARMKEEP_KILLS").map_or(30, |rounds| rounds.parse().unwrap());
    let folder = temporary();
    let info = fixture("some-hybrid");
    open(folder.path()).create(&NewTorrent::of(&info).unwrap()).unwrap();
    let mut draw = Draw::new(1);
    let (mut made, mut deleted) = (BTreeSet::new(), BTreeSet::new());
    let (mut kept, mut events) = (0, 0);
    for round in 0..rounds {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["files::durable_pieces_outlive_a_process_that_is_killed", "--exact", "--nocapture"])
            .env(KILLED, folder.path())
            .env("SWARMKEEP_TEST_SEED", (round + 1).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let (say, heard) = mpsc::channel();
        let reader = thread::spawn(move || {
            let mut said = Vec::new();
            let mut line = String::new();
            while lines.read_line(&mut line).unwrap() > 0 {
                // A line that the kill cut short was not said.
                said.extend(line.strip_suffix('\n').map(str::to_owned));
                line.clear();
                let _ = say.send(());
            }
            said
        });
        // One in ten is killed while it opens the folder, or even before.
        let wanted = if draw.below(10) == 0 { 0 } else { 5 + draw.below(20) };
        for _ in 0..wanted {
            heard.recv_timeout(Duration::from_secs(60)).expect("the process works");
        }
        thread::sleep(Duration::from_micros(draw.below(150_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let (mut has, mut lost) = (BTreeSet::new(), BTreeSet::new());
        for line in reader.join().unwrap() {
            let mut words = line.split(' ');
            let kind = words.next().unwrap();
            let numbers = words.filter_map(|word| word.parse::<u32>().ok());
            events += 1;
            match kind {
                "has" => has = numbers.collect(),
                "loses" => numbers.for_each(|piece| _ = has.remove(&piece)),
                "lost" => lost.extend(numbers),
                "marks" => numbers.for_each(|piece| _ = lost.remove(&piece)),
                "makes" => numbers.for_each(|n| _ = deleted.remove(&n)),
                "made" => made.extend(numbers),
                "deletes" => numbers.for_each(|n| _ = made.remove(&n)),
                "deleted" => deleted.extend(numbers),
                _ => events -= 1,
            }
        }
        let store = open(folder.path());
        assert_eq!(store.report().damage, [], "round {round}");
        let content = store.open(&info.info_hash()).unwrap();
        let there: BTreeSet<_> = complete(&*content).into_iter().collect();
        assert!(has.is_subset(&there), "round {round}: {has:?} was reported, {there:?} is there");
        assert!(lost.is_disjoint(&there), "round {round}: {lost:?} were taken back, {there:?} is there");
        for &piece in &there {
            assert!(info.verify(piece, &content.read_piece(piece).unwrap()), "round {round}: piece {piece}");
        }
        kept += has.len();
        for n in 0..3 {
            let there = store.open(&hash(n)).is_ok();
            assert!(there || !made.contains(&n.into()), "round {round}: torrent {n} was made");
            assert!(!there || !deleted.contains(&n.into()), "round {round}: torrent {n} was deleted");
            if there {
                made.insert(n.into());
            } else {
                assert!(store.paths(&hash(n)).is_err());
                made.remove(&n.into());
            }
        }
        // Nothing lies there that is no torrent's.
        let known =
            store.list().unwrap().into_iter().flat_map(|torrent| store.paths(&torrent.info_hash).unwrap());
        let root = folder.path().canonicalize().unwrap();
        let known: BTreeSet<_> =
            known.map(|(_, path)| path.strip_prefix(&root).unwrap().to_owned()).collect();
        assert_eq!(files_below(folder.path()), known, "round {round}");
        if round % 5 == 4 {
            (0..info.piece_count()).for_each(|piece| _ = content.mark_incomplete(piece).unwrap());
        }
    }
    println!("{rounds} kills, {events} reports, {kept} pieces reported and there");
    assert!(events > rounds && kept > 0, "the processes were killed before they did anything");
}
