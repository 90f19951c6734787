//! Cases of exports and imports: a whole store is read in steps, and imported by another.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    iter,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{
    Announce, BoundedBy, Budget, Endpoint, Evicted, Export, Family, InfoHash, PeerRecord, Records,
    RepositoryConfig, Restored, Retention, Role, SwarmSummary, Timestamp,
};

use crate::{
    Model, Subject,
    kit::*,
    threads::{Rounds, SetOnDrop, against, in_step},
};

/// The contents of one swarm in an export, over all of its parts.
#[derive(Debug, Default)]
struct Contents {
    /// The download count of the last part.
    downloaded: u32,
    peers: Vec<PeerRecord>,
}

/// The steps of an export `seconds` after the start of the story.
fn steps(store: &Store, seconds: u64, budget: usize) -> impl Iterator<Item = Records> {
    let mut export = Export::new();
    iter::from_fn(move || {
        (!export.is_complete()).then(|| {
            store.export(&mut export, at(seconds), Budget::peers(budget));
            export.records().clone()
        })
    })
}

fn export(store: &Store, seconds: u64, budget: usize) -> Vec<Records> {
    steps(store, seconds, budget).collect()
}

fn read(all: &[Records]) -> BTreeMap<InfoHash, Contents> {
    let mut swarms: BTreeMap<InfoHash, Contents> = BTreeMap::new();
    for record in all.iter().flat_map(Records::iter) {
        let swarm = swarms.entry(record.info_hash).or_default();
        swarm.downloaded = record.downloaded;
        swarm.peers.extend(record.peers());
    }
    swarms
}

fn family(n: u32) -> Family {
    if n.is_multiple_of(3) { Family::V6 } else { Family::V4 }
}

fn role(n: u32) -> Role {
    if n.is_multiple_of(2) { Role::Seeder } else { Role::Leecher }
}

/// Inserts small swarms, a large one, and one with downloads but no peers.
fn populate(store: &Store) {
    for torrent in 0..300 {
        for n in 0..torrent % 9 {
            store.fill(time_of(torrent, n), [announce_of(torrent, n)]);
        }
    }
    for n in 0..LARGE {
        store.fill(time_of(LARGE_ONE, n), [announce_of(LARGE_ONE, n)]);
    }
    store.fill(700, [completed(hash(2000), v4(1)), completed(hash(2000), v6(2))]);
    store.fill(700, [stopped(hash(2000), v4(1)), stopped(hash(2000), v6(2))]);
}

/// The number of the large swarm, and the number of its peers.
const LARGE_ONE: u32 = 1000;
const LARGE: u32 = 1500;

fn announce_of(torrent: u32, n: u32) -> Announce {
    let announce = completed(hash(torrent.into()), peer(family(n), n)).left((n % 2).into());
    announce.peer_id(peer_id(n as u8)).transferred(n.into(), u64::MAX - u64::from(n))
}

/// Ascending, because the time of a store never goes back.
fn time_of(torrent: u32, n: u32) -> u64 {
    if torrent == LARGE_ONE { 300 + u64::from(n / 4) } else { torrent.into() }
}

/// Asserts that the swarms of [`populate`] were read as they were announced.
fn assert_populated(store: &Store, swarms: &BTreeMap<InfoHash, Contents>, latest: Timestamp, case: &str) {
    let sizes = (0..300).map(|torrent| (torrent, torrent % 9)).chain([(LARGE_ONE, LARGE)]);
    let mut expected = 1;
    for (torrent, size) in sizes.filter(|(_, size)| *size > 0) {
        expected += 1;
        let swarm = swarms.get(&hash(torrent.into()));
        let Contents { downloaded, peers } =
            swarm.unwrap_or_else(|| panic!("swarm {torrent} was not read {case}"));
        assert_eq!(*downloaded, size.div_ceil(2), "downloads of swarm {torrent} {case}");
        let by_endpoint: BTreeMap<_, _> = peers.iter().map(|peer| (peer.endpoint, peer)).collect();
        let counts = [peers.len(), by_endpoint.len()];
        assert_eq!(counts, [size as usize; 2], "peers of swarm {torrent} {case}");
        for n in 0..size {
            let peer = by_endpoint[&peer(family(n), n)];
            assert_eq!(peer.role, role(n), "the role of {} {case}", peer.endpoint);
            store.assert_time(peer, at(time_of(torrent, n)), latest);
            assert_eq!(peer.details.is_some(), store.capabilities().keeps_peer_details, "details {case}");
            if let Some(details) = peer.details {
                let told = announce_of(torrent, n);
                assert_eq!((details.peer_id, details.left), (told.peer_id, told.left));
                assert_eq!((details.downloaded, details.uploaded), (told.downloaded, told.uploaded));
            }
        }
    }
    let Contents { downloaded, peers } = &swarms[&hash(2000)];
    assert_eq!((*downloaded, peers.len()), (2, 0), "a swarm that only its downloads are left of");
    assert_eq!(swarms.len(), expected, "swarms that there are");
}

pub(crate) fn an_export_reads_every_swarm_with_its_peers_roles_times_and_downloads(subject: &dyn Subject) {
    let store = build(subject);
    assert!(read(&export(&store, 0, 10)).is_empty(), "there is nothing yet");
    populate(&store);
    for budget in [1, 3, 64, 1000, usize::MAX] {
        let swarms = read(&export(&store, 700, budget));
        assert_populated(&store, &swarms, at(700), &format!("in steps of {budget}"));
    }
    let mut done = Export::new();
    while !done.is_complete() {
        store.export(&mut done, at(700), Budget::peers(100));
    }
    store.export(&mut done, at(700), Budget::peers(100));
    assert!(done.is_complete() && done.records().is_empty(), "there is nothing behind the end");
}

/// The caller of an export may have another clock than the callers of announces. The latest time counts.
pub(crate) fn an_export_at_an_earlier_time_shows_times_as_they_are(subject: &dyn Subject) {
    let store = build(subject);
    for n in 0..40 {
        store.fill(u64::from(n) * 40, [leecher(hash((n % 7).into()), v4(n))]);
    }
    for budget in [1, 5, 1000] {
        let swarms = read(&export(&store, 0, budget));
        for n in 0..40 {
            let peers = &swarms[&hash((n % 7).into())].peers;
            let shown = peers.iter().find(|peer| peer.endpoint == v4(n)).expect("it is there all the while");
            store.assert_time(shown, at(u64::from(n) * 40), at(39 * 40));
        }
    }
}

/// Some peers stay and change their roles, while thousands of others join and leave between the steps.
pub(crate) fn peers_that_stay_are_exported_whatever_moves_around_them(subject: &dyn Subject) {
    for (stay, budget) in [(10, 1), (200, 7), (200, 40), (2000, 100)] {
        let store = build(subject);
        let torrents = [1, 2, 3].map(hash);
        let staying = |n: u32| (torrents[n as usize % 3], peer(family(n), 1_000_000 + n));
        let passing = |n: u32| (torrents[n as usize % 3], peer(family(n), n));
        let announce = |(torrent, endpoint): (InfoHash, Endpoint), left: u32| {
            Announce::new(torrent, endpoint).left(left.into())
        };
        store.fill(0, (0..stay).map(|n| announce(staying(n), n % 2)));
        store.fill(0, (0..stay).map(|n| announce(passing(n), 1)));
        let (mut export, mut shown, mut step) = (Export::new(), HashSet::new(), 0);
        while !export.is_complete() {
            store.export(&mut export, at(1), Budget::peers(budget));
            for record in export.records().iter() {
                shown.extend(record.peers().map(|peer| (record.info_hash, peer.endpoint)));
            }
            let block = |n: u32| n * 250..(n + 1) * 250;
            match step % 24 {
                phase @ 0..12 => store.fill(1, block(phase).map(|n| announce(passing(n), n % 2))),
                phase => {
                    let gone = block(phase - 12).map(passing);
                    store.fill(1, gone.map(|(torrent, endpoint)| stopped(torrent, endpoint)));
                }
            }
            let move_over = (0..stay).filter(|n| n % 5 == step % 5);
            store.fill(1, move_over.map(|n| announce(staying(n), (n + step / 5) % 2)));
            step += 1;
            assert!(step < 100_000, "an export that never ends");
        }
        let missed = (0..stay).filter(|&n| !shown.contains(&staying(n))).count();
        assert_eq!(missed, 0, "of {stay} that were there all the time, in steps of {budget}");
    }
}

pub(crate) fn swarms_that_stay_are_exported_while_others_come_and_go(subject: &dyn Subject) {
    // With small steps fewer swarms change between two steps; the total is the same.
    for (budget, block) in [(1, 10), (10, 100), (100, 100)] {
        let store = build(subject);
        // No store has the largest or smallest numbers at an end of its order.
        let passing = |n: u64| hash(1_000_000 + n);
        store.fill(0, (0..300).map(|n| seeder(hash(n), v4(n as u32))));
        store.fill(0, (0..300).map(|n| leecher(passing(n), v4(1))));
        let (mut export, mut shown, mut step) = (Export::new(), HashSet::new(), 0);
        while !export.is_complete() {
            store.export(&mut export, at(0), Budget::peers(budget));
            let swarms = export.records().iter();
            shown.extend(swarms.filter(|swarm| swarm.len() == 1).map(|swarm| swarm.info_hash));
            let blocks = 1000 / block;
            let others = (0..block).map(|n| passing(step % blocks * block + n));
            if step / blocks % 2 == 1 {
                store.fill(0, others.map(|torrent| leecher(torrent, v4(1))));
            } else {
                store.forget(others);
            }
            step += 1;
            assert!(step < 100_000, "an export that never ends");
        }
        let missed = (0..300).filter(|&n| !shown.contains(&hash(n))).count();
        assert_eq!(missed, 0, "of 300 swarms that were there all the while, in steps of {budget}");
    }
}

/// Meanwhile other peers announce, leave, are swept and removed; their swarms are removed and created again.
pub(crate) fn an_export_holds_every_peer_whose_announce_returned_before_it_began(subject: &dyn Subject) {
    let store = build(subject);
    let shared = |n: u64| hash(n % 4);
    let work = |_: u32, rounds: Rounds<'_>| {
        let mut recent = VecDeque::new();
        for round in rounds.iter() {
            for n in 0..6_u32 {
                let torrent = if n < 4 { shared(n.into()) } else { hash(10_000 + u64::from(round * 6 + n)) };
                let endpoint = peer(family(n), 1_000_000 + round * 6 + n);
                store.tell(Announce::new(torrent, endpoint).left((n % 2).into()).want(0));
                recent.push_back((torrent, endpoint, role(n)));
            }
            let swarms = read(&export(&store, 1, 1 + round as usize % 200));
            for &(torrent, endpoint, role) in &recent {
                let peers = swarms.get(&torrent).map(|swarm| &swarm.peers).into_iter().flatten();
                let shown = peers.clone().find(|peer| peer.endpoint == endpoint);
                let shown = shown
                    .unwrap_or_else(|| panic!("{endpoint} had announced and was not read, in round {round}"));
                assert_eq!(shown.role, role);
            }
            while recent.len() > 60 {
                let (torrent, endpoint, _) = recent.pop_front().expect("there are 60");
                store.tell(stopped(torrent, endpoint));
            }
        }
    };
    against(1, 150, work, |turn| {
        let n = turn as u32 % 300;
        match turn / 300 % 3 {
            0 => drop(store.tell(leecher(shared(turn), v4(n)).want(2))),
            1 => drop(store.tell(stopped(shared(turn), v4(n)))),
            _ => drop(store.tell(completed(hash(500 + turn % 8), v4(n)).want(2))),
        }
        if turn % 16 == 0 {
            store.sweep(at(1), Retention::DropEmpty, Budget::peers(30));
        }
        if turn % 64 == 0 {
            store.remove(&hash(500 + turn / 64 % 8));
        }
    });
    store.assert_consistent();
}

/// Leechers complete while they are read. If a peer is read as a seeder, its download must be read as well;
/// otherwise it would be lost, because no peer completes twice.
pub(crate) fn an_export_counts_the_download_of_every_seeder_it_shows(subject: &dyn Subject) {
    const EACH: u64 = 150;
    let store = build(subject);
    let work = |_: u32, rounds: Rounds<'_>| {
        for round in rounds.iter() {
            // Most swarms in one part: a later part may contain downloads of peers that were read before.
            let records = export(&store, 1, if round % 4 == 0 { 40 } else { 10_000 });
            let mut swarms = BTreeMap::<_, (u32, HashSet<_>)>::new();
            for record in records.iter().flat_map(Records::iter) {
                let (downloaded, seeders) = swarms.entry(record.info_hash).or_default();
                *downloaded = record.downloaded.max(*downloaded);
                seeders.extend(record.peers().filter(|peer| peer.role.is_seeder()).map(|peer| peer.endpoint));
            }
            for (torrent, (downloaded, seeders)) in swarms {
                assert!(
                    downloaded as usize >= seeders.len(),
                    "{torrent:?} was read with {} seeders and {downloaded} downloads, in round {round}",
                    seeders.len()
                );
            }
        }
    };
    against(1, 100, work, |turn| {
        let (torrent, n) = (turn / EACH, turn % EACH);
        if n == 0 {
            store.forget([hash(torrent.saturating_sub(2))].into_iter().filter(|_| torrent >= 2));
            store.fill(0, (0..EACH as u32).map(|n| leecher(hash(torrent), peer(family(n), n))));
        }
        // In an order that no store uses.
        let n = (n * 67 % EACH) as u32;
        store.tell(completed(hash(torrent), peer(family(n), n)).want(0));
        // So that on one core, too, an export runs between two downloads of a swarm.
        thread::yield_now();
    });
}

/// A swarm lives again and again: with a seeder and its download, and with a leecher and no download.
pub(crate) fn an_export_shows_one_life_of_a_swarm_that_is_removed_and_made_again(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    let work = |_: u32, rounds: Rounds<'_>| {
        let (mut met, mut rounds, began) = ([0, 0], rounds.iter(), Instant::now());
        while rounds.next().is_some() || met.contains(&0) {
            assert!(began.elapsed() < PATIENCE.get(), "{met:?} exports met it with a seeder and a leecher");
            for Contents { downloaded, peers } in read(&export(&store, 1, 100)).into_values() {
                let roles: Vec<_> = peers.iter().map(|peer| peer.role).collect();
                let is_whole = match *roles {
                    [Role::Seeder] => downloaded == 1,
                    [Role::Leecher] => downloaded == 0,
                    _ => false,
                };
                assert!(is_whole, "{roles:?} and {downloaded} downloads were read");
                met[usize::from(roles == [Role::Leecher])] += 1;
            }
        }
    };
    against(1, 300, work, |turn| {
        let begin = Instant::now();
        let announce = if turn % 2 == 0 { completed(torrent, v4(1)) } else { leecher(torrent, v4(1)) };
        store.tell(announce.want(0));
        if turn % 8 > 5 {
            // A store that reads a swarm again if it has changed meanwhile is let in now and then.
            thread::sleep(10 * begin.elapsed());
        }
        store.remove(&torrent);
    });
}

pub(crate) fn the_time_given_to_an_export_or_an_import_counts(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    let announced_earlier = |n, latest| {
        store.fill(latest - 500, [leecher(torrent, v4(n))]);
        store.assert_time(&store.members(&torrent)[&v4(n)], at(latest), at(latest));
    };
    export(&store, 1000, 10);
    announced_earlier(1, 1000);
    export(&store, 2000, 10);
    announced_earlier(2, 2000);
    store.import(&[], at(3000));
    announced_earlier(3, 3000);
}

pub(crate) fn a_step_of_an_export_visits_about_its_budget(subject: &dyn Subject) {
    for (swarms, peers) in [(3000, 1), (1, 20_000), (50, 300)] {
        let store = build(subject);
        store.fill(0, (0..swarms).flat_map(|n| (0..peers).map(move |m| leecher(hash(n), v4(m)))));
        for budget in [100, 1000] {
            let most = 2 * budget + 64 + (2.0 * swarms_per_shard(&store, swarms)) as u64;
            let (mut export, mut steps, mut read) = (Export::new(), 0, 0);
            while !export.is_complete() {
                store.export(&mut export, at(1), Budget::peers(budget as usize));
                let visited = export.records().peers() + u64::from(export.records().swarms());
                assert!(visited <= most, "a step of {budget} read {visited}, more than {most}");
                (steps, read) = (steps + 1, read + export.records().peers());
            }
            let all = swarms * u64::from(peers);
            assert_eq!(read, all, "peers that there are");
            // A step may end in the middle of a swarm after one hold.
            let least = budget.min(256);
            assert!(steps <= 4 * 2 * all / least + 8, "{steps} steps of {budget} for {all} peers");
        }
    }
}

/// One thread reads a large swarm in one unlimited step; another makes its leechers seeders, one after
/// another. Some export must show announces made in the meantime: later peers as seeders, and earlier ones
/// still as leechers.
pub(crate) fn an_export_holds_no_lock_for_long_even_in_a_large_swarm(subject: &dyn Subject) {
    const PEERS: u32 = 10_000;
    let (store, torrent) = (build(subject), hash(1));
    // In an order that no store uses.
    let in_order = || (0..PEERS).map(|n| v4(n * 7919 % PEERS));
    let places: HashMap<_, _> = in_order().zip(0..).collect();
    let is_mixed = |records: &[Records]| {
        let mut promoted = [false; PEERS as usize];
        for peer in &read(records)[&torrent].peers {
            promoted[places[&peer.endpoint]] = peer.role.is_seeder();
        }
        !promoted.is_sorted_by(|one, next| one >= next)
    };
    let is_let_in = |nth| {
        store.fill(0, (0..PEERS).map(|n| leecher(torrent, v4(n))));
        // Exports until all peers are seeders.
        let (done, taken) = (AtomicBool::new(false), AtomicU32::new(0));
        thread::scope(|scope| {
            let _ends = SetOnDrop(&done);
            scope.spawn(|| {
                let _ends = SetOnDrop(&done);
                for (n, endpoint) in in_order().enumerate() {
                    store.fill(1, [seeder(torrent, endpoint)]);
                    let (before, mut is_early) = (taken.load(SeqCst), n % 100 == 0);
                    // A thread that wakes up may run in the middle of a step, on one core too. In each second
                    // try it waits for one: it must not be done before the exports.
                    while is_early && !done.load(SeqCst) {
                        thread::sleep(Duration::from_micros(50));
                        is_early = nth % 2 == 1 && taken.load(SeqCst) == before;
                    }
                }
            });
            let take = |_: &Records| {
                taken.fetch_add(1, SeqCst);
                // The caller decides how often an unfair lock is taken.
                thread::yield_now();
            };
            let mut exports = (0..300).map_while(|_| {
                let records: Vec<_> = steps(&store, 1, usize::MAX).inspect(take).collect();
                (!done.load(SeqCst)).then(|| is_mixed(&records))
            });
            exports.any(|is_mixed| is_mixed)
        })
    };
    // Locks need not be fair, and a busy machine may keep threads from running.
    assert!((0..TRIES).any(is_let_in), "no announce was let in while {PEERS} peers were read, {TRIES} times");
}

pub(crate) fn an_export_leaves_out_what_has_neither_peers_nor_downloads(subject: &dyn Subject) {
    let store = build(subject);
    store.fill(0, (0..60).map(|n| leecher(hash(n), v4(1))));
    store.fill(0, (0..20).map(|n| completed(hash(n), v4(2))));
    store.fill(1, (0..40).flat_map(|n| [stopped(hash(n), v4(1)), stopped(hash(n), v4(2))]));
    // A swarm that was large is empty too.
    store.fill(1, (0..2000).map(|n| leecher(hash(100), v4(n))));
    store.fill(1, (0..2000).map(|n| stopped(hash(100), v4(n))));
    for budget in [1, 7, 1000] {
        let swarms = read(&export(&store, 1, budget));
        let (with_downloads, empty) = (0..20, 20..40);
        for n in with_downloads {
            let swarm = swarms.get(&hash(n)).expect("its downloads are something to keep");
            assert_eq!((swarm.downloaded, swarm.peers.len()), (1, 0));
        }
        for n in empty.chain([100]) {
            assert!(!swarms.contains_key(&hash(n)), "swarm {n} has nothing worth keeping");
        }
        assert_eq!(swarms.len(), 40, "in steps of {budget}");
    }
}

fn record(endpoint: Endpoint, role: Role, last_announce: Timestamp) -> PeerRecord {
    PeerRecord { endpoint, role, last_announce, details: None }
}

/// Returns swarms of all kinds, a large one in parts: with peers that a store has already, that have expired,
/// and that are new.
fn snapshot(resolution: u64) -> Vec<Records> {
    let mut all = Vec::new();
    let aged = |n: u32, age: u64| record(peer(family(n), n), role(n), at(500).saturating_sub(age));
    for some in 0..4_u32 {
        let mut records = Records::new(at(500));
        for n in (some..600).step_by(4) {
            let expired = LIFETIME + resolution + 1 + u64::from(n);
            let mut peers: Vec<_> = (0..n % 4).map(|m| aged(m, u64::from(n * 17 % 1700))).collect();
            peers.extend((0..n % 3).map(|m| aged(1000 + m, expired)));
            records.push(&hash(n.into()), n % 5 / 3 * n, &peers);
        }
        // One part in each list of records, and two in the last.
        for part in some..=some + some / 3 {
            let peers: Vec<_> =
                (part * 700..(part + 1) * 700).map(|n| aged(n, u64::from(n % 1000))).collect();
            records.push(&hash(5000), 10 * (part + 1), &peers);
        }
        all.push(records);
    }
    all
}

fn one_by_one(store: &Store, all: &[Records], now: Timestamp) -> Restored {
    let mut restored = Restored::default();
    for swarm in all.iter().flat_map(Records::iter) {
        let peers: Vec<_> = swarm.peers().collect();
        let summary = SwarmSummary { info_hash: swarm.info_hash, stats: stats(0, 0, swarm.downloaded) };
        restored += store.restore(&summary, &peers, now);
    }
    restored
}

pub(crate) fn import_does_what_restore_does_one_by_one(subject: &dyn Subject) {
    let (imported, restored) = (build(subject), build(subject));
    let all = snapshot(resolution(&imported));
    for store in [&imported, &restored] {
        // Some peers exist already with another role, and some swarms have more downloads than the snapshot.
        store.fill(400, (0..600).step_by(7).map(|n| seeder(hash(n), peer(family(1), 1))));
        store.fill(400, (0..600).step_by(11).map(|n| completed(hash(n), v6(7))));
        store.fill(
            400,
            (0..100).flat_map(|n| [leecher(hash(5000), peer(family(n), n)), completed(hash(0), v4(n))]),
        );
    }
    for (turn, now) in [(0, at(500)), (1, at(500)), (2, at(1500))] {
        assert_eq!(imported.import(&all, now), one_by_one(&restored, &all, now), "turn {turn}");
        let (summaries, expected) = (imported.summaries(), restored.summaries());
        for (torrent, expected) in &expected {
            assert_eq!(summaries.get(torrent), Some(expected), "{torrent:?} in turn {turn}");
        }
        assert_eq!((summaries.len(), imported.totals()), (expected.len(), restored.totals()), "turn {turn}");
        for torrent in summaries.keys() {
            let (members, expected) = (imported.members(torrent), restored.members(torrent));
            assert_same(members.keys().collect(), expected.keys().collect(), "the endpoints of a swarm");
            for (endpoint, expected) in expected {
                let PeerRecord { role, last_announce, details, .. } = members[&endpoint];
                assert_eq!((role, details), (expected.role, expected.details), "{endpoint} of {torrent:?}");
                assert_eq!(last_announce, expected.last_announce, "the time of {endpoint} of {torrent:?}");
            }
        }
        imported.assert_consistent();
    }
    assert_eq!(imported.scrape(&hash(5000)).downloaded, 50, "the count of the last part is the largest");
    assert_eq!(imported.import(&[], at(1500)), Restored::default());
}

pub(crate) fn import_keeps_to_limits_and_displaces_nobody(subject: &dyn Subject) {
    let before = |n: u64| (hash(1_000_000 + n), v4(1_000_000));
    let filled = |needs: BoundedBy, config: &RepositoryConfig| {
        let store = bounded(subject, needs, config)?;
        store.fill(0, (0..20).map(before).map(|(torrent, endpoint)| leecher(torrent, endpoint)));
        Some(store)
    };
    let assert_undisplaced = |store: &Store| {
        assert_eq!(store.totals().evicted, Evicted::default());
        assert!((0..20).all(|n| store.scrape(&before(n).0).peers() > 0), "they were there first");
        store.assert_consistent();
    };
    let import = |store: &Store, swarms: &mut dyn Iterator<Item = (InfoHash, Vec<Endpoint>)>| {
        let mut records = Records::new(at(0));
        for (torrent, endpoints) in swarms {
            let peers: Vec<_> =
                endpoints.into_iter().map(|endpoint| record(endpoint, Role::Leecher, at(0))).collect();
            records.push(&torrent, 1, &peers);
        }
        let restored = store.import(std::slice::from_ref(&records), at(0));
        let told = restored.added + restored.known + restored.refused;
        assert_eq!(told, records.peers(), "each is in, or known, or refused");
        restored
    };
    if let Some(store) = filled(BoundedBy::SWARMS, &config().max_swarms(200)) {
        let restored = import(&store, &mut (0..600).map(|n| (hash(n), vec![v4(1), v6(2)])));
        assert!(store.totals().swarms <= 200, "{} swarms", store.totals().swarms);
        assert!(restored.refused >= 800, "{restored:?}");
        assert_undisplaced(&store);
    }
    if let Some(store) = filled(BoundedBy::PEERS_PER_SWARM, &config().max_peers_per_swarm(50)) {
        let endpoints: Vec<_> = (0..80).map(v4).collect();
        // The last record repeats half of another one.
        let restored = import(&store, &mut (0..30).chain([29]).map(|n| (hash(n), endpoints.clone())));
        assert_eq!((restored.added, restored.known, restored.refused), (30 * 50, 50, 31 * 30));
        assert_undisplaced(&store);
    }
    if let Some(store) = filled(BoundedBy::ENDPOINTS_PER_ADDRESS, &config().max_endpoints_per_address(4)) {
        let endpoints = |n| (0..20).map(move |m| of_address(n, 7, m));
        let both: Vec<_> = endpoints(Family::V4).chain(endpoints(Family::V6)).collect();
        let restored = import(&store, &mut (0..30).map(|n| (hash(n), both.clone())));
        assert_eq!((restored.added, restored.refused), (30 * 8, 30 * 32));
        assert_undisplaced(&store);
    }
    const BYTES: usize = 1 << 20;
    if let Some(store) = filled(BoundedBy::BYTES, &config().max_bytes(BYTES)) {
        let endpoints: Vec<_> = (0..10).map(|n| peer(family(n), n)).collect();
        let restored = import(&store, &mut (0..20_000).map(|n| (hash(n), endpoints.clone())));
        assert!(restored.added > 0 && restored.refused > 0, "{restored:?}");
        assert!(store.memory().bytes <= BYTES as u64, "{} bytes", store.memory().bytes);
        assert_undisplaced(&store);
    }
}

/// To the oracle and back: roles, downloads, and ages, which get younger by at most the coarser clock.
pub(crate) fn what_one_store_exports_another_imports(subject: &dyn Subject) {
    let store = build(subject);
    let oracle_of_same: &dyn Subject = &Model::new;
    let (oracle, back) = (build(oracle_of_same), build(subject));
    populate(&store);
    let peers = store.totals().peers();
    assert_eq!(oracle.import(&export(&store, 700, 300), at(750)).added, peers);
    assert_eq!(
        oracle.summaries(),
        store
            .summaries()
            .into_iter()
            .filter(|(_, stats)| stats.peers() + u64::from(stats.downloaded) > 0)
            .collect()
    );
    assert_eq!(back.import(&export(&oracle, 800, 7), at(850)).added, peers);
    assert_eq!(back.summaries(), oracle.summaries());
    assert_eq!(back.totals(), oracle.totals());
    assert_populated(&back, &read(&export(&back, 900, 50)), at(900), "after two stores");
    // Peers that expired meanwhile are reported.
    let late = build(subject);
    let restored = late.import(&export(&back, 900, 1000), at(700 + LIFETIME + 2 * resolution(&late)));
    assert_eq!((restored.added, restored.expired), (0, peers));
}

/// Two threads meet at each of many new swarms. One announces a peer; the other imports an earlier record of
/// that peer, and one more peer.
pub(crate) fn announces_survive_imports_and_stay_as_they_were_made(subject: &dyn Subject) {
    const SWARMS: usize = 2000;
    let (store, added) = (build(subject), Mutex::new(Restored::default()));
    in_step(SWARMS, |me, n| {
        let torrent = hash(n as u64);
        if me == 0 {
            store.tell_at(100, seeder(torrent, v4(1)).want(2));
        } else {
            let mut records = Records::new(at(50));
            records.push(
                &torrent,
                3,
                &[record(v4(1), Role::Leecher, at(0)), record(v4(2), Role::Leecher, at(0))],
            );
            *added.lock().expect("no holder panics") += store.import(&[records], at(100));
        }
    });
    for torrent in (0..SWARMS as u64).map(hash) {
        assert_eq!(store.scrape(&torrent), stats(1, 1, 3), "one has announced as a seeder, one was imported");
        let members = store.members(&torrent);
        store.assert_time(&members[&v4(1)], at(100), at(100));
        store.assert_time(&members[&v4(2)], at(0), at(100));
    }
    let added = added.into_inner().expect("no holder panics");
    assert_eq!(added.added + added.known, 2 * SWARMS as u64);
    store.assert_consistent();
}
