//! Tests from inside: accounts of bytes must agree with the store, and work must be bounded.

mod bulk;
mod floods;

use std::{ops::Range, sync::atomic::Ordering::Relaxed, time::Duration};

use super::{
    bounds::{AFTER_SPLITS, MAX_GROWTH, SLACK},
    hash::Key,
    place::LeafLocation,
    *,
};
use crate::{
    AnnounceEvent, Budget, Changes, Endpoint, Evicted, Family, HashKey, PeerRecord, Records, Request,
    Retention, Role, SplitMix64, SwarmStats, SwarmSummary,
};

fn hash(n: u64) -> InfoHash {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&n.to_be_bytes());
    InfoHash::new(bytes)
}

fn v4(n: u32) -> Endpoint {
    let [a, b, c, d] = n.to_be_bytes();
    Endpoint::try_from([10 | a, b, c, d, 26, 225]).expect("a valid endpoint")
}

fn v6(n: u32) -> Endpoint {
    let mut bytes = [0x20; 18];
    bytes[4..8].copy_from_slice(&n.to_be_bytes());
    Endpoint::try_from(bytes).expect("a valid endpoint")
}

/// Endpoint `n` of an address: a port, or an interface of a /64.
fn of_address(family: Family, address: u32, n: u32) -> Endpoint {
    let n = (n as u16 + 1).to_be_bytes();
    match family {
        Family::V4 => {
            let [.., c, d] = address.to_be_bytes();
            Endpoint::try_from([11, 0, c, d, n[0], n[1]]).expect("a valid endpoint")
        }
        Family::V6 => {
            let mut bytes = [0x21; 18];
            bytes[2..6].copy_from_slice(&address.to_be_bytes());
            bytes[10..12].copy_from_slice(&n);
            Endpoint::try_from(bytes).expect("a valid endpoint")
        }
    }
}

/// Endpoint `n` if each IPv4 address, or each IPv6 /48, /56 and /64, has its most endpoints, at `most` per
/// address.
fn of_full(family: Family, n: u32, most: u32) -> Endpoint {
    match family {
        Family::V4 => of_address(family, n / most, n % most),
        Family::V6 => of_subnet(n / (25 * most), subnet(n / most % 25), n % most),
    }
}

/// One of 25 subnets of a /48: five of a /56.
fn subnet(nth: u32) -> u16 {
    (((nth / 5) << 8) | (nth % 5)) as u16
}

/// Endpoint `n` of a /64 in a /48.
fn of_subnet(network: u32, subnet: u16, n: u32) -> Endpoint {
    let Endpoint::V6(first) = of_address(Family::V6, network, n) else { unreachable!("it is of V6") };
    let mut bytes = *first.as_bytes();
    bytes[6..8].copy_from_slice(&subnet.to_be_bytes());
    Endpoint::try_from(bytes).expect("a valid endpoint")
}

fn config() -> RepositoryConfig {
    RepositoryConfig::new(HashKey::from_bytes(*b"a secret for one"))
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(1_000_000 + seconds)
}

fn tell(store: &Packed, seconds: u64, announce: Announce) -> Announced {
    let mut nobody = PeerBuffer::new(&mut [], &mut []);
    store.announce(&announce.want(0), at(seconds), &mut SplitMix64::new(seconds), &mut nobody)
}

fn fill(store: &Packed, now: u64, announces: impl IntoIterator<Item = Announce>) {
    announces.into_iter().for_each(|announce| _ = tell(store, now, announce));
}

/// Sweeps to the end, with `budget` visits in each step.
fn sweep(store: &Packed, seconds: u64, budget: usize) {
    while !store.sweep(at(seconds), Retention::DropEmpty, Budget::peers(budget)).pass_complete {}
}

fn leecher(torrent: u64, endpoint: Endpoint) -> Announce {
    Announce::new(hash(torrent), endpoint).left(1)
}

fn stop(torrent: u64, endpoint: Endpoint) -> Announce {
    leecher(torrent, endpoint).event(AnnounceEvent::Stopped)
}

/// Each torrent with each number of its peers.
fn pairs(torrents: Range<u64>, peers: u32) -> impl Iterator<Item = (u64, u32)> {
    torrents.flat_map(move |torrent| (0..peers).map(move |n| (torrent, n)))
}

fn record(endpoint: Endpoint, role: Role, seconds: u64) -> PeerRecord {
    PeerRecord { endpoint, role, last_announce: at(seconds), details: None }
}

impl Packed {
    fn recount(&self) -> u64 {
        let shards: usize = self.shards.iter().map(|shard| shard.0.write().recount()).sum();
        (size_of_val(&*self.shards) + shards + self.context.hints.recount()) as u64
    }
}

#[test]
fn the_account_of_bytes_agrees_with_the_store_after_any_change() {
    const STEPS: usize = if cfg!(miri) { 600 } else { 40_000 };
    let lifetime = Duration::from_secs(500);
    let unlimited = config().shards(2).lifetime(lifetime);
    let limited = unlimited.clone().max_bytes(1 << 18).max_peers_per_swarm(90);
    let few_endpoints = unlimited.clone().max_bytes(1 << 18).max_endpoints_per_address(2);
    let many_endpoints = unlimited.clone().max_endpoints_per_address(70);
    for config in [unlimited, limited, few_endpoints, many_endpoints] {
        let crowded = config.limits().endpoints_per_address.is_some();
        let store = Packed::new(&config).expect("supported limits");
        let (mut rng, mut now) = (SplitMix64::new(3), 0);
        let rng: &mut dyn Random = &mut rng;
        for step in 0..STEPS {
            let torrent = if rng.below(3) == 0 { rng.below(4) } else { rng.below(400) } as u64;
            let endpoint =
                if rng.below(3) == 0 { v6(rng.below(150) as u32) } else { v4(rng.below(300) as u32) };
            let endpoint = if crowded && rng.below(2) == 0 {
                of_address(endpoint.family(), rng.below(3) as u32, rng.below(300) as u32)
            } else {
                endpoint
            };
            match rng.below(200) {
                0..5 => drop(store.sweep(
                    at(now),
                    if step % 2 == 0 { Retention::DropEmpty } else { Retention::KeepDownloaded },
                    Budget::peers(1 + rng.below(500)),
                )),
                5 => drop(store.remove(&hash(torrent))),
                6 => {
                    let peers: Vec<_> = (0..rng.below(100) as u32)
                        .map(|n| {
                            let role = if n % 3 == 0 { Role::Seeder } else { Role::Leecher };
                            record(if n % 2 == 0 { v4(n) } else { v6(n) }, role, now)
                        })
                        .collect();
                    let stats = SwarmStats { downloaded: rng.below(400) as u32, ..SwarmStats::default() };
                    if step % 2 == 0 {
                        store.restore(&SwarmSummary { info_hash: hash(torrent), stats }, &peers, at(now));
                    } else {
                        let mut records = Records::new(at(now));
                        records.push(&hash(torrent), stats.downloaded, &peers);
                        store.import(&[records], at(now));
                    }
                }
                7..12 => drop(store.add_downloads(&hash(torrent), rng.below(300) as u32)),
                12 => now += [1, 30, 200, 5000][rng.below(4)],
                _ => {
                    let event = AnnounceEvent::of_number(rng.below(4) as u32).expect("four events");
                    tell(&store, now, leecher(torrent, endpoint).event(event).left(rng.below(2) as u64));
                }
            }
            if step % 500 == 499 {
                assert_eq!(store.memory().bytes, store.recount(), "step {step}");
            }
        }
    }
}

#[test]
fn no_announce_takes_more_than_is_reserved() {
    let populations: [fn(u64) -> Announce; 6] = [
        |n| leecher(n, v4(n as u32)),
        // Swarms that are just large enough for tables.
        |n| leecher(n / 100, if n % 3 == 0 { v6(n as u32) } else { v4(n as u32) }),
        |n| leecher(n / 150, v4(n as u32)),
        |n| leecher(n / 60, v6(n as u32)),
        |n| leecher(0, v4(n as u32)).left(n % 2),
        |n| leecher(0, v6(n as u32)).left(n % 2),
    ];
    for told in populations {
        let store = Packed::new(&config().shards(1)).expect("one shard");
        // Hints are reserved by themselves.
        let held = || store.memory().bytes - store.context.hints.recount() as u64;
        let leaves = || store.shards[0].0.write().leaves();
        let mut before = (held(), leaves());
        for n in 0..200_000 {
            tell(&store, 1, told(n));
            let after = (held(), leaves());
            let most = if after.1 == before.1 { AFTER_SPLITS } else { MAX_GROWTH };
            let grown = after.0.saturating_sub(before.0);
            assert!(grown <= most as u64, "{grown} bytes for {:?}", told(n));
            before = after;
        }
    }
}

#[test]
fn populated_swarms_outlive_a_flood_however_few_swarms_a_shard_has() {
    let store = Packed::new(&config().shards(4096).max_swarms(1000)).expect("supported limits");
    // Each peer is from a network of its own.
    let populated = pairs(0..100, 50).map(|(torrent, n)| (torrent, 50 * torrent as u32 + n));
    fill(&store, 1, populated.map(|(torrent, n)| leecher(torrent, v4(n << 8))));
    for n in 0..20_000 {
        tell(&store, 10 + n / 100, leecher(1_000_000 + n, v4((5000 + n as u32) << 8)));
    }
    let left = (0..100).filter(|&torrent| store.scrape(&hash(torrent)).peers() == 50).count();
    assert_eq!(left, 100);
}

#[test]
fn a_batch_waits_for_announces_that_may_displace_its_swarms() {
    // Newcomers to a shard of living swarms displace flood in the next shards. Then the peers of the flood
    // stop.
    let build = || {
        let store = Packed::new(&config().shards(4).max_swarms(1024)).expect("supported limits");
        for n in 0..1024 {
            tell(&store, 0, leecher(n, v4(n as u32)));
            if store.context.placement.place(&hash(n)).shard == 0 {
                tell(&store, 1, leecher(n, v4(n as u32)));
            }
        }
        store
    };
    let [single, batched, probe] = [(); 3].map(|()| build());
    let newcomers = (1_000_000..).filter(|&n| probe.context.placement.place(&hash(n)).shard == 0).take(8);
    let joins: Vec<_> = newcomers.flat_map(|n| [leecher(n, v4(n as u32)); 2]).collect();
    fill(&probe, 2, joins.iter().copied());
    let displaced = (0..1024).filter(|&n| probe.scrape(&hash(n)).peers() == 0);
    let stops = displaced.map(|n| stop(n, v4(n as u32)));
    let announces: Vec<_> = joins.iter().copied().chain(stops).collect();
    assert_eq!(announces.len(), 24);

    let mut requests: Vec<_> = announces
        .iter()
        .map(|announce| Request::new(announce.want(0), PeerBuffer::new(&mut [], &mut [])))
        .collect();
    batched.announce_batch(&mut requests, at(2), &mut SplitMix64::new(2));
    for (announce, request) in announces.into_iter().zip(requests) {
        assert_eq!(request.answer, Some(tell(&single, 2, announce)));
    }
    assert_eq!(single.totals(), batched.totals());
}

/// All swarms are worth more than a newcomer, and are evicted for newcomers one after another.
#[test]
fn as_a_last_resort_the_least_swarm_of_all_shards_goes_each_time() {
    // Fewer than a sample in all, so all shards are searched.
    const WORTHY: Range<u64> = 100..140;
    // More than a quarter of the lifetime later, they have shown that they live.
    const LATER: u64 = 1000;
    let populate = |store: &Packed| {
        // Each peer is from a network of its own.
        fill(store, 0, (100_000..110_000).map(|n| leecher(0, v4(n << 8))));
        for now in [0, LATER] {
            fill(store, now, (1..17).map(|n| leecher(n, v4((n as u32 + 5000) << 8))));
            let worthy = pairs(WORTHY, 8).map(|(torrent, n)| (torrent, 10_000 + 8 * torrent as u32 + n));
            fill(store, now, worthy.map(|(torrent, n)| leecher(torrent, v4(n << 8))));
        }
    };
    let unlimited = Packed::new(&config().shards(4)).expect("supported limits");
    populate(&unlimited);
    let most = unlimited.memory().bytes as usize + SLACK + MAX_GROWTH;
    let store = Packed::new(&config().shards(4).max_bytes(most)).expect("supported limits");
    populate(&store);
    let mut more = 110_000..;
    let is_there = |n: &u64| store.scrape(&hash(*n)).peers() > 0;
    for newcomer in 1_000_000.. {
        while store.memory().bytes as usize + SLACK <= most {
            tell(&store, LATER, leecher(0, v4(more.next().expect("more") << 8)));
        }
        let least = (1..17).filter(is_there).count();
        if least == 0 {
            break;
        }
        let told = tell(&store, LATER, leecher(newcomer, v4(newcomer as u32 * 256)));
        assert!(told.evicted.swarms > 0 && is_there(&newcomer), "{told:?}");
        store.remove(&hash(newcomer));
        let worthy = WORTHY.filter(is_there).count();
        let left = (1..17).filter(is_there).count();
        assert!(
            left < least && worthy == 40,
            "{told:?}, of 40 {worthy} are left, and {left} of {least} others"
        );
    }
}

#[test]
fn an_announce_or_an_import_splits_few_leaves_however_many_a_sweep_has_filled() {
    let mut records = Records::new(at(1500));
    records.push(&hash(1_000_000), 0, &[record(v4(1), Role::Seeder, 1500)]);
    let records = [records];
    let announce = |store: &Packed| _ = tell(store, 1500, leecher(1_000_000, v4(1)));
    // An import splits before a swarm enters, and while it does.
    let import = |store: &Packed| _ = store.import(&records, at(1500));
    for (most, work) in [(4, &announce as &dyn Fn(&Packed)), (8, &import)] {
        let config = config().shards(1).lifetime(Duration::from_secs(1000));
        let store = Packed::new(&config).expect("one shard");
        for (seconds, peers) in [(1, 240), (900, 16)] {
            fill(&store, seconds, pairs(0..1000, peers).map(|(torrent, n)| leecher(torrent, v4(n))));
        }
        sweep(&store, 1500, 100_000);
        let before = store.lock(0).leaves();
        work(&store);
        let after = store.lock(0).leaves();
        assert!((1..=most).contains(&(after - before)), "from {before} to {after} leaves at once");
    }
}

/// The account itself checks that no operation takes more than it has reserved.
#[test]
fn leaves_split_and_merge_within_the_reservation() {
    for swarms in [700, 2050] {
        let store = limited();
        fill(&store, 1, pairs(0..swarms, 54).map(|(torrent, n)| leecher(torrent, v6(n))));
        fill(&store, 900, pairs(0..swarms, 17).map(|(torrent, n)| leecher(torrent, v4(n))));
        sweep(&store, 1500, 1);
        let before = store.memory().bytes;
        leaving(&store, MAX_GROWTH, || tell(&store, 1500, leecher(1_000_000, v4(1))));
        let grown = store.memory().bytes.saturating_sub(before);
        assert!(grown <= (MAX_GROWTH - AFTER_SPLITS) as u64 + 64, "{grown} bytes");
        // Then merge, across the length at which slots become a byte longer.
        fill(&store, 1501, (0..20_000).map(|torrent| leecher(torrent, v4(1))));
        for torrent in (0..20_000).filter(|torrent| torrent % 8 > 0) {
            store.remove(&hash(torrent));
            if torrent % 200 == 1 {
                sweep(&store, 1501, 1);
            }
        }
        assert_eq!(store.memory().bytes, store.recount());
    }
}

/// A store of one shard with room for one large swarm and others.
fn limited() -> Packed {
    let config = config().shards(1).lifetime(Duration::from_secs(1000));
    Packed::new(&config.max_bytes(LIMIT)).expect("one shard")
}

const LIMIT: usize = 1 << 24;

/// Lets others take all bytes but `free` while `work` runs.
fn leaving<R>(store: &Packed, free: usize, work: impl FnOnce() -> R) -> R {
    let others = (LIMIT - free) as u64 - store.memory().bytes;
    store.context.bytes.fetch_add(others, Relaxed);
    let result = work();
    store.context.bytes.fetch_sub(others, Relaxed);
    result
}

/// The account itself checks that no operation takes more than it has reserved.
#[test]
fn buckets_split_and_merge_within_the_reservation() {
    for (endpoint, seeders, leechers) in
        [(v4 as fn(u32) -> Endpoint, 10_000, 20_000), (v6, 10_000, 20_000), (v6, 4_000, 1)]
    {
        let store = limited();
        let peers = seeders + leechers;
        fill(&store, 1, (0..seeders).map(|n| leecher(0, endpoint(n)).left(0)));
        fill(&store, 300, (seeders..peers).map(|n| leecher(0, endpoint(n))));
        let (split, _) = store.lock(0).buckets();
        for n in peers..peers + 3_000 {
            let told = leaving(&store, MAX_GROWTH, || tell(&store, 500, leecher(0, endpoint(n))));
            assert!(told.evicted.peers <= 8, "two shares of peers, for a few bytes: {told:?}");
        }
        let (merged, fullest) = store.lock(0).buckets();
        assert!(split >= 80 && merged < split && fullest <= 400, "{split}, {merged} buckets, {fullest}");
        for n in 0..peers / 2 {
            leaving(&store, 0, || tell(&store, 500, stop(0, endpoint(2 * n))));
        }
        leaving(&store, 0, || sweep(&store, 1200, 1));
        assert_eq!(store.memory().bytes, store.recount());
    }
}

/// The account itself checks that no announce takes more than it has reserved.
#[test]
fn a_bucket_of_many_peers_grows_within_the_reservation() {
    let config = config().shards(1).max_endpoints_per_address(32).max_bytes(LIMIT);
    let store = Packed::new(&config).expect("one shard");
    // The endpoints of a /48 share 25 places, so some buckets are far above the mean.
    fill(&store, 1, (0..60_000).map(|n| leecher(0, of_full(Family::V6, n, 30))));
    assert!(store.lock(0).buckets().1 >= 210, "{}", store.lock(0).buckets().1);
    for n in 0..60_000 / 30 {
        let newcomer = of_subnet(n / 25, subnet(n % 25), 30);
        leaving(&store, MAX_GROWTH, || tell(&store, 1, leecher(0, newcomer)));
    }
}

/// The account itself checks that no announce takes more than it has reserved.
#[test]
fn a_swarm_with_a_long_download_count_becomes_large_within_the_reservation() {
    for peers in 100..=146 {
        let config = config().shards(1).max_endpoints_per_address(1).max_bytes(LIMIT);
        let store = Packed::new(&config).expect("one shard");
        fill(&store, 1, (0..peers).map(|n| leecher(0, of_address(Family::V4, n, 0))));
        store.add_downloads(&hash(0), 300);
        tell(&store, 1, leecher(0, of_address(Family::V4, 0, 1)));
        assert_eq!(store.memory().bytes, store.recount());
    }
}

#[test]
fn an_announce_that_needs_no_bytes_evicts_nothing() {
    let store = limited();
    fill(&store, 1, (0..2_000_u64).map(|n| leecher(n.min(1_000), v4(n as u32))));
    let before = store.totals();
    leaving(&store, 0, || {
        for torrent in [0, 1_000] {
            assert_eq!(tell(&store, 1, stop(torrent, v4(torrent as u32))).changes, Changes::LEFT);
        }
        assert!(store.add_downloads(&hash(1_000), 5));
    });
    assert_eq!(store.totals().evicted, before.evicted);
}

#[test]
fn a_sweep_removes_a_large_swarm_without_peers_also_where_no_byte_is_free() {
    const LIMIT: usize = 1 << 20;
    for others in 0..16 {
        let store = Packed::new(&config().shards(1).max_bytes(LIMIT)).expect("supported limits");
        fill(&store, 1, (1..=others).map(|torrent| leecher(torrent, v4(1))));
        fill(&store, 1, (0..60).map(|n| leecher(0, v6(n))));
        // Leaves no spare byte in the leaf.
        sweep(&store, 1, 1);
        fill(&store, 1, (0..60).map(|n| stop(0, v6(n))));
        store.context.bytes.fetch_add(LIMIT as u64 - store.memory().bytes, Relaxed);
        sweep(&store, 1, 1);
        assert_eq!(store.totals().swarms, others, "of {others} others");
    }
}

#[test]
fn a_hold_of_an_export_or_a_sweep_passes_few_leaves_however_empty() {
    let store = Packed::new(&config().shards(1)).expect("one shard");
    let leaves = || store.lock(0).leaves();
    fill(&store, 1, (0..20_000).map(|n| leecher(n, v4(1))));
    (0..20_000).for_each(|n| _ = store.remove(&hash(n)));
    let before = leaves();
    assert!(before > 100);
    assert!(bulk::read_out(&store, 1, 1).len() >= before / 2);
    assert!(bulk::read_out(&store, 1, 20).len() >= before / 21);
    store.sweep(at(1), Retention::DropEmpty, Budget::peers(1));
    assert!(before - leaves() <= 4, "from {before} to {} leaves at once", leaves());
    tell(&store, 1, leecher(7, v4(7)));
    for budget in [1, 7, 1000, usize::MAX] {
        assert_eq!(bulk::swarms_in(&bulk::read_out(&store, 1, budget)), bulk::swarms_of(&store));
    }
}

#[test]
fn one_join_costs_a_swarm_one_peer_at_most_where_others_can_go() {
    let store = Packed::new(&config().max_bytes(1 << 20)).expect("supported limits");
    fill(&store, 100, (0..300).map(|n| leecher(0, v4(n))));
    let ten = (1..).flat_map(|torrent| (0..10).map(move |n| leecher(torrent, v4(n))));
    ten.map(|announce| tell(&store, 0, announce)).find(|told| told.evicted != Evicted::default());
    for n in 300..400 {
        let family = if n % 2 == 0 { Family::V4 } else { Family::V6 };
        let told = tell(&store, 200, leecher(0, floods::alone(family, n)));
        assert!(told.stats.peers() >= u64::from(n), "{told:?}");
    }
}

/// Also if each new byte costs an eviction: an endpoint takes the place of another of its address unchanged.
#[test]
fn an_address_at_its_limit_displaces_only_itself_in_a_store_full_of_bytes() {
    const MOST: usize = 4;
    for family in [Family::V4, Family::V6] {
        let config = config().max_bytes(1 << 20).max_endpoints_per_address(MOST);
        let store = Packed::new(&config).expect("supported limits");
        let own = |n| of_address(family, 0, n);
        // A swarm of one, of a few, of some dozens, and in tables; then others, until one of them has to go.
        let sizes = [0, 10, 30, 3000];
        for (torrent, size) in (0..).zip(sizes) {
            let peers = (0..size).map(v4).chain((0..MOST as u32).map(own));
            fill(&store, 1, peers.flat_map(|peer| [leecher(torrent, peer); 2]));
        }
        let others = (100..).map(|torrent| leecher(torrent, v4(torrent as u32)));
        others.map(|other| tell(&store, 1, other)).find(|told| told.evicted != Evicted::default());
        let (before, mut displaced) = (store.totals(), 0);
        let rng: &mut dyn Random = &mut SplitMix64::new(4);
        for n in MOST as u32..3000 {
            for torrent in 0..sizes.len() as u64 {
                let told = tell(&store, 2, leecher(torrent, own(n)).left(rng.below(2) as u64));
                assert_eq!(told.evicted, Evicted::peers(1), "torrent {torrent}, endpoint {n}");
                displaced += 1;
            }
            assert!(store.memory().bytes <= 1 << 20);
        }
        let after = store.totals();
        assert_eq!((after.peers(), after.swarms), (before.peers(), before.swarms));
        assert_eq!(after.evicted.peers - before.evicted.peers, displaced);
        for (torrent, size) in (0..).zip(sizes) {
            assert_eq!(store.scrape(&hash(torrent)).peers(), u64::from(size) + MOST as u64);
        }
        assert_eq!(store.memory().bytes, store.recount());
    }
}

/// Buckets that hold all endpoints of some addresses hold few addresses.
#[test]
fn no_bucket_is_far_from_the_mean_where_each_address_has_all_its_endpoints() {
    let limits = [(Family::V4, [8, 32, 100]), (Family::V6, [1, 8, 32])];
    for (family, most) in limits.into_iter().flat_map(|(family, all)| all.map(|most| (family, most))) {
        let store = Packed::new(&config().max_endpoints_per_address(most)).expect("supported limits");
        fill(&store, 1, (0..100_000).map(|n| leecher(0, of_full(family, n, most as u32))));
        assert_eq!((store.totals().peers(), store.totals().evicted), (100_000, Evicted::default()));
        let at = store.context.placement.place(&hash(0));
        let fullest = store.lock(at.shard).buckets().1;
        assert!(fullest <= 400, "{fullest} peers in a bucket, of {most} an address over {family:?}");
    }
}

/// Remote peers learn from answers which of their endpoints are near each other.
#[test]
fn a_bucket_that_strangers_fill_has_room_for_others() {
    for family in [Family::V4, Family::V6] {
        let store = Packed::new(&config().shards(1)).expect("one shard");
        let near = |endpoint: &Endpoint| store.context.hash.order_of(endpoint) >> 56 == 0;
        let neighbour = (0..).map(|n| of_address(family, 0xff00, n)).find(near).expect("one of 256");
        let strangers = (0..).map(|n| of_address(family, n % 20, n / 20)).filter(near);
        let strangers: Vec<_> = strangers.take(1500).collect();
        tell(&store, 1, leecher(0, neighbour));
        let mut evicted = 0;
        for (n, stranger) in strangers.iter().enumerate() {
            // Some are leechers that become seeders.
            let announce = leecher(0, *stranger).left(u64::from(n % 2 == 0));
            evicted += tell(&store, 2, announce).evicted.peers;
            evicted += tell(&store, 2, announce.left(0)).evicted.peers;
        }
        let fullest = store.lock(0).buckets().1;
        assert!(fullest == 512 && evicted == store.totals().evicted.peers, "{fullest} in one bucket");
        assert_eq!(store.totals().peers() + evicted, 1501);
        let gone = tell(&store, 2, stop(0, neighbour));
        assert_eq!(gone.changes, Changes::LEFT, "another network has given way");
        assert_eq!(store.memory().bytes, store.recount());
    }
}

#[test]
fn a_table_shrinks_although_a_network_has_all_its_endpoints_in_one_bucket() {
    for limit in [usize::MAX, 1 << 22] {
        let config = config().shards(1).max_endpoints_per_address(8).max_bytes(limit);
        let store = Packed::new(&config).expect("one shard");
        let place = |endpoint: &Endpoint| store.context.hash.order_of(endpoint);
        let first = place(&of_subnet(0, 0, 0));
        for nth in 0..25 {
            let own = (0..).map(|n| of_subnet(0, subnet(nth), n)).filter(|own| place(own) == first);
            fill(&store, 1, own.take(8).map(|own| leecher(0, own)));
        }
        let other = |n: u32| of_full(Family::V6, 200_000 + n, 8);
        fill(&store, 1, (0..20_000).map(|n| leecher(0, other(n))));
        assert!(store.lock(0).buckets().1 >= 200);
        fill(&store, 1, (100..20_000).map(|n| stop(0, other(n))));
        sweep(&store, 2, 100);
        let (buckets, _) = store.lock(0).buckets();
        assert!(buckets <= 20, "{buckets} buckets for 300 peers");
        assert_eq!(store.memory().bytes, store.recount());
    }
}

#[test]
fn an_announce_corrects_the_hints_that_led_to_it() {
    let store = Packed::new(&config().shards(1)).expect("one shard");
    for n in 0..5000 {
        tell(&store, 1, leecher(n, v4(n as u32)));
        let told = [leecher(n, v4(n as u32)), leecher(n / 2, v4(n as u32 / 2))];
        tell(&store, 1, told[n as usize % 2]);
        assert!(store.lock(0).has_right_hints(&store.context.hints), "after announce {n}");
    }
}

#[test]
fn announces_and_batches_of_scrapes_correct_the_hints_also_where_threads_share_the_lock() {
    let store = Packed::new(&config().shards(1)).expect("one shard");
    fill(&store, 1, (0..100).map(|n| leecher(0, v6(n))));
    store.context.hints.correct(0, &[]);
    // With the shard shared, only an announce that shares it too comes to an end.
    let shared = store.shards[0].0.read();
    tell(&store, 1, leecher(0, v6(5)));
    assert!(shared.has_right_hints(&store.context.hints));
    store.context.hints.correct(0, &[]);
    store.scrape_batch(&mut [SwarmSummary { info_hash: hash(0), stats: SwarmStats::default() }]);
    assert!(shared.has_right_hints(&store.context.hints));
}

#[test]
fn no_thread_waits_for_another_that_makes_room_for_hints() {
    let store = Packed::new(&config().shards(1)).expect("one shard");
    let other = store.context.making_room.lock();
    tell(&store, 1, leecher(0, v4(1)));
    tell(&store, 1, leecher(0, v4(1)));
    assert!(!store.context.hints.has_room(0));
    drop(other);
    tell(&store, 1, leecher(0, v4(1)));
    assert!(store.context.hints.has_room(0));
}

#[test]
fn a_swarm_that_was_found_in_a_shard_that_has_become_empty_is_not_found_again() {
    let store = Packed::new(&config().shards(1)).expect("one shard");
    tell(&store, 1, leecher(0, v4(1)));
    let placed = store.context.placement.place(&hash(0));
    let op = store.operation(&placed, store.context.clock.tick(at(1)));
    // As a hint tells it before an announce has corrected it.
    let known = LeafLocation::new(op.home, &placed.key, 0);
    let found = store.lock(0).find_from(&op, &known);
    assert!(found.is_some() && store.lock(0).find_again(&op, &known, found) == found);
    store.remove(&hash(0));
    while !store.lock(0).is_empty() {
        store.sweep(at(1), Retention::DropEmpty, Budget::peers(100));
    }
    assert_eq!(store.lock(0).find_again(&op, &known, found), None);
}

#[test]
fn hints_leave_room_for_swarms_however_few_bytes_a_store_has() {
    for (shards, more) in [(1, 204), (1024, 204), (4096, 204), (8192, 204), (8192, 8192 * 8)] {
        let most = MIN_BYTES + Packed::fixed_bytes(shards) + more;
        let store = Packed::new(&config().shards(shards).max_bytes(most)).expect("enough");
        for n in 0..200 {
            tell(&store, 1, leecher(n, v4(n as u32)));
            assert!(store.memory().bytes <= most as u64 && store.totals().peers() > 0);
        }
        assert_eq!(store.memory().bytes, store.recount());
    }
}

/// Their owner knows the secret key of the store.
#[test]
fn swarms_with_similar_keys_are_refused_before_their_leaf_is_full() {
    let store = Packed::new(&config().shards(1)).expect("one shard");
    let announce = |n: u64| {
        let mut key = Key::default().with_head(1 << 63);
        key.0[8..16].copy_from_slice(&n.to_be_bytes());
        let info_hash = store.context.placement.of_shard(0).info_hash(&key);
        Announce { info_hash, ..leecher(0, v4(n as u32)) }
    };
    for n in 0..3000 {
        let told = tell(&store, 1, announce(n));
        assert_eq!(told.changes.is_empty(), told.stats.peers() == 0, "newcomer {n}");
    }
    let totals = store.totals();
    assert!((1000..2000).contains(&totals.swarms) && totals.evicted == Evicted::default(), "{totals:?}");
    assert_eq!(tell(&store, 1, announce(0)).changes, Changes::REFRESHED);
    assert_eq!(tell(&store, 1, leecher(7, v4(7))).stats.peers(), 1);
    assert_eq!(store.memory().bytes, store.recount());
}

/// Evicted swarms must leave no header behind that takes the room of the next ones.
#[test]
fn a_store_of_many_shards_and_few_bytes_has_room_for_ever() {
    const SHARDS: usize = 4096;
    let most = Packed::fixed_bytes(SHARDS) + MIN_BYTES;
    let store = Packed::new(&config().shards(SHARDS).max_bytes(most)).expect("supported limits");
    for n in 0..20_000 {
        let told = tell(&store, 1, leecher(n, v4((n as u32) << 8)));
        assert_eq!(told.stats.peers(), 1, "newcomer {n}");
    }
    assert!(store.totals().swarms > 300 && store.memory().bytes <= most as u64, "{:?}", store.totals());
}
