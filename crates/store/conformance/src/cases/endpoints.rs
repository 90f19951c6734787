//! Cases of the limit of endpoints per address: an address or network displaces its own endpoints only.

use std::{
    collections::{BTreeSet, HashSet},
    net::IpAddr,
};

use swarmkeep::{
    BoundedBy, Changes, Endpoint, Evicted, Family, InfoHash, PeerRecord, Random, Retention, Role, SplitMix64,
    SwarmSummary, TorrentRepositoryExt,
};

use crate::{Subject, kit::*};

/// Returns a store that limits the endpoints of an address in a swarm to `most`; `None` if it declares no
/// such limit. It must then refuse the limit.
fn with_endpoints(subject: &dyn Subject, most: usize) -> Option<Store> {
    bounded(subject, BoundedBy::ENDPOINTS_PER_ADDRESS, &config().max_endpoints_per_address(most))
}

/// The address that reaches its limit in these stories.
const CROWDED: u32 = 7;

/// Returns endpoint `n` of the address [`CROWDED`].
fn crowded(family: Family, n: u32) -> Endpoint {
    of_address(family, CROWDED, n)
}

/// Returns a peer with an address of its own; the families alternate.
fn bystander(n: u32) -> Endpoint {
    of_address(FAMILIES[n as usize % 2], 1000 + n, 1)
}

fn fill_with_bystanders(store: &Store, torrent: InfoHash, count: u32) {
    store.fill(0, (0..count).map(|n| leecher(torrent, bystander(n)).left((n / 2 % 2).into())));
}

fn assert_bystanders_stay(store: &Store, torrent: InfoHash, count: u32) {
    let members = store.members(&torrent);
    let lost = (0..count).filter(|&n| !members.contains_key(&bystander(n))).count();
    assert_eq!(lost, 0, "of {count} peers with addresses of their own, {lost} had to go for another address");
}

pub(crate) fn max_endpoints_per_address_is_kept_and_the_announcer_stays(subject: &dyn Subject) {
    for (most, bystanders) in [(1, 0), (1, 30), (3, 20), (8, 300), (100, 0), (100, 600)] {
        let Some(store) = with_endpoints(subject, most) else { return };
        let torrent = hash(1);
        fill_with_bystanders(&store, torrent, bystanders);
        let mut evicted = 0;
        for n in 0..most as u32 * 3 + 60 {
            for (nth, family) in FAMILIES.into_iter().enumerate() {
                let announcer = crowded(family, n);
                let announce = leecher(torrent, announcer).left((n % 2).into()).families(BOTH);
                let answer = store.tell_at(u64::from(n / 10), announce);
                let has_to_go = u64::from(n as usize >= most);
                assert_eq!(answer.evicted, Evicted::peers(has_to_go));
                assert!(answer.changes.contains(Changes::JOINED));
                evicted += has_to_go;
                // The families alternate, so the second one has one endpoint less.
                let held = (n as usize + 1).min(most) + (n as usize + nth).min(most);
                assert_eq!(answer.stats.peers(), u64::from(bystanders) + held as u64);
                assert_eq!(store.totals().evicted, Evicted::peers(evicted));
                if n % 16 < 2 {
                    let members = store.members(&torrent);
                    assert!(members.contains_key(&announcer), "the announcer had to go for itself");
                    let gone = answer.peers.iter().find(|peer| !members.contains_key(peer));
                    assert_eq!(gone, None, "an evicted peer was handed out");
                    let own = count_of_address(members.keys(), family, CROWDED);
                    assert_eq!(own, (n as usize + 1).min(most), "endpoints of the address");
                }
            }
        }
        assert_bystanders_stay(&store, torrent, bystanders);
        store.assert_consistent();
    }
}

pub(crate) fn an_address_displaces_its_own_endpoint_that_announced_least_recently(subject: &dyn Subject) {
    const MOST: usize = 6;
    let (config, unit) = config_with_units(subject, 100);
    let config = config.max_endpoints_per_address(MOST);
    for (family, bystanders) in [(Family::V4, 0), (Family::V6, 10), (Family::V4, 2000), (Family::V6, 2000)] {
        let Some(store) = bounded(subject, BoundedBy::ENDPOINTS_PER_ADDRESS, &config) else { return };
        let torrent = hash(1);
        let rng: &mut dyn Random = &mut SplitMix64::new(5);
        // All bystanders have announced earlier.
        fill_with_bystanders(&store, torrent, bystanders);
        let mut least_recent_first = Vec::new();
        for turn in 1..90 {
            let again = turn > 10 && rng.below(2) == 0;
            let (announcer, mut gone) = match again {
                true => (least_recent_first.remove(rng.below(least_recent_first.len())), 0),
                false => (crowded(family, turn), 1),
            };
            if least_recent_first.len() < MOST {
                gone = 0;
            } else {
                least_recent_first.remove(0);
            }
            least_recent_first.push(announcer);
            let answer = store.tell_at(
                u64::from(turn) * unit,
                leecher(torrent, announcer).left(rng.below(2) as u64).want(0),
            );
            assert_eq!(answer.evicted, Evicted::peers(gone), "in turn {turn}");
            let members = store.members(&torrent);
            let held: BTreeSet<_> =
                (0..90).map(|n| crowded(family, n)).filter(|peer| members.contains_key(peer)).collect();
            assert_eq!(held, least_recent_first.iter().copied().collect(), "in turn {turn}");
        }
        assert_bystanders_stay(&store, torrent, bystanders);
        store.assert_consistent();
    }
}

/// The kind of its announce does not matter: a refresh, a finished download, or a leecher again.
pub(crate) fn an_endpoint_that_is_there_displaces_nobody(subject: &dyn Subject) {
    const MOST: u32 = 5;
    for bystanders in [0, 12, 1000] {
        let Some(store) = with_endpoints(subject, MOST as usize) else { return };
        let torrent = hash(1);
        fill_with_bystanders(&store, torrent, bystanders);
        let all = || FAMILIES.into_iter().flat_map(|family| (0..MOST).map(move |n| crowded(family, n)));
        store.fill(1, all().map(|peer| leecher(torrent, peer)));
        let changes = [leecher, completed, seeder, leecher, leecher];
        for (nth, change) in changes.into_iter().enumerate() {
            for peer in all() {
                let answer = store.tell_at(2 + nth as u64, change(torrent, peer));
                assert_eq!(answer.evicted, Evicted::default());
                assert!(answer.changes.contains(Changes::REFRESHED));
                assert_eq!(answer.stats.peers(), u64::from(bystanders + 2 * MOST));
            }
        }
        assert_eq!(store.totals().evicted, Evicted::default());
        assert_bystanders_stay(&store, torrent, bystanders);
        store.assert_consistent();
    }
}

pub(crate) fn an_endpoint_that_stopped_leaves_its_place(subject: &dyn Subject) {
    const MOST: u32 = 5;
    for (family, bystanders) in [(Family::V4, 0), (Family::V6, 0), (Family::V4, 1000), (Family::V6, 1000)] {
        let Some(store) = with_endpoints(subject, MOST as usize) else { return };
        let torrent = hash(1);
        fill_with_bystanders(&store, torrent, bystanders);
        let join = |n| leecher(torrent, crowded(family, n));
        store.fill(1, (0..MOST).map(join));
        store.fill(2, [0, 3].map(|n| stopped(torrent, crowded(family, n))));
        // A `stopped` of unknown peers frees no place.
        store.fill(2, [3, 99].map(|n| stopped(torrent, crowded(family, n))));
        for n in [10, 11] {
            assert_eq!(store.tell_at(3, join(n)).evicted, Evicted::default(), "two have left, two have come");
        }
        assert_eq!(store.tell_at(4, join(12)).evicted, Evicted::peers(1));
        assert_eq!(store.scrape(&torrent).peers(), u64::from(bystanders + MOST));
        // Expired peers free their places when they are swept.
        store.sweep_all(at(2 * LIFETIME), Retention::DropEmpty);
        for n in 20..20 + MOST {
            assert_eq!(store.tell_at(2 * LIFETIME, join(n)).evicted, Evicted::default());
        }
        store.assert_consistent();
    }
}

pub(crate) fn an_address_has_its_endpoints_in_each_swarm(subject: &dyn Subject) {
    const MOST: u32 = 3;
    let Some(store) = with_endpoints(subject, MOST as usize) else { return };
    for n in 0..MOST {
        for (torrent, family) in (0..200).flat_map(|torrent| FAMILIES.map(|family| (torrent, family))) {
            assert_eq!(store.tell(leecher(hash(torrent), crowded(family, n))).evicted, Evicted::default());
        }
    }
    for torrent in 0..200 {
        assert_eq!(store.scrape(&hash(torrent)).peers(), u64::from(2 * MOST));
    }
    store.assert_consistent();
}

/// An IPv4 address is all of its 32 bits, also if it is written as an IPv6 address.
pub(crate) fn an_ipv6_address_is_its_upper_64_bits(subject: &dyn Subject) {
    for (family, bystanders) in [(Family::V4, 0), (Family::V6, 0), (Family::V4, 1000), (Family::V6, 1000)] {
        let Some(store) = with_endpoints(subject, 2) else { return };
        let torrent = hash(1);
        fill_with_bystanders(&store, torrent, bystanders);
        // Consecutive addresses with two endpoints each, also with equal lower bits; for IPv6 all that may be
        // in one /48.
        let of_neighbour = |address: u32, n| match family {
            Family::V4 => of_address(family, address, n),
            Family::V6 => of_subnet(0, (address / 5 * 256 + address % 5) as u16, n),
        };
        for (address, n) in (0..25).flat_map(|address| [(address, 1), (address, 10 + address)]) {
            let answer = store.tell(leecher(torrent, of_neighbour(address, n)).want(0));
            assert_eq!(answer.evicted, Evicted::default(), "{family:?}, address {address}");
        }
        let third = store.tell(leecher(torrent, of_neighbour(12, 5000)).want(0));
        assert_eq!(third.evicted, Evicted::peers(1));
        let members = store.members(&torrent);
        let own = [1, 22, 5000].map(|n| members.contains_key(&of_neighbour(12, n)));
        assert_eq!(own.into_iter().filter(|&is_there| is_there).count(), 2);
        assert_bystanders_stay(&store, torrent, bystanders);
    }
    let Some(store) = with_endpoints(subject, 2) else { return };
    for port in 1..20 {
        let IpAddr::V4(ip) = crowded(Family::V4, 0).ip() else { unreachable!("is one of IPv4") };
        let ip: IpAddr = if port % 2 == 0 { ip.to_ipv6_mapped().into() } else { ip.into() };
        let endpoint = Endpoint::new(ip, port).expect("the port is not 0");
        let answer = store.tell_at(port.into(), leecher(hash(1), endpoint));
        assert_eq!(
            answer.stats.peers(),
            u64::from(port).min(2),
            "IPv4-mapped addresses are the IPv4 address"
        );
    }
    store.assert_consistent();
}

/// A client may have a whole /56 or /48. Its newcomers replace the endpoint that announced least recently in
/// the narrowest of its networks that is full.
pub(crate) fn wider_networks_of_ipv6_have_5_and_25_times_the_endpoints(subject: &dyn Subject) {
    const MOST: usize = 2;
    const NEWCOMERS: u16 = 90;
    let newcomer = |n| match n {
        // Each in a /64 of its own, of one /56.
        0..20 | 70..85 => of_subnet(CROWDED, n, 1),
        // Each in a /56 of its own. They fill the /48, and the first /56 has no endpoint left.
        20..70 => of_subnet(CROWDED, n << 8, 1),
        // All in one /64 of the first /56.
        _ => of_subnet(CROWDED, 200, n.into()),
    };
    let (config, unit) = config_with_units(subject, 100);
    let config = config.max_endpoints_per_address(MOST);
    for bystanders in [0, 1000] {
        let Some(store) = bounded(subject, BoundedBy::ENDPOINTS_PER_ADDRESS, &config) else { return };
        let torrent = hash(1);
        fill_with_bystanders(&store, torrent, bystanders);
        let restored = |endpoint, now| {
            let record = PeerRecord { endpoint, role: Role::Leecher, last_announce: now, details: None };
            let swarm = SwarmSummary { info_hash: torrent, stats: stats(0, 0, 0) };
            let restored = store.restore(&swarm, &[record], now);
            (restored.added, restored.refused)
        };
        let mut least_recent_first = Vec::new();
        for n in 0..NEWCOMERS {
            let now = u64::from(n + 1) * unit;
            let full = [(8, 1), (7, 5), (6, 25)].into_iter().find_map(|(bytes, times)| {
                let network = |peer: &Endpoint| peer.as_bytes()[..bytes].to_vec();
                let is_in = |peer: &&Endpoint| network(peer) == network(&newcomer(n));
                let in_it: Vec<Endpoint> = least_recent_first.iter().filter(is_in).copied().collect();
                (in_it.len() >= times * MOST).then(|| in_it[0])
            });
            if full.is_some() {
                assert_eq!(restored(newcomer(n), at(now)), (0, 1), "{n}");
            }
            least_recent_first.retain(|peer| Some(*peer) != full);
            least_recent_first.push(newcomer(n));
            let announce = leecher(torrent, newcomer(n)).left((n / 3 % 2).into()).want(0);
            let answer = store.tell_at(now, announce);
            assert_eq!(answer.evicted, Evicted::peers(full.iter().len() as u64), "for {n}");
            let members = store.members(&torrent);
            let held: BTreeSet<_> =
                (0..NEWCOMERS).map(newcomer).filter(|peer| members.contains_key(peer)).collect();
            assert_eq!(held, least_recent_first.iter().copied().collect(), "after newcomer {n}");
        }
        assert_eq!(restored(of_subnet(CROWDED + 1, 5, 5), at(u64::from(NEWCOMERS) * unit)), (1, 0));
        assert_bystanders_stay(&store, torrent, bystanders);
        store.assert_consistent();
    }
}

pub(crate) fn endpoints_per_address_are_limited_in_batches_too(subject: &dyn Subject) {
    const MOST: u64 = 4;
    let Some(store) = with_endpoints(subject, MOST as usize) else { return };
    let (mut joined, mut told) = (0, 0);
    for turn in 0..40 {
        // New endpoints of one address, peers with their own addresses, and earlier endpoints again, for
        // small swarms and for a large one.
        let announces: Vec<_> = (0..90)
            .map(|n| {
                let torrent = hash(u64::from(n % 3) + if n % 5 == 0 { 100 + u64::from(turn) } else { 0 });
                let family = FAMILIES[(n / 4) as usize % 2];
                match n % 4 {
                    0 => leecher(torrent, bystander(turn * 90 + n / 4)),
                    1 => seeder(torrent, crowded(family, (turn * 90 + n).saturating_sub(30))),
                    _ => leecher(torrent, crowded(family, turn * 90 + n)),
                }
            })
            .map(|announce| announce.want(0))
            .collect();
        store.tell_batch(at(turn.into()), &announces, &mut SplitMix64::new(turn.into()), |answer| {
            let new = answer.changes.contains(Changes::JOINED);
            joined += u64::from(new);
            told += answer.evicted.peers;
            assert_eq!(answer.evicted.swarms, 0);
            assert!(answer.evicted.peers <= u64::from(new), "one newcomer takes one place");
        });
        assert_eq!(store.totals().evicted, Evicted::peers(told), "reported, and counted");
        assert_eq!(store.totals().peers(), joined - told, "peers that joined and were not evicted");
        for torrent in announces.iter().map(|announce| announce.info_hash).collect::<BTreeSet<_>>() {
            let members = store.members(&torrent);
            for family in FAMILIES {
                let own = count_of_address(members.keys(), family, CROWDED) as u64;
                assert!(own <= MOST, "{own} endpoints of one address");
            }
        }
    }
    assert!(told > 500, "{told} were evicted");
    let mut bystanders = (0..40).flat_map(|turn| (0..90 / 4).map(move |n| bystander(turn * 90 + n)));
    let all: HashSet<_> =
        store.swarms().iter().flat_map(|swarm| store.members(&swarm.info_hash).into_keys()).collect();
    assert!(bystanders.all(|peer| all.contains(&peer)), "a peer was evicted for another address");
    store.assert_consistent();
}

/// One new endpoint evicts one peer, even if several limits are reached.
pub(crate) fn an_address_at_its_limit_displaces_only_itself_in_a_full_swarm(subject: &dyn Subject) {
    const MOST: u32 = 5;
    for bystanders in [20, 500] {
        let config = config()
            .max_endpoints_per_address(MOST as usize)
            .max_peers_per_swarm((bystanders + MOST) as usize);
        let limits = BoundedBy::ENDPOINTS_PER_ADDRESS | BoundedBy::PEERS_PER_SWARM;
        for family in FAMILIES {
            let Some(store) = bounded(subject, limits, &config) else { return };
            let torrent = hash(1);
            fill_with_bystanders(&store, torrent, bystanders);
            store.fill(1, (0..MOST).map(|n| leecher(torrent, crowded(family, n))));
            assert_eq!(store.totals().evicted, Evicted::default());
            for n in MOST..300 {
                let announce = leecher(torrent, crowded(family, n)).left((n / 3 % 2).into());
                let answer = store.tell_at(2, announce);
                assert_eq!(answer.evicted, Evicted::peers(1));
                assert_eq!(answer.stats.peers(), (bystanders + MOST).into());
            }
            assert_bystanders_stay(&store, torrent, bystanders);
            // For a peer of another address the swarm is full.
            let answer = store.tell_at(3, leecher(torrent, of_address(family, CROWDED + 1, 1)));
            assert_eq!(answer.evicted, Evicted::peers(1));
            assert_eq!(answer.stats.peers(), (bystanders + MOST).into());
            store.assert_consistent();
        }
    }
}

/// As at every limit, restored peers evict none.
pub(crate) fn endpoints_beyond_the_limit_are_refused_when_restored(subject: &dyn Subject) {
    const MOST: u32 = 4;
    for (family, bystanders) in [(Family::V4, 3), (Family::V6, 3), (Family::V4, 900), (Family::V6, 900)] {
        let Some(store) = with_endpoints(subject, MOST as usize) else { return };
        let torrent = hash(1);
        let record = |n: u32, endpoint| PeerRecord {
            endpoint,
            role: if n.is_multiple_of(2) { Role::Seeder } else { Role::Leecher },
            last_announce: at(u64::from(n % 50)),
            details: None,
        };
        let swarm = SwarmSummary { info_hash: torrent, stats: stats(0, 0, 1) };
        let snapshot: Vec<_> = (0..bystanders)
            .map(|n| record(n, bystander(n)))
            .chain((0..20).map(|n| record(n, crowded(family, n))))
            .collect();
        // One endpoint has announced since, and stays as it announced.
        let early = crowded(family, 15);
        store.fill(60, [leecher(torrent, early)]);
        let restored = store.restore(&swarm, &snapshot, at(60));
        let (added, refused) = (u64::from(bystanders + MOST - 1), u64::from(20 - MOST));
        assert_eq!((restored.added, restored.known, restored.refused), (added, 1, refused));
        let members = store.members(&torrent);
        assert_eq!(count_of_address(members.keys(), family, CROWDED), MOST as usize);
        assert_eq!(members[&early].role, Role::Leecher);
        // A second call restores no more.
        let restored = store.restore(&swarm, &snapshot, at(60));
        assert_eq!((restored.added, restored.known, restored.refused), (0, added + 1, refused));
        assert_eq!(store.totals().evicted, Evicted::default());
        // A new endpoint takes the place of a restored one.
        let answer = store.tell_at(61, leecher(torrent, crowded(family, 100)));
        assert_eq!(answer.evicted, Evicted::peers(1));
        assert!(store.members(&torrent).contains_key(&early), "an older one was there");
        assert_bystanders_stay(&store, torrent, bystanders);
        store.assert_consistent();
    }
}

/// The address announces from all of its ports, as seeders and as leechers.
pub(crate) fn one_address_takes_no_more_than_its_endpoints_of_a_large_swarm(subject: &dyn Subject) {
    const MOST: u32 = 8;
    const OTHERS: u32 = 20_000;
    const PORTS: u32 = 10_000;
    for family in FAMILIES {
        let Some(store) = with_endpoints(subject, MOST as usize) else { return };
        let torrent = hash(1);
        let other = |n| of_address(family, 1000 + n, 1);
        store.fill(0, (0..OTHERS).map(|n| leecher(torrent, other(n)).left((n % 2).into())));
        store.fill(1, (0..PORTS).map(|n| leecher(torrent, crowded(family, n)).left((n / 5 % 2).into())));
        let (totals, told) = (store.totals(), store.scrape(&torrent));
        assert_eq!((totals.peers(), told.peers()), ((OTHERS + MOST).into(), (OTHERS + MOST).into()));
        assert_eq!(totals.evicted, Evicted::peers(u64::from(PORTS - MOST)));
        let members = store.members(&torrent);
        let lost = (0..OTHERS).filter(|&n| !members.contains_key(&other(n))).count();
        assert_eq!(lost, 0, "had to go for another address, over {family:?}");
        assert_eq!(count_of_address(members.keys(), family, CROWDED), MOST as usize);
        store.assert_consistent();
    }
}
