//! Cases of races between real threads: no announce is lost, and the counts match the peers.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use swarmkeep::{BoundedBy, Budget, Changes, Family, InfoHash, Retention, TorrentRepositoryExt};

use crate::{
    Subject,
    histories::{self, Effects},
    kit::*,
    threads::{Rounds, against, in_step},
};

/// Each thread makes calls of all kinds. The answers are those that the calls have one after the other, in an
/// order in which a call that returned before another began comes first.
pub(crate) fn calls_of_several_threads_have_an_order(subject: &dyn Subject) {
    let store = build(subject);
    let called = store.to_async();
    histories::assert_order(&|_| called.clone(), Effects::One);
    store.assert_consistent();
}

/// Peers that expired long ago come back while a sweep passes them.
pub(crate) fn refreshes_survive_sweeps_of_expired_peers(subject: &dyn Subject) {
    let store = build(subject);
    for round in 0..30 {
        let now = round * 2 * LIFETIME;
        let members = || (0..3).flat_map(|n| (0..100).map(move |m| (hash(n), v4(m))));
        store.fill(now, members().map(|(torrent, endpoint)| leecher(torrent, endpoint)));
        let later = now + LIFETIME + LIFETIME / 2;
        let refresh = |thread: u32, _: Rounds<'_>| {
            for (torrent, endpoint) in
                members().filter(|(_, endpoint)| endpoint.as_bytes()[3] % 2 == thread as u8)
            {
                store.tell_at(later, seeder(torrent, endpoint).want(1));
            }
        };
        against(2, 1, refresh, |_| {
            store.sweep(at(later), Retention::DropEmpty, Budget::peers(64));
        });
        store.sweep_all(at(later), Retention::DropEmpty);
        for n in 0..3 {
            assert_eq!(store.scrape(&hash(n)), stats(100, 0, 0), "all have announced anew");
        }
    }
    store.assert_consistent();
}

/// Each announced peer is either in the store or counted as evicted, and the limits hold.
pub(crate) fn announces_survive_evictions_of_others(subject: &dyn Subject) {
    let limits = BoundedBy::SWARMS | BoundedBy::PEERS_PER_SWARM;
    let config = config().max_swarms(500).max_peers_per_swarm(40);
    let Some(store) = bounded(subject, limits, &config) else { return };
    let (joined, told) = (AtomicU64::new(0), AtomicU64::new(0));
    let join = |thread: u32, rounds: Rounds<'_>| {
        for n in rounds.iter() {
            let newcomer = thread << 22 | n;
            let torrent = if n % 2 == 0 { hash((1000 + newcomer).into()) } else { hash((n % 16).into()) };
            let answer = store.tell(leecher(torrent, v4(newcomer)).want(1));
            assert!(answer.stats.peers() <= 40);
            joined.fetch_add(1, SeqCst);
            told.fetch_add(answer.evicted.peers, SeqCst);
        }
    };
    against(2, 6000, join, |_| {
        store.sweep(at(1), Retention::DropEmpty, Budget::peers(100));
    });
    let (there, joined, told) = (store.totals().peers(), joined.into_inner(), told.into_inner());
    assert!(store.totals().swarms <= 500, "{} swarms", store.totals().swarms);
    assert_eq!(there + told, joined, "{there} are there, {told} were reported as evicted");
    assert_eq!(store.totals().evicted.peers, told);
    store.assert_consistent();
}

/// Threads announce endpoints of one address to the same swarms, among peers with addresses of their own.
pub(crate) fn racing_endpoints_of_one_address_keep_to_its_limit(subject: &dyn Subject) {
    const MOST: usize = 3;
    const TORRENTS: u32 = 4;
    const NEW: usize = 500;
    let config = config().max_endpoints_per_address(MOST);
    let Some(store) = bounded(subject, BoundedBy::ENDPOINTS_PER_ADDRESS, &config) else { return };
    let (joined, told) = (AtomicU64::new(0), AtomicU64::new(0));
    let count = |answer: Answer| {
        joined.fetch_add(answer.changes.contains(Changes::JOINED).into(), SeqCst);
        told.fetch_add(answer.evicted.peers, SeqCst);
    };
    // Two threads can take the last free place at the same time, so the case uses many swarms that have room.
    in_step(NEW, |me, n| {
        for endpoint in 0..MOST as u32 {
            let endpoint = of_address(Family::V4, 7, me << 14 | endpoint);
            count(store.tell(leecher(hash(u64::from(TORRENTS) + n as u64), endpoint).want(0)));
        }
    });
    let others = Mutex::new(Vec::new());
    let join = |thread: u32, rounds: Rounds<'_>| {
        for n in rounds.iter() {
            let torrent = hash((n % TORRENTS).into());
            let crowded = of_address(Family::V4, 7, (thread << 14) | (n % (1 << 14)));
            let other = v4(thread << 22 | n);
            let both: &[_] = if n % 16 == 0 { &[crowded, other] } else { &[crowded] };
            for &endpoint in both {
                count(store.tell(leecher(torrent, endpoint).left((n / TORRENTS % 2).into()).want(1)));
            }
            if n % 16 == 0 {
                others.lock().expect("no holder panics").push((torrent, other));
            }
        }
    };
    against(3, 4000, join, |_| {
        store.sweep(at(1), Retention::DropEmpty, Budget::peers(100));
    });
    let (there, joined, told) = (store.totals().peers(), joined.into_inner(), told.into_inner());
    assert_eq!(there + told, joined, "{there} are there, {told} were reported as evicted");
    assert_eq!(store.totals().evicted.peers, told);
    for torrent in (0..u64::from(TORRENTS) + NEW as u64).map(hash) {
        let own = count_of_address(store.members(&torrent).keys(), Family::V4, 7);
        assert_eq!(own, MOST, "endpoints of one address");
    }
    let members: BTreeMap<_, _> =
        (0..TORRENTS).map(|n| (hash(n.into()), store.members(&hash(n.into())))).collect();
    let others = others.into_inner().expect("no holder panics");
    let lost = others.iter().filter(|(torrent, other)| !members[torrent].contains_key(other)).count();
    assert_eq!(lost, 0, "had to go for another address");
    store.assert_consistent();
}

pub(crate) fn walk_and_page_show_what_stays_while_threads_change_the_rest(subject: &dyn Subject) {
    let store = build(subject);
    let mut staying: Vec<InfoHash> = (0..500).map(hash).collect();
    staying.sort();
    store.fill(0, staying.iter().map(|&torrent| leecher(torrent, v4(1))));
    let read = |_, _: Rounds<'_>| {
        for turn in 0..15 {
            let walked: Vec<_> = store.swarms().into_iter().map(|swarm| swarm.info_hash).collect();
            let paged = store.paged(50, || ());
            assert!(paged.is_sorted_by(|one, other| one.info_hash < other.info_hash), "pages ascend");
            for (shown, how) in
                [(walked, "walked"), (paged.iter().map(|swarm| swarm.info_hash).collect(), "paged")]
            {
                let mut those: Vec<InfoHash> =
                    shown.into_iter().filter(|info_hash| staying.binary_search(info_hash).is_ok()).collect();
                those.sort();
                assert!(those == staying, "{} of 500 that stayed were {how} in turn {turn}", those.len());
            }
        }
    };
    against(1, 1, read, |turn| {
        let torrent = hash(1_000_000 + turn % 2000);
        if turn / 2000 % 2 == 0 {
            store.tell(leecher(torrent, v4(1)).want(0));
        } else {
            store.remove(&torrent);
        }
    });
    store.assert_consistent();
}
