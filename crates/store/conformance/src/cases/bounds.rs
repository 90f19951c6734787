//! Cases of limits: limits that are kept, the peers that are evicted, and limits that are refused.

use std::{collections::HashSet, ops::Range};

use swarmkeep::{
    Announce, AnnounceEvent, BoundedBy, Budget, Changes, ConfigError, Evicted, Family, PeerRecord,
    RepositoryConfig, Retention, Role, SplitMix64, SwarmSummary, TorrentRepositoryExt,
};

use crate::{Subject, kit::*};

pub(crate) fn a_limit_that_is_not_declared_is_refused(subject: &dyn Subject) {
    type Limit = fn(RepositoryConfig) -> RepositoryConfig;
    let limits: [(BoundedBy, Limit); 4] = [
        (BoundedBy::SWARMS, |config| config.max_swarms(1_000_000)),
        (BoundedBy::PEERS_PER_SWARM, |config| config.max_peers_per_swarm(1_000_000)),
        (BoundedBy::ENDPOINTS_PER_ADDRESS, |config| config.max_endpoints_per_address(1000)),
        (BoundedBy::BYTES, |config| config.max_bytes(1 << 30)),
    ];
    for (bound, limit) in limits {
        if let Some(store) = bounded(subject, bound, &limit(config())) {
            assert!(store.capabilities().bounded.contains(bound));
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
        let answer = store.tell_at(n / 100, completed(hash(n), v4(n as u32)).want(0));
        assert_eq!(answer.stats, stats(1, 0, 1), "the announcer stays, others are evicted for it");
        assert_eq!(store.scrape(&hash(n)), stats(1, 0, 1));
        evicted += answer.evicted;
        let totals = store.totals();
        assert!(totals.swarms <= MOST, "{} swarms", totals.swarms);
        assert_eq!(totals.evicted, evicted, "the reported and the counted evictions");
        assert_eq!((totals.swarms, totals.peers()), (n + 1 - evicted.swarms, n + 1 - evicted.peers));
        assert_eq!(totals.downloaded, totals.swarms, "each has one, and takes it along");
    }
    assert!(store.totals().swarms >= MOST * 3 / 4, "{} swarms: too many evictions", store.totals().swarms);
    store.assert_consistent();
    // A refresh evicts nothing, because its peer has its place already.
    let (torrent, _) = store.summaries().pop_first().expect("it is full");
    assert_eq!(store.tell_at(200, leecher(torrent, v4(1))).evicted, Evicted::default());
}

/// Restored swarms are worth less than swarms that exist already.
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
        let announce = leecher(torrent, announcer).left(n % 2).event(AnnounceEvent::Completed);
        let answer = store.tell_at(n / 3, announce.families(BOTH));
        evicted += answer.evicted.peers;
        assert_eq!(u64::from(answer.stats.downloaded), n / 2 + 1, "an evicted peer takes no download along");
        assert_eq!(answer.evicted.swarms, 0);
        assert!(answer.stats.peers() <= MOST, "{} peers", answer.stats.peers());
        assert_eq!(answer.stats.peers(), n + 1 - evicted, "the peers left, and the reported evictions");
        assert!(n < MOST || answer.stats.peers() >= MOST * 3 / 4, "too many evictions: {:?}", answer.stats);
        let members = store.members(&torrent);
        assert!(members.contains_key(&announcer), "the announcer had to go for itself");
        assert!(answer.peers.iter().all(|peer| members.contains_key(peer)), "an evicted peer was handed out");
        assert_eq!(store.totals().evicted, Evicted::peers(evicted));
    }
    store.assert_consistent();
    let known = *store.members(&torrent).first_key_value().expect("it is full").0;
    let again = store.tell_at(600, leecher(torrent, known));
    assert_eq!(again.evicted, Evicted::default(), "for a peer that is there");
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
    // Random eviction would take 80 of the 200; the best of a few inspected peers is far from that.
    assert!(dropped <= 30, "{dropped} of 200 peers dropped were fresh, while 400 stale ones were there");
}

/// A store with a limit of bytes, checked at every announce.
pub(super) struct WatchedStore {
    pub(super) store: Store,
    pub(super) most: u64,
    /// The number of peers that joined and have not left by themselves.
    pub(super) joined: u64,
    pub(super) told: Evicted,
}

impl WatchedStore {
    /// Returns a store with a limit of about `most` bytes; `None` if it declares no such limit. It must then
    /// refuse the limit.
    pub(super) fn new(subject: &dyn Subject, mut most: usize) -> Option<Self> {
        // The smallest limit depends on the store, which reports it in its refusal.
        if capabilities(subject).bounded.contains(BoundedBy::BYTES)
            && let Err(ConfigError::Limit { least, .. }) = subject.build(&config().max_bytes(1))
        {
            most = most.max(2 * least);
        }
        let store = bounded(subject, BoundedBy::BYTES, &config().max_bytes(most))?;
        Some(Self { store, most: most as u64, joined: 0, told: Evicted::default() })
    }

    pub(super) fn tell(&mut self, seconds: u64, announce: Announce) -> Answer {
        let answer = self.store.tell_at(seconds, announce.want(0));
        self.joined += u64::from(answer.changes.contains(Changes::JOINED));
        self.joined -= u64::from(answer.changes.contains(Changes::LEFT));
        self.told += answer.evicted;
        let there = answer.stats.peers() >= 1 || announce.event == AnnounceEvent::Stopped;
        assert!(there, "the announcer stays, others are evicted for it");
        assert_eq!(self.store.totals().evicted, self.told, "the reported and the counted evictions");
        self.assert_within();
        answer
    }

    fn assert_within(&self) {
        let bytes = self.store.memory().bytes;
        assert!(bytes <= self.most, "{bytes} bytes where {} were allowed", self.most);
    }

    /// Asserts that every removed peer was reported.
    pub(super) fn assert_consistent(&self) {
        let left = self.joined - self.told.peers;
        assert_eq!(self.store.totals().peers(), left, "peers that joined and were not evicted");
        self.store.assert_consistent();
    }

    /// Returns the numbers of a flood: more than any store has room for, as a peer takes two bytes or more.
    pub(super) const fn numbers(&self) -> Range<u64> {
        0..self.most / 2
    }
}

pub(crate) fn max_bytes_is_kept_under_any_flood(subject: &dyn Subject) {
    for family in [Family::V4, Family::V6] {
        let Some(mut watched) = WatchedStore::new(subject, 1 << 19) else { return };
        // Made-up info hashes between peers that join swarms of some hundreds, finish and leave, and sweeps.
        for n in watched.numbers() {
            let (now, newcomer) = (n / 500, peer(family, n as u32));
            let (crowd, earlier) = (hash(n % 13), peer(family, n as u32 - n as u32 / 8 % 200));
            match n % 8 {
                1 | 5 => watched.tell(now, leecher(crowd, newcomer)),
                3 => watched.tell(now, completed(crowd, earlier)),
                7 => watched.tell(now, stopped(crowd, earlier)),
                _ => watched.tell(now, leecher(hash(1_000_000 + n), newcomer)),
            };
            if n % 256 == 0 {
                let swept = watched.store.sweep(at(now), Retention::DropEmpty, Budget::peers(300));
                assert_eq!(swept.expired, 0, "all are young");
                watched.assert_within();
            }
            if watched.told.swarms + watched.told.peers > 3000 {
                break;
            }
        }
        let (told, bytes) = (watched.told, watched.store.memory().bytes);
        assert!(told.swarms + told.peers > 3000, "a flood of {} peers was let in", watched.joined);
        assert!(bytes >= watched.most / 2, "{bytes} of {} bytes in use: too many evictions", watched.most);
        watched.assert_consistent();
    }
}

/// If no other swarm can make room, the swarm's own peers that announced least recently are evicted.
pub(crate) fn a_swarm_that_outgrows_max_bytes_keeps_its_announcers_and_its_freshest(subject: &dyn Subject) {
    for family in [Family::V4, Family::V6] {
        let Some(mut watched) = WatchedStore::new(subject, 1 << 17) else { return };
        let torrent = hash(0);
        for n in 1..50 {
            watched.tell(0, leecher(hash(n), v4(1)));
            watched.tell(0, leecher(hash(n), v6(2)));
        }
        let (mut peers, mut last) = (0, 0);
        for n in watched.numbers() {
            let announce = leecher(torrent, of_network(family, n as u32, 1)).left(n % 3);
            peers = watched.tell(n / 50, announce).stats.peers();
            let again = watched.tell(n / 50, announce);
            assert_eq!(again.changes, Changes::REFRESHED, "the announcer had to go for itself");
            last = n;
            // By then random eviction would have replaced all peers of the swarm.
            if watched.told.peers > peers {
                break;
            }
        }
        assert!(watched.told.peers > peers, "a swarm of {peers} peers was let in");
        let (members, fresh) = (watched.store.members(&torrent), peers / 4);
        let kept = (last - fresh..last)
            .filter(|&n| members.contains_key(&of_network(family, n as u32, 1)))
            .count() as u64;
        assert!(kept * 100 >= fresh * 95, "of the {fresh} freshest of {peers} peers only {kept} are left");
        watched.assert_consistent();
    }
}

/// No peer joins. Peers change their roles and finish again and again, and download counts from before a
/// restart are added.
pub(crate) fn max_bytes_is_kept_whatever_announces_change(subject: &dyn Subject) {
    for family in [Family::V4, Family::V6] {
        let Some(mut watched) = WatchedStore::new(subject, 1 << 17) else { return };
        // Swarms of one peer, of dozens, and a large swarm, until the first eviction.
        let endpoint = |n: u64| peer(family, n as u32);
        let told = |n: u64| match n % 4 {
            0 => leecher(hash(n), endpoint(n)),
            1 => leecher(hash(1_000_000 + n / 100), endpoint(n)),
            _ => leecher(hash(2_000_000), endpoint(n)),
        };
        let numbers =
            watched.numbers().take_while(|&n| watched.tell(0, told(n)).evicted == Evicted::default());
        let count = numbers.count() as u64;
        for round in 1..20 {
            for n in 0..count {
                watched.tell(round, told(n).left(1));
                watched.tell(round, told(n).left(0).event(AnnounceEvent::Completed));
            }
        }
        for n in 0..count {
            watched.store.add_downloads(&told(n).info_hash, 300);
            watched.assert_within();
        }
        let bytes = watched.store.memory().bytes;
        assert!(bytes >= watched.most / 2, "{bytes} of {} bytes in use: too many evictions", watched.most);
        watched.store.assert_consistent();
    }
}

/// The room is reused for any shape: single peers, dozens, a large swarm.
pub(crate) fn bytes_that_were_freed_are_used_before_anything_is_evicted(subject: &dyn Subject) {
    const SHAPES: [fn(u64) -> Announce; 4] = [
        |n| leecher(hash(n), v4(1)),
        |n| leecher(hash(n / 20), peer(if n % 3 == 0 { Family::V6 } else { Family::V4 }, (n % 20) as u32)),
        |n| leecher(hash(0), v4(n as u32)),
        |n| seeder(hash(n), v6(1)),
    ];
    // About the number of peers of each shape that fit.
    let mut fitting = [0; SHAPES.len()];
    for (shape, fitting) in SHAPES.into_iter().zip(&mut fitting) {
        let Some(mut watched) = WatchedStore::new(subject, 1 << 18) else { return };
        while watched.store.memory().bytes < watched.most * 6 / 10 {
            watched.tell(0, shape(*fitting));
            *fitting += 1;
        }
    }
    let Some(mut watched) = WatchedStore::new(subject, 1 << 18) else { return };
    let mut now = 0;
    for (round, n) in [0, 1, 0, 2, 3, 2, 1, 3, 0].into_iter().enumerate() {
        for announce in (0..fitting[n]).map(SHAPES[n]) {
            watched.tell(now, announce);
            assert_eq!(
                watched.told,
                Evicted::default(),
                "as much has gone before shape {n} in round {round}"
            );
        }
        now += 2 * LIFETIME;
        match round % 3 {
            0 => drop(watched.store.remove_all_where(&|_| true)),
            1 => (0..fitting[n]).map(SHAPES[n]).for_each(|announce| {
                watched.store.fill(now, [announce.event(AnnounceEvent::Stopped)]);
            }),
            _ => {}
        }
        for _ in 0..2 {
            watched.store.sweep_all(at(now), Retention::DropEmpty);
            watched.assert_within();
        }
        assert_eq!(watched.store.totals().swarms, 0);
    }
}

/// The smallest limit that the refusal reports must be supported.
pub(crate) fn a_limit_that_is_too_small_is_refused_with_the_least_that_works(subject: &dyn Subject) {
    type Limit = fn(RepositoryConfig, usize) -> RepositoryConfig;
    let limits: [(BoundedBy, usize, Limit); 4] = [
        (BoundedBy::SWARMS, 0, |config, most| config.max_swarms(most)),
        (BoundedBy::PEERS_PER_SWARM, 0, |config, most| config.max_peers_per_swarm(most)),
        (BoundedBy::ENDPOINTS_PER_ADDRESS, 0, |config, most| config.max_endpoints_per_address(most)),
        (BoundedBy::BYTES, 1, |config, most| config.max_bytes(most)),
    ];
    let declared = capabilities(subject).bounded;
    for (bound, too_small, limit) in limits.into_iter().filter(|(bound, ..)| declared.contains(*bound)) {
        let least_of = |most| match subject.build(&limit(config(), most)) {
            Err(ConfigError::Limit { given, least, .. }) => {
                assert_eq!(given, most, "the given limit");
                Some(least)
            }
            Err(other) => panic!("{most} for {bound:?} must be refused as a limit, not: {other}"),
            Ok(_) => None,
        };
        let least = least_of(too_small).unwrap_or_else(|| panic!("{too_small} for {bound:?} is not refused"));
        assert_eq!(least_of(least - 1), Some(least), "just below the least for {bound:?}");
        assert_eq!(least_of(least), None, "{bound:?} of {least} is refused, which was named as the least");
        let store = build_with(subject, &limit(config(), least));
        let mut told = Evicted::default();
        for n in 0..500 {
            // Swarms of one peer, and larger ones.
            let torrent = if n % 2 == 0 { hash(n) } else { hash(1) };
            let endpoint = peer(if n % 3 == 0 { Family::V6 } else { Family::V4 }, n as u32);
            let answer = store.tell_at(n, leecher(torrent, endpoint));
            assert!(answer.stats.peers() >= 1, "with the least there is room for the announcer");
            assert!(store.members(&torrent).contains_key(&endpoint), "the announcer had to go for itself");
            told += answer.evicted;
            let (totals, peers) = (store.totals(), store.scrape(&torrent).peers());
            let taken = match bound {
                BoundedBy::SWARMS => totals.swarms,
                BoundedBy::PEERS_PER_SWARM => peers,
                // All IPv6 endpoints here belong to one address.
                BoundedBy::ENDPOINTS_PER_ADDRESS => {
                    store.members(&torrent).keys().filter(|peer| peer.family() == Family::V6).count() as u64
                }
                _ => store.memory().bytes,
            };
            assert!(taken <= least as u64, "{taken} where {least} were allowed for {bound:?}");
            assert_eq!((totals.evicted, totals.peers()), (told, n + 1 - told.peers));
        }
        store.assert_consistent();
    }
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

/// The limit of bytes holds too; and as in any restore, no peer is evicted for restored ones.
pub(crate) fn max_bytes_holds_for_restored_swarms_too(subject: &dyn Subject) {
    let Some(watched) = WatchedStore::new(subject, 1 << 17) else { return };
    let (store, mut refused) = (&watched.store, 0);
    store.fill(0, (0..100).flat_map(|n| [leecher(hash(n), v4(1)), seeder(hash(n), v6(1))]));
    for n in watched.numbers() {
        let family = if n % 3 == 0 { Family::V6 } else { Family::V4 };
        let record = |m| PeerRecord {
            endpoint: peer(family, n as u32 + m),
            role: Role::Leecher,
            last_announce: at(0),
            details: None,
        };
        let peers: Vec<_> = (0..[1, 40, 2][n as usize % 3]).map(record).collect();
        // New swarms, and existing ones.
        let info_hash = hash(if n % 10 == 0 { n % 100 } else { 1_000_000 + n });
        let swarm = SwarmSummary { info_hash, stats: stats(0, 0, (n % 2) as u32) };
        let restored = store.restore(&swarm, &peers, at(0));
        let counted = restored.added + restored.known + restored.refused;
        assert_eq!(counted, peers.len() as u64, "each is in, or known, or refused");
        watched.assert_within();
        refused += restored.refused;
        if refused > 1000 {
            break;
        }
    }
    assert!(refused > 1000, "{} swarms were let in", store.totals().swarms);
    assert_eq!(store.totals().evicted, Evicted::default());
    assert!((0..100).all(|n| store.scrape(&hash(n)).peers() >= 2), "they were there first");
    store.assert_consistent();
}

/// The swarm of an announce may be evicted by an earlier announce of the same batch.
pub(crate) fn limits_hold_in_batches_too(subject: &dyn Subject) {
    let limits = BoundedBy::SWARMS | BoundedBy::PEERS_PER_SWARM;
    let config = config().max_swarms(300).max_peers_per_swarm(40);
    if let Some(store) = bounded(subject, limits, &config) {
        batches_at_the_limit(&store, |store| {
            assert!(store.totals().swarms <= 300, "{} swarms", store.totals().swarms);
            let larger = store.swarms().into_iter().find(|swarm| swarm.stats.peers() > 40);
            assert_eq!(larger, None, "more than 40 peers");
        });
    }
    if let Some(watched) = WatchedStore::new(subject, 1 << 15) {
        batches_at_the_limit(&watched.store, |_| watched.assert_within());
    }
}

fn batches_at_the_limit(store: &Store, assert_within: impl Fn(&Store)) {
    let (mut joined, mut told, mut turn) = (0, Evicted::default(), 0);
    // Evictions start at some point, whatever the room.
    while told.swarms < 1000 || told.peers < 1500 {
        let first: u64 = turn * 24;
        let endpoint = |n: u64| peer(if n.is_multiple_of(5) { Family::V6 } else { Family::V4 }, n as u32);
        let made_up = (first..first + 24).map(|n| leecher(hash(1000 + n), endpoint(n)));
        // Earlier peers come back; some of them were evicted for made-up ones.
        let back =
            (0..20).map(|n| first.saturating_sub(n * 13 + 5)).map(|n| leecher(hash(1000 + n), endpoint(n)));
        let crowds = (first..first + 20).map(|n| seeder(hash(n % 2), endpoint(n)));
        let announces = made_up.zip(back.chain(crowds.clone())).flat_map(|(a, b)| [a, b]).chain(crowds);
        let announces: Vec<_> = announces.map(|announce| announce.want(0)).collect();
        store.tell_batch(at(turn), &announces, &mut SplitMix64::new(turn), |answer| {
            assert!(answer.stats.peers() >= 1, "the announcer stays, others are evicted for it");
            joined += u64::from(answer.changes.contains(Changes::JOINED));
            told += answer.evicted;
        });
        assert_within(store);
        let last = announces.last().expect("there are some");
        assert!(store.members(&last.info_hash).contains_key(&last.endpoint), "the last one is there");
        assert_eq!(store.totals().evicted, told, "the reported and the counted evictions");
        assert_eq!(store.totals().peers(), joined - told.peers, "peers that joined and were not evicted");
        turn += 1;
        assert!(turn < 20_000, "nothing is evicted: {told:?}");
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
