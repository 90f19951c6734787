//! Cases of announces: the update of the peer, and the counts.

use swarmkeep::{
    Announce, AnnounceEvent, Changes, Family, Retention, Role, SwarmSummary, TorrentRepositoryExt,
};

use crate::{Subject, kit::*};

pub(crate) fn announce_answers_with_the_counts_after_the_update(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    assert_eq!(store.tell(leecher(torrent, v4(1))).stats, stats(0, 1, 0));
    assert_eq!(store.tell(seeder(torrent, v4(2))).stats, stats(1, 1, 0));
    assert_eq!(store.tell(leecher(torrent, v6(3))).stats, stats(1, 2, 0));
    assert_eq!(store.tell(completed(torrent, v6(3))).stats, stats(2, 1, 1));
    assert_eq!(store.tell(stopped(torrent, v4(2))).stats, stats(1, 1, 1));
    assert_eq!(store.tell(stopped(torrent, v4(1))).stats, stats(1, 0, 1));
    assert_eq!(store.tell(stopped(torrent, v6(3))).stats, stats(0, 0, 1));
}

/// The form of the address does not matter either: an IPv4-mapped IPv6 address is the IPv4 address.
pub(crate) fn a_peer_is_its_endpoint_whatever_peer_id_it_uses(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    for n in 0..5 {
        let answer = store.tell(leecher(torrent, v4(1)).peer_id(peer_id(n)));
        assert_eq!(answer.stats, stats(0, 1, 0), "one endpoint with its peer id number {n}");
        assert!(answer.peers.is_empty(), "handed to itself under another peer id");
    }
    store.tell(leecher(torrent, v4(2)).peer_id(peer_id(4)));
    assert_eq!(store.scrape(&torrent), stats(0, 2, 0), "two endpoints with one peer id");
    store.tell(stopped(torrent, v4(1)).peer_id(peer_id(9)));
    assert_eq!(store.scrape(&torrent), stats(0, 1, 0), "stopped with an id never used before");
    let (store, torrent) = (build(subject), hash(1));
    store.tell(leecher(torrent, "192.0.2.1:6881".parse().expect("an endpoint")));
    let mapped = "[::ffff:192.0.2.1]:6881".parse().expect("an endpoint");
    assert_eq!(store.tell(leecher(torrent, mapped)).stats, stats(0, 1, 0), "an IPv4-mapped address");
    assert_eq!(store.totals().v4.leechers, 1);
    assert_eq!(store.tell(leecher(torrent, v4(9))).count(Family::V4), 1, "handed out as IPv4");
}

pub(crate) fn two_ports_of_one_address_are_two_peers(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    let port = |n| {
        ["192.0.2.1", "[2001:db8::1]"].map(|ip| format!("{ip}:{}", n * 300).parse().expect("an endpoint"))
    };
    let ports: Vec<_> = (1..=200).flat_map(port).collect();
    store.fill(0, ports.iter().map(|&port| leecher(torrent, port)));
    assert_eq!(store.scrape(&torrent), stats(0, 400, 0));
    let all = leecher(torrent, v4(1)).want(400).families(BOTH);
    assert_same(store.tell(all).peers, ports.clone(), "all ports of one address");
    store.tell(stopped(torrent, "192.0.2.1:1".parse().expect("an endpoint")));
    assert_same(store.tell(all).peers, ports, "after an unknown port of the address has stopped");
}

pub(crate) fn started_none_and_completed_insert_or_refresh(subject: &dyn Subject) {
    let store = build(subject);
    let events = [AnnounceEvent::Started, AnnounceEvent::None, AnnounceEvent::Completed];
    let all = (0..).zip(events).flat_map(|(n, event)| {
        [0, 5].map(|left| Announce::new(hash(n), v4(left as u32)).left(left).event(event))
    });
    for first in all.clone() {
        assert!(store.tell(first).changes.contains(Changes::JOINED), "{} of an unknown peer", first.event);
    }
    for second in all {
        let answer = store.tell_at(LIFETIME - 1, second);
        assert!(answer.changes.contains(Changes::REFRESHED), "{} of a known peer", second.event);
        assert!(!answer.changes.contains(Changes::JOINED), "{} of a known peer", second.event);
        assert_eq!(answer.stats.peers(), 2);
    }
    // All were refreshed just before they expired, so all are in the swarm after the sweep.
    store.sweep_all(at(LIFETIME * 3 / 2), Retention::DropEmpty);
    assert_eq!(store.totals().peers(), 6, "peers refreshed by any event live on");
}

pub(crate) fn a_leecher_that_becomes_a_seeder_moves_and_is_counted_once(subject: &dyn Subject) {
    for family in [Family::V4, Family::V6] {
        let (store, torrent) = (build(subject), hash(1));
        store.fill(0, (1..=20).map(|n| leecher(torrent, peer(family, n))));
        for n in 1..=20 {
            // With and without the event: clients that skip hash checks never send `completed`.
            let event = if n % 2 == 0 { AnnounceEvent::Completed } else { AnnounceEvent::None };
            let answer = store.tell(seeder(torrent, peer(family, n)).event(event));
            assert_eq!(answer.stats, stats(n, 20 - n, n / 2), "after {n} of 20 have finished");
        }
        let roles: Vec<_> = store.members(&torrent).values().map(|record| record.role).collect();
        assert_eq!(roles, [Role::Seeder; 20], "listed with the new role only");
        let handed = store.tell(leecher(torrent, peer(family, 99))).peers;
        assert_eq!(handed.len(), 20, "each is handed out once");
        store.assert_consistent();
    }
}

pub(crate) fn a_seeder_may_become_a_leecher_again(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.fill(0, (1..=10).map(|n| seeder(torrent, v4(n))));
    for n in 1..=10 {
        let answer = store.tell(leecher(torrent, v4(n)));
        assert_eq!(answer.stats, stats(10 - n, n, 0));
        assert!(answer.changes.contains(Changes::DEMOTED));
    }
    assert_eq!(store.tell(seeder(torrent, v4(99))).peers.len(), 10, "leechers again, for a seeder too");
    assert_eq!(store.tell(completed(torrent, v4(1))).stats, stats(2, 9, 1), "and its next download counts");
    store.assert_consistent();
}

pub(crate) fn role_and_time_are_those_of_the_last_announce(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    for (seconds, left) in [(0, 5), (40, 0), (100, 0), (1000, 7), (1001, 0), (1700, 1)] {
        store.tell_at(seconds, Announce::new(torrent, v4(1)).left(left));
        let record = store.members(&torrent)[&v4(1)];
        assert_eq!(record.role.is_seeder(), left == 0, "after an announce with {left} left");
        store.assert_time(&record, at(seconds), at(seconds));
    }
}

pub(crate) fn stopped_removes_the_peer_and_selects_nobody(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    for family in [Family::V4, Family::V6] {
        store.fill(0, (1..=9).map(|n| leecher(torrent, peer(family, n))));
        store.fill(0, (10..=12).map(|n| seeder(torrent, peer(family, n))));
        for n in [1, 12, 5] {
            let answer = store.tell(stopped(torrent, peer(family, n)).families(BOTH));
            assert_eq!(answer.peers, [], "selected for a peer that is leaving");
            assert_eq!(answer.changes, Changes::LEFT);
            assert!(!store.members(&torrent).contains_key(&peer(family, n)), "still listed");
            let others = store.tell(leecher(torrent, peer(family, 2)).families(BOTH));
            assert!(!others.peers.contains(&peer(family, n)), "still handed out");
        }
        store.assert_consistent();
    }
    assert_eq!(store.scrape(&torrent), stats(4, 14, 0));
}

pub(crate) fn stopped_from_an_unknown_peer_changes_nothing(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.fill(0, [leecher(torrent, v4(1)), seeder(torrent, v4(2)), completed(torrent, v6(3))]);
    let before = (store.scrape(&torrent), store.totals(), store.members(&torrent));
    for endpoint in [v4(9), v6(9), v6(1)] {
        for left in [0, 7] {
            let answer = store.tell(stopped(torrent, endpoint).left(left));
            assert_eq!((answer.stats, answer.changes), (before.0, Changes::empty()));
        }
    }
    store.tell(stopped(torrent, v4(1)));
    let again = store.tell(stopped(torrent, v4(1)));
    assert_eq!((again.stats, again.changes), (stats(2, 0, 1), Changes::empty()), "stopped twice");
    store.tell(leecher(torrent, v4(1)));
    assert_eq!((store.scrape(&torrent), store.totals(), store.members(&torrent)), before);
}

pub(crate) fn stopped_for_an_unknown_info_hash_creates_no_swarm(subject: &dyn Subject) {
    let store = build(subject);
    let answer = store.tell(stopped(hash(1), v4(1)).left(0));
    assert_eq!((answer.stats, answer.changes), (stats(0, 0, 0), Changes::empty()));
    assert_eq!(answer.peers, []);
    assert_eq!(store.totals().swarms, 0);
    assert_eq!(store.swarms(), []);
}

pub(crate) fn a_swarm_that_everybody_left_keeps_its_downloads_until_a_sweep(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.fill(0, [completed(torrent, v4(1)), stopped(torrent, v4(1))]);
    assert_eq!(store.scrape(&torrent), stats(0, 0, 1));
    assert_eq!(store.totals().swarms, 1);
    assert_eq!(store.swarms(), [SwarmSummary { info_hash: torrent, stats: stats(0, 0, 1) }]);
    let answer = store.tell(leecher(torrent, v4(2)));
    assert_eq!((answer.stats, answer.changes), (stats(0, 1, 1), Changes::JOINED), "it was there all along");
}

pub(crate) fn completed_counts_one_download_for_a_leecher_that_finishes(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    for n in 1..=30 {
        store.tell(leecher(torrent, v4(n)));
        let answer = store.tell(completed(torrent, v4(n)));
        assert_eq!(answer.stats.downloaded, n);
        assert!(answer.changes.contains(Changes::COMPLETED | Changes::PROMOTED | Changes::REFRESHED));
    }
}

pub(crate) fn completed_counts_one_download_for_an_unknown_peer(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    let answer = store.tell(completed(torrent, v4(1)));
    assert_eq!(answer.stats, stats(1, 0, 1));
    assert_eq!(answer.changes, Changes::CREATED | Changes::JOINED | Changes::COMPLETED);
    assert_eq!(store.tell(completed(torrent, v6(1))).stats, stats(2, 0, 2));
    store.tell(stopped(torrent, v4(1)));
    assert_eq!(store.tell(completed(torrent, v4(1))).stats, stats(2, 0, 3), "unknown again after it stopped");
}

pub(crate) fn a_repeated_completed_counts_no_second_download(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.tell(leecher(torrent, v4(1)));
    for turn in 0..5 {
        let answer = store.tell_at(turn, completed(torrent, v4(1)));
        assert_eq!(answer.stats, stats(1, 0, 1));
        assert_eq!(answer.changes.contains(Changes::COMPLETED), turn == 0);
    }
    for event in [AnnounceEvent::None, AnnounceEvent::Started, AnnounceEvent::None] {
        store.tell_at(9, seeder(torrent, v4(1)).event(event));
        store.tell_at(9, leecher(torrent, v4(2)));
        let again = store.tell_at(9, completed(torrent, v4(1)));
        assert_eq!(again.stats, stats(1, 1, 1), "a repeat after {event}");
    }
    store.tell(seeder(torrent, v4(3)).event(AnnounceEvent::Started));
    for now in [9, 3 * LIFETIME] {
        let again = store.tell_at(now, completed(torrent, v4(3)));
        assert_eq!(again.stats.downloaded, 1, "a seeder, expired or not, had nothing to finish");
    }
}

pub(crate) fn completed_with_bytes_left_is_an_ordinary_announce(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    let claim = leecher(torrent, v4(1)).event(AnnounceEvent::Completed);
    assert_eq!(store.tell(claim).changes, Changes::CREATED | Changes::JOINED);
    assert_eq!(store.tell(claim.left(1)).stats, stats(0, 1, 0));
    assert_eq!(store.tell(completed(torrent, v4(1))).stats, stats(1, 0, 1), "and then the real one");
    assert_eq!(store.tell(claim.left(u64::MAX)).stats, stats(0, 1, 1), "a seeder no more");
}

pub(crate) fn only_completed_counts_downloads(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.fill(0, [leecher(torrent, v4(1)), seeder(torrent, v4(1)), seeder(torrent, v4(2))]);
    store.tell(seeder(torrent, v4(3)).event(AnnounceEvent::Started));
    store.tell(stopped(torrent, v4(3)).left(0));
    store.tell(stopped(torrent, v4(4)).left(0));
    assert_eq!(store.scrape(&torrent), stats(2, 0, 0));
}

pub(crate) fn download_counts_saturate(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.restore(&SwarmSummary { info_hash: torrent, stats: stats(0, 0, u32::MAX - 2) }, &[], at(0));
    for n in 1..=5 {
        let expected = (u32::MAX - 2).saturating_add(n);
        assert_eq!(store.tell(completed(torrent, v4(n))).stats.downloaded, expected);
    }
    assert!(store.add_downloads(&torrent, u32::MAX));
    assert_eq!(store.scrape(&torrent), stats(5, 0, u32::MAX));
    store.assert_consistent();
}

pub(crate) fn changes_say_what_the_announce_did(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    let story = [
        (leecher(torrent, v4(1)), Changes::CREATED | Changes::JOINED),
        (leecher(torrent, v4(1)), Changes::REFRESHED),
        (leecher(torrent, v6(1)), Changes::JOINED),
        (seeder(torrent, v4(1)), Changes::REFRESHED | Changes::PROMOTED),
        (seeder(torrent, v4(1)), Changes::REFRESHED),
        (leecher(torrent, v4(1)), Changes::REFRESHED | Changes::DEMOTED),
        (completed(torrent, v4(1)), Changes::REFRESHED | Changes::PROMOTED | Changes::COMPLETED),
        (completed(torrent, v4(1)), Changes::REFRESHED),
        (completed(torrent, v4(2)), Changes::JOINED | Changes::COMPLETED),
        (stopped(torrent, v4(2)).left(0), Changes::LEFT),
        (stopped(torrent, v4(2)), Changes::empty()),
        (seeder(torrent, v4(2)), Changes::JOINED),
    ];
    for (step, (announce, changes)) in story.into_iter().enumerate() {
        assert_eq!(store.tell(announce).changes, changes, "step {step}: {announce:?}");
    }
}

pub(crate) fn swarms_are_apart(subject: &dyn Subject) {
    let store = build(subject);
    // Info hashes that differ in one bit only, at either end: consecutive in every order.
    let base = [0x5a; 20];
    let neighbours: Vec<_> = (0..160)
        .map(|bit| {
            let mut bytes = base;
            bytes[bit / 8] ^= 1 << (bit % 8);
            swarmkeep::InfoHash::new(bytes)
        })
        .collect();
    for (n, &torrent) in neighbours.iter().enumerate() {
        let answer = store.tell(completed(torrent, v4(n as u32)));
        assert_eq!((answer.stats, answer.peers.len()), (stats(1, 0, 1), 0));
        store.tell(leecher(torrent, v4(1000)));
    }
    store.tell(stopped(neighbours[3], v4(1000)));
    assert_eq!(store.remove(&neighbours[77]), Some(stats(1, 1, 1)));
    for (n, torrent) in neighbours.iter().enumerate() {
        let expected = match n {
            3 => stats(1, 0, 1),
            77 => stats(0, 0, 0),
            _ => stats(1, 1, 1),
        };
        assert_eq!(store.scrape(torrent), expected, "swarm {n}");
    }
    store.assert_consistent();
}
