//! Cases of download counts, which are stored for every torrent, with a swarm or without.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{
    Announce, BoundedBy, Budget, Changes, Cursor, Family, InfoHash, PeerBuffer, PeerRecord, Records, Request,
    Retention, Role, SplitMix64, SwarmSummary, TorrentRepositoryExt,
};
use swarmkeep_conformance::{
    kit::{
        LIFETIME, Panicking, assert_panics_with, at, completed, config, hash, leecher, of_network, seeder,
        stats, stopped,
    },
    threads::{SetOnDrop, in_step},
};

use super::{
    assert_counts, come_back, complete, count, folder, leave, open, open_with, remove, say, snapshot, tell,
    v4,
};
use crate::durability::PersistentSubject;

/// Torrents with 0 downloads, or 2 and more, of as many peers.
fn some(torrent: u64) -> (u64, u32) {
    (torrent, [0, 2, 3, 4, 5][torrent as usize % 5])
}

pub(crate) fn download_counts_outlive_a_stop(subject: &dyn PersistentSubject) {
    let folder = folder();
    for round in 0..3 {
        let store = open(subject, folder.path(), round);
        let so_far = |(torrent, count)| (torrent, round as u32 * count);
        assert_counts(&*store, round, (0..100).map(some).map(so_far), &format!("after {round} stops"));
        (0..100).map(some).for_each(|(torrent, count)| complete(&*store, round, torrent, count));
        // The last snapshot contains half of the swarms.
        leave(&*store, round, 0..50);
        let gone = (50..100).flat_map(|torrent| (0..5).map(move |n| stopped(hash(torrent), v4(n))));
        gone.for_each(|announce| say(&*store, round, announce));
        store.stop(at(round));
    }
}

pub(crate) fn download_counts_outlive_a_kill_once_they_are_settled(subject: &dyn PersistentSubject) {
    let folder = folder();
    for round in 0..3 {
        let store = open(subject, folder.path(), round);
        let so_far = |(torrent, count)| (torrent, round as u32 * count);
        assert_counts(&*store, round, (0..100).map(some).map(so_far), &format!("after {round} kills"));
        (0..100).map(some).for_each(|(torrent, count)| complete(&*store, round, torrent, count));
        if round == 1 {
            leave(&*store, round, 0..50);
        }
        store.settle();
        store.kill();
    }
}

pub(crate) fn a_kill_loses_no_more_than_what_was_not_settled(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..60).for_each(|torrent| complete(&*store, 0, torrent, 2));
    store.settle();
    store.kill();
    let (mut settled, mut all) = ([2; 60], [2; 60]);
    for round in 0..4 {
        let store = open(subject, folder.path(), round);
        come_back(&*store, round, 0..60);
        store.settle();
        for (torrent, (settled, all)) in (0..60).zip(settled.iter_mut().zip(&mut all)) {
            let count = count(&*store, torrent);
            assert!(
                (*settled..=*all).contains(&count),
                "{count} of {settled} settled and {all} counted downloads"
            );
            // Lost downloads stay lost.
            (*settled, *all) = (count, count);
        }
        let mut newcomer = 1000 * (1 + round as u32);
        // Each step uses some of the torrents, and no torrent is in all steps.
        for step in 0..4 {
            for torrent in (0..60).filter(|torrent| torrent % 4 != step) {
                tell(&*store, round, completed(hash(torrent), v4(newcomer)));
                newcomer += 1;
                all[torrent as usize] += 1;
            }
            if step < 3 {
                store.settle();
                settled = all;
            }
        }
        store.kill();
    }
}

pub(crate) fn a_swarm_that_was_swept_comes_back_with_its_count(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    for round in 0..4 {
        let now = 3 * LIFETIME * round;
        let so_far = |(torrent, count)| (torrent, round as u32 * count);
        assert_counts(&*store, now, (0..100).map(some).map(so_far), &format!("after {round} sweeps"));
        (0..100).map(some).for_each(|(torrent, count)| complete(&*store, now, torrent, count));
        // Their peers leave or expire. Nothing is settled before that.
        leave(&*store, now, 0..30);
        store.store().sweep_all(at(now + 2 * LIFETIME), Retention::DropEmpty);
        store.store().sweep_all(at(now + 2 * LIFETIME), Retention::DropEmpty);
        assert_eq!(store.store().totals().swarms, 0, "in round {round}");
        for torrent in 0..100 {
            let count = count(&*store, torrent);
            let stored = some(torrent).1 * (1 + round as u32);
            assert!(count == 0 || count == stored, "{count} of {stored} downloads where there is no swarm");
        }
    }
    store.kill();
}

pub(crate) fn an_eviction_forgets_no_count(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    let is_bounded = store.store().capabilities().bounded.contains(BoundedBy::SWARMS);
    store.kill();
    let config = config().max_swarms(200);
    if !is_bounded {
        let opened = subject.open(folder.path(), &config, at(0));
        assert!(opened.is_err(), "a limit that is not declared must be refused");
        return;
    }
    let store = open_with(subject, folder.path(), &config, 0);
    (0..50).map(some).for_each(|(torrent, count)| complete(&*store, 0, torrent, count));
    for torrent in 0..5000_u32 {
        for n in 0..2 {
            tell(&*store, 1, seeder(hash(10_000 + u64::from(torrent)), of_network(Family::V4, torrent, n)));
        }
    }
    assert!(store.store().totals().evicted.swarms > 4000);
    for (torrent, expected) in (0..50).map(some) {
        // One by one: swarms that come back evict each other.
        assert_counts(&*store, 2, [(torrent, expected)].into_iter(), "after an eviction");
    }
    store.kill();
}

/// Another thread reads the counts all the time.
pub(crate) fn counts_that_come_back_never_fall_and_end_exactly_right(subject: &dyn PersistentSubject) {
    const TORRENTS: u64 = 500;
    const MORE: u32 = 4;
    let (folder, stored) = (folder(), |torrent: u64| 2 + (torrent % 3) as u32);
    let store = open(subject, folder.path(), 0);
    (0..TORRENTS).for_each(|torrent| complete(&*store, 0, torrent, stored(torrent)));
    leave(&*store, 0, 0..TORRENTS);
    store.settle();
    store.kill();
    let store = open(subject, folder.path(), 1);
    let (done, passes) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let (store, done, passes) = (&*store, &done, &passes);
        let _set = SetOnDrop(done);
        let reader = scope.spawn(move || {
            let mut seen = vec![0; TORRENTS as usize];
            while !done.load(SeqCst) {
                for torrent in 0..TORRENTS {
                    let stats = store.store().scrape(&hash(torrent));
                    let before = std::mem::replace(&mut seen[torrent as usize], stats.downloaded);
                    let most = stored(torrent) + MORE;
                    assert!(stats.downloaded <= most, "{} of {most} downloads", stats.downloaded);
                    assert!(stats.downloaded >= before, "from {before} downloads to {}", stats.downloaded);
                }
                passes.fetch_add(1, SeqCst);
            }
        });
        for torrent in 0..TORRENTS {
            (0..MORE).for_each(|n| say(store, 1, completed(hash(torrent), v4(100 + n))));
        }
        // All of them are read once more before the stored counts are added.
        let enough = passes.load(SeqCst) + 2;
        while passes.load(SeqCst) < enough && !reader.is_finished() {
            thread::yield_now();
        }
        store.settle();
    });
    for torrent in 0..TORRENTS {
        assert_eq!(count(&*store, torrent), stored(torrent) + MORE, "the downloads of torrent {torrent}");
    }
    store.kill();
}

/// Two threads complete downloads of the same torrents at the same time. No peer has announced these torrents
/// since the last restart.
pub(crate) fn downloads_that_race_with_a_stored_count_are_counted_once(subject: &dyn PersistentSubject) {
    const TORRENTS: u64 = 150;
    let folder = folder();
    let mut expected = 0;
    for round in 0..8_u32 {
        let store = open(subject, folder.path(), 0);
        let counted = AtomicU64::new(0);
        for (times, early) in [(2, true), (1, false)] {
            in_step(TORRENTS as usize, |me, n| {
                let torrent = hash(n as u64);
                for turn in 0..times {
                    let newcomer = round << 12 | u32::from(early) << 8 | me << 4 | turn;
                    let answer = tell(&*store, 0, completed(torrent, v4(newcomer)));
                    counted.fetch_add(answer.changes.contains(Changes::COMPLETED).into(), SeqCst);
                    if early && me == 1 {
                        tell(&*store, 0, stopped(torrent, v4(newcomer)));
                    }
                }
            });
        }
        assert_eq!(counted.into_inner(), TORRENTS * 6);
        expected += 6;
        if round % 4 == 1 {
            // Its swarms come back in the same process.
            leave(&*store, 0, 0..TORRENTS);
        }
        if round % 2 == 0 {
            let all = (0..TORRENTS).map(|torrent| (torrent, expected));
            assert_counts(&*store, 0, all, &format!("in round {round}"));
            leave(&*store, 0, 0..TORRENTS);
            store.settle();
            store.kill();
        } else {
            // The snapshot contains some of them.
            leave(&*store, 0, 0..TORRENTS / 2);
            store.stop(at(0));
        }
    }
    let store = open(subject, folder.path(), 0);
    assert_counts(&*store, 0, (0..TORRENTS).map(|torrent| (torrent, expected)), "in the end");
    let total: u64 = store.store().swarms().iter().map(|swarm| u64::from(swarm.stats.downloaded)).sum();
    assert_eq!(total, TORRENTS * u64::from(expected), "the downloads of all torrents");
    store.kill();
}

/// Swarms come and go while their downloads are counted.
pub(crate) fn downloads_that_race_with_sweeps_are_counted_once(subject: &dyn PersistentSubject) {
    const TORRENTS: u32 = 8;
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    let (done, counted) = (AtomicBool::new(false), [const { AtomicU32::new(0) }; TORRENTS as usize]);
    thread::scope(|scope| {
        let (store, done, counted) = (&*store, &done, &counted);
        let _set = SetOnDrop(done);
        scope.spawn(move || {
            while !done.load(SeqCst) {
                store.store().sweep(at(0), Retention::DropEmpty, Budget::peers(30));
                thread::yield_now();
            }
        });
        let workers = [0, 1].map(|me| {
            scope.spawn(move || {
                for n in 0..6000_u32 {
                    let torrent = n % TORRENTS;
                    let peer = v4(1 + me);
                    let answer = tell(store, 0, completed(hash(torrent.into()), peer));
                    assert!(answer.changes.contains(Changes::COMPLETED), "it had left");
                    counted[torrent as usize].fetch_add(1, SeqCst);
                    tell(store, 0, stopped(hash(torrent.into()), peer));
                }
            })
        });
        workers.into_iter().for_each(|worker| worker.join().expect("nobody panics"));
    });
    let counted: Vec<_> = (0..).zip(counted.iter().map(|counted| counted.load(SeqCst))).collect();
    assert_counts(&*store, 0, counted.iter().copied(), "after all sweeps");
    store.settle();
    store.kill();
    let store = open(subject, folder.path(), 0);
    assert_counts(&*store, 0, counted.iter().copied(), "after a restart");
    store.kill();
}

pub(crate) fn a_count_that_both_snapshot_and_store_hold_is_not_added_up(subject: &dyn PersistentSubject) {
    let folder = folder();
    let some = |torrent: u64| (torrent, 2 + (torrent % 4) as u32);
    let store = open(subject, folder.path(), 0);
    (0..60).map(some).for_each(|(torrent, count)| complete(&*store, 0, torrent, count));
    store.settle();
    snapshot(&*store, 0);
    store.kill();
    let store = open(subject, folder.path(), 1);
    assert_counts(&*store, 1, (0..60).map(some), "that are in both");
    // The stored counts are newer than the snapshot...
    (0..60).for_each(|torrent| say(&*store, 1, completed(hash(torrent), v4(100))));
    store.settle();
    store.kill();
    let store = open(subject, folder.path(), 2);
    let one_more = |(torrent, count)| (torrent, count + 1);
    assert_counts(&*store, 2, (0..60).map(some).map(one_more), "that are newer in the store");
    // ... or the snapshot is newer than the stored counts.
    (0..60).for_each(|torrent| say(&*store, 2, completed(hash(torrent), v4(101))));
    snapshot(&*store, 2);
    store.kill();
    let store = open(subject, folder.path(), 3);
    let two_more = |(torrent, count)| (torrent, count + 2);
    assert_counts(&*store, 3, (0..60).map(some).map(two_more), "that are newer in the snapshot");
    // The counts of the snapshot are stored from then on.
    (0..60).for_each(|torrent| say(&*store, 3, completed(hash(torrent), v4(102))));
    store.settle();
    leave(&*store, 3, 0..60);
    snapshot(&*store, 3);
    store.kill();
    let store = open(subject, folder.path(), 4);
    let three_more = |(torrent, count)| (torrent, count + 3);
    assert_counts(&*store, 4, (0..60).map(some).map(three_more), "that were newer in the snapshot");
    store.kill();
}

pub(crate) fn a_snapshot_taken_before_counts_have_come_counts_nothing_twice(subject: &dyn PersistentSubject) {
    const STORED: u32 = 5;
    for ending in ["a kill", "a settled kill", "a stop"] {
        let folder = folder();
        let store = open(subject, folder.path(), 0);
        (0..200).for_each(|torrent| complete(&*store, 0, torrent, STORED));
        leave(&*store, 0, 0..200);
        store.stop(at(0));
        let store = open(subject, folder.path(), 1);
        // A snapshot while their counts are being loaded.
        (0..100).for_each(|torrent| say(&*store, 1, completed(hash(torrent), v4(50))));
        snapshot(&*store, 1);
        (100..200).for_each(|torrent| say(&*store, 1, completed(hash(torrent), v4(50))));
        let least = match ending {
            "a kill" => {
                store.kill();
                STORED
            }
            "a settled kill" => {
                store.settle();
                store.kill();
                STORED + 1
            }
            _ => {
                store.stop(at(1));
                STORED + 1
            }
        };
        let store = open(subject, folder.path(), 2);
        come_back(&*store, 2, 0..200);
        store.settle();
        for torrent in 0..200 {
            let count = count(&*store, torrent);
            assert!(
                (least..=STORED + 1).contains(&count),
                "{count} downloads of torrent {torrent} after {ending}"
            );
        }
        store.kill();
    }
}

/// For a swarm with peers, and for a torrent without a swarm.
pub(crate) fn remove_forgets_the_stored_count(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..80).for_each(|torrent| complete(&*store, 0, torrent, 5));
    store.settle();
    leave(&*store, 0, 0..40);
    // Two of four torrents, with a swarm or without.
    (0..80).filter(|torrent| torrent % 4 < 2).for_each(|torrent| remove(&*store, torrent));
    let expected = || (0..80).map(|torrent| (torrent, if torrent % 4 < 2 { 0 } else { 5 }));
    let back = |torrent: &(u64, u32)| torrent.0.is_multiple_of(2);
    assert_counts(&*store, 0, expected().filter(back), "in the same process");
    (0..80).filter(|torrent| torrent % 4 == 0).for_each(|torrent| complete(&*store, 0, torrent, 2));
    store.stop(at(0));
    let store = open(subject, folder.path(), 1);
    let later = expected().map(|(torrent, count)| (torrent, if torrent % 4 == 0 { 2 } else { count }));
    assert_counts(&*store, 1, later, "after a restart");
    store.kill();
}

pub(crate) fn remove_where_forgets_the_stored_counts(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..80).for_each(|torrent| complete(&*store, 0, torrent, 5));
    store.settle();
    let forbidden: Vec<_> = (0..80).filter(|torrent| torrent % 4 < 2).map(hash).collect();
    let (mut cursor, mut removed) = (Cursor::START, 0);
    while !cursor.is_end() {
        let is_forbidden = |info_hash: &InfoHash| forbidden.contains(info_hash);
        let step = store.store().remove_where(&is_forbidden, cursor, Budget::peers(7));
        (cursor, removed) = (step.next, removed + step.removed.len());
    }
    assert_eq!(removed, 40);
    let expected = || (0..80).map(|torrent| (torrent, if torrent % 4 < 2 { 0 } else { 5 }));
    assert_counts(&*store, 0, expected().filter(|torrent| torrent.0 % 2 == 0), "in the same process");
    store.stop(at(0));
    let store = open(subject, folder.path(), 1);
    assert_counts(&*store, 1, expected(), "after a restart");
    store.kill();
}

/// Counts are requested when their swarms are created, and the swarms are removed at once.
pub(crate) fn no_stored_count_comes_after_a_removal(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..300).for_each(|torrent| complete(&*store, 0, torrent, 5));
    leave(&*store, 0, 0..300);
    store.stop(at(0));
    let store = open(subject, folder.path(), 1);
    for some in [0..1, 1..20, 20..300] {
        come_back(&*store, 1, some.clone());
        some.clone().for_each(|torrent| remove(&*store, torrent));
        some.for_each(|torrent| say(&*store, 1, completed(hash(torrent), v4(50))));
    }
    store.settle();
    for torrent in 0..300 {
        assert_eq!(count(&*store, torrent), 1, "the downloads of torrent {torrent} since it was removed");
    }
    store.stop(at(1));
    let store = open(subject, folder.path(), 2);
    assert_counts(&*store, 2, (0..300).map(|torrent| (torrent, 1)), "after a restart");
    store.kill();
}

pub(crate) fn only_live_swarms_are_in_memory_after_a_restart(subject: &dyn PersistentSubject) {
    const KNOWN: u64 = 20_000;
    const LIVE: u64 = 50;
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..KNOWN).for_each(|torrent| complete(&*store, 0, torrent, 2));
    store.settle();
    let full = store.store().memory().bytes;
    for n in 0..2 {
        (LIVE..KNOWN).for_each(|torrent| say(&*store, 0, stopped(hash(torrent), v4(n))));
    }
    store.store().sweep_all(at(0), Retention::DropEmpty);
    store.store().sweep_all(at(0), Retention::DropEmpty);
    assert_eq!(store.store().totals().swarms, LIVE);
    store.stop(at(0));
    for _ in 0..3 {
        let store = open(subject, folder.path(), 1);
        store.settle();
        assert_eq!(store.store().totals().swarms, LIVE, "swarms of {KNOWN} torrents there have been");
        assert_eq!(store.store().swarms().len() as u64, LIVE);
        let bytes = store.store().memory().bytes;
        assert!(bytes <= full / 4, "{bytes} bytes for {LIVE} swarms, and {full} for {KNOWN}");
        store.kill();
    }
    let store = open(subject, folder.path(), 1);
    assert_counts(&*store, 1, (0..KNOWN).step_by(97).map(|torrent| (torrent, 2)), "of those that come back");
    assert!(store.store().totals().swarms < LIVE + KNOWN / 90);
    store.kill();
}

pub(crate) fn downloads_that_were_added_are_stored_once(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..60).map(some).for_each(|(torrent, count)| complete(&*store, 0, torrent, count));
    come_back(&*store, 0, 0..60);
    (0..60).for_each(|torrent| assert!(store.store().add_downloads(&hash(torrent), 100), "there is a swarm"));
    assert!(!store.store().add_downloads(&hash(999), 5), "there is no such swarm");
    let more = |more: u32| move |(torrent, count): (u64, u32)| (torrent, count + more);
    assert_counts(&*store, 0, (0..60).map(some).map(more(100)), "in the same process");
    leave(&*store, 0, 0..30);
    assert_counts(&*store, 0, (0..30).map(some).map(more(100)), "after a sweep");
    leave(&*store, 0, 0..30);
    store.settle();
    store.kill();
    let store = open(subject, folder.path(), 1);
    // Added to the stored count, whether it is loaded yet or not.
    come_back(&*store, 1, 0..60);
    (0..60)
        .for_each(|torrent| assert!(store.store().add_downloads(&hash(torrent), 1000), "there is a swarm"));
    store.settle();
    snapshot(&*store, 1);
    assert_counts(&*store, 1, (0..60).map(some).map(more(1100)), "after a kill");
    store.stop(at(1));
    let store = open(subject, folder.path(), 2);
    assert_counts(&*store, 2, (0..60).map(some).map(more(1100)), "after a stop");
    assert_counts(&*store, 2, [(999, 0)].into_iter(), "that had no swarm");
    store.kill();
}

/// The larger of the restored and the stored count holds, whether there is a swarm or not.
pub(crate) fn restored_downloads_are_stored_and_never_added_up(subject: &dyn PersistentSubject) {
    const STORED: u32 = 7;
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..90).for_each(|torrent| complete(&*store, 0, torrent, STORED));
    store.settle();
    leave(&*store, 0, 0..90);
    store.kill();
    let store = open(subject, folder.path(), 1);
    come_back(&*store, 1, 0..30);
    store.settle();
    let given = |torrent: u64| [5, 7, 12][torrent as usize % 3];
    let record = PeerRecord { endpoint: v4(3), role: Role::Seeder, last_announce: at(1), details: None };
    for torrent in 0..60 {
        let swarm = SwarmSummary { info_hash: hash(torrent), stats: stats(0, 0, given(torrent)) };
        store.store().restore(&swarm, &[record], at(1));
    }
    let mut records = Records::new(at(1));
    (60..120).for_each(|torrent| records.push(&hash(torrent), given(torrent), &[record]));
    store.store().import(&[records], at(1));
    let expected = |torrent| (torrent, given(torrent).max(if torrent < 90 { STORED } else { 0 }));
    let all = || (0..120).map(expected);
    assert_counts(&*store, 1, all(), "in the same process");
    store.settle();
    store.kill();
    let store = open(subject, folder.path(), 2);
    assert_counts(&*store, 2, all(), "after a kill");
    (0..120).for_each(|torrent| say(&*store, 2, completed(hash(torrent), v4(60))));
    store.stop(at(2));
    let store = open(subject, folder.path(), 3);
    assert_counts(&*store, 3, all().map(|(torrent, count)| (torrent, count + 1)), "after a stop");
    store.kill();
}

pub(crate) fn stored_counts_saturate(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    come_back(&*store, 0, 1..4);
    (1..4).for_each(|torrent| assert!(store.store().add_downloads(&hash(torrent), u32::MAX - 2)));
    complete(&*store, 0, 1, 5);
    complete(&*store, 0, 2, 2);
    complete(&*store, 0, 3, 1);
    let all = || [(1, u32::MAX), (2, u32::MAX), (3, u32::MAX - 1)].into_iter();
    assert_counts(&*store, 0, all(), "in the same process");
    leave(&*store, 0, 1..4);
    store.stop(at(0));
    for round in 0..2 {
        let store = open(subject, folder.path(), 1);
        // Counted before the stored count has come.
        complete(&*store, 1, 1, 3);
        assert_counts(&*store, 1, all(), &format!("after {round} more restarts"));
        store.settle();
        leave(&*store, 1, 1..4);
        store.kill();
    }
}

pub(crate) fn batches_count_like_single_announces(subject: &dyn PersistentSubject) {
    let folder = folder();
    for round in 0..3_u32 {
        let store = open(subject, folder.path(), 0);
        // Each torrent several times in a batch: two peers finish, one of them twice; one has not finished;
        // one leaves.
        let of = |torrent: u64| {
            let (torrent, newcomer) = (hash(torrent), |n| v4(round * 10 + n));
            [
                completed(torrent, newcomer(1)),
                leecher(torrent, newcomer(2)),
                completed(torrent, newcomer(1)),
                completed(torrent, newcomer(2)),
                completed(torrent, newcomer(3)).left(5),
                stopped(torrent, newcomer(1)),
            ]
        };
        let announces: Vec<Announce> =
            (0..6).flat_map(|nth| (0..40).map(move |torrent| of(torrent)[nth])).collect();
        for some in announces.chunks(60) {
            let nobody = || PeerBuffer::new(&mut [], &mut []);
            let mut batch: Vec<_> = some.iter().map(|announce| Request::new(*announce, nobody())).collect();
            store.store().announce_batch(&mut batch, at(0), &mut SplitMix64::new(1));
            assert!(batch.iter().all(|request| request.answer.is_some()));
        }
        let so_far = (0..40).map(|torrent| (torrent, 2 * (round + 1)));
        assert_counts(&*store, 0, so_far, &format!("in round {round}"));
        leave(&*store, 0, 0..40);
        store.settle();
        store.kill();
    }
}

pub(crate) fn a_panic_in_the_callers_randomness_leaves_one_count_in_memory_and_store(
    subject: &dyn PersistentSubject,
) {
    const TORRENTS: u64 = 20;
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    for torrent in 0..TORRENTS {
        (0..30).for_each(|n| say(&*store, 0, leecher(hash(torrent), v4(n))));
        complete(&*store, 0, torrent, (torrent % 3) as u32);
    }
    for torrent in 0..TORRENTS {
        // A new peer, and one that was a leecher.
        for endpoint in [v4(100), v4(20)] {
            assert_panics_with(Panicking::TEXT, || {
                let (mut bytes, mut rng) = ([0; 6 * 3], Panicking { good: 0 });
                let mut buffer = PeerBuffer::new(&mut bytes, &mut []);
                let announce = completed(hash(torrent), endpoint).want(3);
                store.store().announce(&announce, at(0), &mut rng, &mut buffer);
            });
        }
    }
    store.settle();
    let counts: Vec<_> = (0..TORRENTS).map(|torrent| (torrent, count(&*store, torrent))).collect();
    for (torrent, count) in &counts {
        let least = (torrent % 3) as u32;
        assert!((least..=least + 2).contains(count), "{count} downloads of torrent {torrent}");
    }
    store.kill();
    let store = open(subject, folder.path(), 1);
    assert_counts(&*store, 1, counts.iter().copied(), "after a panic and a restart");
    // The store is as usable as before.
    (0..TORRENTS).for_each(|torrent| say(&*store, 1, completed(hash(torrent), v4(200))));
    store.settle();
    store.kill();
    let store = open(subject, folder.path(), 2);
    assert_counts(&*store, 2, counts.into_iter().map(|(torrent, count)| (torrent, count + 1)), "later");
    store.kill();
}

/// Many swarms are created at once. No announce waits for the counts of all of them.
pub(crate) fn announces_do_not_wait_for_stored_counts(subject: &dyn PersistentSubject) {
    let mut waits = Vec::new();
    // On a busy machine, only a long run tells the pauses of the store from those of the thread.
    for torrents in [10_000, 40_000] {
        let folder = folder();
        let store = open(subject, folder.path(), 0);
        (0..torrents).for_each(|torrent| complete(&*store, 0, torrent, 2));
        for n in 0..2 {
            (0..torrents).for_each(|torrent| say(&*store, 0, stopped(hash(torrent), v4(n))));
        }
        leave(&*store, 0, 0..0);
        store.settle();
        store.kill();
        let store = open(subject, folder.path(), 1);
        let (began, mut longest) = (Instant::now(), Duration::ZERO);
        for torrent in 0..torrents + 10 {
            let begin = Instant::now();
            tell(&*store, 1, leecher(hash(torrent), v4(2)));
            longest = longest.max(begin.elapsed());
        }
        store.settle();
        // With the time in which the counts were read: a core is shared with their reader.
        let all = began.elapsed();
        for torrent in (0..torrents).step_by(101) {
            assert_eq!(count(&*store, torrent), 2, "the downloads of torrent {torrent}");
        }
        store.kill();
        if longest < all / 4 {
            return;
        }
        waits.push((longest, all));
    }
    panic!("one announce of many waited this long of all the time: {waits:?}");
}
