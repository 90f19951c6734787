//! The download counts after commits, crashes, refusals and damage.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use swarmkeep::{Random, SplitMix64};
use swarmkeep_kit::folder::{Refusal, Simulated};
use swarmkeep_state::{
    Change, Downloads, Error, Folder as _, InfoHash, Result, look_at_downloads, restore_downloads,
};

const FILE: &str = "downloads.redb";
const COPY: &str = "downloads.redb.copy";
const PARTIAL: &str = "downloads.redb.copy.partial";
const REPLACED: &str = "downloads.redb.replaced";

type Model = BTreeMap<InfoHash, u32>;
type Changes = Vec<(InfoHash, Change)>;

fn torrent(n: usize) -> InfoHash {
    let mut bytes = [0x5a; 20];
    bytes[..8].copy_from_slice(&SplitMix64::new(n as u64).next_u64().to_be_bytes());
    InfoHash::new(bytes)
}

fn add(n: usize, add: u64) -> (InfoHash, Change) {
    (torrent(n), Change { forget: false, add })
}

/// Up to 20 changes of 60 torrents; large counts and forgets among them, and torrents that come twice.
fn random_changes(rng: &mut dyn Random) -> Changes {
    let change = |rng: &mut dyn Random| {
        let add = match rng.below(12) {
            0 => 0,
            1 => u64::from(u32::MAX) - rng.below(3) as u64,
            2 => rng.next_u64(),
            _ => 1 + rng.below(5) as u64,
        };
        (torrent(rng.below(60)), Change { forget: rng.below(5) == 0, add })
    };
    (0..=rng.below(20)).map(|_| change(rng)).collect()
}

fn apply(model: &Model, changes: &Changes) -> Model {
    let mut model = model.clone();
    for (info_hash, change) in changes {
        let count = model.entry(*info_hash).or_default();
        let before = if change.forget { 0 } else { u64::from(*count) };
        *count = u32::try_from(before.saturating_add(change.add)).unwrap_or(u32::MAX);
    }
    model.retain(|_, count| *count > 0);
    model
}

fn open(folder: &Simulated) -> Result<Downloads> {
    Downloads::open(Arc::new(folder.clone()))
}

fn counts(downloads: &mut Downloads) -> Model {
    let torrents: Vec<_> = (0..60).map(torrent).collect();
    let counts = downloads.get_all(&torrents).unwrap();
    torrents.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
}

fn is_damaged<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::Damaged { .. }))
}

/// Commits, raises, forgets, copies and restores counts until the disk fails. Returns the counts of the
/// acknowledged changes, and those with the change that failed.
fn run(folder: &Simulated) -> (Model, Model) {
    let (mut rng, mut model, mut copied) = (SplitMix64::new(9), Model::new(), Model::new());
    let Ok(mut downloads) = open(folder) else { return (Model::new(), Model::new()) };
    for step in 0..8 {
        let mut next = model.clone();
        let done = match step {
            3 => {
                let least: Vec<_> = (0..20).map(|n| (torrent(n), 4)).collect();
                least.iter().for_each(|&(torrent, least)| {
                    let count = next.entry(torrent).or_default();
                    *count = least.max(*count);
                });
                let lower = next.iter().filter(|(torrent, count)| model.get(torrent) != Some(count)).count();
                downloads.raise(&least).map(|raised| assert_eq!(raised, lower as u64))
            }
            5 => {
                copied = model.clone();
                downloads.copy()
            }
            6 => {
                next.retain(|_, count| *count >= 3);
                let few = (model.len() - next.len()) as u64;
                downloads.forget_below(3).map(|forgotten| assert_eq!(forgotten, few))
            }
            _ => {
                let changes = random_changes(&mut rng);
                next = apply(&model, &changes);
                downloads.commit(changes)
            }
        };
        if done.is_err() {
            return (model, next);
        }
        model = next;
        assert_eq!(downloads.entries(), model.len() as u64);
    }
    drop(downloads);
    assert!(model != copied);
    match restore_downloads(folder) {
        Ok(_) => {
            // A power cut here would undo what is not durable.
            let _ = folder.create("later");
            (copied.clone(), copied)
        }
        Err(_) => (model, copied),
    }
}

#[test]
fn a_crash_at_any_operation_loses_no_acknowledged_change_and_leaves_no_part_of_one() {
    let folder = Simulated::new(0);
    run(&folder);
    let operations = folder.operations();
    assert!(operations.len() > 60, "{}", operations.len());
    let mut between = 0;
    for (at, _) in operations.iter().enumerate().filter(|(_, operation)| operation.changes()) {
        let killed = Simulated::new(at as u64);
        killed.kill(at);
        let cut = Simulated::new(at as u64);
        cut.cut_power(at);
        let [of_kill, of_cut] = [&killed, &cut].map(run);
        let powers =
            (0..8).map(|seed| (cut.after_power_cut(seed), &of_cut, format!("cut at {at}, seed {seed}")));
        for (left, (acknowledged, begun), story) in
            powers.chain([(killed.after_kill(), &of_kill, format!("killed at {at}"))])
        {
            let looked_at = look_at_downloads(&left).unwrap();
            if let [(FILE, Err(Error::Missing { .. })), (COPY, Ok(_))] = looked_at[..] {
                // Between the two renames of a restore, which is repeated.
                restore_downloads(&left).unwrap();
                between += 1;
            } else {
                assert!(looked_at.iter().all(|(_, looked_at)| looked_at.is_ok()), "{story}: {looked_at:?}");
            }
            let mut downloads = open(&left).unwrap_or_else(|error| panic!("{story}: {error}"));
            assert!(left.contents(PARTIAL).is_none(), "{story}");
            let found = counts(&mut downloads);
            assert!(found == *acknowledged || found == *begun, "{story}");
            // It goes on, and the next power cut takes none of it.
            downloads.commit([add(1000, 1)]).unwrap();
            let mut downloads = open(&left.after_power_cut(0)).unwrap();
            let known = (counts(&mut downloads), downloads.get(&torrent(1000)).unwrap());
            assert_eq!(known, (found, 1), "{story}");
        }
    }
    assert!(between > 0);
}

#[test]
fn a_refused_commit_counts_once_when_it_is_repeated_and_other_changes_find_none_of_it() {
    let mut refused = 0;
    for at in 0..40 {
        for (refusal, is_repeated) in
            [(Refusal::Full, true), (Refusal::Device, true), (Refusal::Device, false)]
        {
            let (folder, story) = (Simulated::new(at), format!("{refusal:?} at {at}"));
            let mut downloads = open(&folder).unwrap();
            downloads.commit([add(1, 5), add(2, 7)]).unwrap();
            folder.refuse(folder.operations().len() + at as usize, 1 + at as usize % 3, refusal);
            let changes = [add(1, 1), add(3, 2), (torrent(2), Change { forget: true, add: 1 })];
            let is_refused = downloads.commit(changes).is_err();
            folder.heal();
            let mut after = Model::from([(torrent(1), 6), (torrent(2), 1), (torrent(3), 2)]);
            if is_refused {
                refused += 1;
                let before = [(torrent(1), 5), (torrent(2), 7)].into();
                assert_eq!(counts(&mut downloads), before, "{story}");
            }
            if is_refused && is_repeated {
                downloads.commit(changes).unwrap();
            } else if is_refused {
                assert_eq!(downloads.raise(&[(torrent(1), 9), (torrent(4), 1)]).unwrap(), 2, "{story}");
                assert_eq!(downloads.forget_below(2).unwrap(), 1, "{story}");
                after = Model::from([(torrent(1), 9), (torrent(2), 7)]);
            }
            assert_eq!(counts(&mut downloads), after, "{story}");
            drop(downloads);
            assert_eq!(counts(&mut open(&folder.after_power_cut(0)).unwrap()), after, "{story}");
        }
    }
    assert!(refused >= 30, "{refused}");
}

#[test]
fn a_failed_copy_leaves_no_partial_file() {
    let (folder, _) = filled();
    let mut downloads = open(&folder).unwrap();
    let began = folder.operations().len();
    downloads.copy().unwrap();
    let (operations, mut failed) = (folder.operations().len() - began, 0);
    for at in 0..operations {
        folder.refuse(folder.operations().len() + at, 1, Refusal::Full);
        failed += usize::from(downloads.copy().is_err());
        folder.heal();
        assert!(folder.contents(PARTIAL).is_none(), "refused at {at} of {operations}");
    }
    assert!(failed > operations / 2, "{failed} of {operations}");
}

/// Of many pages.
fn filled() -> (Simulated, Vec<u8>) {
    let folder = Simulated::new(3);
    let mut downloads = open(&folder).unwrap();
    downloads.commit((0..3000).map(|n| add(n, 1 + n as u64))).unwrap();
    drop(downloads);
    let bytes = folder.contents(FILE).unwrap();
    (folder, bytes)
}

#[test]
fn a_file_that_is_cut_off_or_empty_or_another_is_damaged() {
    let (folder, whole) = filled();
    let half = whole.len() / 2;
    let cuts = [0, 1, 319, 4096, 5000, half].map(|len| whole[..len].to_vec());
    for bytes in cuts.into_iter().chain([vec![7; 100_000], b"no database".repeat(1000)]) {
        folder.put(FILE, &bytes);
        assert!(is_damaged(&open(&folder)), "{} bytes", bytes.len());
        let looked_at = look_at_downloads(&folder).unwrap();
        assert!(looked_at.len() == 1 && is_damaged(&looked_at[0].1), "{looked_at:?}");
        assert!(folder.contents(FILE).unwrap() == bytes, "it stays");
    }
}

#[test]
fn a_check_finds_any_flipped_byte_that_counts_and_no_use_of_it_panics() {
    let (folder, whole) = filled();
    let all: Vec<_> = (0..3000).map(torrent).collect();
    assert!(look_at_downloads(&folder).unwrap()[0].1.is_ok());
    let (mut found, mut tried) = (0, 0);
    for at in (0..whole.len()).step_by(997) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        folder.put(FILE, &bytes);
        let looked_at = look_at_downloads(&folder).unwrap().remove(0).1;
        let counts = open(&folder).and_then(|mut downloads| downloads.get_all(&all));
        let is_changed = !counts.is_ok_and(|counts| counts.into_iter().eq(1..=3000));
        assert!(!is_changed || is_damaged(&looked_at), "byte {at}: {looked_at:?}");
        found += usize::from(is_damaged(&looked_at));
        tried += 1;
    }
    assert!(found > tried / 8, "{found} of {tried}: most of a new file is free");
}

#[test]
fn a_copy_is_checked_and_restored_and_damaged_counts_replace_none() {
    let (folder, _) = filled();
    let mut downloads = open(&folder).unwrap();
    downloads.copy().unwrap();
    downloads.commit([add(0, 100)]).unwrap();
    drop(downloads);
    let copy = folder.contents(COPY).unwrap();
    // Reads trust the page of this torrent.
    let whole = folder.contents(FILE).unwrap();
    let mut bytes = whole.clone();
    for at in (0..bytes.len() - 20).filter(|&at| whole[at..at + 20] == *torrent(7).as_bytes()) {
        bytes[at + 19] ^= 1;
    }
    folder.put(FILE, &bytes);
    let mut damaged = open(&folder).unwrap();
    assert!(is_damaged(&damaged.copy()));
    assert!(is_damaged(&damaged.commit([add(0, 1)])), "it is not used any more");
    drop(damaged);
    assert!(folder.contents(COPY).unwrap() == copy, "the latest stays");

    let before = folder.contents(FILE);
    assert_eq!(restore_downloads(&folder).unwrap().entries, 3000);
    assert!(folder.contents(REPLACED) == before, "they are kept");
    assert!(folder.contents(COPY).unwrap() == copy, "it can be restored again");
    let restored = open(&folder).unwrap().get_all(&(0..3000).map(torrent).collect::<Vec<_>>()).unwrap();
    assert!(restored.into_iter().eq(1..=3000), "as of the copy");

    folder.remove(FILE).unwrap();
    let error = open(&folder).unwrap_err().to_string();
    assert!(error.contains("downloads.redb is missing, and its copy is there: restore it by"), "{error}");
    restore_downloads(&folder).unwrap();

    folder.refuse_to_read(FILE, 0..512);
    let looked_at = look_at_downloads(&folder).unwrap();
    assert!(matches!(looked_at[..], [(FILE, Err(Error::Io { .. })), (COPY, Ok(_))]), "{looked_at:?}");
    folder.put(COPY, &copy[..copy.len() / 2]);
    let error = restore_downloads(&folder).unwrap_err().to_string();
    assert!(error.contains("copy is damaged") && !error.contains("--restore"), "{error}");
    folder.remove(COPY).unwrap();
    let error = restore_downloads(&folder).unwrap_err().to_string();
    assert!(error.contains("there is no copy to restore, ") && error.contains("a backup"), "{error}");
}

#[test]
fn a_refused_restore_keeps_the_counts_and_the_copy() {
    let (folder, whole) = filled();
    open(&folder).unwrap().copy().unwrap();
    let (copy, began, mut refused) = (folder.contents(COPY), folder.operations().len(), 0);
    restore_downloads(&folder).unwrap();
    let operations = folder.operations().len() - began;
    // Several times, because a refused operation is done in part or not.
    for at in (0..4).flat_map(|_| 0..operations) {
        folder.put(FILE, &whole);
        folder.remove(REPLACED).unwrap();
        folder.refuse(folder.operations().len() + at, 1, Refusal::Full);
        refused += usize::from(restore_downloads(&folder).is_err());
        folder.heal();
        let is_kept = [FILE, REPLACED].iter().any(|name| folder.contents(name).as_ref() == Some(&whole));
        assert!(is_kept && folder.contents(COPY) == copy, "refused at {at}");
        folder.put(REPLACED, &whole);
    }
    assert!(refused > 20, "{refused}");
}

/// As a page more than redb has noted, while all checksums are good.
#[test]
fn a_file_that_redb_repairs_during_a_check_is_not_damaged() {
    let (folder, whole) = filled();
    let mut downloads = open(&folder).unwrap();
    folder.open_to_write(FILE).unwrap().set_len(whole.len() as u64 + 4096).unwrap();
    downloads.copy().unwrap();
    downloads.commit([add(0, 1)]).unwrap();
    assert_eq!(downloads.get(&torrent(0)).unwrap(), 2);
    assert_eq!(open(&folder.after_kill()).unwrap().entries(), 3000);
}

#[test]
fn counts_of_an_older_layout_are_refused_in_one_sentence() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/downloads");
    for name in ["downloads-1-2.run", "downloads-3-3.run", "downloads-4.log"] {
        let folder = Simulated::new(1);
        folder.put(name, &fs::read(fixture.join(name)).unwrap());
        let error = open(&folder).unwrap_err().to_string();
        let says =
            "has download counts of an older layout, which commit 7132e1d is the last to read: use that one";
        assert!(error.contains(says), "{error}");
        assert_eq!(look_at_downloads(&folder).unwrap_err().to_string(), error);
        assert!(folder.contents(FILE).is_none(), "nothing is begun");
    }
}
