//! Cases of selection: the selected peers, and their form.

use std::collections::HashSet;

use swarmkeep::{
    Announce, AnnounceEvent, CompactV4, CompactV6, Endpoint, Families, Family, InfoHash, PeerBuffer, Random,
    Retention, Role, SplitMix64, TorrentRepositoryExt,
};

use crate::{Subject, kit::*};

/// Swarm sizes around the usual `want`, and around the sizes at which stores change their representation of a
/// swarm.
const SIZES: [u32; 12] = [0, 1, 2, 3, 7, 15, 31, 49, 50, 51, 130, 700];

/// Returns a store with a swarm of `count` peers of each family, every third one a seeder.
fn mixed(subject: &dyn Subject, count: u32) -> (Store, InfoHash) {
    let (store, torrent) = (build(subject), hash(1));
    for family in [Family::V4, Family::V6] {
        store.fill(0, (1..=count).map(|n| Announce::new(torrent, peer(family, n)).left((n % 3).into())));
    }
    (store, torrent)
}

pub(crate) fn announce_hands_out_at_most_want_distinct_peers_of_the_swarm(subject: &dyn Subject) {
    for size in SIZES {
        let (store, torrent) = mixed(subject, size);
        let members = store.members(&torrent);
        for want in [0, 1, 2, 5, 49, 50, 51, 100, 5000] {
            for (turn, families) in [Families::V4, Families::V6, BOTH].into_iter().enumerate() {
                let announce =
                    Announce::new(torrent, v4(9000)).left(turn as u64 % 2).want(want).families(families);
                let answer = store.tell_at(turn as u64, announce);
                answer.assert_fits(&announce);
                let strangers: Vec<_> =
                    answer.peers.iter().filter(|peer| !members.contains_key(peer)).collect();
                assert!(strangers.is_empty(), "not in the swarm: {strangers:?}");
            }
        }
    }
}

pub(crate) fn announce_never_hands_out_the_announcer(subject: &dyn Subject) {
    for size in SIZES.into_iter().filter(|&size| size > 0) {
        let (store, torrent) = mixed(subject, size);
        let mut rng = SplitMix64::new(7);
        for family in [Family::V4, Family::V6] {
            // Members at both ends and in the middle, and a new peer.
            for n in [1, size / 2, size.saturating_sub(1), size, 9000] {
                for (left, seeders_too) in [(1, false), (0, false), (0, true), (1, true), (1, false)] {
                    for want in [1, size as usize - 1, size as usize, 50] {
                        let announce =
                            Announce::new(torrent, peer(family, n)).left(left).want(want).families(BOTH);
                        let announce = announce.seeders_too(seeders_too);
                        announce_with(&store, &announce, at(1), &mut rng).assert_fits(&announce);
                    }
                }
            }
        }
    }
}

pub(crate) fn announce_hands_out_all_eligible_when_there_are_no_more_than_wanted(subject: &dyn Subject) {
    for size in SIZES {
        let (store, torrent) = mixed(subject, size);
        let members = store.members(&torrent);
        for family in [Family::V4, Family::V6] {
            for (left, seeders_too) in [(1, false), (1, true), (0, false), (0, true)] {
                let asks = Announce::new(torrent, peer(family, 9000)).left(left).seeders_too(seeders_too);
                let eligible: Vec<_> = members
                    .values()
                    .filter(|record| {
                        record.endpoint.family() == family
                            && (asks.takes_seeders() || record.role == Role::Leecher)
                    })
                    .map(|record| record.endpoint)
                    .collect();
                for more in [0, 1, 30] {
                    let answer = store.tell(asks.want(eligible.len() + more));
                    assert_same(answer.peers, eligible.clone(), "all eligible peers");
                    store.tell(stopped(torrent, asks.endpoint));
                }
            }
        }
    }
}

pub(crate) fn announce_hands_out_as_many_as_wanted_when_more_are_eligible(subject: &dyn Subject) {
    for size in SIZES {
        let (store, torrent) = mixed(subject, size);
        let leechers = (1..=size).filter(|n| n % 3 != 0).count();
        for want in (0..leechers).step_by(1 + leechers / 9) {
            for (left, family) in [(0, Family::V4), (1, Family::V6)] {
                let answer = store.tell(Announce::new(torrent, peer(family, 9000)).left(left).want(want));
                assert_eq!(answer.peers.len(), want, "of {size} peers");
            }
        }
    }
}

pub(crate) fn seeders_are_never_handed_to_seeders(subject: &dyn Subject) {
    for size in SIZES {
        let (store, torrent) = mixed(subject, size);
        for (n, family) in [(3, Family::V4), (9000, Family::V4), (9000, Family::V6)] {
            let answer = store.tell(seeder(torrent, peer(family, n)).want(5000).families(BOTH));
            let members = store.members(&torrent);
            for endpoint in &answer.peers {
                assert_eq!(members[endpoint].role, Role::Leecher, "{endpoint} was handed to a seeder");
            }
        }
        store.fill(1, (1..=size).map(|n| seeder(torrent, v4(n))));
        let answer = store.tell_at(1, completed(torrent, v4(1)).want(5000));
        assert_eq!(answer.peers, [], "in a swarm of {size} seeders");
    }
}

pub(crate) fn seeders_that_ask_for_seeders_are_handed_them(subject: &dyn Subject) {
    for size in SIZES {
        let (store, torrent) = mixed(subject, size);
        for (n, family) in [(3, Family::V4), (9000, Family::V4), (9000, Family::V6)] {
            let announce = seeder(torrent, peer(family, n)).want(5000).families(BOTH).seeders_too(true);
            for event in [AnnounceEvent::Started, AnnounceEvent::None, AnnounceEvent::Completed] {
                let answer = store.tell(announce.event(event));
                let mut others = store.members(&torrent);
                assert_eq!(others.remove(&announce.endpoint).map(|own| own.role), Some(Role::Seeder));
                assert_same(answer.peers, others.into_keys().collect(), "all but the announcer");
            }
            assert_eq!(store.tell(announce.event(AnnounceEvent::Stopped)).peers, [], "to one that stops");
        }
    }
}

pub(crate) fn only_families_asked_for_are_handed_out(subject: &dyn Subject) {
    for size in SIZES {
        let (store, torrent) = mixed(subject, size);
        for announcer in [v4(9000), v6(9000)] {
            let own = store.tell(Announce::new(torrent, announcer));
            assert_eq!(own.count(announcer.family()), own.peers.len(), "unasked, only the announcer's own");
            for (families, other) in [(Families::V4, Family::V6), (Families::V6, Family::V4)] {
                let answer = store.tell(leecher(torrent, announcer).families(families));
                assert_eq!(answer.count(other), 0, "{families:?} for {announcer}");
                assert!(answer.peers.len() >= (size as usize).min(50), "{families:?} for {announcer}");
            }
            let nobody = store.tell(leecher(torrent, announcer).families(Families::empty()));
            assert_eq!(nobody.peers, [], "no family asked for");
        }
    }
}

pub(crate) fn a_limit_counts_only_peers_of_the_family(subject: &dyn Subject) {
    for (many, few) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
        let (store, torrent) = (build(subject), hash(1));
        store.fill(0, (1..=400).map(|n| leecher(torrent, peer(many, n))));
        store.fill(0, (1..=5).map(|n| leecher(torrent, peer(few, n))));
        for left in [0, 1] {
            let answer = store.tell(Announce::new(torrent, peer(few, 9)).left(left).want(5));
            assert_eq!(answer.peers.len(), 5, "400 peers of the other family use nothing up");
        }
    }
}

pub(crate) fn a_swarm_of_the_other_family_answers_with_none(subject: &dyn Subject) {
    for (inside, outside) in [(Family::V6, Family::V4), (Family::V4, Family::V6)] {
        let store = build(subject);
        for (torrent, size) in [(hash(1), 1), (hash(2), 3), (hash(3), 200)] {
            store.fill(0, (1..=size).map(|n| leecher(torrent, peer(inside, n))));
            for announce in [leecher(torrent, peer(outside, 1)), seeder(torrent, peer(outside, 1)).want(1000)]
            {
                let answer = store.tell(announce);
                assert_eq!((answer.peers.len(), answer.stats.peers()), (0, u64::from(size) + 1));
            }
            let within_family = store.tell(leecher(torrent, peer(inside, 1)));
            assert_eq!(within_family.peers.len(), (size as usize - 1).min(50));
            store.tell(stopped(torrent, peer(outside, 1)));
        }
        store.assert_consistent();
    }
}

pub(crate) fn both_families_get_half_each_and_what_one_leaves_goes_to_the_other(subject: &dyn Subject) {
    for (v4_count, v6_count) in
        [(80, 80), (80, 3), (3, 80), (80, 25), (26, 24), (10, 10), (0, 80), (80, 0), (0, 0)]
    {
        let (store, torrent) = (build(subject), hash(1));
        store.fill(0, (1..=v4_count).map(|n| leecher(torrent, v4(n))));
        store.fill(0, (1..=v6_count).map(|n| leecher(torrent, v6(n))));
        for announcer in [v4(9000), v6(9000)] {
            for want in [50, 51, 1, 0] {
                let answer = store.tell(seeder(torrent, announcer).want(want).families(BOTH));
                let (v4, v6) = (answer.count(Family::V4), answer.count(Family::V6));
                let of = format!("{v4} + {v6} of {v4_count} + {v6_count} for {want}");
                assert_eq!(v4 + v6, want.min((v4_count + v6_count) as usize), "all that is wanted: {of}");
                assert!(v4 >= (want / 2).min(v4_count as usize), "half is for IPv4: {of}");
                assert!(v6 >= (want / 2).min(v6_count as usize), "half is for IPv6: {of}");
            }
        }
    }
}

pub(crate) fn the_room_in_the_buffer_bounds_the_selection(subject: &dyn Subject) {
    let (store, torrent) = mixed(subject, 100);
    let (mut rng, mut selected) = (SplitMix64::new(1), HashSet::new());
    for (v4_room, v6_room) in [(0, 0), (1, 0), (0, 1), (10, 100), (100, 10)].into_iter().chain([(10, 10); 20])
    {
        // Some extra bytes that are too few for another peer.
        let (mut v4, mut v6) = (vec![0; 6 * v4_room + 5], vec![0; 18 * v6_room + 17]);
        let mut buffer = PeerBuffer::new(&mut v4, &mut v6);
        let announce = leecher(torrent, self::v4(9000)).families(BOTH);
        store.announce(&announce, at(0), &mut rng, &mut buffer);
        assert_eq!(buffer.len(), (v4_room + v6_room).min(50), "in room for {v4_room} and {v6_room}");
        assert_eq!(
            buffer.v4.len(),
            v4_room.min(50 - 25.min(v6_room)),
            "IPv4 in room for {v4_room} and {v6_room}"
        );
        if (v4_room, v6_room) == (10, 10) {
            selected.extend(buffer.endpoints());
        }
    }
    assert!(selected.len() > 20, "the same peers in 20 small buffers");
}

pub(crate) fn peers_are_written_in_compact_form(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.tell(leecher(torrent, "1.2.3.4:258".parse().expect("an endpoint")));
    store.tell(seeder(torrent, "[2001:db8::fffe]:65534".parse().expect("an endpoint")));
    let (mut v4, mut v6) = ([0xee; 60], [0xee; 180]);
    let mut buffer = PeerBuffer::new(&mut v4, &mut v6);
    let announce = leecher(torrent, self::v4(1)).families(BOTH);
    store.announce(&announce, at(0), &mut SplitMix64::new(1), &mut buffer);
    assert_eq!(buffer.v4.as_bytes(), [1, 2, 3, 4, 1, 2]);
    assert_eq!(buffer.v6.as_bytes(), b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\xff\xfe\xff\xfe");
    assert_eq!((buffer.v4.as_bytes().len(), buffer.v6.as_bytes().len()), (CompactV4::LEN, CompactV6::LEN));
}

pub(crate) fn the_buffer_is_cleared_first(subject: &dyn Subject) {
    let (store, torrent) = mixed(subject, 4);
    let (mut v4, mut v6) = ([0; 60], [0; 180]);
    let mut buffer = PeerBuffer::new(&mut v4, &mut v6);
    let full = leecher(torrent, self::v4(1)).families(BOTH);
    for announce in
        [full, full, full.want(0), full, stopped(torrent, self::v4(99)), full, stopped(hash(2), self::v4(1))]
    {
        store.announce(&announce, at(0), &mut SplitMix64::new(1), &mut buffer);
        assert_eq!(buffer.len(), if announce == full { 7 } else { 0 }, "left over from the announce before");
    }
}

pub(crate) fn no_want_is_too_large(subject: &dyn Subject) {
    let (store, torrent) = mixed(subject, 60);
    for want in [usize::MAX, usize::MAX - 1, usize::MAX / 2, 1 << (usize::BITS - 1)] {
        let answer = store.tell(leecher(torrent, v4(1)).want(want).families(BOTH));
        assert_eq!(answer.peers.len(), 119);
    }
}

pub(crate) fn peers_that_are_gone_are_never_handed_out(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.fill(0, (1..=100).map(|n| leecher(torrent, v4(n))));
    store.fill(LIFETIME, (61..=100).chain([9000]).map(|n| leecher(torrent, v4(n))));
    store.fill(LIFETIME, (61..=70).map(|n| stopped(torrent, v4(n))));
    store.sweep_all(at(LIFETIME * 2 - 10), Retention::DropEmpty);
    let alive: Vec<_> = (71..=100).map(v4).collect();
    for turn in 0..20 {
        let some = store.tell_at(LIFETIME * 2 + turn, leecher(torrent, v4(9000)).want(10));
        assert!(
            some.peers.iter().all(|peer| alive.contains(peer)),
            "gone, and yet handed out: {:?}",
            some.peers
        );
    }
    assert_same(store.tell(leecher(torrent, v4(9000))).peers, alive, "the peers left");
    store.remove(&torrent);
    assert_eq!(store.tell(leecher(torrent, v4(9000))).peers, [], "after the swarm was removed");
}

pub(crate) fn the_same_announcer_gets_other_samples(subject: &dyn Subject) {
    for size in [60, 500] {
        for family in [Family::V4, Family::V6] {
            let (store, torrent) = (build(subject), hash(1));
            store.fill(0, (1..=size).map(|n| leecher(torrent, peer(family, n))));
            let mut rng = SplitMix64::new(3);
            let announce = leecher(torrent, peer(family, 1)).want(20);
            let samples: HashSet<Vec<Endpoint>> =
                (0..20).map(|_| announce_with(&store, &announce, at(0), &mut rng).sorted()).collect();
            assert!(samples.len() >= 8, "only {} different samples in 20 of {size}", samples.len());
        }
    }
}

/// Neither the info hashes nor the peer ids that a client chooses influence the selection: zeroes, ones, or
/// similar values.
pub(crate) fn selection_follows_the_callers_randomness_whatever_clients_choose(subject: &dyn Subject) {
    let store = build(subject);
    for bytes in [[0; 20], [0xff; 20], [0x80; 20]] {
        let torrent = InfoHash::new(bytes);
        store.fill(0, (1..=90).map(|n| leecher(torrent, v4(n)).peer_id(bytes.into())));
        let announce = leecher(torrent, v4(1)).peer_id(bytes.into()).want(10);
        let mut rng = SplitMix64::new(5);
        let seen: HashSet<_> =
            (0..150).flat_map(|_| announce_with(&store, &announce, at(0), &mut rng).peers).collect();
        assert!(seen.len() >= 85, "150 announces were handed only {} of 89 peers", seen.len());
    }
}

pub(crate) fn a_constant_generator_still_gives_distinct_peers(subject: &dyn Subject) {
    struct Constant(u64);
    impl Random for Constant {
        fn next_u64(&mut self) -> u64 {
            self.0
        }
    }
    for size in [2, 60, 700] {
        let (store, torrent) = mixed(subject, size);
        for word in [0, u64::MAX, 1, 1 << 63, u32::MAX.into()] {
            for (n, left, want) in [(1, 1, 5), (2, 1, 50), (3, 0, 20), (9000, 1, 1), (9000, 0, 60)] {
                let (store, announce) =
                    (store.clone(), Announce::new(torrent, v4(n)).left(left).want(want).families(BOTH));
                let announced = within(PATIENCE.get(), "an announce with a constant generator", move || {
                    announce_with(&store, &announce, at(0), &mut Constant(word))
                });
                announced.assert_fits(&announce);
            }
        }
    }
}
