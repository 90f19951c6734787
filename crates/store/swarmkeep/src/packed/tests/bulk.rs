//! Exports and imports: no peer is lost by changes between two steps, and imports keep the account of bytes.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{Cursor, Export, Restored, Totals, totals::Population};

/// Downloads, and the peers with role and time: all that a store of packed peers knows of a swarm.
pub(super) type Swarm = (u32, BTreeMap<Endpoint, (Role, Timestamp)>);
pub(super) type Swarms = BTreeMap<InfoHash, Swarm>;

/// All records of one export, with calls of `between` between the steps.
fn read_out_while(store: &Packed, now: u64, budget: usize, mut between: impl FnMut(usize)) -> Vec<Records> {
    let (mut export, mut steps) = (Export::new(), Vec::new());
    while !export.is_complete() {
        store.export(&mut export, at(now), Budget::peers(budget));
        steps.push(export.records().clone());
        between(steps.len());
    }
    store.export(&mut export, at(now), Budget::peers(budget));
    assert!(export.records().is_empty() && export.is_complete(), "there is nothing behind the end");
    steps
}

pub(super) fn read_out(store: &Packed, now: u64, budget: usize) -> Vec<Records> {
    read_out_while(store, now, budget, |_| ())
}

/// The swarms in records. The last record of a peer counts.
pub(super) fn swarms_in(records: &[Records]) -> Swarms {
    let mut swarms = Swarms::new();
    for record in records.iter().flat_map(Records::iter) {
        let (downloaded, peers) = swarms.entry(record.info_hash).or_default();
        *downloaded = record.downloaded.max(*downloaded);
        peers.extend(record.peers().map(|peer| (peer.endpoint, (peer.role, peer.last_announce))));
    }
    swarms
}

/// The swarms of a store, by its listings.
pub(super) fn swarms_of(store: &Packed) -> Swarms {
    let (mut all, mut from) = (Vec::new(), Cursor::START);
    while !from.is_end() {
        from = store.walk(from, 1000, &mut all);
    }
    let mut swarms = Swarms::new();
    for SwarmSummary { info_hash, stats } in all {
        let (mut peers, mut from) = (Vec::new(), Cursor::START);
        while !from.is_end() {
            from = store.peers(&info_hash, from, 1000, &mut peers);
        }
        let peers: BTreeMap<_, _> =
            peers.iter().map(|peer| (peer.endpoint, (peer.role, peer.last_announce))).collect();
        assert_eq!(store.scrape(&info_hash), stats);
        assert_eq!(peers.len() as u64, stats.peers());
        assert!(swarms.insert(info_hash, (stats.downloaded, peers)).is_none());
    }
    swarms
}

fn assert_consistent(store: &Packed) {
    let swarms = swarms_of(store);
    let mut totals = Totals { evicted: store.totals().evicted, ..Totals::default() };
    totals.swarms = swarms.len() as u64;
    totals.downloaded = swarms.values().map(|(downloaded, _)| u64::from(*downloaded)).sum();
    for (endpoint, (role, _)) in swarms.values().flat_map(|(_, peers)| peers) {
        totals += Population::one(endpoint.family(), *role);
    }
    assert_eq!(store.totals(), totals);
    assert_eq!(store.memory().bytes, store.recount());
}

/// Swarms of every size that is kept in another way, of both families, and idle ones with and without
/// downloads.
fn populate(store: &Packed, rng: &mut dyn Random) {
    let sizes = [1, 1, 1, 1, 1, 1, 2, 3, 8, 20, 72, 73, 74, 75, 120, 1];
    for torrent in 0..400 {
        let size = match torrent {
            0 => 3000,
            1 => 700,
            _ => sizes[rng.below(sizes.len())],
        };
        let (of_v6, seeders) = (rng.below(4), rng.below(3));
        for n in 0..size {
            let endpoint = if rng.below(3) < of_v6.min(3) { v6(n) } else { v4(n) };
            let event = [AnnounceEvent::None, AnnounceEvent::Completed][rng.below(2)];
            let left = u64::from(rng.below(3) >= seeders);
            tell(store, rng.below(2000) as u64, leecher(torrent, endpoint).event(event).left(left));
        }
        if torrent % 10 == 9 {
            let mut peers = Vec::new();
            store.peers(&hash(torrent), Cursor::START, 256, &mut peers);
            fill(store, 2000, peers.iter().map(|peer| stop(torrent, peer.endpoint)));
        }
    }
    for (torrent, more) in [(2, 254), (3, 255), (4, 256), (5, 70_000), (6, u32::MAX - 400), (0, 1 << 20)] {
        store.add_downloads(&hash(torrent), more);
    }
}

#[test]
fn an_export_has_every_peer_once_and_goes_into_another_store() {
    for shards in [1, 2, 64, 4096, 65_536] {
        let store = Packed::new(&config().shards(shards)).expect("a power of two");
        assert!(read_out(&store, 1, usize::MAX).iter().all(Records::is_empty));
        assert_eq!(store.import(&[Records::new(at(1))], at(1)), Restored::default());
        populate(&store, &mut SplitMix64::new(shards as u64));
        // The swarms that an export contains.
        let mut expected = swarms_of(&store);
        expected.retain(|_, (downloaded, peers)| *downloaded > 0 || !peers.is_empty());
        assert!(swarms_of(&store).len() > expected.len(), "some are idle");
        assert!(expected.values().any(|(_, peers)| peers.is_empty()), "and some of those have downloads");
        for budget in [1, 7, 1000, usize::MAX] {
            if shards > 64 && budget < 1000 {
                continue;
            }
            let steps = read_out(&store, 2000, budget);
            assert_eq!(swarms_in(&steps), expected, "{shards} shards, {budget} at a time");
            let peers: u64 = steps.iter().map(Records::peers).sum();
            assert_eq!(peers, store.totals().peers(), "each of them once");
            // A swarm or range more than the budget, of the largest size.
            for records in &steps {
                let visited = records.peers() + u64::from(records.swarms());
                assert!(visited <= (budget as u64).saturating_add(300), "{visited} of {budget}");
            }
            let key = HashKey::from_bytes(*b"and one of other");
            let other = Packed::new(&RepositoryConfig::new(key).shards(65_536 / shards)).expect("as many");
            assert_eq!(other.import(&steps, at(2000)), Restored { added: peers, ..Restored::default() });
            assert_eq!(swarms_of(&other), expected);
            assert_consistent(&other);
        }
        assert_consistent(&store);
    }
}

#[test]
fn a_step_ends_in_the_middle_of_a_large_swarm_whatever_it_may_visit() {
    let store = Packed::new(&config().shards(1)).expect("a power of two");
    fill(&store, 1, (0..5000).map(|n| leecher(1, v4(n))));
    let (mut export, mut within) = (Export::new(), 0);
    while !export.is_complete() {
        store.export(&mut export, at(1), Budget::peers(usize::MAX));
        assert!(export.records().peers() <= 512, "the caller decides how often the lock is taken");
        within += u64::from(export.is_within_a_swarm());
    }
    assert!(within >= 5000 / 512 && !export.is_within_a_swarm(), "{within}");
}

/// Residents stay in all kinds of swarms while swarms around them come, grow, shrink and go, and leaves split
/// and merge.
#[test]
fn a_peer_that_stays_is_read_whatever_changes_between_two_steps() {
    for (seed, (shards, budget)) in (0..).zip([(1, 1), (1, 7), (1, 60), (2, 7), (64, 30), (4096, 100)]) {
        let config = config().shards(shards).lifetime(Duration::from_secs(1000));
        let store = Packed::new(&config).expect("a power of two");
        let rng: &mut dyn Random = &mut SplitMix64::new(seed);
        // The first swarms have residents: 1, 2, 40, and 300 of them.
        let residents: Vec<(u64, Endpoint)> = [(0..60, 1), (60..80, 2), (80..90, 40), (90..92, 300)]
            .into_iter()
            .flat_map(|(torrents, count)| pairs(torrents, count))
            .map(|(torrent, n)| (torrent, if (torrent + u64::from(n)) % 3 == 0 { v6(n) } else { v4(n) }))
            .collect();
        let mut had = BTreeMap::<_, BTreeSet<(Role, u64)>>::new();
        let now = std::cell::Cell::new(1_u64);
        let announce = |had: &mut BTreeMap<_, BTreeSet<_>>, (torrent, endpoint), left| {
            // A peer that becomes a seeder has completed.
            tell(&store, now.get(), leecher(torrent, endpoint).event(AnnounceEvent::Completed).left(left));
            let role = if left == 0 { Role::Seeder } else { Role::Leecher };
            had.entry((torrent, endpoint)).or_insert_with(BTreeSet::new).insert((role, now.get()));
        };
        residents.iter().for_each(|&resident| announce(&mut had, resident, 1));
        let began = now.get();
        let steps = read_out_while(&store, began, budget, |step| {
            if step > 400 {
                return;
            }
            for _ in 0..rng.below(120) {
                match rng.below(40) {
                    0 => now.set(now.get() + 1 + rng.below(3) as u64),
                    1 => drop(store.remove(&hash(100 + rng.below(3000) as u64))),
                    2..4 => {
                        // Crowds in the swarms of residents and of others make them large, and small again.
                        let torrent = rng.below(130) as u64;
                        let event = [AnnounceEvent::None, AnnounceEvent::Stopped][rng.below(2)];
                        for n in 1000..1000 + rng.below(200) as u32 {
                            let endpoint = if n % 2 == 0 { v4(n) } else { v6(n) };
                            tell(&store, now.get(), leecher(torrent, endpoint).event(event));
                        }
                    }
                    4 => {
                        let budget = Budget::peers(1 + rng.below(3000));
                        store.sweep(at(now.get()), Retention::DropEmpty, budget);
                    }
                    5 => {
                        let all = &|hash: &InfoHash| {
                            u64::from_be_bytes(*hash.as_bytes().first_chunk().expect("8")) >= 100
                        };
                        drop(store.remove_where(all, Cursor::START, Budget::peers(rng.below(2000))));
                    }
                    6..20 => {
                        let resident = residents[rng.below(residents.len())];
                        announce(&mut had, resident, rng.below(2) as u64);
                    }
                    _ => {
                        let torrent = 100 + rng.below(3000) as u64;
                        tell(&store, now.get(), leecher(torrent, v4(rng.below(90) as u32)));
                    }
                }
            }
        });
        let read = swarms_in(&steps);
        let clock = &store.context.clock;
        for &(torrent, endpoint) in &residents {
            let (_, peers) = &read[&hash(torrent)];
            let (role, time) =
                peers.get(&endpoint).unwrap_or_else(|| panic!("{endpoint} of {torrent} is lost"));
            let is_so = |&(had_role, had_at): &(Role, u64)| {
                had_role == *role
                    && at(had_at) <= *time
                    && time.secs_since(at(had_at)) <= clock.resolution_secs()
            };
            assert!(had[&(torrent, endpoint)].iter().any(is_so), "{role:?} at {time:?}");
        }
        for torrent in 0..92 {
            let (downloaded, peers) = &read[&hash(torrent)];
            let seeders = peers.values().filter(|(role, _)| role.is_seeder()).count();
            assert!(*downloaded as usize >= seeders, "{downloaded} downloads of {seeders} seeders");
        }
        assert_consistent(&store);
        // And all of it goes into another.
        let other = Packed::new(&config.shards(64)).expect("a power of two");
        other.import(&steps, at(now.get()));
        let taken = swarms_of(&other);
        for (torrent, endpoint) in residents {
            assert!(taken[&hash(torrent)].1.contains_key(&endpoint));
        }
        assert_consistent(&other);
    }
}

#[test]
fn the_downloads_of_a_swarm_that_is_left_by_all_between_two_steps_are_read() {
    for leave_after in 0..60 {
        let store = Packed::new(&config().shards(1)).expect("one shard");
        // No IPv4 peer: the first step finds no peer to read.
        fill(&store, 1, (0..600).map(|n| leecher(0, v6(n))));
        store.add_downloads(&hash(0), 5);
        let leave = |step| {
            if step == leave_after {
                fill(&store, 1, (0..600).map(|n| stop(0, v6(n))));
            }
        };
        leave(0);
        let steps = read_out_while(&store, 1, 1, leave);
        assert_eq!(swarms_in(&steps)[&hash(0)].0, 5, "all had left after {leave_after} steps");
    }
}

#[test]
fn a_swarm_behind_one_that_goes_while_it_is_read_is_read_whole() {
    for shards in [1, 64] {
        let store = Packed::new(&config().shards(shards)).expect("a power of two");
        let endpoint = |n: u32| if n.is_multiple_of(2) { v4(n) } else { v6(n) };
        fill(&store, 1, pairs(0..24, 600).map(|(torrent, n)| leecher(torrent, endpoint(n))));
        // Every other one goes when about half of it has been read.
        let (mut export, mut steps, mut removed) = (Export::new(), Vec::new(), BTreeSet::new());
        let mut read = BTreeMap::<InfoHash, u64>::new();
        while !export.is_complete() {
            store.export(&mut export, at(1), Budget::peers(300));
            for record in export.records().iter() {
                *read.entry(record.info_hash).or_default() += record.len() as u64;
            }
            if let Some(last) = export.records().iter().last()
                && read[&last.info_hash] < 600
                && removed.len() < read.len() / 2
                && store.remove(&last.info_hash).is_some()
            {
                removed.insert(last.info_hash);
            }
            steps.push(export.records().clone());
        }
        assert!(removed.len() > 5);
        let read = swarms_in(&steps);
        for torrent in (0..24).map(hash).filter(|torrent| !removed.contains(torrent)) {
            assert_eq!(read[&torrent].1.len(), 600);
        }
    }
}

// --- Imports. ---

/// Its peers come in the order of its tables, bucket after bucket.
#[test]
fn a_large_swarm_goes_whole_into_a_store_with_the_same_key() {
    for config in [config(), config().max_endpoints_per_address(8)] {
        let [store, other] = [(); 2].map(|()| Packed::new(&config.clone().shards(1)).expect("one shard"));
        let family = |n: u32| if n.is_multiple_of(4) { Family::V6 } else { Family::V4 };
        fill(&store, 1, (0..100_000).map(|n| leecher(0, of_full(family(n), n, 8)).left((n % 3).into())));
        for records in read_out(&store, 1, 4096) {
            assert_eq!(other.import(&[records], at(1)).refused, 0);
        }
        assert_eq!(swarms_of(&other), swarms_of(&store));
        let [(before, _), (after, _)] = [&store, &other].map(|store| store.lock(0).buckets());
        assert!(after < before * 3 / 2, "{after} buckets instead of {before}");
        assert_consistent(&other);
    }
}

/// The first peers in the order of two million are no crowd. More in a smaller part are one: it gets few
/// buckets, and where bytes are limited only those that it has anyway.
#[test]
fn a_crowd_gets_few_buckets_and_the_first_of_two_million_peers_get_enough() {
    let limited = config().max_bytes(1 << 24);
    for (config, bits, peers, added, most) in
        [(config(), 11, 976, 976, 8000), (config(), 12, 600, 512, 5000), (limited, 12, 600, 512, 20)]
    {
        let store = Packed::new(&config.shards(1)).expect("one shard");
        let place = |endpoint: &Endpoint| store.context.hash.order_of(endpoint);
        let near = (0..).map(|n| floods::alone(Family::V4, n)).filter(|own| place(own) >> (64 - bits) == 0);
        let mut near: Vec<_> = near.take(peers).collect();
        near.sort_by_key(place);
        let peers: Vec<_> = near.into_iter().map(|own| record(own, Role::Leecher, 1)).collect();
        let swarm = SwarmSummary { info_hash: hash(0), stats: SwarmStats::default() };
        assert_eq!(store.restore(&swarm, &peers, at(1)).added, added, "{bits}");
        let (buckets, _) = store.lock(0).buckets();
        assert!(buckets <= most, "{buckets} buckets");
    }
}

#[test]
fn no_bucket_splits_ahead_of_a_crowd_with_one_place_in_the_order() {
    let store = Packed::new(&config().shards(1).max_endpoints_per_address(100)).expect("one shard");
    let place = |endpoint: &Endpoint| store.context.hash.order_of(endpoint);
    let (first, mut peers) = (place(&of_subnet(0, 0, 0)), Vec::new());
    for nth in 0..25 {
        let own = (0..).map(|n| of_subnet(0, subnet(nth), n)).filter(|own| place(own) == first);
        peers.extend(own.take(24).map(|own| record(own, Role::Leecher, 1)));
    }
    let swarm = SwarmSummary { info_hash: hash(0), stats: SwarmStats::default() };
    let restored = store.restore(&swarm, &peers, at(1));
    assert_eq!((restored.added, restored.refused, store.lock(0).buckets()), (512, 88, (13, 512)));
}

#[test]
fn a_peer_of_a_later_time_is_imported_as_one_of_now() {
    let store = Packed::new(&config()).expect("the usual");
    let mut records = Records::new(at(100));
    records.push(&hash(1), 0, &[record(v4(1), Role::Seeder, 140)]);
    store.import(&[records], at(100));
    let expired = 100 + store.lifetime_secs + store.context.clock.resolution_secs() + 1;
    sweep(&store, expired, 100);
    assert_eq!(store.totals().peers(), 0);
}

/// Shards that have no leaf, and no room for one.
#[test]
fn a_store_full_of_bytes_refuses_all_that_is_taken_in() {
    for shards in [1, 4, 64] {
        let most = MIN_BYTES + Packed::fixed_bytes(shards);
        let store = Packed::new(&config().shards(shards).max_bytes(most)).expect("the least");
        let mut crowd = (0..).map(|n| tell(&store, 1, leecher(0, v4(n))));
        assert!(crowd.any(|told| told.evicted != Evicted::default()), "it is full at last");
        let before = store.totals();
        let mut records = vec![Records::new(at(1))];
        for n in 1..500 {
            let peer = record(v4(1), Role::Seeder, 1);
            records[0].push(&hash(n), u32::from(n % 2 == 0), &[peer][..usize::from(n % 3 > 0)]);
        }
        let restored = store.import(&records, at(1));
        assert_eq!(restored.added + restored.refused, records[0].peers());
        assert_eq!(store.totals().peers(), before.peers() + restored.added);
        assert!(store.memory().bytes <= most as u64);
        assert_consistent(&store);
    }
}
