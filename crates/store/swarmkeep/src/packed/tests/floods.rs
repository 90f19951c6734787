//! The floods of docs/reports/packed-store.md, in numbers: `.ci/long floods` prints the tables of that page.

use std::time::Instant;

use super::{bulk::swarms_of, *};

/// Longer than a quarter of the lifetime: a peer that announces again proves that its swarm lives.
const INTERVAL: u64 = 1200;
/// The first network of a flood.
const STRANGERS: u32 = 1 << 20;

type Stranger = Box<dyn Fn(u32) -> Endpoint>;

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

/// A peer of a network of its own; each IPv6 one in a /32 of its own.
pub(super) fn alone(family: Family, network: u32) -> Endpoint {
    match family {
        Family::V4 => of_24(network, 0),
        Family::V6 => of_48(u64::from(network) << 16, 0),
    }
}

/// Strangers of some IPv4 /24, one after another.
fn of_v4(networks: u32) -> Stranger {
    Box::new(move |n| of_24(STRANGERS + n % networks, n / networks % 2048))
}

/// Strangers of an IPv6 prefix of 2^`bits` /48, one after another.
fn of_v6(bits: u32) -> Stranger {
    Box::new(move |n| of_48(0xffff << 16 | u64::from(n % (1 << bits)), (n >> bits) % 2048))
}

fn one_address(n: u32) -> Endpoint {
    of_address(Family::V4, 1, n % 60_000)
}

fn store(config: &RepositoryConfig) -> Packed {
    Packed::new(config).expect("supported limits")
}

/// Announces until one evicts something or is refused. Returns their number.
fn fill_up(store: &Packed, announces: impl IntoIterator<Item = Announce>) -> u64 {
    let fits = |announce: &Announce| {
        let told = tell(store, 0, *announce);
        told.changes.contains(Changes::JOINED) && told.evicted == Evicted::default()
    };
    announces.into_iter().take_while(fits).count() as u64
}

fn peers(store: &Packed, torrent: u64) -> u64 {
    store.scrape(&hash(torrent)).peers()
}

/// Prints the head of a table.
fn head(cells: &str) {
    println!("\n| {cells} |\n|{}", "---|".repeat(1 + cells.matches('|').count()));
}

/// Seeders of two networks in turn are the first in each block that is looked at.
#[test]
fn two_networks_do_not_hide_the_peers_of_living_swarms() {
    let store = store(&config().max_swarms(300));
    let living = |n: u64| (0..40).map(move |m| leecher(n, alone(Family::V4, (40 * n + m) as u32)));
    fill(&store, 0, (0..60).flat_map(living));
    fill(&store, 0, (60..300).map(|n| leecher(n, alone(Family::V4, 40 * n as u32))));
    let stranger = |m: u32| of_24(STRANGERS + m % 2, m / 2);
    fill(&store, 1, (0..60).flat_map(|n| (0..24).map(move |m| leecher(n, stranger(m)).left(0))));
    fill(&store, 2, (300..400).map(|n| leecher(n, alone(Family::V4, 40 * n as u32))));
    (0..60).for_each(|n| assert_eq!(peers(&store, n), 64, "{n}"));
}

/// Some large swarms of one network each do not end the search for a small one.
#[test]
fn a_newcomer_finds_the_unproven_swarms_of_other_shards() {
    let store = store(&config().shards(4).max_swarms(1024));
    let is_first = |n: &u64| store.context.placement.place(&hash(*n)).shard == 0;
    let of = |n: u64, m| leecher(n, of_24(n as u32, m));
    fill(&store, 0, (0..1024).map(|n| of(n, 0)));
    fill(&store, INTERVAL, (0..1024).filter(is_first).map(|n| of(n, 0)));
    let large: Vec<_> = (0..1024).filter(is_first).step_by(16).collect();
    fill(&store, INTERVAL, large.iter().flat_map(|&n| (1..70).map(move |m| of(n, m))));
    for n in (2000..).filter(is_first).take(20) {
        assert_eq!(tell(&store, INTERVAL, of(n, 0)).stats.peers(), 1, "{n}");
    }
    large.iter().for_each(|&n| assert_eq!(peers(&store, n), 70, "{n}"));
}

/// Of 2,000 swarms, all but one in fifty have more peers than go as a whole, and have come back.
#[test]
fn a_newcomer_finds_one_of_few_small_swarms() {
    let store = store(&config().max_swarms(2000));
    let of = |n: u64, m| leecher(n, of_24((n + 10 * u64::from(m)) as u32, m));
    let size = |n| if n % 50 == 0 { 1 } else { 70 };
    for now in [0, INTERVAL] {
        fill(&store, now, (0..2000).flat_map(|n| (0..size(n)).map(move |m| of(n, m))));
    }
    let newcomers = (0..1000).map(|n| leecher(10_000 + n, alone(Family::V4, 10_000 + n as u32)));
    let refused = newcomers.filter(|newcomer| tell(&store, INTERVAL, *newcomer).stats.peers() == 0).count();
    assert!(refused <= 100, "{refused} of 1,000 are refused");
}

/// The made-up swarms of one network are larger than those that go as a whole.
#[test]
fn a_flood_of_large_swarms_displaces_no_small_one() {
    let store = store(&config().max_swarms(1024));
    fill(&store, 0, (0..100).map(|n| leecher(n, alone(Family::V4, n as u32))));
    fill(&store, 1, (0..2000).flat_map(|n| (0..70).map(move |m| leecher(1000 + n, of_24(STRANGERS, m)))));
    let left = (0..100).filter(|&n| peers(&store, n) > 0).count();
    assert!(left >= 99, "{left} of 100");
}

/// In a store full of living swarms of one peer, a flood of one network takes the places of few, and of more
/// that have not come back.
#[test]
fn a_flood_displaces_few_of_the_lone_swarms_that_fill_a_store() {
    for (has_come_back, most) in [(true, 400), (false, 900)] {
        let store = store(&config().max_swarms(10_000));
        for now in [0, INTERVAL].into_iter().skip(usize::from(!has_come_back)) {
            fill(&store, now, (0..10_000).map(|n| leecher(n, alone(Family::V4, n as u32))));
        }
        fill(&store, INTERVAL, (0..10_000).map(|n| leecher(20_000 + n, of_24(STRANGERS, n as u32 % 2048))));
        let lost = (0..10_000).filter(|&n| peers(&store, n) == 0).count();
        assert!(lost <= most, "{lost} of 10,000; has come back: {has_come_back}");
    }
}

/// Peers of a large swarm have come back. A newcomer that is refused takes some of them only where one
/// network has all swarms.
#[test]
fn a_refused_newcomer_takes_nothing_of_a_proven_swarm_that_is_worth_more() {
    for networks in [8, 1] {
        let store = store(&config().max_swarms(8));
        let of = |n: u64, m| leecher(n, of_24((n % networks) as u32, m));
        for now in [0, INTERVAL] {
            fill(&store, now, (0..8).flat_map(|n| (0..100).map(move |m| of(n, m))));
        }
        let evicted = tell(&store, INTERVAL + 1, leecher(100, alone(Family::V4, 100))).evicted.peers;
        assert_eq!(evicted, if networks == 8 { 0 } else { 64 });
    }
}

/// A ninth client behind one address joins a torrent in a full store, and takes the places of few.
#[test]
fn a_peer_beside_its_network_takes_few_places_of_its_swarm() {
    let store = store(&config().max_bytes(1 << 20));
    let of = |n: u64, m| leecher(n, of_24(n as u32, m));
    for now in [0, INTERVAL] {
        fill(&store, now, (0..50).flat_map(|n| (0..8).map(move |m| of(n, m))));
    }
    fill(&store, INTERVAL, (50..60_000).map(|n| of(n, 0)));
    (0..50).for_each(|n| fill(&store, INTERVAL + 1, [of(n, 8), of(70_000 + n, 0)]));
    let left: u64 = (0..50).map(|n| peers(&store, n)).sum();
    assert!(left >= 50 * 7, "{left} of 450");
}

/// Of networks with equally many peers, no remote peer knows which one gives way.
#[test]
fn a_full_bucket_prefers_no_network() {
    for key in [1, 2] {
        let config = RepositoryConfig::new(HashKey::from_bytes([key; 16])).shards(1);
        let store = Packed::new(&config).expect("one shard");
        let near = |endpoint: &Endpoint| store.context.hash.order_of(endpoint) >> 56 == 0;
        let all: Vec<_> = (0..).map(|n| alone(Family::V4, n)).filter(near).take(513).collect();
        let evicted: u64 = all.iter().map(|&peer| tell(&store, 1, leecher(0, peer)).evicted.peers).sum();
        assert_eq!(evicted, 1);
        for is_left in [all[0], all[511]] {
            assert_eq!(tell(&store, 1, stop(0, is_left)).changes, Changes::LEFT);
        }
    }
}

#[test]
fn each_announce_of_a_batch_frees_bytes_for_itself_alone() {
    let store = Packed::new(&config().max_bytes(1 << 20)).expect("supported limits");
    fill(&store, 0, (0..60_000).map(|n| leecher(n, v4((n as u32) << 8))));
    let pairs: Vec<_> = (0..60_000).filter(|&n| store.scrape(&hash(n)).peers() == 1).take(20).collect();
    let of_pair = |n: u64| leecher(n, v4(1 << 30 | (n as u32) << 8)).want(0);
    pairs.iter().for_each(|&n| _ = tell(&store, 1, of_pair(n)));
    let pairs = pairs.into_iter().filter(|&n| store.scrape(&hash(n)).peers() == 2);
    let newcomer = leecher(1_000_000, v4(1 << 30)).want(0);
    let mut requests: Vec<_> = std::iter::once(newcomer)
        .chain(pairs.map(of_pair))
        .map(|announce| Request::new(announce, PeerBuffer::new(&mut [], &mut [])))
        .collect();
    assert!(requests.len() > 10);
    store.announce_batch(&mut requests, at(1), &mut SplitMix64::new(2));
    let evicted = requests.into_iter().map(|request| request.answer.map_or(0, |answer| answer.evicted.peers));
    let evicted: Vec<_> = evicted.collect();
    assert!(evicted[0] > 0 && evicted[1..].iter().all(|&evicted| evicted == 0), "{evicted:?}");
}

/// Made-up torrents of one address fill a store. Then a torrent becomes popular.
#[test]
#[ignore = "takes minutes: `.ci/long floods`"]
fn floods_and_order() {
    head("MB | limit | peers left of the popular torrent, per round | of 20 seeders");
    for (megabytes, rounds) in [(1, 6), (2, 6), (8, 6), (64, 2)] {
        let (bytes, popular) = (megabytes << 20, 20_000 * megabytes as u64);
        let config = config().max_endpoints_per_address(8);
        for (limit, config) in
            [("max_bytes", config.clone().max_bytes(bytes)), ("max_swarms", config.max_swarms(bytes / 30))]
        {
            let (store, mut rows) = (store(&config), [String::new(), String::new()]);
            for now in (0..rounds).map(|round| INTERVAL * round) {
                let made_up = (0..2 * popular).map(|n| leecher(1 + n, of_24(STRANGERS, 1 + n as u32 % 8)));
                fill(&store, now, made_up);
                let left = |n| u64::from(n % (popular / 20) > 0);
                fill(&store, now, (0..popular).map(|n| leecher(0, of_24(n as u32, 0)).left(left(n))));
                sweep(&store, now, 10_000);
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
    head(
        "swarms | peers each | limit | largest loss for one newcomer | smallest swarm afterwards | newcomers kept",
    );
    for (swarms, size, bytes) in
        [(8, 1_200_000, 1 << 26), (8, 100_000, 1 << 22), (20, 10_000, 1 << 20), (200, 500, 1 << 19)]
    {
        let limits = [("max_bytes", config().max_bytes(bytes)), ("max_swarms", config().max_swarms(swarms))];
        for (limit, config) in limits {
            let (store, swarms) = (store(&config), swarms as u64);
            let all = (0..size).flat_map(|n| (0..swarms).map(move |torrent| (n, torrent)));
            fill_up(&store, all.map(|(n, torrent)| leecher(torrent, of_24(n, torrent as u32))));
            let smallest = || (0..swarms).map(|torrent| peers(&store, torrent)).min().expect("some");
            let full = smallest();
            let newcomers = (0..2000).map(|n| leecher(1_000_000 + n, of_24(STRANGERS, 0)));
            let largest = newcomers.map(|newcomer| tell(&store, 1, newcomer).evicted.peers).max();
            let (largest, smallest) = (largest.expect("some"), smallest());
            let kept = (0..2000).filter(|n| peers(&store, 1_000_000 + n) > 0).count();
            assert!(largest <= 64 && smallest * 100 >= full * 95, "{limit}: {largest}, {smallest} of {full}");
            println!("| {swarms} | {full} | {limit} | {largest} | {smallest} | {kept} |");
        }
    }
}

/// A swarm of 900 peers of 900 networks, with room for 1,000. Then 2,048 endpoints of one network come.
#[test]
#[ignore = "takes minutes: `.ci/long floods`"]
fn floods_within_a_swarm() {
    let strangers: [(&str, Stranger); 5] = [
        ("one IPv4 address", Box::new(one_address)),
        ("an IPv4 /24", of_v4(1)),
        ("an IPv6 /48", of_v6(0)),
        ("an IPv6 /32", of_v6(16)),
        ("ten IPv4 /24", of_v4(10)),
    ];
    let config = config().max_peers_per_swarm(1000);
    let eight = config.clone().max_endpoints_per_address(8);
    let limits = [
        ("none", config.clone()),
        ("8 of an address", eight.clone()),
        ("the same; 1 MB, full", eight.clone().max_bytes(1 << 20)),
        ("the same; 64 MB, full", eight.clone().max_bytes(64 << 20)),
        ("the same; 10,000 swarms, full", eight.max_swarms(10_000)),
    ];
    head("strangers | limits | left of 900 | of 900 that announce on");
    for (name, stranger) in strangers {
        for (limit, config) in &limits {
            let left = [false, true].map(|is_back| {
                let store = store(config);
                if limit.ends_with("full") {
                    fill_up(&store, (1..).map(|n| leecher(n, of_24((1 << 22) + n as u32, 0))));
                }
                let honest = |n: u32| {
                    let family = if n.is_multiple_of(3) { Family::V6 } else { Family::V4 };
                    leecher(0, alone(family, n)).left(u64::from(!n.is_multiple_of(5)))
                };
                fill(&store, 0, (0..900).map(honest));
                for n in 0..2048 {
                    let back = (is_back && n % 2 == 0).then(|| honest(n / 2 % 900));
                    fill(&store, 60 + u64::from(n), [leecher(0, stranger(n))].into_iter().chain(back));
                }
                let (_, all) = &swarms_of(&store)[&hash(0)];
                (0..900).filter(|&n| all.contains_key(&honest(n).endpoint)).count()
            });
            assert!(left.iter().all(|&left| left * 100 >= 900 * 95), "{name}, {limit}: {left:?} of 900");
            println!("| {name} | {limit} | {} | {} |", left[0], left[1]);
        }
    }
    head("share of arrivals | share of places");
    // A fifth of the peers that come are of each of two IPv6 /32, which get eight of some 120 places each.
    let two = (40, 20, Some(13));
    for (v6, seeders, of_two) in [(50, 50, None), (10, 20, None), (2, 5, None), (90, 2, None), two] {
        let (store, rng, mut sums) = (store(&config), &mut SplitMix64::new(7) as &mut dyn Random, [0; 2]);
        for n in 0..60_000 {
            let family = if rng.below(100) < v6 { Family::V6 } else { Family::V4 };
            let left = u64::from(rng.below(100) >= seeders);
            let endpoint = match of_two {
                Some(_) if family == Family::V6 => {
                    let [provider, customer] = [n % 2, n * 40_503 % 65_536].map(u64::from);
                    of_48(0xfffe_0000 + 65_536 * provider + customer, 0)
                }
                _ => alone(family, n),
            };
            tell(&store, u64::from(n / 20), leecher(0, endpoint).left(left));
            if n >= 20_000 && n % 1000 == 0 {
                let totals = store.totals();
                sums[0] += totals.v6.peers();
                sums[1] += totals.v4.seeders + totals.v6.seeders;
            }
        }
        let shares = sums.map(|sum| sum as f64 / 400.0);
        for (share, expected) in shares.into_iter().zip([of_two.unwrap_or(v6), seeders]) {
            assert!((share / expected as f64 - 1.0).abs() <= 0.1, "{share} % where {expected} % came");
        }
        let of_two = of_two.map_or("", |_| " of two /32");
        println!("| IPv6 {v6} %{of_two}, seeders {seeders} % | {:.1} %, {:.1} % |", shares[0], shares[1]);
    }
}

const LIMITS: [&str; 2] = ["max_bytes", "max_swarms"];

/// The living swarms that a flood displaces, and the cost of an announce: `announces` for each made-up swarm,
/// and again after that many of forty steps of a minute. For a limit of 5,000 swarms 1,200 are living, and
/// 24,000 at most, of 1 to 40 peers, each peer from a network of its own and announced once.
fn displaced(
    (limit, most): (&str, usize),
    stranger: &Stranger,
    announces: u32,
    again: Option<u32>,
) -> (usize, String) {
    let config = if limit == "max_bytes" { config().max_bytes(84 * most) } else { config().max_swarms(most) };
    let (store, size, living) = (store(&config), |n: u64| 1 + n % 40, (most as u64 * 6 / 25).min(24_000));
    for (n, m) in (0..living).flat_map(|n| (0..size(n)).map(move |m| (n, m))) {
        let family = if n % 4 == 0 { Family::V6 } else { Family::V4 };
        tell(&store, 0, leecher(n, alone(family, (40 * n + m) as u32)));
    }
    let each_step = (most as u32 * 3 / 5 / announces.min(4)).min(40_000);
    let (began, mut told) = (Instant::now(), 0_u32);
    for step in 0..40_u32 {
        let repeated = again.and_then(|steps| step.checked_sub(steps));
        for part in [Some(step), repeated].into_iter().flatten().filter(|part| *part < 20) {
            for n in each_step * part..each_step * (part + 1) {
                let of_swarm =
                    (0..announces).map(|m| leecher(1_000_000 + u64::from(n), stranger(n * announces + m)));
                fill(&store, 1 + 60 * u64::from(step), of_swarm);
                told += announces;
            }
        }
    }
    let each = began.elapsed().as_secs_f64() * 1e6 / f64::from(told);
    let lost: Vec<u64> = (0..living).filter(|&n| peers(&store, n) < size(n)).map(size).collect();
    (lost.len(), format!(" {} ≤ {}; {each:.1} µs |", lost.len(), lost.iter().max().unwrap_or(&0)))
}

/// The living swarms that a flood of made-up torrents displaces.
#[test]
#[ignore = "takes minutes: `.ci/long floods`"]
fn floods_from_few_networks_displace_few_swarms() {
    let print = |name, stranger: Stranger, again, announces: &[u32], most: [usize; 2]| {
        let mut all = Vec::new();
        for (limit, most) in LIMITS.into_iter().zip(most) {
            let mut row = format!("| {name} | {limit} |");
            for announces in announces {
                let (lost, cell) = displaced((limit, 5000), &stranger, *announces, again);
                row += &cell;
                all.push(lost);
                assert!(lost <= most, "{row}");
            }
            println!("{row}");
        }
        all
    };
    head("networks of the flood | limit | 1 announces a made-up swarm | 4 do | 10 do | 40 do | 70 do");
    let of_v4 = [(1, 60), (2, 60), (10, 60), (100, 300), (1000, 900)].map(|(networks, most)| {
        print(format!("{networks} IPv4 /24"), of_v4(networks), None, &[1, 4, 10, 40, 70], [most; 2])
    });
    let of_v6 = [0, 8, 10, 16].map(|bits| {
        print(format!("an IPv6 /{}", 48 - bits), of_v6(bits), None, &[1, 4, 10, 40, 70], [60; 2])
    });
    let [of_ten, of_32] = [&of_v4[2], &of_v6[3]].map(|lost| lost.iter().sum::<usize>());
    assert!(of_32 <= of_ten, "{of_32} by an IPv6 /32, {of_ten} by ten IPv4 /24");
    head("one IPv4 address announces a made-up swarm | limit | from 1 port | 2 ports | 16 ports");
    for (name, again) in [("once", None), ("again at once", Some(0)), ("again after 20 minutes", Some(20))] {
        _ = print(name.into(), Box::new(one_address), again, &[1, 2, 16], [12, 0]);
    }
}

/// The same in larger stores, for the wide networks.
#[test]
#[ignore = "takes minutes: `.ci/long floods`"]
fn floods_from_a_prefix_displace_few_swarms_of_large_stores() {
    head("swarms, or 84 bytes each | limit | announces a made-up swarm | ten IPv4 /24 | an IPv6 /32");
    let mut sums = [0; 2];
    for (most, announces) in [(20_000, 4), (20_000, 40), (80_000, 4), (80_000, 10), (800_000, 10)] {
        for limit in LIMITS {
            print!("| {most} | {limit} | {announces} |");
            for (sum, stranger) in sums.iter_mut().zip([of_v4(10), of_v6(16)]) {
                let (lost, cell) = displaced((limit, most), &stranger, announces, None);
                *sum += lost;
                print!("{cell}");
            }
            println!();
        }
    }
    assert!(sums[1] <= sums[0], "{sums:?} by ten IPv4 /24, and by an IPv6 /32");
}

/// The losses of an honest provider with customers in one /32, in a store that is full of honest swarms.
#[test]
#[ignore = "takes minutes: `.ci/long floods`"]
fn floods_and_an_honest_provider() {
    head(
        "share of the peers | limit | swarms that only it keeps alive, left | swarms of others of the same size, left",
    );
    let limits = [("max_swarms", config().max_swarms(20_000)), ("max_bytes", config().max_bytes(1_400_000))];
    for (percent, (limit, config)) in
        [1, 5, 20].into_iter().flat_map(|of| limits.each_ref().map(|limit| (of, limit)))
    {
        let store = store(config);
        let is_own = |n| n % 100 < percent;
        for (now, n) in [0, INTERVAL].into_iter().flat_map(|now| (0..20_000).map(move |n| (now, n))) {
            let customer =
                |m| if is_own(n) { (0xffff << 16) + (3 * n + m) % 65_536 } else { (3 * n + m) << 16 };
            fill(&store, now, (0..1 + n / 100 % 3).map(|m| leecher(n, of_48(customer(m), 0))));
        }
        // Ordinary torrents of one peer each, of any network.
        let rng: &mut dyn Random = &mut SplitMix64::new(9);
        let mut any = || of_48((100_000 + rng.below(1 << 28) as u64) << 16, 0);
        fill(&store, INTERVAL + 1, (0..20_000).map(|n| leecher(1_000_000 + n, any())));
        let share = |own: bool| {
            let all = || (0..20_000).filter(|&n| is_own(n) == own);
            100.0 * all().filter(|&n| peers(&store, n) > 0).count() as f64 / all().count() as f64
        };
        println!("| {percent} % | {limit} | {:.1} % | {:.1} % |", share(true), share(false));
    }
}

/// The time of a new swarm in a full store.
#[test]
#[ignore = "takes minutes: `.ci/long floods`"]
fn floods_and_their_cost() {
    head("store full of | limit | newcomer | mean | median | p99.9 | longest");
    let mut first = None;
    for (name, size, networks) in [
        ("swarms of one peer", 1, 1),
        ("swarms of 8 networks", 8, 8),
        ("swarms of 60 of one network", 60, 1),
        ("swarms of 146 of one network", 146, 1),
        ("swarms of 146 of two in turn", 146, 2),
        ("swarms of 400 of one network", 400, 1),
    ] {
        for (limit, config) in [
            ("1 MB", config().max_bytes(1 << 20)),
            ("64 MB", config().max_bytes(64 << 20)),
            ("10,000 swarms", config().max_swarms(10_000)),
        ] {
            let store = store(&config);
            let announce = |n: u64| {
                let (network, nth) = (n / size * networks + n % networks, n % size / networks);
                leecher(n / size, of_24(network as u32, nth as u32))
            };
            let count = fill_up(&store, (0..).map(announce));
            fill(&store, INTERVAL, (0..count).map(announce));
            for (kind, networks) in [("made-up, of one network", 1), ("of networks of their own", 100_000)] {
                let time = |n: u64| {
                    let endpoint = of_24(STRANGERS + (n % networks) as u32, n as u32 % 2048);
                    let announce = leecher((1 << 40) + networks * 1_000_000 + n, endpoint);
                    let began = Instant::now();
                    tell(&store, INTERVAL + 1, announce);
                    began.elapsed().as_secs_f64() * 1e6
                };
                let mut times: Vec<f64> = (0..20_000).map(time).collect();
                times.sort_by(f64::total_cmp);
                let [median, thousandth, longest] = [10_000, 19_980, 19_999].map(|nth: usize| times[nth]);
                // Without the thousandth in which the thread did not run.
                let mean = times[..19_980].iter().sum::<f64>() / 20_000.0;
                println!(
                    "| {name} | {limit} | {kind} | {mean:.1} µs | {median:.1} µs | {thousandth:.1} µs | {longest:.0} µs |"
                );
                // The dearest takes ten times as long as that of swarms of one peer.
                assert!(median <= 32.0 * *first.get_or_insert(median));
            }
        }
    }
}
