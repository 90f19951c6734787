//! A leaf against a map of swarms.

use std::collections::BTreeMap;

use super::{
    slot::{NoPeers, Section},
    *,
};
use crate::{
    CompactV4, CompactV6, Endpoint, Family, Random, Role, SplitMix64, Timestamp, packed::clock::Clock,
};

/// The expected contents of a leaf: by key, downloads, whether the swarm is proven, and peers with their
/// ticks.
type Model = BTreeMap<Key, (u32, bool, BTreeMap<Endpoint, (Role, Tick)>)>;

const HOME: Prefix = Prefix { bits: 0, depth: 11 };

fn tick(n: u64) -> Tick {
    Clock::new(200).tick(Timestamp::from_secs(2 * n))
}

fn key(rng: &mut dyn Random) -> Key {
    let mut key = Key::default().with_head(rng.next_u64() >> HOME.depth);
    key.0[19] = rng.next_u64() as u8;
    key
}

fn endpoint(family: Family, n: usize) -> Endpoint {
    let len = if family == Family::V4 { CompactV4::LEN } else { CompactV6::LEN };
    let mut bytes = vec![0x20; len];
    bytes[len - 1] = n as u8;
    Section::of(family, Role::Seeder).endpoint(&bytes)
}

fn assert_holds(leaf: &Leaf, prefix: Prefix, model: &Model) {
    assert_eq!(leaf.swarms(), model.len());
    let mut used = leaf.swarms() * prefix.stride();
    for (index, (key, (downloaded, proven, peers))) in model.iter().enumerate() {
        let slot = leaf.find(prefix, key).expect("every swarm is found");
        assert_eq!((slot.index, leaf.key(prefix, slot)), (index, *key), "sorted by key");
        assert_eq!((leaf.downloaded(slot), leaf.is_proven(slot)), (*downloaded, *proven));
        let content: BTreeMap<_, _> = leaf
            .peers(slot)
            .map(|(section, endpoint, stamp)| {
                (section.endpoint(endpoint), (section.role(), leaf.base().tick(stamp)))
            })
            .collect();
        assert_eq!(content, *peers);
        for (endpoint, (role, _)) in peers {
            let peer = leaf.locate(slot, endpoint).expect("every peer is located");
            assert_eq!(peer.section, Section::of(endpoint.family(), *role));
        }
        if let SlotContent::Few(few) = leaf.content(slot) {
            used += few.len();
        }
    }
    assert_eq!(leaf.used(), used, "nothing lies between slots and blocks");
}

/// One random change of one swarm, made to the leaf and to the model.
fn change(leaf: &mut Leaf, prefix: Prefix, model: &mut Model, now: Tick, rng: &mut dyn Random) {
    let keys: Vec<_> = model.keys().copied().collect();
    if keys.is_empty() || (keys.len() < 40 && rng.below(8) == 0) {
        let key = key(rng);
        if let Err(slot) = leaf.find(prefix, &key) {
            leaf.insert(slot, &key, SlotContent::Empty(NoPeers::new(0, 0)));
            model.insert(key, Default::default());
        }
        return;
    }
    let key = keys[rng.below(keys.len())];
    let slot = leaf.find(prefix, &key).expect("it is in the model");
    let (downloaded, proven, peers) = model.get_mut(&key).expect("it is in the model");
    let family = if rng.below(3) == 0 { Family::V6 } else { Family::V4 };
    let role = if rng.below(2) == 0 { Role::Seeder } else { Role::Leecher };
    let endpoint = endpoint(family, rng.below(9));
    leaf.advance(now, slot);
    let stamp = leaf.base().stamp(now);
    if rng.below(30) == 0 {
        leaf.set_proven(slot);
        *proven = true;
    }
    match (rng.below(12), leaf.locate(slot, &endpoint)) {
        (0, _) => {
            *downloaded = [0, 1, 15, 16, 254, 255, 256, u32::MAX][rng.below(8)];
            leaf.set_downloaded(slot, *downloaded);
        }
        (1, _) => {
            leaf.remove(slot);
            model.remove(&key);
        }
        (2..5, Some(peer)) => {
            let last = leaf.stamp(slot, peer);
            leaf.take(slot, peer);
            peers.remove(&endpoint);
            if let SlotContent::Empty(empty) = leaf.content(slot) {
                assert_eq!(empty.latest(), last, "the stamp of the last peer");
            }
        }
        (_, found) => {
            match found {
                None => _ = leaf.add(slot, Section::of(family, role), endpoint.as_bytes(), stamp),
                Some(peer) if peer.section.role() == role => _ = leaf.refresh(slot, peer, stamp),
                Some(peer) => _ = leaf.change_role(slot, peer, role, stamp),
            }
            peers.insert(endpoint, (role, now));
        }
    }
}

#[test]
fn a_leaf_agrees_with_the_model_through_changes_splits_and_merges() {
    const ROUNDS: u32 = if cfg!(miri) { 1 } else { 20 };
    let mut rng = SplitMix64::new(7);
    for round in 0..ROUNDS {
        let (mut leaf, mut model) = (Leaf::new(tick(1000)), Model::new());
        for step in 0..800 {
            // Within one base: `clock` tests a base that moves.
            change(&mut leaf, HOME, &mut model, tick(1000 + step / 10), &mut rng);
            assert!(leaf.used() <= leaf.capacity());
        }
        leaf.compact();
        assert_eq!(leaf.capacity(), Block::capacity_for(leaf.used()));
        assert_holds(&leaf, HOME, &model);

        // Deep enough for a byte of the prefix to be dropped on the way, and to be put back.
        let mut parts = vec![(HOME, leaf)];
        for _ in 0..3 + round % 6 {
            let split = |(prefix, leaf): (Prefix, Leaf)| {
                let bit = 1 << (63 - prefix.depth);
                let lower = Prefix { bits: prefix.bits, depth: prefix.depth + 1 };
                let upper = Prefix { bits: prefix.bits | bit, ..lower };
                let [low, high] = leaf.split(prefix);
                [(lower, low), (upper, high)]
            };
            parts = parts.into_iter().flat_map(split).collect();
        }
        for (prefix, leaf) in &parts {
            let inside = |key: &Key| key.head() & !(u64::MAX >> prefix.depth) == prefix.bits;
            let part =
                model.iter().filter(|(key, _)| inside(key)).map(|(key, content)| (*key, content.clone()));
            assert_holds(leaf, *prefix, &part.collect());
        }
        while parts.len() > 1 {
            let mut halves = parts.into_iter();
            parts = Vec::new();
            while let (Some(mut lower), Some(mut upper)) = (halves.next(), halves.next()) {
                let prefix = Prefix { bits: lower.0.bits, depth: lower.0.depth - 1 };
                parts.push((prefix, Leaf::merge(prefix, (lower.0, &mut lower.1), (upper.0, &mut upper.1))));
            }
        }
        let (prefix, leaf) = parts.pop().expect("merged to one");
        assert_holds(&leaf, prefix, &model);
    }
}

#[test]
fn a_large_swarm_stays_proven_when_its_leaf_moves() {
    let (mut leaf, key) = (Leaf::new(tick(1000)), key(&mut SplitMix64::new(7)));
    let slot = leaf.find(HOME, &key).expect_err("the leaf is empty");
    leaf.insert(slot, &key, SlotContent::Empty(NoPeers::new(0, 0)));
    leaf.set_proven(slot);
    leaf.make_large(slot, 3);
    let upper = Prefix { bits: HOME.bits | 1 << (63 - HOME.depth), depth: HOME.depth + 1 };
    let lower = Prefix { bits: HOME.bits, ..upper };
    let [mut low, mut high] = leaf.split(HOME);
    let leaf = Leaf::merge(HOME, (lower, &mut low), (upper, &mut high));
    assert!(leaf.is_proven(leaf.find(HOME, &key).expect("it was inserted")));
}
