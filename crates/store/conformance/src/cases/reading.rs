//! Cases of scrapes, totals, and the listings of swarms and peers.

use std::collections::{BTreeMap, HashMap};

use swarmkeep::{
    Announce, Cursor, Family, InfoHash, PeerDetails, Retention, Role, SwarmStats, SwarmSummary,
    TorrentRepositoryExt,
};

use crate::{Subject, kit::*};

pub(crate) fn scrape_of_an_unknown_info_hash_is_zeroes_and_stays_unknown(subject: &dyn Subject) {
    let store = build(subject);
    store.tell(leecher(hash(1), v4(1)));
    assert_eq!(store.scrape(&hash(2)), SwarmStats::default());
    assert_eq!(store.totals().swarms, 1);
    assert_eq!(store.swarms().len(), 1);
}

pub(crate) fn scrape_agrees_with_the_last_announce(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    for n in 1..400 {
        let endpoint = if n % 5 == 0 { v6(n % 7) } else { v4(n % 90) };
        let announce = Announce::new(torrent, endpoint).left((n % 3).into());
        let announce = if n % 4 == 0 { stopped(torrent, endpoint) } else { announce };
        assert_eq!(store.tell(announce).stats, store.scrape(&torrent));
    }
}

/// Swarms of all sizes between unknown ones, some of them twice, and more than a store may take together.
pub(crate) fn a_batch_of_scrapes_does_what_single_scrapes_do(subject: &dyn Subject) {
    let store = build(subject);
    let peers = |n: u64| (0..n as u32 % 89).map(move |peer| leecher(hash(n), v4(peer)));
    store.fill(0, (0..200).step_by(3).flat_map(peers));
    store.fill(0, (0..200).step_by(6).map(|n| completed(hash(n), v6(1))));
    let totals = store.totals();
    let asked = (0..200).chain([3, 4, 3]).map(|n| SwarmSummary { info_hash: hash(n), stats: stats(9, 9, 9) });
    let mut swarms: Vec<_> = asked.collect();
    store.scrape_batch(&mut []);
    store.scrape_batch(&mut swarms);
    for SwarmSummary { info_hash, stats } in swarms {
        assert_eq!(stats, store.scrape(&info_hash), "{info_hash}");
    }
    assert_eq!(store.totals(), totals);
}

pub(crate) fn totals_are_exact_by_family_and_role(subject: &dyn Subject) {
    let store = build(subject);
    assert_eq!(store.totals(), Default::default());
    for n in 1..=60 {
        let torrent = hash(u64::from(n) % 7);
        store.fill(0, [leecher(torrent, v4(n)), seeder(torrent, v6(n))]);
        store.fill(0, (n % 2 == 0).then_some(completed(torrent, v4(n))));
        store.fill(0, (n % 3 == 0).then_some(leecher(torrent, v6(n))));
        store.fill(0, (n % 5 == 0).then_some(stopped(torrent, v4(n))));
        store.fill(0, (n % 5 == 1).then_some(stopped(torrent, v6(n))));
        store.assert_consistent();
    }
    let totals = store.totals();
    assert_eq!((totals.swarms, totals.peers(), totals.downloaded), (7, 96, 30));
    assert_eq!((totals.v4.seeders, totals.v4.leechers), (24, 24));
    assert_eq!((totals.v6.seeders, totals.v6.leechers), (32, 16));
    store.fill(LIFETIME, (1..=10).map(|n| leecher(hash(100), v4(n))));
    store.add_downloads(&hash(100), 5);
    assert_eq!(store.totals().downloaded, 35, "with earlier ones");
    store.restore(&SwarmSummary { info_hash: hash(100), stats: stats(0, 0, 9) }, &[], at(LIFETIME));
    for (policy, downloaded) in [(Retention::KeepDownloaded, 39), (Retention::DropEmpty, 9)] {
        store.sweep_all(at(2 * LIFETIME - 9), policy);
        store.assert_consistent();
        let totals = store.totals();
        assert_eq!((totals.peers(), totals.downloaded), (10, downloaded), "after a sweep: {policy:?}");
    }
    store.remove(&hash(100));
    assert_eq!(store.totals(), Default::default(), "after a removal");
}

pub(crate) fn walk_shows_every_swarm_exactly_once(subject: &dyn Subject) {
    for count in [0, 1, 2, 63, 64, 65, 1000] {
        let store = build(subject);
        store.fill(0, (0..count).map(|n| seeder(hash(n), v4(1))));
        for limit in [1, 2, 7, 64, 999, 1000, 1001, usize::MAX] {
            let (mut cursor, mut all) = (Cursor::START, Vec::new());
            while !cursor.is_end() {
                let before = all.len();
                cursor = store.walk(cursor, limit, &mut all);
                let shown = all.len() - before;
                assert!(shown <= limit, "{shown} swarms where {limit} is the limit");
            }
            assert!(all.iter().all(|swarm| swarm.stats == stats(1, 0, 0)));
            let shown = all.iter().map(|swarm| swarm.info_hash).collect();
            assert_same(shown, (0..count).map(hash).collect(), "a walk in steps");
            assert_eq!(store.walk(cursor, limit, &mut all), Cursor::END, "there is nothing behind the end");
            assert_eq!(all.len() as u64, count);
        }
    }
}

pub(crate) fn walk_goes_in_a_stable_order(subject: &dyn Subject) {
    let store = build(subject);
    store.fill(0, (0..500).map(|n| leecher(hash(n), v4(1))));
    let order = store.swarms();
    store.fill(1, (0..500).step_by(3).map(|n| leecher(hash(n), v4(1))));
    assert_eq!(store.swarms(), order, "the same swarms in the same order, whatever the latest announce");
    let mut again = order[..3].to_vec();
    store.walk(Cursor::START, 100, &mut again);
    assert_eq!(again[..3], order[..3], "earlier items of the list stay");
    assert_eq!(again[3..], order[..again.len() - 3], "and the walk is appended");
}

/// 300 swarms stay; up to 3,000 others come and go between the steps, so that a hash table grows and shrinks.
pub(crate) fn walk_shows_swarms_that_stay_exactly_once_while_others_come_and_go(subject: &dyn Subject) {
    let staying = |n: u64| hash(1_000_000 + n);
    // More steps, with fewer changes between two of them.
    for (limit, block) in [(1, 10), (17, 150), (300, 150)] {
        let store = build(subject);
        store.fill(0, (0..300).map(|n| leecher(staying(n), v4(1))));
        let (mut cursor, mut all, mut step) = (Cursor::START, Vec::new(), 0);
        while !cursor.is_end() {
            cursor = store.walk(cursor, limit, &mut all);
            let blocks = 3000 / block;
            let others = (0..block).map(|n| hash(step % blocks * block + n));
            if step / blocks % 2 == 0 {
                store.fill(0, others.map(|torrent| leecher(torrent, v4(1))));
            } else {
                store.forget(others);
            }
            step += 1;
        }
        assert_staying_once(all.iter().map(|swarm| swarm.info_hash), (0..300).map(staying));
    }
}

pub(crate) fn page_goes_in_ascending_order_of_info_hashes(subject: &dyn Subject) {
    for count in [0, 1, 2, 100, 700] {
        let store = build(subject);
        store.fill(0, (0..count).map(|n| seeder(hash(n), v4(1))));
        let mut order: Vec<InfoHash> = (0..count).map(hash).collect();
        order.sort();
        for limit in [1, 3, 64, 99, 100, 101, 5000] {
            let all = store.paged(limit, || ());
            let shown: Vec<_> = all.iter().map(|swarm| swarm.info_hash).collect();
            assert_eq!(shown, order);
            assert!(all.iter().all(|swarm| swarm.stats == stats(1, 0, 0)));
        }
        let mut nothing = Vec::new();
        store.page(None, 0, &mut nothing);
        store.page(Some(&InfoHash::new([0xff; 20])), 10, &mut nothing);
        assert_eq!(nothing, [], "a page with limit 0, and one behind the last swarm");
    }
}

pub(crate) fn page_follows_an_info_hash_that_is_not_there(subject: &dyn Subject) {
    let store = build(subject);
    let spaced = |n: u8| InfoHash::new([n; 20]);
    store.fill(0, (0..250).step_by(10).map(|n| leecher(spaced(n), v4(1))));
    for after in [0, 5, 10, 19, 20, 239, 240, 241] {
        let mut shown = Vec::new();
        store.page(Some(&spaced(after)), 3, &mut shown);
        let expected: Vec<_> = (0..250).step_by(10).filter(|&n| n > after).take(3).map(spaced).collect();
        assert_eq!(shown.iter().map(|swarm| swarm.info_hash).collect::<Vec<_>>(), expected, "behind {after}");
    }
}

pub(crate) fn page_without_a_limit_shows_all(subject: &dyn Subject) {
    let store = build(subject);
    store.fill(0, (0..300).map(|n| leecher(hash(n), v4(1))));
    let mut shown = Vec::new();
    store.page(None, 3, &mut shown);
    let last = shown.last().expect("three").info_hash;
    store.page(Some(&last), usize::MAX, &mut shown);
    assert_eq!(shown.len(), 300, "after the earlier contents of the buffer");
    assert!(shown.is_sorted_by_key(|swarm| swarm.info_hash));
}

pub(crate) fn page_shows_swarms_that_stay_exactly_once_while_others_come_and_go(subject: &dyn Subject) {
    let store = build(subject);
    let staying = |n: u64| hash(1_000_000 + n);
    store.fill(0, (0..200).map(|n| leecher(staying(n), v4(1))));
    let mut step = 0;
    let all = store.paged(20, || {
        store.fill(0, (step * 50..step * 50 + 50).map(|n| leecher(hash(n), v4(1))));
        store.forget((step * 50..step * 50 + 30).map(hash));
        step += 1;
        assert!(step < 1000, "pages that never end");
    });
    assert!(all.is_sorted_by_key(|swarm| swarm.info_hash));
    assert_staying_once(all.iter().map(|swarm| swarm.info_hash), (0..200).map(staying));
}

pub(crate) fn peers_are_listed_with_role_and_time(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    let mut sent = BTreeMap::new();
    for n in 0..90 {
        let family = if n % 3 == 0 { Family::V6 } else { Family::V4 };
        store.fill(n, [Announce::new(torrent, peer(family, n as u32)).left(n % 2)]);
        sent.insert(peer(family, n as u32), (if n % 2 == 0 { Role::Seeder } else { Role::Leecher }, at(n)));
    }
    let members = store.members(&torrent);
    assert_same(members.keys().collect(), sent.keys().collect(), "the endpoints listed");
    for (endpoint, (role, time)) in sent {
        let record = members[&endpoint];
        assert_eq!(record.role, role, "{endpoint}");
        store.assert_time(&record, time, at(89));
    }
}

pub(crate) fn peers_of_an_unknown_info_hash_are_none(subject: &dyn Subject) {
    let store = build(subject);
    store.tell(leecher(hash(1), v4(1)));
    let mut out = Vec::new();
    assert_eq!(store.peers(&hash(2), Cursor::START, 10, &mut out), Cursor::END);
    assert_eq!(out, []);
    assert_eq!(store.totals().swarms, 1);
}

pub(crate) fn peers_shows_each_exactly_once_in_steps_of_any_size(subject: &dyn Subject) {
    for count in [1, 2, 8, 16, 33, 100, 3000] {
        let (store, torrent) = (build(subject), hash(1));
        let family = |n: u32| if n.is_multiple_of(4) { Family::V6 } else { Family::V4 };
        store.fill(0, (0..count).map(|n| Announce::new(torrent, peer(family(n), n)).left((n % 2).into())));
        for limit in [1, 3, 64, 100, 10_000, usize::MAX] {
            let (mut cursor, mut all) = (Cursor::START, Vec::new());
            while !cursor.is_end() {
                let before = all.len();
                cursor = store.peers(&torrent, cursor, limit, &mut all);
                assert!(all.len() - before <= limit, "more peers than {limit}");
            }
            let shown = all.iter().map(|record| record.endpoint).collect();
            assert_same(shown, (0..count).map(|n| peer(family(n), n)).collect(), "all peers, each once");
            let next = store.peers(&torrent, cursor, limit, &mut all);
            assert_eq!(next, Cursor::END, "there is nothing behind the end");
            assert_eq!(all.len(), count as usize);
        }
    }
}

/// Some peers stay and change their roles; thousands of others join and leave between the steps.
pub(crate) fn peers_that_stay_are_shown_exactly_once_whatever_moves_around_them(subject: &dyn Subject) {
    for (stay, limit) in [(10, 1), (200, 7), (200, 40), (2000, 100)] {
        let (store, torrent) = (build(subject), hash(1));
        let family = |n: u32| if n.is_multiple_of(3) { Family::V6 } else { Family::V4 };
        let staying = |n: u32| peer(family(n), 1_000_000 + n);
        let passing = |n: u32| peer(family(n), n);
        store.fill(0, (0..stay).map(|n| Announce::new(torrent, staying(n)).left((n % 2).into())));
        store.fill(0, (0..stay).map(|n| leecher(torrent, passing(n))));
        let (mut cursor, mut all, mut step) = (Cursor::START, Vec::new(), 0);
        while !cursor.is_end() {
            cursor = store.peers(&torrent, cursor, limit, &mut all);
            // 3,000 peers join in twelve steps, and leave in the next twelve.
            let phase = step % 24;
            let block = |n: u32| n * 250..(n + 1) * 250;
            match phase {
                0..12 => store
                    .fill(1, block(phase).map(|n| Announce::new(torrent, passing(n)).left((n % 2).into()))),
                _ => store.fill(1, block(phase - 12).map(|n| stopped(torrent, passing(n)))),
            }
            store.fill(
                1,
                (0..stay)
                    .filter(|n| n % 5 == step % 5)
                    .map(|n| Announce::new(torrent, staying(n)).left(((n + step) % 2).into())),
            );
            step += 1;
        }
        assert_staying_once(all.iter().map(|record| record.endpoint), (0..stay).map(staying));
    }
}

pub(crate) fn a_listing_of_peers_ends_when_their_swarm_is_removed(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.fill(0, (0..500).map(|n| leecher(torrent, v4(n))));
    let mut out = Vec::new();
    let cursor = store.peers(&torrent, Cursor::START, 100, &mut out);
    store.remove(&torrent);
    out.clear();
    let cursor = store.peers(&torrent, cursor, 100, &mut out);
    assert_eq!((cursor, out.len()), (Cursor::END, 0));
    store.fill(0, (0..500).map(|n| leecher(torrent, v4(n))));
    assert_eq!(store.members(&torrent).len(), 500, "the next swarm of the same name is listed as a whole");
}

pub(crate) fn peer_details_are_kept_or_absent_as_declared(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    for family in [Family::V4, Family::V6] {
        for n in 0..30 {
            let announce =
                Announce::new(torrent, peer(family, n)).left(u64::from(n) << 40).peer_id(peer_id(n as u8));
            store.tell(announce);
            store.tell(announce.transferred(u64::MAX - u64::from(n), u64::from(n)));
        }
    }
    let keeps = store.capabilities().keeps_peer_details;
    for (endpoint, record) in store.members(&torrent) {
        let n = endpoint.as_bytes()[endpoint.as_bytes().len() - 3];
        let details = PeerDetails {
            peer_id: peer_id(n),
            downloaded: u64::MAX - u64::from(n),
            uploaded: n.into(),
            left: u64::from(n) << 40,
        };
        let expected = keeps.then_some(details);
        assert_eq!(record.details, expected, "{endpoint}; details are declared as kept: {keeps}");
    }
}

/// Asserts that `shown` contains each of the staying items once.
fn assert_staying_once<T: std::hash::Hash + Eq + std::fmt::Debug>(
    shown: impl Iterator<Item = T>,
    staying: impl Iterator<Item = T>,
) {
    let mut times: HashMap<T, u32> = HashMap::new();
    shown.for_each(|item| *times.entry(item).or_default() += 1);
    for item in staying {
        let times = times.get(&item).copied().unwrap_or_default();
        assert_eq!(times, 1, "times that {item:?} was shown, which stayed");
    }
}
