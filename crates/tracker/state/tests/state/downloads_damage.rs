//! Files that are not as they were written: refused by name and byte, and never a wrong count.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use crate::common::{Changes, Model, apply, counts, world};
use swarmkeep_state::{
    Change, Directory, Downloads, Error, Folder, InfoHash, Options, Result,
    simulated::{Refusal, Simulated},
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
    /// What the runs and then the log say, in order.
    commits: Vec<Changes>,
    /// The most that any part of it can say of a torrent.
    most: Model,
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
    let mut commits = vec![add(&world, false, 5), add(&world[30..90], false, 2)];
    for commit in [add(&world[..3], true, 1), add(&world[200..230], false, 9), add(&world[5..7], true, 0)] {
        before_the_last = model.clone();
        downloads.commit(commit.iter().copied()).unwrap();
        model = apply(&model, &commit);
        commits.push(commit);
    }
    let most = commits.iter().flatten().fold(Model::new(), |mut most, (torrent, change)| {
        *most.entry(*torrent).or_default() += change.add as u32;
        most
    });
    assert_eq!(counts(&downloads, &world).unwrap(), model);
    let names = folder.names().unwrap();
    assert_eq!(names, [RUNS[0], RUNS[1], LOG]);
    let files = names.into_iter().map(|name| (name.clone(), folder.contents(&name).unwrap())).collect();
    Sample { world, files, counts: model, before_the_last, commits, most }
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

/// The counts in files of which one is changed, and what is lost of them: they open, always.
fn changed(sample: &Sample, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> (Downloads, Model) {
    let mut files = sample.files.clone();
    change(files.get_mut(name).unwrap());
    let downloads = open(&folder_of(&files)).expect("damage costs what is in it");
    let counts = counts(&downloads, &sample.world).expect("damage costs what is in it");
    (downloads, counts)
}

/// The counts without what one page of the older run says, or without the younger run.
fn without(sample: &Sample, name: &str, page: usize) -> Model {
    let commits = &sample.commits;
    let mut run = if name == RUNS[0] { commits[0].clone() } else { commits[1].clone() };
    run.drain(page * 163..run.len().min((page + 1) * 163));
    let runs = if name == RUNS[0] { [&run, &commits[1]] } else { [&commits[0], &run] };
    runs.into_iter().chain(&commits[2..]).fold(Model::new(), |model, changes| apply(&model, changes))
}

#[test]
fn a_bad_byte_of_a_run_costs_the_entries_of_its_page_and_no_more() {
    let sample = sample();
    for name in RUNS {
        let pages = sample.files[name].len() / PAGE - 1;
        let expected: Vec<_> = (0..pages).map(|page| without(&sample, name, page)).collect();
        for at in (0..sample.files[name].len()).filter(|at| at % 23 == 0 || at % PAGE < 48) {
            let (_, found) = changed(&sample, name, |bytes| bytes[at] ^= 0x81);
            let page = (at / PAGE).checked_sub(1);
            assert_eq!(found, *page.map_or(&sample.counts, |page| &expected[page]), "{name}, byte {at}");
        }
    }
}

#[test]
fn a_bad_byte_of_the_log_costs_the_commit_that_it_is_in_and_no_more() {
    let sample = sample();
    let commits = [(SECTOR, 2 * SECTOR), (2 * SECTOR, 4 * SECTOR), (4 * SECTOR, 5 * SECTOR)];
    for at in (0..sample.files[LOG].len()).filter(|at| at % 7 == 0 || at % SECTOR < 44) {
        let (_, found) = changed(&sample, LOG, |bytes| bytes[at] ^= 0x81);
        let lost = commits.iter().position(|(from, to)| (*from..*to).contains(&at)).map(|commit| 2 + commit);
        let kept = sample.commits.iter().enumerate().filter(|(n, _)| Some(*n) != lost);
        let expected = kept.fold(Model::new(), |model, (_, changes)| apply(&model, changes));
        assert_eq!(found, expected, "byte {at}");
    }
}

#[test]
fn a_file_that_is_cut_off_or_longer_keeps_what_is_in_it() {
    let sample = sample();
    for name in [RUNS[0], RUNS[1], LOG] {
        let whole = sample.files[name].len();
        for length in (0..whole).filter(|length| length % 37 == 0 || length % SECTOR < 2) {
            let (_, found) = changed(&sample, name, |bytes| bytes.truncate(length));
            assert!(found.iter().all(|(torrent, count)| *count <= sample.most[torrent]), "{name}, {length}");
            if name == RUNS[0] && length >= 2 * PAGE {
                let first = &sample.world[..163];
                assert!(first.iter().all(|torrent| found.get(torrent) == sample.counts.get(torrent)));
            }
        }
        for more in [1, SECTOR, PAGE] {
            let (_, found) = changed(&sample, name, |bytes| bytes.resize(whole + more, 0));
            assert_eq!(found, sample.counts, "{name}");
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
    let is_damaged = |change: &dyn Fn(&mut Vec<u8>), name: &str, at: u64| {
        let (downloads, found) = changed(&sample, name, change);
        let damage = downloads.damage();
        assert!(damage.iter().any(|damage| damage.file == name && damage.bytes.start == at), "{damage:?}");
        found
    };
    // Pages of the same place in another file, and of another place in the same file.
    let found = is_damaged(
        &|run| run[PAGE..2 * PAGE].copy_from_slice(&other.files[RUNS[0]][PAGE..2 * PAGE]),
        RUNS[0],
        4096,
    );
    assert_eq!(found, without(&sample, RUNS[0], 0));
    let found = is_damaged(&|run| run.copy_within(PAGE..2 * PAGE, 2 * PAGE), RUNS[0], 8192);
    assert_eq!(found, without(&sample, RUNS[0], 1));
    // The same of commits.
    is_damaged(
        &|log| log[SECTOR..2 * SECTOR].copy_from_slice(&other.files[LOG][SECTOR..2 * SECTOR]),
        LOG,
        512,
    );
    is_damaged(&|log| log.copy_within(4 * SECTOR..5 * SECTOR, SECTOR), LOG, 512);
    // Whole files under other names.
    let mut files = sample.files.clone();
    files.insert(RUNS[1].into(), sample.files[RUNS[0]].clone());
    assert_eq!(place(&counts_in(&files, &sample.world).unwrap_err(), RUNS[1]), 16);
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
        let file = files.get_mut(name).unwrap();
        file[8..10].copy_from_slice(&[2, 1]);
        let checksum = if name == LOG { SECTOR } else { PAGE } - 4;
        let sum = crc32c::crc32c(&file[..checksum]).to_le_bytes();
        file[checksum..checksum + 4].copy_from_slice(&sum);
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
    let mut downloads = open(&folder).unwrap();
    assert_eq!(counts(&downloads, &sample.world).unwrap(), sample.counts);
    assert_eq!(folder.names().unwrap().len(), 8, "reading removes nothing");
    downloads.settle().unwrap();
    assert_eq!(counts(&downloads, &sample.world).unwrap(), sample.counts);
    assert_eq!(folder.names().unwrap(), ["downloads-1-3.run", "downloads-1.txt"]);
}

/// A damaged run stays as it is, and the others are merged.
#[test]
fn beside_a_damaged_run_commits_and_merges_go_on() {
    let sample = sample();
    for name in RUNS {
        let mut files = sample.files.clone();
        files.get_mut(name).unwrap()[PAGE + 100] ^= 1;
        let folder = folder_of(&files);
        let mut downloads = open(&folder).unwrap();
        let mut expected = without(&sample, name, 0);
        for round in 0..20 {
            let all = sample.world.iter().map(|&torrent| (torrent, Change { forget: false, add: round }));
            let all: Changes = all.collect();
            downloads.commit(all.iter().copied()).unwrap();
            expected = apply(&expected, &all);
            downloads.settle().unwrap_or_else(|error| panic!("{error}"));
            assert!(downloads.runs() <= 4, "{downloads:?}");
        }
        assert_eq!(counts(&downloads, &sample.world).unwrap(), expected);
        assert_eq!(folder.contents(name).as_ref(), Some(&files[name]), "for the one who repairs it");
    }
}

#[test]
fn a_check_names_each_bad_byte_of_every_file() {
    let sample = sample();
    assert!(open(&folder_of(&sample.files)).unwrap().check().is_empty(), "nothing is wrong");
    // Behind the last commit, and in the copy of the header, there is nothing that counts.
    let ends = [3 * PAGE + PAGE, 2 * PAGE, 5 * SECTOR];
    for (name, end) in [RUNS[0], RUNS[1], LOG].into_iter().zip(ends) {
        for at in (0..end).filter(|at| at % 53 == 0 || at % PAGE < 48) {
            let (downloads, _) = changed(&sample, name, |bytes| bytes[at] ^= 0x81);
            let damage: Vec<_> = downloads.check().into_iter().chain(downloads.torn().cloned()).collect();
            let [damage] = &damage[..] else { panic!("{name}, byte {at}: {damage:?}") };
            assert!(damage.file == name && damage.bytes.contains(&(at as u64)), "byte {at}: {damage:?}");
            assert!(damage.lost <= 163 && damage.bytes.end - damage.bytes.start <= PAGE as u64, "{damage:?}");
        }
    }
}

#[test]
fn a_header_that_is_gone_costs_nothing() {
    let sample = sample();
    for (name, header) in [(RUNS[0], PAGE), (RUNS[1], PAGE), (LOG, SECTOR)] {
        let (downloads, found) = changed(&sample, name, |bytes| bytes[..header].fill(0));
        assert_eq!(found, sample.counts, "{name}");
        assert_eq!(downloads.damage().len(), 1, "{:?}", downloads.damage());
    }
}

#[test]
fn a_repair_keeps_what_can_be_read_and_a_copy_of_what_was_damaged() {
    let sample = sample();
    let mut files = sample.files.clone();
    files.get_mut(RUNS[0]).unwrap()[2 * PAGE + 5] ^= 1;
    files.get_mut(LOG).unwrap()[SECTOR + 25] ^= 1;
    let folder = folder_of(&files);
    let expected = counts(&open(&folder).unwrap(), &sample.world).unwrap();
    let rewritten = open(&folder).unwrap().rewrite(1).unwrap();
    assert_eq!(rewritten.damage.len(), 2, "{rewritten:?}");
    assert_eq!(rewritten.entries, expected.len() as u64);
    let copies = [RUNS[0], LOG].map(|name| format!("{name}.damaged"));
    assert_eq!(rewritten.kept, copies);
    for (copy, name) in copies.iter().zip([RUNS[0], LOG]) {
        assert_eq!(folder.contents(copy).as_ref(), Some(&files[name]));
    }
    let downloads = open(&folder).unwrap();
    assert_eq!((downloads.check(), downloads.runs()), (Vec::new(), 1));
    assert_eq!(counts(&downloads, &sample.world).unwrap(), expected);
    // Once more, with one run: what is small goes.
    let least = 6;
    let rewritten = downloads.rewrite(least).unwrap();
    let expected: Model = expected.into_iter().filter(|(_, count)| *count >= least).collect();
    assert!(rewritten.damage.is_empty() && rewritten.forgotten > 0, "{rewritten:?}");
    assert_eq!(counts(&open(&folder).unwrap(), &sample.world).unwrap(), expected);
}

/// At each operation: what was there is there still, or what was to come is.
#[test]
fn a_repair_that_fails_or_loses_power_changes_nothing() {
    let sample = sample();
    let mut files = sample.files.clone();
    files.get_mut(RUNS[0]).unwrap()[2 * PAGE + 5] ^= 1;
    let expected = without(&sample, RUNS[0], 1);
    for at in 0..1000 {
        for power in [false, true] {
            let folder = folder_of(&files).after_power_cut(0);
            let downloads = open(&folder).unwrap();
            let at = folder.operations().len() + at;
            if power {
                folder.cut_power(at);
            } else {
                folder.refuse(at, 1, Refusal::Full);
            }
            let rewritten = downloads.rewrite(1);
            folder.heal();
            let left = if power { folder.after_power_cut(at as u64) } else { folder };
            let found = counts(&open(&left).unwrap(), &sample.world).unwrap();
            assert_eq!(found, expected, "operation {at}, power {power}");
            if rewritten.is_ok() && power {
                return;
            }
        }
    }
    panic!("no repair succeeds");
}

/// A bad sector of the disk, which refuses to read one page.
#[test]
fn a_page_that_the_disk_does_not_read_costs_others_nothing() {
    let sample = sample();
    let folder = folder_of(&sample.files);
    let downloads = open(&folder).unwrap();
    let mut unread = 0;
    for torrent in &sample.world {
        // The first page of the first run that a lookup reads, whichever that is.
        folder.refuse(folder.operations().len(), 1, Refusal::Device);
        match downloads.get(torrent) {
            Ok(count) => assert_eq!(count, sample.counts.get(torrent).copied().unwrap_or_default()),
            Err(error) => {
                assert!(matches!(error, Error::Io { .. }), "{error}");
                unread += 1;
            }
        }
        folder.heal();
    }
    assert!(unread > 0 && unread < sample.world.len(), "{unread}");
    assert!(downloads.damage().is_empty(), "it can be read again");
}

/// The disk refuses to read a page of the oldest run, time after time.
#[test]
fn beside_a_run_that_cannot_be_read_the_others_are_merged() {
    let sample = sample();
    let folder = folder_of(&sample.files);
    let options = Options::default().log_entries(100);
    folder.refuse_to_read(RUNS[0], 2 * PAGE as u64..2 * PAGE as u64 + 1);
    let mut downloads = Downloads::open_with(Arc::new(folder.clone()), options.clone()).unwrap();
    let mut runs = 0;
    for _ in 0..100 {
        let some = sample.world.iter().step_by(3).map(|&torrent| (torrent, Change { forget: false, add: 1 }));
        downloads.commit(some).unwrap();
        let _ = downloads.maintain();
        while downloads.is_merging() {
            std::thread::yield_now();
            let _ = downloads.maintain();
        }
        runs = runs.max(downloads.runs());
    }
    assert!(runs < 12, "{runs} runs");
    // Nothing of it is lost, once it can be read.
    drop(downloads);
    folder.heal();
    let mut downloads = Downloads::open_with(Arc::new(folder), options).unwrap();
    downloads.settle().unwrap();
    let expected = sample.world.iter().enumerate().filter_map(|(n, torrent)| {
        let count = sample.counts.get(torrent).copied().unwrap_or_default();
        Some((*torrent, count + if n % 3 == 0 { 100 } else { 0 })).filter(|(_, count)| *count > 0)
    });
    assert_eq!(counts(&downloads, &sample.world).unwrap(), expected.collect());
}

/// Each sector of the log, and each of the header of a run.
#[test]
fn a_sector_that_the_disk_does_not_read_is_damage_like_any_other() {
    let sample = sample();
    let sector = SECTOR as u64;
    let sectors = |name| (0..sample.files[name].len() as u64 / sector).map(move |n| (name, n * sector));
    let headers = RUNS.into_iter().flat_map(sectors).filter(|(_, at)| *at < PAGE as u64);
    for (name, at) in headers.chain(sectors(LOG)) {
        let (_, expected) = changed(&sample, name, |bytes| bytes[at as usize + 20] ^= 0x81);
        let folder = folder_of(&sample.files);
        folder.refuse_to_read(name, at..at + sector);
        let mut downloads =
            open(&folder).unwrap_or_else(|error| panic!("{name}, byte {at} is not read: {error}"));
        assert_eq!(counts(&downloads, &sample.world).unwrap(), expected, "{name}, byte {at}");
        // Reserved bytes of a header are zeroes, whether they are read or not.
        let is_reserved = name != LOG && sample.files[name][at as usize..][..SECTOR].iter().all(|b| *b == 0);
        let damage = downloads.damage();
        assert!(
            is_reserved || damage.iter().any(|damage| damage.file == name),
            "{name}, byte {at}: {damage:?}"
        );
        assert!(downloads.torn().is_none(), "{name}, byte {at}: it may have been acknowledged");
        // It goes on, and overwrites nothing that may be there.
        let change = (sample.world[9], Change { forget: false, add: 77 });
        downloads.commit([change]).unwrap();
        let expected = apply(&expected, &vec![change]);
        drop(downloads);
        assert_eq!(counts(&open(&folder).unwrap(), &sample.world).unwrap(), expected, "{name}, byte {at}");
        open(&folder).unwrap().rewrite(1).unwrap();
        folder.heal();
        let downloads = open(&folder).unwrap();
        assert!(downloads.check().is_empty(), "{name}, byte {at}: {:?}", downloads.check());
        assert_eq!(counts(&downloads, &sample.world).unwrap(), expected, "{name}, byte {at}");
    }
    // If the whole disk refuses, it may be back after the next start.
    let folder = folder_of(&sample.files);
    folder.refuse_to_read(LOG, 0..u64::MAX);
    assert!(matches!(open(&folder), Err(Error::Io { .. })));
}

#[test]
fn copies_of_damaged_files_are_numbered_and_bounded() {
    let sample = sample();
    let folder = Simulated::new(2);
    let damaged = |n: u8| {
        let mut run = sample.files[RUNS[0]].clone();
        run[PAGE + 100] ^= n;
        run
    };
    for n in 1..=9 {
        folder.put(RUNS[0], &damaged(n));
        open(&folder).unwrap().rewrite(1).unwrap();
    }
    let name = |number: &str| format!("{}.damaged{number}", RUNS[0]);
    for (number, n) in [("", 1), ("-2", 2), ("-3", 3), ("-4", 9)] {
        let copy = folder.contents(&name(number));
        assert!(copy == Some(damaged(n)), "{number}: the first stay, and the last is the latest");
    }
    assert_eq!(folder.names().unwrap().len(), 5, "{:?}", folder.names());
}

/// Each second it is tried again.
#[test]
fn a_commit_that_is_tried_again_leaves_one_copy_of_a_damaged_log() {
    let sample = sample();
    let mut files = sample.files.clone();
    files.get_mut(LOG).unwrap()[SECTOR + 25] ^= 1;
    let mut refused = 0;
    for at in 0..40 {
        let folder = folder_of(&files);
        let mut downloads = open(&folder).unwrap();
        let change = (sample.world[9], Change { forget: false, add: 77 });
        folder.refuse(folder.operations().len() + at, 1, Refusal::Full);
        if downloads.commit([change]).is_err() {
            refused += 1;
            downloads.commit([change]).unwrap();
        }
        folder.heal();
        let copies = folder.names().unwrap().into_iter().filter(|name| name.contains(".damaged"));
        assert_eq!(copies.collect::<Vec<_>>(), ["downloads-3.log.damaged"], "operation {at}");
    }
    assert!(refused > 8, "{refused} operations");
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
