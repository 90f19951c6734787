//! A table against a map of peers.

use std::collections::BTreeMap;

use super::*;
use crate::{
    HashKey, Random, SplitMix64, Timestamp,
    packed::{arena::Block, clock::Clock},
};

const LIFETIME: u64 = 112;

/// Times are counted in ticks here.
fn tick(number: u64) -> Tick {
    Clock::new(2 * LIFETIME).tick(Timestamp::from_secs(2 * number))
}

fn hash(seed: u8) -> EndpointHash {
    EndpointHash::new(HashKey::from_bytes([seed; 16]), None)
}

fn endpoint<const N: usize>(n: u32) -> [u8; N] {
    let mut bytes = [7; N];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    bytes
}

fn insert<const N: usize>(table: &mut Table<N>, n: u32, at: Tick, hash: &EndpointHash) {
    let (order, endpoint) = (hash.order(&endpoint::<N>(n)), endpoint(n));
    let index = table.insert(order, &endpoint, at, at, hash);
    assert_eq!(table.find(order, &endpoint), Some(index));
}

fn find<const N: usize>(table: &Table<N>, n: u32, hash: &EndpointHash) -> Option<BucketIndex> {
    table.find(hash.order(&endpoint::<N>(n)), &endpoint(n))
}

fn filled<const N: usize>(count: u32, hash: &EndpointHash) -> Table<N> {
    let mut table = Table::default();
    (0..count).for_each(|n| insert(&mut table, n, tick(1000), hash));
    table
}

/// The whole order, range by range.
fn ranges<const N: usize>(table: &Table<N>) -> Vec<(u64, Option<u64>)> {
    let mut ranges = vec![(0, table.end_of(0))];
    while let Some((_, Some(end))) = ranges.last() {
        ranges.push((*end, table.end_of(*end)));
    }
    ranges
}

#[test]
fn no_insert_moves_more_than_a_bucket_and_a_segment_of_headers() {
    let hash = hash(7);
    let (mut table, mut buckets) = (Table::<6>::default(), 0);
    for n in 0..100_000 {
        insert(&mut table, n, tick(1000), &hash);
        assert!(table.buckets.len() <= buckets + 1);
        buckets = table.buckets.len();
    }
    let fullest = table.buckets.iter().map(Bucket::len).max().unwrap();
    // Twice the mean, and five standard deviations.
    assert!(fullest <= 88 + 47, "a bucket of {fullest}");
    let segments = table.buckets.others.iter().chain([&table.buckets.first]);
    assert!(segments.map(Vec::capacity).all(|capacity| capacity <= Directory::<6>::SEGMENT));
    assert!(table.bytes() < 100_000 * 8, "{} bytes", table.bytes());
}

#[test]
fn expiry_of_a_part_of_a_bucket_leaves_the_rest_alone() {
    let hash = hash(9);
    let mut table = filled::<18>(20, &hash);
    assert_eq!(ranges(&table).len(), 1);
    let half = 1 << 63;
    let inside = table.within(0, Some(half), &hash).count();
    assert!(inside > 0 && inside < 20);
    assert_eq!(table.expire_within(0, Some(half), tick(1000), &hash), (inside, 0));
    assert_eq!(table.expire_within(0, Some(half), tick(1001), &hash), (inside, inside));
    assert_eq!(table.expire_within(half, None, tick(1000), &hash), (20 - inside, 0));
}

#[test]
fn few_slots_are_empty() {
    let hash = hash(10);
    let mut table = Table::<6>::default();
    assert_eq!(table.slots().len(), 0);
    for n in 0..12_000_u32 {
        insert(&mut table, n, tick(1000), &hash);
        let slots = table.slots().len();
        assert!(n <= 3000 || table.len() as u64 * 5 > slots * 2, "{n}: {slots} slots");
    }
    for n in 0..12_000 {
        table.remove(find(&table, n, &hash).unwrap());
        let slots = table.slots().len();
        assert!(n % 97 > 0 && n <= 11_800 || table.len() as u64 * 5 >= slots, "{n}: {slots} slots");
    }
}

#[test]
fn runs_hold_everybody_from_a_place_on() {
    let hash = hash(11);
    let table = filled::<6>(1000, &hash);
    let places: Vec<_> = (0..1000).map(|n| find(&table, n, &hash).unwrap()).collect();
    for from in places.iter().step_by(17) {
        let shown: usize = table.runs(*from).map(|(_, run)| run.len()).sum();
        let behind = |index: &&BucketIndex| (index.bucket, index.at) >= (from.bucket, from.at);
        assert_eq!(shown, places.iter().filter(behind).count());
    }
    for (n, index) in (0..).zip(&places) {
        assert_eq!(table.runs(*index).next().unwrap().1[0], endpoint(n));
    }
    assert_eq!(table.runs(BucketIndex::new(99, 99)).count(), 0);
}

/// Runs random operations on a table and on a map, and compares.
fn is_as_a_naive_model_says<const N: usize>(seed: u64) {
    let hash = hash(seed as u8);
    let (mut table, mut model) = (Table::<N>::default(), BTreeMap::new());
    let (mut rng, mut now) = (SplitMix64::new(seed), 1_000_000);
    let mut below = |bound: usize| (&mut rng as &mut dyn Random).below(bound);
    for step in 0..60_000 {
        // The swarm grows, shrinks to nothing, and grows again.
        let growing = step % 20_000 < 12_000;
        let n = below(4000) as u32;
        let at = tick(now);
        match (find(&table, n, &hash), below(8)) {
            (Some(index), 0..3) => {
                table.refresh(index, at);
                model.insert(endpoint::<N>(n), now);
            }
            (Some(index), _) if !growing => {
                table.remove(index);
                model.remove(&endpoint::<N>(n));
            }
            (None, _) if growing => {
                // Sometimes a peer from a snapshot, up to a lifetime old.
                let age = if below(4) == 0 { below(112) as u64 } else { 0 };
                table.insert(hash.order(&endpoint::<N>(n)), &endpoint(n), tick(now - age), at, &hash);
                model.insert(endpoint(n), now - age);
            }
            (found, _) => assert_eq!(found.is_some(), model.contains_key(&endpoint::<N>(n))),
        }
        if below(400) == 0 {
            now += [1, 1, 1, 1, 1, 5, 100, 127, 128, 254, 255, 256, 300, 10_000][below(14)];
        }
        if below(700) == 0 {
            let oldest = now - LIFETIME;
            let ranges = ranges(&table);
            let expired =
                ranges.iter().map(|&(start, end)| table.expire_within(start, end, tick(oldest), &hash));
            let sums = expired.fold((0, 0), |sums, (visited, gone)| (sums.0 + visited, sums.1 + gone));
            let before = model.len();
            model.retain(|_, last| *last >= oldest);
            assert_eq!(sums, (before, before - model.len()), "each peer is visited once");
        }
        if step % 200 == 0 {
            let peers: BTreeMap<_, _> = table.iter().map(|(peer, at)| (*peer, at)).collect();
            assert_eq!(table.len(), model.len());
            assert!(peers.keys().eq(model.keys()));
            // An expired peer may look younger, but not alive.
            let alive = |last: &u64| *last >= now - LIFETIME;
            let wrong = peers.values().zip(model.values()).find(|(at, last)| match alive(last) {
                true => **at != tick(**last),
                false => **at >= tick(now - LIFETIME),
            });
            assert_eq!(wrong, None);
            assert_eq!(table.bytes(), table.recount());
            let slots = if table.len() == 0 { 0 } else { table.slots().len() };
            let drawn = (0..slots).filter_map(|slot| table.drawn(slot)).map(|(peer, at)| (*peer, at));
            let mut drawn: Vec<_> = drawn.collect();
            drawn.sort_unstable();
            assert!(
                drawn.into_iter().eq(peers),
                "each peer has one slot, so each is equally likely to be drawn"
            );
        }
    }
}

#[test]
fn a_table_of_each_family_is_as_a_naive_model_says() {
    (0..4).for_each(is_as_a_naive_model_says::<6>);
    (4..8).for_each(is_as_a_naive_model_says::<18>);
}

#[test]
fn memory_goes_back_as_the_table_shrinks() {
    let hash = hash(14);
    let mut table = filled::<6>(100_000, &hash);
    for n in 1000..100_000 {
        table.remove(find(&table, n, &hash).unwrap());
    }
    let loose = table.bytes();
    assert!(loose < 1000 * 10, "{loose} bytes for 1,000 peers");
    for (start, end) in ranges(&table) {
        table.expire_within(start, end, tick(1000), &hash);
    }
    assert!(table.bytes() < loose && table.bytes() < 1000 * 9, "{} bytes", table.bytes());
}

#[cfg(target_pointer_width = "64")]
#[test]
fn a_bucket_has_sixteen_bytes_of_its_own() {
    assert_eq!(size_of::<Bucket<6>>(), (size_of::<Block>() + 6).next_multiple_of(4).max(16));
}
