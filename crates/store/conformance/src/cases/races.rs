//! Cases of races between real threads: no announce is lost, and the counts match the peers.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use swarmkeep::{
    Announce, BoundedBy, Budget, Changes, Family, InfoHash, Retention, SplitMix64, TorrentRepositoryExt,
};

use crate::{
    Subject,
    histories::{self, Effects},
    kit::*,
    threads::{Rounds, SetOnDrop, against, in_step},
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

/// Removals of other swarms and sweeps remove no peer of the remaining swarms.
pub(crate) fn announces_survive_removals_of_other_swarms(subject: &dyn Subject) {
    // However long the race, the numbers of the kept swarms never reach this.
    const OTHERS: u64 = 1 << 40;
    let store = build(subject);
    let kept = AtomicU64::new(0);
    let join = |thread: u32, rounds: Rounds<'_>| {
        for n in rounds.iter() {
            let kept = hash(kept.fetch_add(1, SeqCst));
            store.tell(leecher(kept, v4(1)).want(0));
            store.tell(leecher(hash(OTHERS + u64::from(n % 50)), v4(thread)).want(0));
        }
    };
    against(2, 1500, join, |turn| {
        store.remove(&hash(OTHERS + turn % 50));
        store.sweep(at(1), Retention::DropEmpty, Budget::peers(20));
    });
    let lost = (0..kept.into_inner()).filter(|&n| store.scrape(&hash(n)) != stats(0, 1, 0)).count();
    assert_eq!(lost, 0, "swarms that are gone without a removal");
    store.assert_consistent();
}

/// With evictions at a limit, each announced peer is either in the store or counted as evicted, and the
/// limits hold.
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

/// Threads announce endpoints of the same address to the same swarms, among peers with addresses of their
/// own.
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

pub(crate) fn a_hot_swarm_keeps_every_peer(subject: &dyn Subject) {
    const EACH: u32 = 2500;
    let (store, torrent) = (build(subject), hash(1));
    let work = |thread: u32, _: Rounds<'_>| {
        let peer = |n: u32| v4(thread * EACH + n);
        for n in 0..EACH {
            let announce = leecher(torrent, peer(n));
            let answer = store.tell(announce.want(10));
            answer.assert_fits(&announce);
            assert!(answer.stats.peers() > u64::from(n), "its own {n} are among them");
            // Earlier peers of the same thread finish, or leave and come back.
            store.tell(completed(torrent, peer(n / 2)).want(10));
            if n % 3 == 0 {
                store.tell(stopped(torrent, peer(n)));
                store.tell(leecher(torrent, peer(n)).want(1));
            }
        }
    };
    against(3, 1, work, |_| {
        store.sweep(at(1), Retention::DropEmpty, Budget::peers(500));
        store.scrape(&torrent);
    });
    assert_eq!(store.scrape(&torrent).peers(), 3 * u64::from(EACH));
    let members = store.members(&torrent);
    assert!((0..3 * EACH).all(|n| members.contains_key(&v4(n))), "every peer that announced is listed");
    store.assert_consistent();
}

/// Two threads fill the same new swarms, each with its own peers, all of a batch at once. Other peers join
/// and leave swarms that are empty in between, while sweeps remove the empty swarms.
pub(crate) fn racing_batches_lose_nobody(subject: &dyn Subject) {
    const ROUNDS: usize = 200;
    const NEW: u64 = 12;
    let store = build(subject);
    let new = |round: usize| (0..NEW).map(move |n| hash(1000 + round as u64 * NEW + n));
    let passing = |me: u32| (0..20).map(move |n| (hash(n % 4), v4(100 * (me + 1) + n as u32)));
    let done = AtomicBool::new(false);
    let tell = |announces: Vec<Announce>, round: usize| {
        let mut answers = Vec::new();
        store
            .tell_batch(at(1), &announces, &mut SplitMix64::new(round as u64), |answer| answers.push(answer));
        answers
    };
    thread::scope(|scope| {
        let (store, done) = (&store, &done);
        let _set = SetOnDrop(done);
        scope.spawn(move || {
            while !done.load(SeqCst) {
                store.sweep(at(1), Retention::DropEmpty, Budget::peers(50));
                thread::yield_now();
            }
        });
        in_step(ROUNDS, |me, round| {
            let mine = v4(me + 1);
            let mut joins: Vec<_> = new(round).map(|torrent| leecher(torrent, mine)).collect();
            // One of the two threads goes in the other order.
            if me == 1 {
                joins.reverse();
            }
            joins.extend(passing(me).map(|(torrent, endpoint)| seeder(torrent, endpoint)));
            for answer in tell(joins, round) {
                assert!(answer.changes.contains(Changes::JOINED), "{answer:?} in round {round}");
            }
            let leave = passing(me).map(|(torrent, endpoint)| stopped(torrent, endpoint));
            for answer in tell(leave.collect(), round) {
                assert_eq!(answer.changes, Changes::LEFT, "a peer that had joined was lost in round {round}");
            }
        });
    });
    for round in 0..ROUNDS {
        for torrent in new(round) {
            let members: Vec<_> = store.members(&torrent).into_keys().collect();
            assert_eq!(members, [v4(1), v4(2)], "both batches of round {round} were answered");
        }
    }
    assert_eq!(store.totals().peers(), 2 * NEW * ROUNDS as u64);
    // The rest of the current pass, and a whole one.
    store.sweep_all(at(1), Retention::DropEmpty);
    store.sweep_all(at(1), Retention::DropEmpty);
    assert_eq!(store.totals().swarms, NEW * ROUNDS as u64);
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
