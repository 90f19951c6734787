//! Download counts while announces race, the disk refuses or hangs, and one address makes them up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use swarmkeep::{
    Announce, AnnounceEvent, Budget, Changes, Endpoint, Packed, PeerBuffer, Records, Request, Retention,
    SwarmSummary, TorrentRepository as _,
};
use swarmkeep_conformance::{
    kit::{self, Panicking, assert_panics_with, at, completed, config, hash, leecher, stats, stopped},
    threads::{SetOnDrop, in_step},
};
use swarmkeep_kit::folder::{Operation, Refusal, Simulated};
use swarmkeep_state::{Downloads, Durable, Pace, look_at_downloads};
use swarmkeep_store_tests::{A_MINUTE, until};

use crate::{StateTest, leave, pace, stored, tell, tell_at, twice, v4};

const FILE: &str = "downloads.redb";

fn durable(folder: &Simulated) -> Durable {
    durable_at(folder, |_| {})
}

fn durable_at(folder: &Simulated, change: impl FnOnce(&mut Pace)) -> Durable {
    let mut pace = pace();
    change(&mut pace);
    let durable = Durable::new(Arc::new(Packed::new(&config()).unwrap()), pace);
    durable.open(downloads(folder));
    durable
}

fn downloads(folder: &Simulated) -> Downloads {
    Downloads::open(Arc::new(folder.clone())).unwrap()
}

/// Two threads count downloads of torrents whose stored counts are being read. A third reads the sums.
#[test]
fn counts_never_fall_while_downloads_race_with_stored_counts_and_are_right_in_the_end() {
    const TORRENTS: u64 = 150;
    let folder = Simulated::new(1);
    for round in 0..8 {
        let (store, done, expected) = (durable(&folder), AtomicBool::new(false), 4 * (round + 1));
        thread::scope(|scope| {
            let _set = SetOnDrop(&done);
            scope.spawn(|| {
                let mut seen = [0; TORRENTS as usize];
                while !done.load(SeqCst) {
                    for (torrent, seen) in (0..).zip(&mut seen) {
                        let shown = store.scrape(&hash(torrent)).downloaded;
                        assert!((*seen..=expected).contains(&shown), "{shown} after {seen} of {expected}");
                        *seen = shown;
                    }
                }
            });
            in_step(TORRENTS as usize, |me, n| {
                for turn in 0..2 {
                    let answer = tell(&store, completed(hash(n as u64), v4(round << 8 | me << 4 | turn)));
                    assert!(answer.changes.contains(Changes::COMPLETED));
                }
            });
            store.settle().unwrap();
        });
        for torrent in 0..TORRENTS {
            assert_eq!(store.scrape(&hash(torrent)).downloaded, expected, "in round {round}");
        }
    }
}

/// Swarms come and go while their downloads are counted.
#[test]
fn downloads_that_race_with_sweeps_are_counted_once() {
    const TORRENTS: u64 = 8;
    const EACH: u64 = 750;
    let (folder, done) = (Simulated::new(2), AtomicBool::new(false));
    let store = durable(&folder);
    thread::scope(|scope| {
        let _set = SetOnDrop(&done);
        scope.spawn(|| {
            while !done.load(SeqCst) {
                store.sweep(at(0), Retention::DropEmpty, Budget::peers(30));
                thread::yield_now();
            }
        });
        in_step((TORRENTS * EACH) as usize, |me, n| {
            let (info_hash, peer) = (hash(n as u64 % TORRENTS), v4(1 + me));
            tell(&store, completed(info_hash, peer));
            tell(&store, stopped(info_hash, peer));
        });
    });
    store.settle().unwrap();
    (0..TORRENTS).for_each(|torrent| assert_eq!(u64::from(stored(&folder, torrent)), 2 * EACH));
}

#[test]
fn an_eviction_forgets_no_count() {
    let (folder, config) = (Simulated::new(3), config().max_swarms(200).shards(16));
    let store = Durable::new(Arc::new(Packed::new(&config).unwrap()), pace());
    store.open(downloads(&folder));
    (0..1000).for_each(|torrent| twice(&store, torrent));
    assert!(store.totals().evicted.swarms > 700);
    store.settle().unwrap();
    (0..1000).step_by(37).for_each(|torrent| assert_eq!(stored(&folder, torrent), 2));
}

/// The tracker writes a snapshot, and reads stored counts, more than redb caches; then it writes new counts.
#[test]
fn no_announce_waits_for_a_disk_that_hangs() {
    const TORRENTS: u64 = 5000;
    let folder = Simulated::new(4);
    let mut known: Vec<_> = (0..450_000).map(|torrent| (hash(torrent), 2)).collect();
    known.sort_unstable();
    downloads(&folder).raise(&known).unwrap();
    let tracker = StateTest::open(&folder);
    for event in [leecher, completed] {
        let (announced, are_announced) = mpsc::channel();
        thread::scope(|scope| {
            let hanging = folder.hang();
            let snapshot = scope.spawn(|| tracker.state.snapshot());
            scope.spawn(|| {
                for torrent in 0..TORRENTS {
                    (1..=2).for_each(|peer| _ = tracker.tell(event(hash(torrent), v4(peer))));
                    if torrent % 250 == 0 {
                        // The thread that reads and writes counts gets its turn.
                        thread::sleep(Duration::from_millis(5));
                    }
                }
                announced.send(()).unwrap();
            });
            let are_announced = are_announced.recv_timeout(A_MINUTE);
            drop(hanging);
            are_announced.expect("announces wait for the disk");
            snapshot.join().unwrap().unwrap();
        });
        tracker.state.settle().unwrap();
    }
    assert!((0..TORRENTS).all(|torrent| tracker.store.scrape(&hash(torrent)).downloaded == 4));
}

#[test]
fn while_the_disk_refuses_the_unsaved_counts_are_bounded_and_existing_swarms_lose_nothing() {
    for refusal in [Refusal::Full, Refusal::ReadOnly, Refusal::Device] {
        let folder = Simulated::new(5);
        let store = durable_at(&folder, |pace| pace.most_unsaved = 640);
        twice(&store, 0);
        store.settle().unwrap();
        folder.refuse(folder.operations().len(), usize::MAX, refusal);
        for torrent in 0..2000 {
            (3..=4).for_each(|peer| _ = tell(&store, completed(hash(torrent), v4(peer))));
            if torrent % 500 == 0 {
                assert!(store.settle().is_err());
            }
        }
        assert!(store.settle().is_err());
        let status = store.status();
        assert!(status.is_refused && status.refusals > 0 && status.unsaved <= 640, "{status:?}");
        assert_eq!(store.scrape(&hash(0)).downloaded, 4, "the tracker goes on");
        thread::sleep(Duration::from_millis(100));
        assert_eq!(store.status().looked_up, status.looked_up, "nothing is read again until there is room");
        folder.heal();
        (0..20).for_each(|_| store.settle().unwrap());
        assert!(!store.status().is_refused && store.status().unsaved == 0, "{:?}", store.status());
        let torrents: Vec<_> = (0..2000).map(hash).collect();
        let kept = downloads(&folder.after_kill()).get_all(&torrents).unwrap();
        assert!(kept[0] == 4 && kept[1..].iter().all(|&count| count == 2), "{refusal:?}: {kept:?}");
    }
}

#[test]
fn a_panic_of_the_callers_leaves_a_count_that_is_right() {
    let folder = Simulated::new(6);
    let store = durable(&folder);
    for (torrent, batch) in [(1, false), (2, true)] {
        (0..200).for_each(|peer| _ = tell(&store, completed(hash(torrent), v4(peer))));
        store.settle().unwrap();
        (200..210).for_each(|peer| _ = tell(&store, leecher(hash(torrent), v4(peer))));
        // There are more leechers than are wanted.
        let announce = completed(hash(torrent), v4(1000)).want(5);
        assert_panics_with(Panicking::TEXT, || {
            let (mut bytes, mut rng) = ([0; 30], Panicking { good: 0 });
            let mut peers = PeerBuffer::new(&mut bytes, &mut []);
            if batch {
                store.announce_batch(&mut [Request::new(announce, peers)], at(0), &mut rng);
            } else {
                store.announce(&announce, at(0), &mut rng, &mut peers);
            }
        });
        store.settle().unwrap();
        let shown = store.scrape(&hash(torrent)).downloaded;
        assert_eq!((shown, stored(&folder, torrent)), (201, 201), "in a batch: {batch}");
    }
}

#[test]
fn the_latest_downloads_are_kept_when_it_is_closed_and_no_copy_is_begun() {
    let folder = Simulated::new(7);
    let store = durable_at(&folder, |pace| {
        pace.every = Duration::from_secs(3600);
        pace.copy_every = Duration::ZERO;
    });
    let began = folder.operations().len();
    (0..30).for_each(|peer| _ = tell(&store, completed(hash(1), v4(peer))));
    store.close().unwrap();
    assert!(!folder.operations()[began..].contains(&Operation::Create));
    assert_eq!(stored(&folder, 1), 30);
    tell(&store, completed(hash(1), v4(31)));
    assert!(store.settle().is_err(), "it has been given up");
}

#[test]
fn one_that_is_closed_and_opened_again_gives_all_swarms_their_counts() {
    let (first, second) = (Simulated::new(8), Simulated::new(9));
    [&first, &second].into_iter().for_each(|folder| twice(&durable(folder), 1));
    let store = durable(&first);
    tell(&store, leecher(hash(1), v4(9)));
    store.close().unwrap();
    store.remove(&hash(1));
    tell(&store, leecher(hash(1), v4(9)));
    store.open(downloads(&second));
    store.settle().unwrap();
    assert_eq!(store.scrape(&hash(1)).downloaded, 0, "it was removed meanwhile");
    store.close().unwrap();
    store.open(downloads(&first));
    store.settle().unwrap();
    assert_eq!(store.scrape(&hash(1)).downloaded, 2, "as the other folder has it");
}

#[test]
fn where_as_many_torrents_are_known_as_may_be_others_are_left_out() {
    let folder = Simulated::new(10);
    let store = durable_at(&folder, |pace| pace.most_known = 100);
    (0..100).for_each(|torrent| twice(&store, torrent));
    store.settle().unwrap();
    let more = (50..150).flat_map(|torrent| [3, 4].map(|peer| completed(hash(torrent), v4(peer))));
    more.for_each(|announce| _ = tell(&store, announce));
    store.settle().unwrap();
    assert_eq!([0, 99, 100, 149].map(|torrent| stored(&folder, torrent)), [2, 4, 0, 0]);
    assert_eq!(store.scrape(&hash(149)).downloaded, 2, "for as long as its swarm is there");
    assert!(store.status().left_out >= 50, "{:?}", store.status());
}

#[test]
fn counts_that_are_damaged_or_unreadable_are_reported_and_announces_go_on_without_them() {
    let folder = Simulated::new(12);
    let store = durable(&folder);
    (0..1000).for_each(|torrent| twice(&store, torrent));
    store.close().unwrap();
    let whole = folder.contents(FILE).unwrap();
    let cut = &whole[..whole.len() / 2];
    folder.put(FILE, cut);
    let tracker = StateTest::open(&folder);
    tracker.tell(completed(hash(1), v4(3)));
    assert!(tracker.state.settle().is_err());
    let status = tracker.state.status().counts.unwrap();
    assert!(status.is_damaged && status.is_unreadable && status.is_refused, "{status:?}");
    assert_eq!(tracker.store.scrape(&hash(1)).downloaded, 1, "since the start");
    assert!(tracker.state.close().unwrap_err().contains("--restore"));
    assert!(folder.contents(FILE).unwrap() == cut, "it is left as it was");

    folder.put(FILE, &whole);
    folder.refuse_to_read(FILE, 0..512);
    let StateTest { state, store, .. } = StateTest::open(&folder);
    tell(&*store, completed(hash(1), v4(4)));
    assert!(state.settle().is_err());
    // After a refused commit, all counts are read again.
    (2..300).for_each(|torrent| _ = tell(&*store, leecher(hash(torrent), v4(2))));
    assert!(state.settle().is_err());
    let status = state.status().counts.unwrap();
    assert!(!status.is_damaged && status.is_unreadable && status.is_refused, "{status:?}");
    folder.heal();
    state.settle().unwrap();
    assert!(!state.status().counts.unwrap().is_unreadable);
    // The snapshot has a download that the counts have not, and the new one.
    assert_eq!(store.scrape(&hash(1)).downloaded, 3);
    assert!((2..300).all(|torrent| store.scrape(&hash(torrent)).downloaded == 2));
    state.close().unwrap();
    assert_eq!(stored(&folder, 1), 3);
}

#[test]
fn a_copy_is_made_at_its_time_while_downloads_are_counted() {
    let folder = Simulated::new(17);
    let store = durable_at(&folder, |pace| pace.copy_every = Duration::from_millis(24));
    let mut torrents = 0..;
    until("a copy", || {
        twice(&store, torrents.next().unwrap());
        store.settle().unwrap();
        let copy = look_at_downloads(&folder.after_kill()).unwrap().into_iter().nth(1);
        copy.is_some_and(|(_, copy)| copy.unwrap().entries >= 100)
    });
    store.close().unwrap();
}

#[test]
fn a_failed_copy_is_tried_again_sooner_than_the_next_one() {
    // Waits for a copy, and returns the numbers of the operations that created a file.
    let creates = |folder: &Simulated, copy_every| {
        let _store = durable_at(folder, |pace| pace.copy_every = Duration::from_secs(copy_every));
        until("a copy", || folder.contents("downloads.redb.copy").is_some());
        let operations = folder.operations().into_iter().enumerate();
        operations.filter(|(_, it)| *it == Operation::Create).map(|(at, _)| at).collect::<Vec<_>>()
    };
    let folder = Simulated::new(19);
    // The first one is that of the counts.
    folder.refuse(creates(&Simulated::new(19), 0)[1], 1, Refusal::Full);
    // The copy is due after 3 s, again after 3 s more, and otherwise after 72 s more.
    assert_eq!(creates(&folder, 72).len(), 3, "the first copy failed");
}

/// A peer of a prefix that finishes: a port of one of two hosts.
fn of_prefix(torrent: u64, prefix: u32, port: u16) -> Announce {
    let address = kit::v4((prefix << 8) + u32::from(port) % 2).ip();
    completed(hash(torrent), Endpoint::new(address, port).unwrap())
}

#[test]
fn a_torrent_enters_the_counts_with_downloaders_of_two_prefixes() {
    let folder = Simulated::new(13);
    let store = durable(&folder);
    // Several ports, and several hosts of one /24.
    (1..=4).for_each(|port| _ = tell(&store, of_prefix(3, 1, port)));
    for (torrent, prefix) in [(1, 1), (2, 1), (2, 2)] {
        tell(&store, of_prefix(torrent, prefix, 1));
        store.settle().unwrap();
    }
    assert_eq!([1, 2, 3].map(|torrent| stored(&folder, torrent)), [0, 2, 0]);
    assert_eq!((store.status().entries, store.status().candidates), (1, 2));
    // Its swarm has gone meanwhile: the waiting download counts with the second.
    leave(&store, &hash(1));
    assert_eq!(store.scrape(&hash(1)).downloaded, 0);
    tell(&store, of_prefix(1, 9, 1));
    store.settle().unwrap();
    assert_eq!((stored(&folder, 1), store.scrape(&hash(1)).downloaded), (2, 2));
    // From then on, every peer counts.
    (10..20).for_each(|port| _ = tell(&store, of_prefix(1, 9, port)));
    store.settle().unwrap();
    assert_eq!(stored(&folder, 1), 12);
}

#[test]
fn made_up_torrents_of_one_prefix_displace_themselves_and_stay_out_beside_restored_ones() {
    let (folder, mut records) = (Simulated::new(11), Records::new(at(0)));
    let store = durable(&folder);
    let flood = |torrents: std::ops::Range<u64>| {
        torrents.for_each(|torrent| _ = tell(&store, of_prefix(torrent, 7, 1)));
        store.settle().unwrap();
        store.status()
    };
    // Others wait, and more of one prefix than may wait.
    (0..100).for_each(|torrent| _ = tell(&store, of_prefix(torrent, 1000 + torrent as u32, 1)));
    let status = flood(1000..2000);
    assert!(status.entries == 0 && status.candidates <= 356, "{status:?}");
    let entered = flood(0..100).entries;
    assert!(entered > 80, "{entered} of 100 were not displaced, and now have a second prefix");
    flood(2000..2001);
    records.push(&hash(2000), 3, &[]);
    store.import(&[records.clone()], at(0));
    store.settle().unwrap();
    let status = flood(2001..2002);
    assert_eq!((status.entries, status.candidates, stored(&folder, 2000)), (entered + 1, 256, 3));
    store.close().unwrap();
    // More new swarms than are noted, and later more restored ones.
    for torrent in 3000..300_000 {
        tell(&store, leecher(hash(torrent), v4(1)));
        records.push(&hash(torrent), 3, &[]);
    }
    store.restore(&SwarmSummary { info_hash: hash(2002), stats: stats(0, 0, 3) }, &[], at(0));
    store.open(downloads(&folder));
    store.settle().unwrap();
    assert_eq!((store.status().entries, stored(&folder, 2002)), (102, 3));
    assert_eq!(store.scrape(&hash(1000)).downloaded, 1, "for as long as its swarm is there");
    store.import(&[records], at(0));
    store.settle().unwrap();
    assert_eq!((store.status().candidates, stored(&folder, 3000)), (256, 3));
}

#[test]
fn a_torrent_enters_the_counts_when_its_downloader_announces_again_later() {
    let folder = Simulated::new(14);
    let store = durable_at(&folder, |pace| {
        pace.every = Duration::from_millis(1);
        pace.again_after = Duration::from_secs(900);
    });
    let again = |torrent, port, after| {
        tell_at(&store, after, of_prefix(torrent, 1, port).event(AnnounceEvent::None));
    };
    (1..=4).for_each(|torrent| _ = tell(&store, of_prefix(torrent, 1, 1)));
    again(1, 1, 60);
    store.settle().unwrap();
    // The downloader; another of its prefix; and of a torrent that was removed.
    again(2, 1, 1000);
    again(3, 2, 1000);
    store.remove(&hash(4));
    again(4, 1, 1000);
    until("the downloader counts", || stored(&folder, 2) > 0);
    store.settle().unwrap();
    assert_eq!([1, 2, 3, 4].map(|torrent| stored(&folder, torrent)), [0, 1, 0, 0]);
    assert_eq!(store.scrape(&hash(2)).downloaded, 1);
}
