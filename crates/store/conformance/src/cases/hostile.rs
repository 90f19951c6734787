//! Cases of hostile and faulty input: info hashes that collide, extreme values, panics in code of the caller;
//! and the cost of calls in stores of any size.

use std::{
    hint::black_box,
    panic::{self, AssertUnwindSafe},
};

use swarmkeep::{
    Announce, AnnounceEvent, Budget, Cursor, Families, InfoHash, PeerBuffer, Random, Request, Retention,
    SplitMix64, SwarmSummary, Timestamp, TorrentRepositoryExt,
};

use crate::{Subject, kit::*};

/// The number of info hashes that an attacker makes.
const MADE_UP: u64 = 4000;

/// Returns an info hash that begins with `first` and ends with `last`.
fn shaped(first: u64, last: u64) -> InfoHash {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[12..].copy_from_slice(&last.to_le_bytes());
    InfoHash::new(bytes)
}

pub(crate) fn info_hashes_with_equal_first_bytes_cost_no_more(subject: &dyn Subject) {
    assert_no_dearer_than_random(subject, |n| shaped(0x1234, n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
}

pub(crate) fn info_hashes_with_equal_last_bytes_cost_no_more(subject: &dyn Subject) {
    assert_no_dearer_than_random(subject, |n| shaped(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), 0x1234));
}

/// An unkeyed multiply hash can be inverted: with the inverse of its constant, a client makes info hashes of
/// any hash value.
pub(crate) fn info_hashes_made_for_an_unkeyed_hash_cost_no_more(subject: &dyn Subject) {
    let inverse = inverse_of(0x517c_c1b7_2722_0a95);
    // Equal in all high bits of the hash, and in all low ones.
    assert_no_dearer_than_random(subject, |n| shaped(inverse.wrapping_mul(n), 0));
    assert_no_dearer_than_random(subject, |n| shaped(inverse.wrapping_mul(n << 48), 0));
}

/// Returns the inverse of an odd number modulo 2^64, by Newton's iteration.
fn inverse_of(odd: u64) -> u64 {
    let mut inverse = odd;
    for _ in 0..5 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
    }
    inverse
}

fn assert_no_dearer_than_random(subject: &dyn Subject, made_up: impl Fn(u64) -> InfoHash) {
    let random: Vec<_> = (0..MADE_UP).map(|n| leecher(hash(n), v4(1))).collect();
    let made_up: Vec<_> = (0..MADE_UP).map(|n| leecher(made_up(n), v4(1))).collect();
    let fill = |announces: &[Announce]| {
        let store = build(subject);
        store.fill(0, announces.iter().copied());
        store.fill(1, announces.iter().copied());
        store.totals().swarms
    };
    let (mut tried, mut against) = (0, 0);
    assert_costs_at_most(4.0, "made-up info hashes", || tried += fill(&made_up), || against += fill(&random));
    assert_eq!(tried, against, "swarms of all runs");
}

pub(crate) fn counts_never_come_from_walking_a_swarm(subject: &dyn Subject) {
    let (store, small, large) = (build(subject), hash(1), hash(2));
    store.fill(0, (0..10).map(|n| leecher(small, v4(n)).left((n % 2).into())));
    store.fill(0, (0..20_000).map(|n| leecher(large, v4(n)).left((n % 2).into())));
    let announces = |torrent| store.fill(1, (0..500).map(|n| leecher(torrent, v4(n % 10))));
    assert_costs_at_most(20.0, "an announce in a large swarm", || announces(large), || announces(small));
    let scrapes = |torrent| {
        for _ in 0..500 {
            black_box(store.scrape(&torrent));
        }
    };
    assert_costs_at_most(20.0, "a scrape of a large swarm", || scrapes(large), || scrapes(small));
}

pub(crate) fn selecting_costs_what_is_wanted_not_what_is_there(subject: &dyn Subject) {
    let (store, small, large) = (build(subject), hash(1), hash(2));
    store.fill(0, (0..100).map(|n| leecher(small, v4(n)).left((n % 2).into())));
    store.fill(0, (0..20_000).map(|n| leecher(large, v4(n)).left((n % 2).into())));
    let select = |torrent| {
        let mut rng = SplitMix64::new(1);
        for n in 0..200 {
            let mut bytes = [0; 120];
            let announce = leecher(torrent, v4(n % 10)).left((n % 2).into()).want(20);
            store.announce(&announce, at(1), &mut rng, &mut PeerBuffer::new(&mut bytes, &mut []));
        }
    };
    assert_costs_at_most(20.0, "20 peers of a large swarm", || select(large), || select(small));
}

pub(crate) fn totals_cost_no_walk_over_swarms(subject: &dyn Subject) {
    let (few, many) = (build(subject), build(subject));
    few.fill(0, (0..10).map(|n| leecher(hash(n), v4(1))));
    many.fill(0, (0..20_000).map(|n| leecher(hash(n), v4(1))));
    let totals = |store: &Store| {
        for _ in 0..200 {
            black_box(store.totals());
        }
    };
    assert_costs_at_most(20.0, "totals over many swarms", || totals(&many), || totals(&few));
    let memory = |store: &Store| {
        for _ in 0..200 {
            black_box(store.memory());
        }
    };
    assert_costs_at_most(20.0, "the memory of many swarms", || memory(&many), || memory(&few));
}

pub(crate) fn a_step_of_a_walk_costs_the_same_at_any_position(subject: &dyn Subject) {
    let store = build(subject);
    store.fill(0, (0..20_000).map(|n| leecher(hash(n), v4(1))));
    let (mut cursor, mut all) = (Cursor::START, Vec::new());
    while all.len() < 19_000 && !cursor.is_end() {
        cursor = store.walk(cursor, 100, &mut all);
    }
    assert!(!cursor.is_end(), "19,000 of 20,000 swarms were shown");
    let steps = |from: Cursor| {
        let (mut cursor, mut shown) = (from, Vec::new());
        for _ in 0..10 {
            cursor = store.walk(cursor, 20, &mut shown);
        }
        black_box(shown);
    };
    assert_costs_at_most(10.0, "a step near the end", || steps(cursor), || steps(Cursor::START));
}

/// A map that is read as a whole to find the next few swarms makes this quadratic.
pub(crate) fn a_pass_of_sweeps_costs_in_proportion_to_the_swarms(subject: &dyn Subject) {
    const FEW: u64 = 250;
    const TIMES: u64 = 64;

    let (few, many) = (build(subject), build(subject));
    few.fill(0, (0..FEW).map(|n| leecher(hash(n), v4(1))));
    many.fill(0, (0..FEW * TIMES).map(|n| leecher(hash(n), v4(1))));
    let pass = |store: &Store| {
        while !store.sweep(at(0), Retention::DropEmpty, Budget::peers(128)).pass_complete {}
    };
    assert_costs_at_most(
        6.0,
        "a visit of a pass over 64 times as many swarms",
        || pass(&many),
        || (0..TIMES).for_each(|_| pass(&few)),
    );
}

/// Every value that a packet can contain, in any order.
pub(crate) fn no_announce_panics_the_store(subject: &dyn Subject) {
    let store = build(subject);
    let mut rng = SplitMix64::new(4);
    let rng: &mut dyn Random = &mut rng;
    let extremes = [0, 1, 2, i64::MAX as u64, u64::MAX - 1, u64::MAX];
    let endpoints = [
        "0.0.0.0:1",
        "255.255.255.255:65535",
        "[::]:1",
        "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
        "[::2]:80",
    ];
    let events =
        [AnnounceEvent::None, AnnounceEvent::Started, AnnounceEvent::Completed, AnnounceEvent::Stopped];
    for turn in 0..4000 {
        let torrent = InfoHash::new([[0, 1, 0x7f, 0xff][rng.below(4)]; 20]);
        let endpoint = endpoints[rng.below(5)].parse().expect("an endpoint");
        let announce = Announce::new(torrent, endpoint)
            .event(events[rng.below(4)])
            .left(extremes[rng.below(6)])
            .transferred(extremes[rng.below(6)], extremes[rng.below(6)])
            .want([0, 1, 3, 500, usize::MAX][rng.below(5)])
            .families(Families::from_bits_truncate(rng.below(4) as u8));
        // From the epoch on, in jumps. The largest time comes last, because no other time counts after it.
        let now = match turn {
            0..100 => turn,
            100..3900 => T0 + rng.below(100_000) as u64 + turn * turn,
            _ => extremes[3 + rng.below(3)],
        };
        announce_with(&store, &announce, Timestamp::from_secs(now), rng).assert_fits(&announce);
        if turn % 50 == 0 {
            store.sweep(Timestamp::from_secs(now), Retention::KeepDownloaded, Budget::peers(rng.below(20)));
        }
    }
    store.assert_consistent();
    store.sweep_all(Timestamp::from_secs(u64::MAX), Retention::DropEmpty);
    store.assert_consistent();
}

pub(crate) fn a_panic_in_the_callers_randomness_leaves_the_store_usable(subject: &dyn Subject) {
    for good in [0, 1, 7, 49] {
        let store = build(subject);
        let torrent = hash(1);
        store.fill(0, (0..300).map(|n| Announce::new(torrent, v4(n)).left((n % 2).into())));
        store.fill(0, (0..300).map(|n| Announce::new(torrent, v6(n)).left((n % 2).into())));
        let inside = store.clone();
        within(PATIENCE.get(), "a store after a panic in a generator", move || {
            let announces = [
                leecher(torrent, v4(1)),
                completed(torrent, v4(1)),
                seeder(torrent, v6(900)),
                leecher(torrent, v4(900)),
                completed(torrent, v6(901)).families(BOTH),
                leecher(torrent, v4(0)),
            ];
            for announce in announces {
                let told = panic::catch_unwind(AssertUnwindSafe(|| {
                    announce_with(&inside, &announce, at(1), &mut Panicking { good });
                }));
                if let Err(panicked) = told {
                    assert_eq!(text_of(&*panicked), Panicking::TEXT, "another panic than the caller's own");
                }
                inside.assert_consistent();
                let after = inside.tell_at(1, announce);
                assert!(after.stats.peers() >= 600, "peers were lost: {:?}", after.stats);
                after.assert_fits(&announce);
            }
            let mut requests: Vec<_> = (1000..1010)
                .map(|n| Request::new(leecher(torrent, v4(n)), PeerBuffer::new(&mut [], &mut [])))
                .collect();
            let _ = panic::catch_unwind(AssertUnwindSafe(|| {
                inside.announce_batch(&mut requests, at(1), &mut Panicking { good });
            }));
            inside.assert_consistent();
            inside.sweep_all(at(2 * LIFETIME), Retention::DropEmpty);
            assert_eq!(inside.totals().peers(), 0);
        });
        store.assert_consistent();
    }
}

pub(crate) fn a_panic_in_the_callers_predicate_leaves_the_store_usable(subject: &dyn Subject) {
    let store = build(subject);
    store.fill(0, (0..100).map(|n| leecher(hash(n), v4(1))));
    let inside = store.clone();
    within(PATIENCE.get(), "a store after a panic in a predicate", move || {
        assert_panics_with("the caller's predicate", || {
            inside.remove_where(
                &|info_hash| {
                    if *info_hash == hash(50) {
                        panic::resume_unwind(Box::new("the caller's predicate"));
                    }
                    true
                },
                Cursor::START,
                Budget::peers(1000),
            );
        });
        inside.assert_consistent();
        assert_eq!(inside.scrape(&hash(50)), stats(0, 1, 0), "the one that was never named");
        inside.fill(1, (0..100).map(|n| leecher(hash(n), v4(2))));
        assert_eq!(inside.totals().swarms, 100);
        inside.remove_all_where(&|_| true);
        assert_eq!(inside.swarms(), [] as [SwarmSummary; 0]);
    });
}
