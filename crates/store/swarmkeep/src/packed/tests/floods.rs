//! The floods of docs/design/packed-store.md, in numbers: `.ci/long floods` prints the tables of that page.

use std::{ops::Range, time::Instant};

use super::*;

/// Longer than a quarter of the lifetime: a peer that announces again proves that its swarm lives.
const INTERVAL: u64 = 1200;
/// The first network of a flood.
const STRANGERS: u32 = 1 << 20;

/// Endpoint `n` of an IPv4 /24: an address with eight ports after another.
fn of_24(network: u32, n: u32) -> Endpoint {
    let [_, a, b, c] = network.to_be_bytes();
    Endpoint::try_from([20 + a, b, c, (n / 8) as u8, 26, 1 + (n % 8) as u8]).expect("a valid endpoint")
}

/// Endpoint `n` of an IPv6 /48: a /64 with eight ports after another.
fn of_48(network: u64, n: u32) -> Endpoint {
    let mut bytes = [0x20; 18];
    bytes[..6].copy_from_slice(&(0x2000_0000_0000 + network).to_be_bytes()[2..]);
    bytes[6..8].copy_from_slice(&((n / 8) as u16).to_be_bytes());
    bytes[17] = 1 + (n % 8) as u8;
    Endpoint::try_from(bytes).expect("a valid endpoint")
}

fn of_family(family: Family, network: u32, n: u32) -> Endpoint {
    match family {
        Family::V4 => of_24(network, n),
        // Each in a /32 of its own.
        Family::V6 => of_48(u64::from(network) << 16, n),
    }
}

/// Both kinds of full stores with room for about `bytes` bytes of swarms of one peer.
fn full_stores(bytes: usize) -> [(&'static str, RepositoryConfig); 2] {
    let config = config().max_endpoints_per_address(8);
    [("max_bytes", config.clone().max_bytes(bytes)), ("max_swarms", config.max_swarms(bytes / 30))]
}

fn peers(store: &Packed, torrent: u64) -> u64 {
    store.scrape(&hash(torrent)).peers()
}

fn sweep(store: &Packed, now: u64) {
    while !store.sweep(at(now), Retention::DropEmpty, Budget::peers(10_000)).pass_complete {}
}

/// Made-up torrents of one address fill a store. Then a torrent becomes popular.
#[test]
#[ignore = "takes minutes: `.ci/long floods`"]
fn floods_and_order() {
    println!(
        "| MB | limit | peers left of the popular torrent, per round | of 20 seeders |\n|---:|---|---|---|"
    );
    for megabytes in [1, 2, 8, 64] {
        for (limit, config) in full_stores(megabytes << 20) {
            let (made_up, popular) = (40_000 * megabytes as u64, 20_000 * megabytes as u64);
            let store = Packed::new(&config).expect("what it can keep");
            let mut rows = [String::new(), String::new()];
            for round in 0..if megabytes > 8 { 2 } else { 6 } {
                let now = INTERVAL * round;
                for n in 0..made_up {
                    tell(&store, now, leecher(1 + n, of_24(STRANGERS, 1 + n as u32 % 8)));
                }
                for n in 0..popular {
                    let left = u64::from(n % (popular / 20) > 0);
                    tell(&store, now, leecher(0, of_24(n as u32, 0)).left(left));
                }
                sweep(&store, now);
                let stats = store.scrape(&hash(0));
                assert!(stats.complete == 20 && stats.peers() * 100 >= popular * 99, "{limit}: {stats:?}");
                rows[0] += &format!(" {:.2} %", 100.0 * stats.peers() as f64 / popular as f64);
                rows[1] += &format!(" {}", stats.complete);
            }
            println!("| {megabytes} | {limit} |{} |{} |", rows[0], rows[1]);
        }
    }
}

/// Swarms of thousands fill a store. Then made-up torrents come.
#[test]
#[ignore = "takes minutes: `.ci/long floods`"]
fn floods_and_grain() {
    println!(
        "| swarms | peers each | limit | largest loss for one newcomer | smallest swarm afterwards | newcomers kept |\n|---:|---:|---|---:|---:|---:|"
    );
    for (swarms, size, bytes) in [(8, 100_000, 1 << 22), (20, 10_000, 1 << 20), (200, 500, 1 << 19)] {
        let limits = [("max_bytes", config().max_bytes(bytes)), ("max_swarms", config().max_swarms(swarms))];
        for (limit, config) in limits {
            let store = Packed::new(&config).expect("what it can keep");
            let all = (0..size).flat_map(|n| (0..swarms as u64).map(move |torrent| (n, torrent)));
            let fits = |&(n, torrent): &(u32, u64)| {
                tell(&store, 0, leecher(torrent, of_24(n, torrent as u32))).evicted == Evicted::default()
            };
            all.take_while(fits).for_each(drop);
            let before: Vec<u64> = (0..swarms as u64).map(|torrent| peers(&store, torrent)).collect();
            let mut largest = 0;
            for n in 0..2000 {
                largest =
                    largest.max(tell(&store, 1, leecher(1_000_000 + n, of_24(STRANGERS, 0))).evicted.peers);
            }
            let smallest = (0..swarms as u64).map(|torrent| peers(&store, torrent)).min().expect("some");
            let kept = (0..2000).filter(|n| peers(&store, 1_000_000 + n) > 0).count();
            let full = before.iter().min().expect("some");
            assert!(largest <= 64 && smallest * 100 >= full * 95, "{limit}: {largest}, {smallest} of {full}");
            println!("| {swarms} | {full} | {limit} | {largest} | {smallest} | {kept} |");
        }
    }
}

/// A swarm of 900 peers of 900 networks, with room for 1,000. Then 2,048 endpoints of one network come.
#[test]
#[ignore = "takes minutes: `.ci/long floods`"]
fn floods_within_a_swarm() {
    type Stranger = fn(u32) -> Endpoint;
    let strangers: [(&str, Stranger); 5] = [
        ("one IPv4 address", |n| {
            Endpoint::try_from([90, 1, 1, 1, 1 + (n >> 8) as u8, n as u8]).expect("valid")
        }),
        ("an IPv4 /24", |n| of_24(STRANGERS, n)),
        ("an IPv6 /48", |n| of_48(0xffff << 16, n)),
        ("an IPv6 /32", |n| of_48(0xffff << 16 | u64::from(n), 0)),
        ("ten IPv4 /24", |n| of_24(STRANGERS + n % 10, n / 10)),
    ];
    println!(
        "| strangers | limit per address | left of 900 | of 900 that announce on |\n|---|---|---:|---:|"
    );
    for (name, stranger) in strangers {
        for most in [None, Some(8)] {
            let mut left = [0; 2];
            for (is_back, left) in [false, true].into_iter().zip(&mut left) {
                let config = config().max_peers_per_swarm(1000);
                let config = most.map_or(config.clone(), |most| config.max_endpoints_per_address(most));
                let store = Packed::new(&config).expect("what it can keep");
                let honest = |n: u32| {
                    let family = if n.is_multiple_of(3) { Family::V6 } else { Family::V4 };
                    leecher(0, of_family(family, n, 0)).left(u64::from(!n.is_multiple_of(5)))
                };
                (0..900).for_each(|n| _ = tell(&store, 0, honest(n)));
                for n in 0..2048 {
                    tell(&store, 60 + u64::from(n), leecher(0, stranger(n)));
                    if is_back && n % 2 == 0 {
                        tell(&store, 60 + u64::from(n), honest(n / 2 % 900));
                    }
                }
                let mut found = Vec::new();
                store.peers(&hash(0), crate::Cursor::START, 256, &mut found);
                let mut cursor = crate::Cursor::START;
                let mut all = std::collections::HashSet::new();
                while !cursor.is_end() {
                    found.clear();
                    cursor = store.peers(&hash(0), cursor, 256, &mut found);
                    all.extend(found.iter().map(|peer| peer.endpoint));
                }
                *left = (0..900).filter(|&n| all.contains(&honest(n).endpoint)).count();
            }
            assert!(left.iter().all(|&left| left * 100 >= 900 * 95), "{name}: {left:?} of 900");
            println!(
                "| {name} | {} | {} | {} |",
                most.map_or("none".into(), |n| n.to_string()),
                left[0],
                left[1]
            );
        }
    }
    println!("\n| share of arrivals | share of places |\n|---|---|");
    for (v6, seeders) in [(50, 50), (10, 20), (2, 5), (90, 2)] {
        let store = Packed::new(&config().max_peers_per_swarm(1000)).expect("what it can keep");
        let mut rng = SplitMix64::new(7);
        let rng: &mut dyn Random = &mut rng;
        let mut sums = [0; 2];
        for n in 0..60_000 {
            let family = if rng.below(100) < v6 { Family::V6 } else { Family::V4 };
            let left = u64::from(rng.below(100) >= seeders);
            tell(&store, u64::from(n / 20), leecher(0, of_family(family, n, 0)).left(left));
            if n >= 20_000 && n % 1000 == 0 {
                let totals = store.totals();
                sums[0] += totals.v6.peers();
                sums[1] += totals.v4.seeders + totals.v6.seeders;
            }
        }
        let shares = sums.map(|sum| sum as f64 / 400.0);
        for (share, expected) in shares.into_iter().zip([v6, seeders]) {
            assert!((share / expected as f64 - 1.0).abs() <= 0.1, "{share} % where {expected} % came");
        }
        println!("| IPv6 {v6} %, seeders {seeders} % | {:.1} %, {:.1} % |", shares[0], shares[1]);
    }
}

/// Swarms of 1 to 40 peers, each peer from a network of its own and announced once.
const LIVING: u64 = 1200;

fn size(living: u64) -> u64 {
    1 + living % 40
}

/// The living swarms that a flood of made-up torrents displaces.
#[test]
#[ignore = "takes minutes: `.ci/long floods`"]
fn floods_from_few_networks_displace_few_swarms() {
    type Stranger = Box<dyn Fn(u32) -> Endpoint>;
    let of_v4 = |networks: u32| -> Stranger {
        Box::new(move |n| of_24(STRANGERS + n % networks, n / networks % 2048))
    };
    let of_v6 = |bits: u32| -> Stranger {
        Box::new(move |n| of_48(0xffff << 16 | u64::from(n % (1 << bits)), (n >> bits) % 2048))
    };
    let floods: [(&str, Stranger); 9] = [
        ("1 IPv4 /24", of_v4(1)),
        ("2 IPv4 /24", of_v4(2)),
        ("10 IPv4 /24", of_v4(10)),
        ("100 IPv4 /24", of_v4(100)),
        ("1,000 IPv4 /24", of_v4(1000)),
        ("an IPv6 /48", of_v6(0)),
        ("an IPv6 /40", of_v6(8)),
        ("an IPv6 /38", of_v6(10)),
        ("an IPv6 /32", of_v6(16)),
    ];
    println!(
        "| networks of the flood | limit | 1 announces a made-up swarm | 4 do | 10 do | 40 do | 70 do |\n|---|---|---:|---:|---:|---:|---:|"
    );
    for (name, stranger) in floods {
        let limits = [("max_bytes", config().max_bytes(420_000)), ("max_swarms", config().max_swarms(5000))];
        for (limit, config) in limits {
            let mut row = format!("| {name} | {limit} |");
            for announces in [1, 4, 10, 40, 70] {
                let store = Packed::new(&config).expect("what it can keep");
                for n in 0..LIVING {
                    let family = if n % 4 == 0 { Family::V6 } else { Family::V4 };
                    (0..size(n)).for_each(|m| {
                        _ = tell(&store, 0, leecher(n, of_family(family, 40 * n as u32 + m as u32, 0)));
                    });
                }
                let mut lost_before = 0;
                let began = Instant::now();
                for n in 0..60_000_u32 / announces.min(4) {
                    for m in 0..announces {
                        let announce = leecher(1_000_000 + u64::from(n), stranger(n * announces + m));
                        tell(&store, 1 + u64::from(n) / 100, announce);
                    }
                    lost_before += 1;
                }
                let each = began.elapsed().as_secs_f64() * 1e6 / f64::from(lost_before * announces);
                let lost: Vec<u64> = (0..LIVING).filter(|&n| peers(&store, n) < size(n)).map(size).collect();
                assert!(
                    name.contains("00 IPv4") || lost.len() * 20 <= LIVING as usize,
                    "{row} {}",
                    lost.len()
                );
                row += &format!(" {} ≤ {}; {each:.1} µs |", lost.len(), lost.iter().max().unwrap_or(&0));
            }
            println!("{row}");
        }
    }
}

/// The losses of an honest provider with customers in one /32, in a store that is full of honest swarms.
#[test]
#[ignore = "takes minutes: `.ci/long floods`"]
fn floods_and_an_honest_provider() {
    println!(
        "| share of the peers | swarms that only it keeps alive, left | swarms of others of the same size, left |\n|---:|---:|---:|"
    );
    for percent in [1, 5, 20] {
        let store = Packed::new(&config().max_swarms(20_000)).expect("what it can keep");
        let mut rng = SplitMix64::new(9);
        let rng: &mut dyn Random = &mut rng;
        for now in [0, INTERVAL] {
            for n in 0..20_000_u64 {
                let is_own = n % 100 < percent;
                for m in 0..1 + n / 100 % 3 {
                    let endpoint = match is_own {
                        true => of_48((0xffff << 16) + (3 * n + m) % 65_536, 0),
                        false => of_48((3 * n + m) << 16, 0),
                    };
                    tell(&store, now, leecher(n, endpoint));
                }
            }
        }
        // Ordinary torrents of one peer each, of any network.
        for n in 0..20_000 {
            tell(
                &store,
                INTERVAL + 1,
                leecher(1_000_000 + n, of_48((100_000 + rng.below(1 << 28) as u64) << 16, 0)),
            );
        }
        let share = |own: bool| {
            let all: Vec<u64> = (0..20_000).filter(|n| (n % 100 < percent) == own).collect();
            let left = all.iter().filter(|&&n| peers(&store, n) > 0).count();
            100.0 * left as f64 / all.len() as f64
        };
        println!("| {percent} % | {:.1} % | {:.1} % |", share(true), share(false));
    }
}

/// The time of a new swarm in a full store.
#[test]
#[ignore = "takes minutes: `.ci/long floods`"]
fn floods_and_their_cost() {
    type Fill = fn(u64) -> (u64, Endpoint);
    let populations: [(&str, Fill); 5] = [
        ("swarms of one peer", |n| (n, of_24(n as u32, 0))),
        ("swarms of 8 networks", |n| (n / 8, of_24(n as u32, 0))),
        ("swarms of 60 of one network", |n| (n / 60, of_24((n / 60) as u32, n as u32 % 60))),
        ("swarms of 146 of one network", |n| (n / 146, of_24((n / 146) as u32, n as u32 % 146))),
        ("swarms of 400 of one network", |n| (n / 400, of_24((n / 400) as u32, n as u32 % 400))),
    ];
    println!(
        "| store full of | limit | newcomer | mean | median | p99.9 | longest |\n|---|---|---|---:|---:|---:|---:|"
    );
    for (name, fill) in populations {
        for megabytes in [1, 64] {
            let config = config().max_bytes(megabytes << 20);
            let store = Packed::new(&config).expect("what it can keep");
            let full = |n: &u64| {
                let (torrent, endpoint) = fill(*n);
                tell(&store, 0, leecher(torrent, endpoint)).evicted == Evicted::default()
            };
            let count = (0..).take_while(full).count() as u64;
            for n in 0..count {
                let (torrent, endpoint) = fill(n);
                tell(&store, INTERVAL, leecher(torrent, endpoint));
            }
            let kinds: [(&str, Range<u64>); 2] =
                [("made-up, of one network", 0..1), ("of networks of their own", 0..100_000)];
            for (kind, networks) in kinds {
                let mut times: Vec<f64> = (0..20_000_u64)
                    .map(|n| {
                        let network = STRANGERS + (n % networks.end) as u32;
                        let announce = leecher(
                            (1 << 40) + networks.end * 1_000_000 + n,
                            of_24(network, n as u32 % 2048),
                        );
                        let began = Instant::now();
                        tell(&store, INTERVAL + 1, announce);
                        began.elapsed().as_secs_f64() * 1e6
                    })
                    .collect();
                times.sort_by(f64::total_cmp);
                let part = |part: f64| times[(times.len() as f64 * part) as usize];
                // Without the thousandth in which the thread did not run.
                let mean = times[..times.len() * 999 / 1000].iter().sum::<f64>() / times.len() as f64;
                println!(
                    "| {name} | {megabytes} MB | {kind} | {mean:.1} µs | {:.1} µs | {:.1} µs | {:.0} µs |",
                    part(0.5),
                    part(0.999),
                    times[times.len() - 1]
                );
            }
        }
    }
}
