//! Cases of floods: made-up swarms displace each other, and no swarm that is worth more.

use std::net::{Ipv4Addr, Ipv6Addr};

use swarmkeep::{BoundedBy, Endpoint, Evicted, Family, PeerRecord, Random, Role, SplitMix64, SwarmSummary};

use super::bounds::WatchedStore;
use crate::{Subject, kit::*};

/// Each peer, of the flood too, is from a network of its own.
pub(crate) fn a_flood_of_made_up_info_hashes_displaces_itself(subject: &dyn Subject) {
    // Populated by two peers, or by one peer that has come back.
    flood(subject, |store| {
        let populated = |n, other| leecher(hash(n), of_network(Family::V4, n as u32, other));
        for n in 0..POPULATED {
            store.fill(0, [populated(n, 1)]);
        }
        store.fill(1, (0..POPULATED).filter(|n| n % 2 == 0).map(|n| leecher(hash(n), v4(n as u32 * 256))));
        store.fill(RETURN, (0..POPULATED).filter(|n| n % 2 == 1).map(|n| populated(n, 1)));
    });
}

/// After a restart the restored swarms count as populated.
pub(crate) fn a_flood_displaces_no_restored_swarms(subject: &dyn Subject) {
    flood(subject, |store| {
        for n in 0..POPULATED {
            let family = if n % 2 == 0 { Family::V4 } else { Family::V6 };
            let (endpoint, role) = (of_network(family, n as u32, 1), Role::Leecher);
            let record = PeerRecord { endpoint, role, last_announce: at(0), details: None };
            let swarm = SwarmSummary { info_hash: hash(n), stats: stats(0, 1, 0) };
            assert_eq!(store.restore(&swarm, &[record], at(0)).added, 1);
        }
    });
}

const POPULATED: u64 = 8000;
/// The time after which a peer that announces again has come back, rather than repeated itself.
const RETURN: u64 = LIFETIME / 3;
/// The number of the first network of a flood.
const STRANGERS: u32 = 100_000;

fn flood(subject: &dyn Subject, populate: impl Fn(&Store)) {
    for family in FAMILIES {
        let Some(store) = bounded(subject, BoundedBy::SWARMS, &config().max_swarms(10_000)) else { return };
        populate(&store);
        for n in 0..40_000 {
            let stranger = of_network(family, STRANGERS + n as u32, 1);
            store.fill(RETURN + 100 + n / 200, [leecher(hash(1_000_000 + n), stranger)]);
        }
        let lost = (0..POPULATED).filter(|&n| store.scrape(&hash(n)).peers() == 0).count();
        assert!(lost < POPULATED as usize / 100, "{lost} of {POPULATED} populated swarms lost, {family:?}");
        assert!(store.totals().swarms <= 10_000);
        store.assert_consistent();
    }
}

/// One network announces each made-up swarm from four endpoints, repeats that at once, and again after a
/// return. Each living swarm was announced once.
pub(crate) fn a_flood_from_one_network_displaces_itself(subject: &dyn Subject) {
    const LIVING: u64 = 240;
    const PORTS: u64 = 4;
    let size = |n: u64| 1 + n % 10;
    for family in FAMILIES {
        let Some(store) = bounded(subject, BoundedBy::SWARMS, &config().max_swarms(1000)) else { return };
        for n in 0..LIVING {
            // The peers of every third swarm share a network.
            let network = |m| n as u32 * 10 + if n % 3 == 0 { 0 } else { m };
            store.fill(0, (0..size(n) as u32).map(|m| leecher(hash(n), of_network(family, network(m), m))));
        }
        for part in 0..2 {
            for now in [RETURN * part + 1, RETURN * part + 1, RETURN * (part + 1) + 1] {
                let swarms = (0..1000).map(|n| 1_000_000 + 1000 * part + n);
                store.fill(
                    now,
                    swarms.flat_map(|n| {
                        let port = move |m| of_network(family, STRANGERS, (n * PORTS + m) as u32);
                        (0..PORTS).map(move |m| leecher(hash(n), port(m)))
                    }),
                );
            }
        }
        let lost: Vec<_> =
            (0..LIVING).filter(|&n| store.scrape(&hash(n)).peers() < size(n)).map(size).collect();
        assert!(
            lost.is_empty(),
            "{} of {LIVING} living swarms, of up to {} peers, were lost to made-up ones of one network over {family:?}",
            lost.len(),
            lost.iter().max().unwrap_or(&0),
        );
        assert_eq!(store.totals().swarms, 1000);
        store.assert_consistent();
    }
}

/// Seeders of one network join living swarms, while this network floods the store.
pub(crate) fn a_flood_cannot_cheapen_a_living_swarm(subject: &dyn Subject) {
    const LIVING: u64 = 60;
    const JOINED: u32 = 8;
    let size = |n: u64| if n.is_multiple_of(3) { 120 } else { 40 };
    for family in FAMILIES {
        let Some(store) = bounded(subject, BoundedBy::SWARMS, &config().max_swarms(500)) else { return };
        let attacker = |n| of_network(Family::V4, STRANGERS, n);
        for n in 0..LIVING {
            let network = |m| n as u32 * 120 + m;
            store.fill(0, (0..size(n)).map(|m| leecher(hash(n), of_network(family, network(m), m))));
        }
        for n in 0..1200 {
            if n == 600 {
                store.fill(
                    1,
                    (0..LIVING).flat_map(|n| (0..JOINED).map(move |m| seeder(hash(n), attacker(m)))),
                );
            }
            store.fill(1, (0..4).map(|m| leecher(hash(1_000_000 + n), attacker(4 * n as u32 + m))));
        }
        let lost = (0..LIVING).filter(|&n| store.scrape(&hash(n)).peers() == 0).count();
        assert_eq!(lost, 0, "of {LIVING} living swarms were lost to a network that had joined, {family:?}");
        store.assert_consistent();
    }
}

/// Each made-up swarm has more peers than the shape for a few, all of one network. Some shrink again.
pub(crate) fn a_flood_of_large_swarms_displaces_itself(subject: &dyn Subject) {
    const LIVING: u64 = 60;
    const PORTS: u32 = 100;
    for family in FAMILIES {
        let Some(store) = bounded(subject, BoundedBy::SWARMS, &config().max_swarms(300)) else { return };
        for now in [0, RETURN] {
            store.fill(now, (0..LIVING).map(|n| leecher(hash(n), of_network(family, n as u32, 1))));
        }
        for n in 0..450 {
            let (torrent, port) = (hash(1_000_000 + n), |m| of_network(family, STRANGERS + n as u32, m));
            store.fill(RETURN + 100, (0..PORTS).map(|m| leecher(torrent, port(m))));
            if n % 3 == 0 {
                store.fill(RETURN + 100, (1..PORTS).map(|m| stopped(torrent, port(m))));
            }
        }
        let lost = (0..LIVING).filter(|&n| store.scrape(&hash(n)).peers() == 0).count();
        assert_eq!(lost, 0, "of {LIVING} swarms that came back were lost to large ones over {family:?}");
        store.assert_consistent();
    }
}

/// Swarms that are populated by two peers, or by one that has come back, stay as long as other swarms can be
/// evicted.
pub(crate) fn a_flood_displaces_itself_where_bytes_are_limited(subject: &dyn Subject) {
    for family in [Family::V4, Family::V6] {
        let Some(mut watched) = WatchedStore::new(subject, 1 << 19) else { return };
        let mut populated = 0;
        let of_swarm = |n: u64, m| leecher(hash(n), of_network(Family::V4, (2 * n + m) as u32, 1));
        while watched.store.memory().bytes < watched.most * 45 / 100 {
            watched.tell(0, of_swarm(populated, 0));
            populated += 1;
        }
        for n in 0..populated {
            watched.tell(RETURN, of_swarm(n, n % 2));
        }
        assert_eq!(watched.told, Evicted::default(), "while there was room for all");
        let is_full = watched.numbers().any(|n| {
            let stranger = of_network(family, STRANGERS + n as u32, 1);
            watched.tell(RETURN + 100 + n / 200, leecher(hash(1_000_000 + n), stranger));
            watched.told.swarms > 2 * populated
        });
        assert!(is_full, "a flood of {} peers was let in", watched.joined);
        let lost = (0..populated).filter(|&n| watched.store.scrape(&hash(n)).peers() == 0).count() as u64;
        assert!(
            lost * 100 < populated,
            "{lost} of {populated} populated swarms were lost to made-up ones over {family:?}"
        );
        watched.assert_consistent();
    }
}

/// All swarms that can be evicted have come back once, as those of a flood can too; each is as old and as
/// small as possible.
pub(crate) fn a_swarm_that_grows_displaces_what_is_worth_less(subject: &dyn Subject) {
    const JOINED: u64 = 500;
    for family in [Family::V4, Family::V6] {
        let Some(mut watched) = WatchedStore::new(subject, 1 << 17) else { return };
        let torrent = hash(0);
        watched.tell(0, leecher(torrent, of_network(family, 0, 1)));
        for n in watched.numbers() {
            let announce = leecher(hash(1 + n), of_network(family, STRANGERS + n as u32, 1));
            watched.tell(0, announce);
            if watched.tell(RETURN, announce).evicted != Evicted::default() || watched.told.swarms > 0 {
                break;
            }
        }
        for n in 1..JOINED {
            watched.tell(RETURN + n, leecher(torrent, of_network(family, n as u32, 1)));
        }
        let left = watched.store.scrape(&torrent).peers();
        assert!(left * 10 >= JOINED * 9, "of {JOINED} peers of a swarm that grows {left} are left");
        watched.assert_consistent();
    }
}

/// Made-up torrents have filled the store: of one address, or, expired now, of a network each. Of the popular
/// one's peers, two share each IPv4 network, and a fifth share an IPv6 /32.
pub(crate) fn a_swarm_that_becomes_popular_displaces_none_of_its_own_peers(subject: &dyn Subject) {
    const POPULAR: u64 = 4000;
    let made_up: [(Stranger, u64); 2] = [
        (|n| of_network(Family::V4, STRANGERS, n % 8), 1),
        (|n| of_network(Family::V4, STRANGERS + n, 1), 2 * LIFETIME),
    ];
    for (stranger, now) in made_up {
        let Some(mut watched) = WatchedStore::new(subject, 1 << 19) else { return };
        let mut evicts = |n: u64| watched.tell(0, leecher(hash(1 + n), stranger(n as u32))).evicted.peers > 0;
        assert!((0..1 << 20).any(&mut evicts), "made-up swarms fill the store");
        for n in 0..POPULAR {
            let m = n as u32;
            let peer = if m.is_multiple_of(5) { of_prefix(m) } else { of_network(Family::V4, m / 2, m % 2) };
            watched.tell(now, leecher(hash(0), peer).left(n % 200));
        }
        let stats = watched.store.scrape(&hash(0));
        assert!(
            stats.complete == 20 && stats.peers() * 100 >= POPULAR * 99,
            "of {POPULAR} peers, 20 of them seeders, {stats:?} are left, and made-up swarms too"
        );
        watched.assert_consistent();
    }
}

/// A few swarms of hundreds take all the room.
pub(crate) fn a_newcomer_displaces_few_peers_of_a_populous_swarm(subject: &dyn Subject) {
    const SWARMS: u64 = 6;
    let populous = |n: u64| leecher(hash(n % SWARMS), of_network(Family::V4, n as u32, 1));
    let strangers = |store: &Store| {
        let sizes = || (0..SWARMS).map(|n| store.scrape(&hash(n)).peers());
        let before: Vec<_> = sizes().collect();
        for n in 0..100 {
            let stranger = of_network(Family::V4, STRANGERS, n as u32);
            let evicted = store.tell_at(1, leecher(hash(1_000_000 + n), stranger)).evicted;
            assert!(evicted.peers <= 64, "one newcomer displaced {} peers", evicted.peers);
        }
        let lost = before.iter().zip(sizes()).find(|(before, left)| left * 10 < **before * 9);
        assert_eq!(lost, None, "the peers of a swarm before and after 100 newcomers of one address");
    };
    if let Some(mut watched) = WatchedStore::new(subject, 1 << 17) {
        assert!(watched.numbers().any(|n| watched.tell(0, populous(n)).evicted.peers > 0), "it gets full");
        strangers(&watched.store);
    }
    if let Some(store) = bounded(subject, BoundedBy::SWARMS, &config().max_swarms(SWARMS as usize)) {
        store.fill(0, (0..SWARMS * 200).map(populous));
        strangers(&store);
        store.assert_consistent();
    }
}

/// 900 peers, each of a network of its own, are in a swarm with room for 1,000, and are silent.
pub(crate) fn one_network_cannot_take_over_a_full_swarm(subject: &dyn Subject) {
    const LIVING: u32 = 900;
    let living = |n: u32| of_network(FAMILIES[(n % 3 / 2) as usize], n, 1);
    let of_24 = |n: u32| {
        let ip = Ipv4Addr::from_bits(0x3000_0000 + n % 256);
        Endpoint::new(ip.into(), (1 + n / 256) as u16).expect("the port is not 0")
    };
    // A /32 has several customers, and a store may look at a sample of the swarm.
    let strangers: [(&str, u32, Stranger); 4] = [
        ("an IPv4 address", 95, |n| of_network(Family::V4, STRANGERS, n)),
        ("an IPv4 /24", 95, of_24),
        ("an IPv6 /48", 95, |n| of_network(Family::V6, STRANGERS, n)),
        ("an IPv6 /32", 70, of_prefix),
    ];
    for (name, percent, stranger) in strangers {
        let config = config().max_peers_per_swarm(1000);
        let Some(store) = bounded(subject, BoundedBy::PEERS_PER_SWARM, &config) else { return };
        store.fill(0, (0..LIVING).map(|n| leecher(hash(1), living(n)).left((n % 5).into())));
        store.fill(60, (0..2048).map(|n| leecher(hash(1), stranger(n))));
        let members = store.members(&hash(1));
        let left = (0..LIVING).filter(|&n| members.contains_key(&living(n))).count() as u32;
        assert!(left * 100 >= LIVING * percent, "{left} of {LIVING} peers are left beside those of {name}");
        store.assert_consistent();
    }
}

/// A fifth of the peers that come are seeders, and a fifth come over IPv6.
pub(crate) fn families_and_roles_keep_their_shares_of_a_full_swarm(subject: &dyn Subject) {
    const MOST: u64 = 500;
    let config = config().max_peers_per_swarm(MOST as usize);
    let Some(store) = bounded(subject, BoundedBy::PEERS_PER_SWARM, &config) else { return };
    let rng: &mut dyn Random = &mut SplitMix64::new(8);
    let (mut v6, mut seeders, mut all) = (0, 0, 0);
    for n in 0..16_000_u32 {
        // The first to fill the swarm have other shares.
        let one_of = if u64::from(n) < MOST { 20 } else { 5 };
        let endpoint = of_network(FAMILIES[usize::from(rng.below(one_of) == 0)], n, 1);
        store.fill((n * 3).into(), [leecher(hash(1), endpoint).left(rng.below(one_of) as u64)]);
        if n > 2000 && n % 250 == 0 {
            let totals = store.totals();
            v6 += totals.v6.peers();
            seeders += totals.v4.seeders + totals.v6.seeders;
            all += totals.peers();
        }
    }
    for (name, count) in [("IPv6 peers", v6), ("seeders", seeders)] {
        let percent = 100.0 * count as f64 / all as f64;
        assert!((18.0..22.0).contains(&percent), "{percent:.1} % are {name}, and a fifth of the newcomers");
    }
}

type Stranger = fn(u32) -> Endpoint;

/// Returns an endpoint in one of the /48 of an IPv6 /32, of which consecutive ones have no /40 in common.
fn of_prefix(n: u32) -> Endpoint {
    let ip = Ipv6Addr::from_bits((0x2b00_u128 << 112) + (u128::from(n * 40_503 % 65_536) << 80) + 1);
    Endpoint::new(ip.into(), 6881).expect("the port is not 0")
}

/// Each of its /48 announces once or twice. Ten IPv4 /24 do as much in another store.
pub(crate) fn an_ipv6_prefix_displaces_no_more_than_ten_ipv4_networks(subject: &dyn Subject) {
    const LIVING: u64 = 300;
    let size = |n: u64| 1 + n % 4;
    let strangers: [Stranger; 2] = [|n| of_network(Family::V4, STRANGERS + n % 10, n), of_prefix];
    type Build = fn(&dyn Subject) -> Option<Store>;
    let limited: [(&str, Build); 2] = [
        ("swarms", |subject| bounded(subject, BoundedBy::SWARMS, &config().max_swarms(1000))),
        ("bytes", |subject| Some(WatchedStore::new(subject, 1 << 17)?.store)),
    ];
    for (limit, build) in limited {
        let mut lost = Vec::new();
        for stranger in strangers {
            let Some(store) = build(subject) else { continue };
            for n in 0..LIVING {
                let living = |m: u64| of_network(Family::V4, (4 * n + m) as u32, 1);
                store.fill(0, (0..size(n)).map(|m| leecher(hash(n), living(m))));
            }
            for n in 0..4000 {
                let made_up = |m| leecher(hash(1_000_000 + n), stranger(8 * n as u32 + m));
                store.fill(1 + n / 100, (0..8).map(made_up));
            }
            lost.push((0..LIVING).filter(|&n| store.scrape(&hash(n)).peers() < size(n)).count());
        }
        assert!(
            lost.is_empty() || lost[1] <= lost[0] + LIVING as usize / 50,
            "of {LIVING} living swarms ten IPv4 networks displace {}, and an IPv6 /32 {}, where {limit} are limited",
            lost[0],
            lost[1]
        );
    }
}
