//! Files that are not as they were written: refused by name and byte, and never a wrong count.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use crate::common::{Model, apply, counts, world};
use swarmkeep_state::{
    Change, Directory, Downloads, Error, Folder, InfoHash, Options, Result, simulated::Simulated,
};

type Files = BTreeMap<String, Vec<u8>>;

const LOG: &str = "downloads-3.log";
const RUNS: [&str; 2] = ["downloads-1-1.run", "downloads-2-2.run"];
const SECTOR: usize = 512;
const PAGE: usize = 4096;

/// Two runs, of three pages and of one, and a log of three commits, the second of two sectors: its files, the
/// counts, and those before the last commit.
struct Sample {
    world: Vec<InfoHash>,
    files: Files,
    counts: Model,
    before_the_last: Model,
}

fn sample() -> Sample {
    let world = world(400);
    let folder = Simulated::new(2);
    let mut downloads = open(&folder).unwrap();
    let mut model = Model::new();
    let add = |torrents: &[InfoHash], forget, add| -> Vec<_> {
        torrents.iter().map(|&torrent| (torrent, Change { forget, add })).collect()
    };
    for run in [add(&world, false, 5), add(&world[30..90], false, 2)] {
        downloads.add_sorted(run.iter().map(|(torrent, change)| Ok((*torrent, change.add)))).unwrap();
        model = apply(&model, &run);
    }
    let mut before_the_last = model.clone();
    for commit in [add(&world[..3], true, 1), add(&world[200..230], false, 9), add(&world[5..7], true, 0)] {
        before_the_last = model.clone();
        downloads.commit(commit.iter().copied()).unwrap();
        model = apply(&model, &commit);
    }
    assert_eq!(counts(&downloads, &world).unwrap(), model);
    let names = folder.names().unwrap();
    assert_eq!(names, [RUNS[0], RUNS[1], LOG]);
    let files = names.into_iter().map(|name| (name.clone(), folder.contents(&name).unwrap())).collect();
    Sample { world, files, counts: model, before_the_last }
}

fn open(folder: &Simulated) -> Result<Downloads> {
    Downloads::open_with(Arc::new(folder.clone()), Options::default().log_bytes(4096))
}

fn folder_of(files: &Files) -> Simulated {
    let folder = Simulated::new(2);
    files.iter().for_each(|(name, contents)| folder.put(name, contents));
    folder
}

/// The counts in such files; nothing is changed where they are refused.
fn counts_in(files: &Files, world: &[InfoHash]) -> Result<Model> {
    let folder = folder_of(files);
    let result = open(&folder).and_then(|downloads| counts(&downloads, world));
    if result.is_err() {
        for (name, contents) in files {
            assert_eq!(folder.contents(name).as_ref(), Some(contents), "{name}");
        }
    }
    result
}

/// Where the damage is said to be; panics if it is not said to be in this file.
#[track_caller]
fn place(error: &Error, name: &str) -> u64 {
    assert!(error.to_string().contains(name), "{error}");
    match error {
        Error::Damaged { at, .. } => *at,
        Error::Version { found, known: 1, .. } if *found != 1 => 8,
        _ => panic!("{error}"),
    }
}

#[test]
fn every_byte_of_a_run_counts() {
    let sample = sample();
    for name in RUNS {
        for at in 0..sample.files[name].len() {
            for mask in [0x01, 0x80] {
                let mut files = sample.files.clone();
                files.get_mut(name).unwrap()[at] ^= mask;
                let error = counts_in(&files, &sample.world).expect_err("a run has no byte to spare");
                let place = place(&error, name) as usize;
                assert_eq!(place / PAGE, at / PAGE, "byte {at}: {error}");
            }
        }
    }
}

#[test]
fn a_flipped_byte_of_the_log_is_refused_or_the_last_commit_is_missing() {
    let sample = sample();
    let last = SECTOR + 3 * SECTOR..SECTOR + 4 * SECTOR;
    let mut missing = 0;
    for at in 0..sample.files[LOG].len() {
        for mask in [0x01, 0x80] {
            let mut files = sample.files.clone();
            files.get_mut(LOG).unwrap()[at] ^= mask;
            match counts_in(&files, &sample.world) {
                Ok(found) if last.contains(&at) => {
                    assert_eq!(found, sample.before_the_last, "byte {at}");
                    missing += 1;
                }
                Ok(found) => {
                    assert_eq!(found, sample.counts, "byte {at}");
                    assert!(at >= last.end, "byte {at} is of an earlier commit");
                }
                Err(error) => {
                    let place = place(&error, LOG) as usize;
                    let block = [(0, SECTOR), (SECTOR, 2 * SECTOR), (2 * SECTOR, 4 * SECTOR)];
                    let (from, to) =
                        *block.iter().find(|(_, to)| at < *to).expect("what is behind is no damage");
                    assert!((from..to).contains(&place), "byte {at}: {error}");
                }
            }
        }
    }
    assert_eq!(missing, 2 * SECTOR);
}

#[test]
fn a_file_that_is_cut_off_or_longer_is_refused() {
    let sample = sample();
    for name in [RUNS[0], RUNS[1], LOG] {
        let whole = &sample.files[name];
        for length in 0..whole.len() {
            let mut files = sample.files.clone();
            files.get_mut(name).unwrap().truncate(length);
            let error = counts_in(&files, &sample.world).expect_err("what is gone is missed");
            assert!(place(&error, name) as usize <= length, "{length}: {error}");
        }
        for more in [1, SECTOR, PAGE] {
            let mut files = sample.files.clone();
            files.get_mut(name).unwrap().resize(whole.len() + more, 0);
            place(&counts_in(&files, &sample.world).expect_err("it is longer than it says"), name);
        }
    }
}

#[test]
fn a_torn_last_commit_is_missing_whole_and_the_next_one_takes_its_place() {
    let sample = sample();
    let mut files = sample.files.clone();
    files.get_mut(LOG).unwrap()[4 * SECTOR..5 * SECTOR - 1].fill(0);
    let folder = folder_of(&files);
    let mut downloads = open(&folder).unwrap();
    assert_eq!(counts(&downloads, &sample.world).unwrap(), sample.before_the_last);
    let change = (sample.world[9], Change { forget: true, add: 77 });
    downloads.commit([change]).unwrap();
    drop(downloads);
    let expected = apply(&sample.before_the_last, &vec![change]);
    assert_eq!(counts(&open(&folder).unwrap(), &sample.world).unwrap(), expected);
}

#[test]
fn what_was_written_elsewhere_is_not_taken_for_good() {
    let sample = sample();
    let other = self::sample();
    let wrong = |change: &dyn Fn(&mut Files), name: &str, at: u64| {
        let mut files = sample.files.clone();
        change(&mut files);
        let error = counts_in(&files, &sample.world).expect_err("it is from elsewhere");
        assert_eq!(place(&error, name), at, "{error}");
    };
    // Pages of the same place in another file, and of another place in the same file.
    wrong(
        &|files| {
            files.get_mut(RUNS[0]).unwrap()[PAGE..2 * PAGE]
                .copy_from_slice(&other.files[RUNS[0]][PAGE..2 * PAGE])
        },
        RUNS[0],
        4096,
    );
    wrong(&|files| files.get_mut(RUNS[0]).unwrap().copy_within(PAGE..2 * PAGE, 2 * PAGE), RUNS[0], 8192);
    // The same of commits.
    wrong(
        &|files| {
            files.get_mut(LOG).unwrap()[SECTOR..2 * SECTOR]
                .copy_from_slice(&other.files[LOG][SECTOR..2 * SECTOR])
        },
        LOG,
        512,
    );
    wrong(&|files| files.get_mut(LOG).unwrap().copy_within(4 * SECTOR..5 * SECTOR, SECTOR), LOG, 512);
    // Whole files under other names.
    wrong(&|files| drop(files.insert(RUNS[1].into(), sample.files[RUNS[0]].clone())), RUNS[1], 16);
    let mut files = sample.files.clone();
    let run = files.remove(RUNS[1]).unwrap();
    files.insert("downloads-2-4.run".into(), run);
    files.remove(LOG);
    assert_eq!(place(&counts_in(&files, &sample.world).unwrap_err(), "downloads-2-4.run"), 16);
    let log = sample.files[LOG].clone();
    let files = Files::from([("downloads-1.log".into(), log)]);
    assert_eq!(place(&counts_in(&files, &sample.world).unwrap_err(), "downloads-1.log"), 16);
}

#[test]
fn files_that_are_missing_or_of_another_folder_are_missed() {
    let sample = sample();
    let with = |change: &dyn Fn(&mut Files)| {
        let mut files = sample.files.clone();
        change(&mut files);
        counts_in(&files, &sample.world).expect_err("they do not fit")
    };
    let error = with(&|files| drop(files.remove(RUNS[0])));
    assert!(matches!(&error, Error::Mixed { path, expected: 1 } if path.ends_with(RUNS[1])), "{error}");
    let error = with(&|files| drop(files.remove(RUNS[1])));
    assert!(matches!(&error, Error::Mixed { path, expected: 2 } if path.ends_with(LOG)), "{error}");
    let error = with(&|files| drop(files.insert("downloads-4.log".into(), sample.files[LOG].clone())));
    assert!(matches!(&error, Error::Mixed { path, .. } if path.ends_with("downloads-4.log")), "{error}");
    let error = with(&|files| drop(files.insert("downloads-2-3.run".into(), sample.files[RUNS[0]].clone())));
    assert!(error.to_string().contains("downloads-2-3.run"), "{error}");
    let error = with(&|files| drop(files.insert("downloads-1-2.run".into(), vec![7; 2 * PAGE])));
    assert_eq!(place(&error, "downloads-1-2.run"), 0, "nothing is removed for a run that is none");
}

#[test]
fn a_later_version_is_refused_by_its_number() {
    let sample = sample();
    for name in [RUNS[0], LOG] {
        let mut files = sample.files.clone();
        files.get_mut(name).unwrap()[8..10].copy_from_slice(&[2, 1]);
        let error = counts_in(&files, &sample.world).unwrap_err();
        assert!(matches!(error, Error::Version { found: 258, known: 1, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("258") && text.contains("version 1"), "{text}");
    }
}

#[test]
fn what_a_merge_or_a_start_left_over_is_removed() {
    let sample = sample();
    let folder = folder_of(&sample.files);
    for left in ["downloads-1.log", "downloads-2.log", "downloads-3.log.partial", "downloads-1-2.run.partial"]
    {
        folder.put(left, b"anything");
    }
    folder.put("downloads-1.txt", b"a stranger's");
    let downloads = open(&folder).unwrap();
    assert_eq!(counts(&downloads, &sample.world).unwrap(), sample.counts);
    assert_eq!(folder.names().unwrap(), [RUNS[0], "downloads-1.txt", RUNS[1], LOG]);
}

/// A damaged page stops a merge, and nothing is lost by it.
#[test]
fn a_merge_of_a_damaged_run_is_an_error_and_changes_nothing() {
    let sample = sample();
    let mut files = sample.files.clone();
    files.get_mut(RUNS[1]).unwrap()[PAGE + 100] ^= 1;
    let folder = folder_of(&files);
    let mut downloads = open(&folder).unwrap();
    let all = sample.world.iter().map(|&torrent| (torrent, Change { forget: false, add: 1 }));
    downloads.commit(all).unwrap();
    for _ in 0..2 {
        let error = downloads.settle().unwrap_err();
        assert_eq!(place(&error, RUNS[1]), 4096);
    }
    for (name, contents) in files.iter().filter(|(name, _)| *name != LOG) {
        assert_eq!(folder.contents(name).as_ref(), Some(contents));
    }
    assert!(folder.names().unwrap().iter().all(|name| !name.ends_with(".partial")));
}

fn fixture() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/downloads")
}

/// Counts of the fixture: torrent *n* has info hash n n n …; see `make_fixture`.
fn fixture_counts() -> Model {
    let torrent = |n: u8| InfoHash::new([n; 20]);
    let mut counts: Model = (1..=200).map(|n| (torrent(n), u32::from(n))).collect();
    (1..=20).for_each(|n| *counts.get_mut(&torrent(n)).unwrap() += 1000);
    counts.remove(&torrent(30));
    counts.insert(torrent(31), 7);
    counts.insert(torrent(32), u32::MAX);
    *counts.get_mut(&torrent(1)).unwrap() += 1;
    counts.insert(torrent(2), 5);
    counts.remove(&torrent(3));
    counts.insert(torrent(255), 1);
    counts
}

#[test]
fn the_fixture_opens_for_ever() {
    let files = fs::read_dir(fixture()).unwrap().map(|entry| entry.unwrap());
    let files: Files =
        files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect();
    assert!(files.keys().eq(["downloads-1-2.run", "downloads-3-3.run", "downloads-4.log"]));
    let world: Vec<_> = (0..=255).map(|n| InfoHash::new([n; 20])).collect();
    assert_eq!(counts_in(&files, &world).unwrap(), fixture_counts());
    let folder = folder_of(&files);
    let mut downloads = open(&folder).unwrap();
    assert_eq!((downloads.runs(), downloads.entries()), (2, 200 + 23 + 4));
    let all = (0..=255).map(|n| (InfoHash::new([n; 20]), Change { forget: false, add: 0 }));
    downloads.commit(all.chain([(world[0], Change { forget: false, add: 1 })])).unwrap();
    downloads.settle().unwrap();
    let expected = apply(&fixture_counts(), &vec![(world[0], Change { forget: false, add: 1 })]);
    assert_eq!(counts(&downloads, &world).unwrap(), expected);
}

/// How the fixture was made: into an empty folder that `SWARMKEEP_FIXTURE` names, which then has to read as
/// the fixture does.
#[test]
fn make_fixture() {
    let temporary = tempfile::tempdir().unwrap();
    let path = std::env::var_os("SWARMKEEP_FIXTURE").map_or(temporary.path().to_owned(), Into::into);
    let torrent = |n: u8| InfoHash::new([n; 20]);
    let change = |n, forget, add| (torrent(n), Change { forget, add });
    let open = || {
        let options = Options::default().log_bytes(2048);
        Downloads::open_with(Arc::new(Directory::open(&path).unwrap()), options).unwrap()
    };
    let mut downloads = open();
    downloads.add_sorted((1..=150).map(|n| Ok((torrent(n), u64::from(n))))).unwrap();
    downloads.add_sorted((151..=200).map(|n| Ok((torrent(n), u64::from(n))))).unwrap();
    downloads.settle().unwrap();
    let forgets = [change(30, true, 0), change(31, true, 7), change(32, false, u64::MAX)];
    downloads.commit((1..=20).map(|n| change(n, false, 1000)).chain(forgets)).unwrap();
    downloads.settle().unwrap();
    downloads.commit([change(1, false, 1), change(2, true, 5)]).unwrap();
    downloads.commit([change(3, true, 0), change(255, false, 1)]).unwrap();
    let world: Vec<_> = (0..=255).map(torrent).collect();
    assert_eq!(counts(&downloads, &world).unwrap(), fixture_counts());
    drop(downloads);
    assert_eq!(counts(&open(), &world).unwrap(), fixture_counts());
    fs::remove_file(path.join(Directory::LOCK)).unwrap();
}
