//! Bounds: limits that are kept, what they cost whom, and limits that are refused.

use std::collections::HashSet;

use swarmkeep::{
    BoundedBy, ConfigError, Evicted, Family, PeerRecord, RepositoryConfig, Retention, Role, SwarmSummary,
    TorrentRepositoryExt,
};

use crate::{Subject, kit::*};

pub(crate) fn a_limit_that_is_not_declared_is_refused(subject: &dyn Subject) {
    type Limit = fn(RepositoryConfig) -> RepositoryConfig;
    let declared = capabilities(subject).bounded;
    let limits: [(BoundedBy, Limit); 3] = [
        (BoundedBy::SWARMS, |config| config.max_swarms(1_000_000)),
        (BoundedBy::PEERS_PER_SWARM, |config| config.max_peers_per_swarm(1_000_000)),
        (BoundedBy::BYTES, |config| config.max_bytes(1 << 32)),
    ];
    for (bound, limit) in limits {
        match (declared.contains(bound), subject.build(&limit(config()))) {
            (true, Ok(store)) => assert!(store.capabilities().bounded.contains(bound)),
            (true, Err(error)) => panic!("{bound:?} is declared as a limit and refused: {error}"),
            (false, Err(ConfigError::UnsupportedLimit(_))) => {}
            (false, Err(error)) => {
                panic!("{bound:?} is not declared and must be refused as that, not: {error}")
            }
            (false, Ok(_)) => panic!("{bound:?} is not declared as a limit and yet not refused"),
        }
    }
}

pub(crate) fn a_store_without_limits_evicts_nobody(subject: &dyn Subject) {
    let store = build(subject);
    for n in 0..5000 {
        assert_eq!(store.tell(leecher(hash(n % 500), v4(n as u32)).want(5)).evicted, Evicted::default());
    }
    assert_eq!((store.totals().evicted, store.totals().peers()), (Evicted::default(), 5000));
}

pub(crate) fn max_swarms_is_kept_under_any_flood(subject: &dyn Subject) {
    const MOST: u64 = 2000;
    let Some(store) = bounded(subject, BoundedBy::SWARMS, &config().max_swarms(MOST as usize)) else {
        return;
    };
    let mut evicted = Evicted::default();
    for n in 0..10_000 {
        let answer = store.tell_at(n / 100, leecher(hash(n), v4(n as u32)).want(0));
        assert_eq!(answer.stats, stats(0, 1, 0), "who announces is there, whoever has to go for it");
        assert_eq!(store.scrape(&hash(n)), stats(0, 1, 0));
        evicted.swarms += answer.evicted.swarms;
        evicted.peers += answer.evicted.peers;
        let totals = store.totals();
        assert!(totals.swarms <= MOST, "{} swarms", totals.swarms);
        assert_eq!(totals.evicted, evicted, "what was told, and what was counted");
        assert_eq!((totals.swarms, totals.peers()), (n + 1 - evicted.swarms, n + 1 - evicted.peers));
    }
    assert!(store.totals().swarms >= MOST * 3 / 4, "{} swarms: more went than had to", store.totals().swarms);
    store.assert_consistent();
    // What is there is not asked to leave: nobody has to make room for a refresh.
    let (torrent, _) = store.summaries().pop_first().expect("it is full");
    assert_eq!(store.tell_at(200, leecher(torrent, v4(1))).evicted, Evicted::default());
}

pub(crate) fn a_flood_of_made_up_info_hashes_displaces_itself(subject: &dyn Subject) {
    // Populated: by two peers, or by one that has come back.
    flood(subject, |store| {
        for n in 0..POPULATED {
            store.fill(0, [leecher(hash(n), v4(1)), leecher(hash(n), v4(1 + (n % 2) as u32))]);
        }
        store.fill(5, (0..POPULATED).filter(|n| n % 2 == 0).map(|n| leecher(hash(n), v4(1))));
    });
}

/// A tracker that has just restarted is as populated as it was.
pub(crate) fn a_flood_displaces_no_restored_swarms(subject: &dyn Subject) {
    flood(subject, |store| {
        for n in 0..POPULATED {
            let (endpoint, role) = (peer(if n % 2 == 0 { Family::V4 } else { Family::V6 }, 1), Role::Leecher);
            let record = PeerRecord { endpoint, role, last_announce: at(0), details: None };
            let swarm = SwarmSummary { info_hash: hash(n), stats: stats(0, 1, 0) };
            assert_eq!(store.restore(&swarm, &[record], at(0)).added, 1);
        }
    });
}

const POPULATED: u64 = 8000;

fn flood(subject: &dyn Subject, populate: impl Fn(&Store)) {
    for family in [Family::V4, Family::V6] {
        let Some(store) = bounded(subject, BoundedBy::SWARMS, &config().max_swarms(10_000)) else { return };
        populate(&store);
        for n in 0..40_000 {
            store.fill(100 + n / 200, [leecher(hash(1_000_000 + n), peer(family, n as u32))]);
        }
        let lost = (0..POPULATED).filter(|&n| store.scrape(&hash(n)).peers() == 0).count();
        assert!(
            lost < POPULATED as usize / 100,
            "{lost} of {POPULATED} populated swarms were lost to made-up ones over {family:?}"
        );
        assert!(store.totals().swarms <= 10_000);
        store.assert_consistent();
    }
}

/// What was is worth less than what is.
pub(crate) fn a_restore_displaces_nobody(subject: &dyn Subject) {
    let Some(store) = bounded(subject, BoundedBy::SWARMS, &config().max_swarms(100)) else { return };
    store.fill(0, (0..1000).map(|n| leecher(hash(n), v4(n as u32))));
    let (full, evicted) = (store.summaries(), store.totals().evicted);
    for n in 2000..2100 {
        let record = PeerRecord { endpoint: v4(1), role: Role::Seeder, last_announce: at(0), details: None };
        let swarm = SwarmSummary { info_hash: hash(n), stats: stats(1, 0, 7) };
        let restored = store.restore(&swarm, &[record], at(1));
        assert_eq!((restored.added, restored.refused), (0, 1));
        assert_eq!(store.restore(&swarm, &[], at(1)).added, 0);
    }
    assert_eq!((store.summaries(), store.totals().evicted), (full, evicted));
}

pub(crate) fn max_peers_per_swarm_is_kept_and_the_announcer_stays(subject: &dyn Subject) {
    const MOST: u64 = 60;
    let config = config().max_peers_per_swarm(MOST as usize);
    let Some(store) = bounded(subject, BoundedBy::PEERS_PER_SWARM, &config) else { return };
    let torrent = hash(1);
    let mut evicted = 0;
    for n in 0..1500 {
        let family = if n % 3 == 0 { Family::V6 } else { Family::V4 };
        let announcer = peer(family, n as u32);
        let answer = store.tell_at(n / 3, leecher(torrent, announcer).left(n % 2).families(BOTH));
        evicted += answer.evicted.peers;
        assert_eq!(answer.evicted.swarms, 0);
        assert!(answer.stats.peers() <= MOST, "{} peers", answer.stats.peers());
        assert_eq!(answer.stats.peers(), n + 1 - evicted, "what is left, and what was told to have gone");
        assert!(
            n < MOST || answer.stats.peers() >= MOST * 3 / 4,
            "more went than had to: {:?}",
            answer.stats
        );
        let members = store.members(&torrent);
        assert!(members.contains_key(&announcer), "the announcer had to go for itself");
        assert!(answer.peers.iter().all(|peer| members.contains_key(peer)), "an evicted peer was handed out");
        assert_eq!(store.totals().evicted, Evicted { swarms: 0, peers: evicted });
    }
    store.assert_consistent();
    let known = *store.members(&torrent).first_key_value().expect("it is full").0;
    assert_eq!(
        store.tell_at(600, leecher(torrent, known)).evicted,
        Evicted::default(),
        "for a peer that is there"
    );
}

pub(crate) fn the_stalest_peers_are_dropped_first(subject: &dyn Subject) {
    let config = config().max_peers_per_swarm(500);
    let Some(store) = bounded(subject, BoundedBy::PEERS_PER_SWARM, &config) else { return };
    let torrent = hash(1);
    store.fill(0, (0..500).map(|n| leecher(torrent, v4(n)).left((n % 2).into())));
    store.fill(900, (0..100).map(|n| leecher(torrent, v4(n * 5)).left((n % 2).into())));
    store.fill(1000, (500..700).map(|n| leecher(torrent, v4(n)).left((n % 2).into())));
    let members = store.members(&torrent);
    let fresh = (0..100).map(|n| n * 5).chain(500..700).map(v4);
    let dropped = fresh.filter(|endpoint| !members.contains_key(endpoint)).count();
    // Dropped at random it would be 80 of the 200; the best of any few that were looked at is far from that.
    assert!(dropped <= 30, "{dropped} of 200 peers dropped were fresh, while 400 stale ones were there");
}

pub(crate) fn max_bytes_is_kept_under_any_flood(subject: &dyn Subject) {
    let declared = capabilities(subject).bounded.contains(BoundedBy::BYTES);
    let mut most = 4 << 20;
    // How much the least is depends on the store; it says so when it is asked for less.
    if declared && let Err(ConfigError::Limit { least, .. }) = subject.build(&config().max_bytes(1)) {
        most = most.max(2 * least);
    }
    let Some(store) = bounded(subject, BoundedBy::BYTES, &config().max_bytes(most)) else { return };
    let mut evicted = Evicted::default();
    for n in 0..100_000 {
        let torrent = if n % 2 == 0 { hash(n) } else { hash(n % 64) };
        let answer = store.tell_at(n / 100, leecher(torrent, v4(n as u32)).want(0));
        assert!(answer.stats.peers() >= 1, "who announces is there, whoever has to go for it");
        evicted.swarms += answer.evicted.swarms;
        evicted.peers += answer.evicted.peers;
        if n % 64 == 0 {
            let bytes = store.memory().bytes;
            assert!(bytes <= most as u64, "{bytes} bytes where {most} were allowed");
        }
    }
    let totals = store.totals();
    assert_eq!(totals.evicted, evicted, "what was told, and what was counted");
    assert_eq!(totals.peers(), 100_000 - evicted.peers);
    store.assert_consistent();
}

pub(crate) fn limits_hold_for_restored_swarms_too(subject: &dyn Subject) {
    let limits = BoundedBy::SWARMS | BoundedBy::PEERS_PER_SWARM;
    let config = config().max_swarms(200).max_peers_per_swarm(50);
    let Some(store) = bounded(subject, limits, &config) else { return };
    for n in 0..600 {
        let peers: Vec<_> = (0..80)
            .map(|m| PeerRecord {
                endpoint: v4(m),
                role: if m % 2 == 0 { Role::Seeder } else { Role::Leecher },
                last_announce: at(0),
                details: None,
            })
            .collect();
        let restored =
            store.restore(&SwarmSummary { info_hash: hash(n), stats: stats(0, 0, 1) }, &peers, at(0));
        assert_eq!(restored.added + restored.refused, 80, "each is either in or refused");
        assert!(store.scrape(&hash(n)).peers() <= 50);
        assert!(store.totals().swarms <= 200);
    }
    store.assert_consistent();
}

pub(crate) fn room_that_was_freed_is_used_before_anything_is_evicted(subject: &dyn Subject) {
    let limits = BoundedBy::SWARMS | BoundedBy::PEERS_PER_SWARM;
    let config = config().max_swarms(4000).max_peers_per_swarm(40);
    let Some(store) = bounded(subject, limits, &config) else { return };
    let torrent = hash(0);
    store.fill(0, (0..40).map(|n| leecher(torrent, v4(n))));
    store.fill(0, (0..20).map(|n| stopped(torrent, v4(n))));
    store.fill(1, (100..120).map(|n| leecher(torrent, v4(n))));
    assert_eq!(store.totals().evicted, Evicted::default(), "20 have left, 20 have come");
    let first: HashSet<_> = (1..2000).map(hash).collect();
    store.fill(1, first.iter().map(|&torrent| seeder(torrent, v4(1))));
    store.forget(first);
    store.fill(2, (5000..7000).map(|n| seeder(hash(n), v4(1))));
    store.sweep_all(at(2 * LIFETIME), Retention::DropEmpty);
    store.fill(2 * LIFETIME, (8000..10_000).map(|n| seeder(hash(n), v4(1))));
    assert_eq!(store.totals().evicted, Evicted::default(), "thousands have gone, as many have come");
    store.assert_consistent();
}
