//! Snapshots after restarts and damage, and while the disk refuses, the process is killed and the power
//! fails: at every operation in turn.

use std::collections::BTreeMap;

use swarmkeep::{
    Endpoint, Family, InfoHash, Role, SwarmStats, Timestamp, TorrentRepository, TorrentRepositoryExt as _,
};
use swarmkeep_conformance::kit::{LIFETIME, at, completed, hash, leecher, peer, seeder};
use swarmkeep_kit::folder::{Refusal, Simulated};
use swarmkeep_state::{Folder as _, look_at_snapshots};

use crate::{STORES, StateTest, twice, v4};

const LATEST: &str = "swarms.snapshot";
const PREVIOUS: &str = "swarms.snapshot.previous";
/// Snapshots of one run, each after `SWARMS` more swarms.
const SNAPSHOTS: u32 = 3;
const SWARMS: u32 = 300;

type Contents = BTreeMap<InfoHash, SwarmStats>;
type Peers = BTreeMap<(InfoHash, Endpoint), (Role, Timestamp)>;

fn grow(tracker: &StateTest, nth: u32) {
    let swarms = nth * SWARMS..(nth + 1) * SWARMS;
    swarms.for_each(|n| _ = tracker.tell(leecher(hash(n.into()), v4(n))));
}

fn contents(store: &dyn TorrentRepository) -> Contents {
    store.swarms().into_iter().map(|swarm| (swarm.info_hash, swarm.stats)).collect()
}

fn peers(store: &dyn TorrentRepository) -> Peers {
    let of_swarm = |info_hash: InfoHash| {
        let peers = store.all_peers(&info_hash).into_iter();
        peers.map(move |peer| ((info_hash, peer.endpoint), (peer.role, peer.last_announce)))
    };
    store.swarms().into_iter().flat_map(|swarm| of_swarm(swarm.info_hash)).collect()
}

/// Announces peers of both roles and families to some swarms, of which one is large.
fn populate(tracker: &StateTest, torrents: std::ops::Range<u64>, announced: &mut Peers) {
    let most = |torrent| if torrent == 99 { 20_000 } else { torrent as u32 % 7 };
    for (torrent, n) in torrents.flat_map(|torrent| (0..=most(torrent)).map(move |n| (torrent, n))) {
        let endpoint = peer(if n.is_multiple_of(3) { Family::V6 } else { Family::V4 }, n);
        let announce = [seeder, leecher, completed][n as usize % 3](hash(torrent), endpoint);
        tracker.tell(announce);
        announced.insert((announce.info_hash, endpoint), (announce.role(), at(tracker.seconds)));
    }
}

#[test]
fn a_restart_keeps_roles_ages_and_downloads_of_peers_until_their_lifetime_ends() {
    for name in STORES {
        let (folder, mut early, mut late) = (Simulated::new(0), Peers::new(), Peers::new());
        let open = |seconds| StateTest::with(name, &folder, seconds).unwrap();
        let first = open(0);
        populate(&first, 0..50, &mut early);
        first.state.close().unwrap();
        let second = open(1000);
        populate(&second, 40..100, &mut late);
        let (before, totals) = (contents(&*second.store), second.store.totals());
        second.state.close().unwrap();
        let mut all = early;
        all.extend(late.clone());
        let resolution = second.store.capabilities().clock_resolution_secs;
        let later = LIFETIME + 20 + resolution;
        for (seconds, expected) in [(1010, &all), (1060, &all), (later, &late), (1000 + later, &Peers::new())]
        {
            let tracker = StateTest::with(name, &folder.after_kill(), seconds).unwrap();
            let loaded = peers(&*tracker.store);
            assert!(loaded.keys().eq(expected.keys()), "{name} after {seconds} s");
            for ((role, time), (expected_role, announced)) in loaded.values().zip(expected.values()) {
                let younger = time.as_secs().checked_sub(announced.as_secs()).expect("no peer is older");
                assert!(role == expected_role && younger <= resolution, "{name} after {seconds} s");
            }
            if expected.len() == all.len() {
                assert_eq!((contents(&*tracker.store), tracker.store.totals()), (before.clone(), totals));
            }
        }
    }
}

#[test]
fn a_damaged_snapshot_is_refused_as_a_whole_and_the_one_before_it_is_loaded() {
    let folder = Simulated::new(0);
    let tracker = StateTest::open(&folder);
    (0..10).for_each(|torrent| twice(&*tracker.store, torrent));
    tracker.state.snapshot().unwrap();
    let first = peers(&*tracker.store);
    grow(&tracker, 1);
    (0..10).for_each(|torrent| _ = tracker.tell(completed(hash(torrent), v4(3))));
    tracker.state.settle().unwrap();
    tracker.state.snapshot().unwrap();
    let whole = folder.contents(LATEST).unwrap();
    let half = whole.len() / 2;
    let mut flipped = whole.clone();
    flipped[half] ^= 1;
    let cuts = [0, 1, half, whole.len() - 1].map(|len| whole[..len].to_vec());
    for damaged in cuts.into_iter().chain([flipped, [&whole[..], &[0]].concat()]) {
        let folder = folder.after_kill();
        folder.put(LATEST, &damaged);
        let opens_with = |expected: &Peers, refused: usize| {
            let tracker = StateTest::open(&folder);
            let is_whole = peers(&*tracker.store).keys().eq(expected.keys());
            assert!(is_whole, "{} of {} bytes", damaged.len(), whole.len());
            assert_eq!(tracker.loaded.refused.len(), refused);
            let downloads = |torrent| tracker.store.scrape(&hash(torrent)).downloaded;
            assert!(expected.is_empty() || (0..10).all(|torrent| downloads(torrent) == 3));
            tracker
        };
        opens_with(&first, 1);
        assert!(folder.contents("swarms.snapshot.refused").as_ref() == Some(&damaged));
        // Without a next snapshot, it finds the same.
        let tracker = opens_with(&first, 0);
        grow(&tracker, 2);
        tracker.state.snapshot().unwrap();
        opens_with(&peers(&*tracker.store), 0);
        folder.put(LATEST, &damaged);
        opens_with(&first, 1);
        // Without a valid snapshot, the counts are there nevertheless.
        [LATEST, PREVIOUS].iter().for_each(|name| folder.put(name, &damaged));
        let tracker = opens_with(&Peers::new(), 2);
        tracker.tell(leecher(hash(1), v4(1)));
        tracker.state.settle().unwrap();
        assert_eq!(tracker.store.scrape(&hash(1)).downloaded, 3);
    }
}

/// Takes snapshots until one fails. Returns the contents of the acknowledged ones, and of the failed one.
fn run(tracker: &StateTest) -> (Vec<Contents>, Option<Contents>) {
    let mut acknowledged = Vec::new();
    for nth in 0..SNAPSHOTS {
        grow(tracker, nth);
        match tracker.state.snapshot() {
            Ok(_) => acknowledged.push(contents(&*tracker.store)),
            Err(_) => return (acknowledged, Some(contents(&*tracker.store))),
        }
    }
    (acknowledged, None)
}

/// Asserts that another process finds the latest acknowledged snapshot, or the whole one that failed.
fn assert_latest(folder: &Simulated, acknowledged: &[Contents], begun: Option<&Contents>, story: &str) {
    let opened = StateTest::with(STORES[0], folder, 0).unwrap_or_else(|error| panic!("{story}: {error}"));
    let found = contents(&*opened.store);
    let latest = acknowledged.last().cloned().unwrap_or_default();
    let is_latest = found == latest || begun == Some(&found);
    assert!(is_latest, "{story}: {} swarms, where the latest snapshot has {}", found.len(), latest.len());
}

fn operations() -> usize {
    let tracker = StateTest::open(&Simulated::new(0));
    let (acknowledged, begun) = run(&tracker);
    assert!(acknowledged.len() == SNAPSHOTS as usize && begun.is_none());
    tracker.folder.operations().len()
}

#[test]
fn a_power_cut_or_a_kill_leaves_the_latest_snapshot_or_the_one_before_it() {
    for at in 0..operations() {
        for is_cut in [true, false] {
            let folder = Simulated::new(at as u64);
            let end = if is_cut { Simulated::cut_power } else { Simulated::kill };
            end(&folder, at);
            let Ok(tracker) = StateTest::with(STORES[0], &folder, 0) else { continue };
            let (acknowledged, begun) = run(&tracker);
            let left = |seed| if is_cut { folder.after_power_cut(seed) } else { folder.after_kill() };
            for seed in 0..if is_cut { 12 } else { 1 } {
                let story = format!("cut or killed at {at}, power cut: {is_cut}, seed {seed}");
                assert_latest(&left(seed), &acknowledged, begun.as_ref(), &story);
            }
        }
    }
}

#[test]
fn a_disk_that_refuses_costs_the_snapshot_and_no_other() {
    for refusal in [Refusal::Full, Refusal::Device, Refusal::ReadOnly] {
        for at in 0..operations() {
            let folder = Simulated::new(at as u64);
            let tracker = StateTest::open(&folder);
            folder.refuse(folder.operations().len() + at, 1, refusal);
            let (mut latest, mut begun) = (Contents::new(), None);
            for nth in 0..SNAPSHOTS {
                grow(&tracker, nth);
                match tracker.state.snapshot() {
                    Ok(_) => (latest, begun) = (contents(&*tracker.store), None),
                    Err(_) => begun = Some(contents(&*tracker.store)),
                }
            }
            folder.heal();
            let story = format!("{refusal:?} at {at}");
            assert_latest(&folder.after_kill(), &[latest], begun.as_ref(), &story);
            tracker.state.snapshot().unwrap_or_else(|error| panic!("{story}, and healed: {error}"));
            assert_latest(&folder.after_power_cut(0), &[contents(&*tracker.store)], None, &story);
        }
    }
}

#[test]
fn a_disk_that_fails_during_a_load_is_named_by_its_error() {
    let folder = Simulated::new(0);
    let tracker = StateTest::open(&folder);
    (0..100).for_each(|nth| grow(&tracker, nth));
    tracker.state.snapshot().unwrap();
    let operations = StateTest::open(&folder.after_kill()).folder.operations().len();
    let fail = |at| {
        let folder = folder.after_kill();
        folder.refuse(at, 1, Refusal::Device);
        StateTest::with(STORES[0], &folder, 0).err().map(|error| format!("{error:?}"))
    };
    let errors: Vec<_> = (0..operations).filter_map(fail).collect();
    assert!(errors.iter().all(|error| error.contains("code: 5")), "{errors:?}");
    assert!(errors.iter().filter(|error| error.starts_with("Snapshot")).count() > 3, "{errors:?}");
}

#[test]
fn a_snapshot_that_a_wrong_clock_has_expired_is_kept_after_further_snapshots() {
    const DAY: u64 = 86_400;
    let folder = Simulated::new(0);
    let open = |later| StateTest::with(STORES[0], &folder, later).unwrap();
    let first = open(0);
    grow(&first, 0);
    first.state.close().unwrap();
    let good = folder.contents(LATEST).unwrap();
    let wrong = open(DAY);
    assert_eq!(wrong.loaded.restored.expired, SWARMS.into());
    (0..5).for_each(|_| _ = wrong.state.snapshot().unwrap());
    wrong.state.close().unwrap();
    assert!(folder.contents("swarms.snapshot.kept-1").expect("kept under a name of its own") == good);
    assert_eq!(wrong.loaded.kept.as_deref(), Some("swarms.snapshot.kept-1"));
    // As the warning says.
    folder.rename("swarms.snapshot.kept-1", LATEST).unwrap();
    let right = open(60);
    assert_eq!((right.loaded.restored.added, right.loaded.restored.expired), (SWARMS.into(), 0));
    assert!(right.loaded.kept.is_none());
    right.state.close().unwrap();
    // Each time anew, but not for ever.
    for day in 1..=4 {
        let wrong = open(day * DAY);
        grow(&wrong, 0);
        wrong.state.close().unwrap();
    }
    let kept = (1..10).filter(|n| folder.contents(&format!("swarms.snapshot.kept-{n}")).is_some());
    assert_eq!(kept.collect::<Vec<_>>(), [3, 4]);
    let looked_at = look_at_snapshots(&folder).unwrap();
    assert_eq!(looked_at.last().map(|(name, _)| name.as_str()), Some("swarms.snapshot.kept-4"));
}
