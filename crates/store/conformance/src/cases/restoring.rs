//! Cases of restores: swarms of a snapshot, and downloads that were counted earlier.

use swarmkeep::{
    Endpoint, Family, InfoHash, PeerDetails, PeerRecord, Restored, Retention, Role, SwarmSummary, Timestamp,
    TorrentRepositoryExt,
};

use crate::{Subject, kit::*};

fn summary(info_hash: InfoHash, downloaded: u32) -> SwarmSummary {
    SwarmSummary { info_hash, stats: stats(0, 0, downloaded) }
}

fn record(endpoint: Endpoint, role: Role, last_announce: Timestamp) -> PeerRecord {
    PeerRecord { endpoint, role, last_announce, details: None }
}

fn counts(restored: Restored) -> [u64; 4] {
    [restored.added, restored.known, restored.expired, restored.refused]
}

/// Returns a thousand peers of all kinds, up to a thousand seconds old at the start of the story.
fn thousand() -> Vec<PeerRecord> {
    let family = |n: u64| if n.is_multiple_of(3) { Family::V6 } else { Family::V4 };
    let role = |n: u64| if n.is_multiple_of(2) { Role::Seeder } else { Role::Leecher };
    (0..1000).map(|n| record(peer(family(n), n as u32), role(n), at(0).saturating_sub(n))).collect()
}

pub(crate) fn restore_puts_back_peers_with_role_age_and_downloads(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    assert_eq!(counts(store.restore(&summary(torrent, 77), &thousand(), at(0))), [1000, 0, 0, 0]);
    assert_eq!(store.scrape(&torrent), stats(500, 500, 77));
    let members = store.members(&torrent);
    for expected in thousand() {
        let listed = members[&expected.endpoint];
        assert_eq!(listed.role, expected.role);
        store.assert_time(&listed, expected.last_announce, at(0));
    }
    store.assert_consistent();
    let handed = store.tell(leecher(torrent, v4(9000)).want(5000).families(BOTH));
    assert_eq!(handed.peers.len(), 1000, "restored peers are handed out");
}

pub(crate) fn restored_peers_are_swept_when_their_time_has_come(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.restore(&summary(torrent, 0), &thousand(), at(0));
    // Each second one more peer expires.
    for beyond in (0..40).chain([300, 999, 1000, 1000 + resolution(&store)]) {
        let now = LIFETIME - 999 + beyond;
        store.sweep_all(at(now), Retention::DropEmpty);
        let alive = store.scrape(&torrent).peers();
        let outlived = |beyond: u64| 1000 - beyond.min(1000);
        let (least, most) = (outlived(beyond), outlived(beyond.saturating_sub(resolution(&store))));
        assert!((least..=most).contains(&alive), "{alive} are alive {beyond} s after the first has expired");
    }
}

pub(crate) fn restore_may_be_done_in_several_calls(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    for (n, some) in thousand().chunks(170).enumerate() {
        let restored = store.restore(&summary(torrent, 77), some, at(n as u64));
        assert_eq!(counts(restored), [some.len() as u64, 0, 0, 0]);
        assert_eq!(store.scrape(&torrent).downloaded, 77, "the download count is not added up");
    }
    assert_eq!(store.scrape(&torrent), stats(500, 500, 77));
    assert_eq!(
        counts(store.restore(&summary(torrent, 77), &thousand(), at(9))),
        [0, 1000, 0, 0],
        "all over again"
    );
    assert_eq!(store.scrape(&torrent), stats(500, 500, 77));
    store.assert_consistent();
}

pub(crate) fn restore_leaves_a_peer_as_it_announced_itself(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.fill(500, [seeder(torrent, v4(1)).peer_id(peer_id(5)), leecher(torrent, v6(2)).transferred(3, 4)]);
    let before = store.members(&torrent);
    let stale = [
        record(v4(1), Role::Leecher, at(300)),
        record(v6(2), Role::Seeder, at(600)),
        record(v4(3), Role::Seeder, at(300)),
    ];
    assert_eq!(counts(store.restore(&summary(torrent, 0), &stale, at(600))), [1, 2, 0, 0]);
    let after = store.members(&torrent);
    for endpoint in [v4(1), v6(2)] {
        let (before, after) = (before[&endpoint], after[&endpoint]);
        assert_eq!((after.role, after.details), (before.role, before.details));
        store.assert_time(&after, at(500), at(600));
    }
    assert_eq!(store.scrape(&torrent), stats(2, 1, 0));
    store.assert_consistent();
}

pub(crate) fn restore_keeps_out_peers_older_than_the_lifetime(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    let resolution = resolution(&store);
    let aged = |n: u32, age: u64| record(v4(n), Role::Leecher, at(0).saturating_sub(age));
    let peers = [
        aged(1, LIFETIME),
        aged(2, LIFETIME + resolution + 1),
        aged(3, 0),
        aged(4, 70_000),
        aged(5, 1 << 24),
        record(v6(6), Role::Seeder, Timestamp::from_secs(0)),
    ];
    assert_eq!(counts(store.restore(&summary(torrent, 3), &peers, at(0))), [2, 0, 4, 0]);
    assert_eq!(store.members(&torrent).into_keys().collect::<Vec<_>>(), [v4(1), v4(3)]);
    store.assert_consistent();
}

pub(crate) fn restore_takes_the_larger_download_count(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.fill(0, (0..5).map(|n| completed(torrent, v4(n))));
    for (given, expected) in [(3, 5), (0, 5), (9, 9), (8, 9), (u32::MAX, u32::MAX), (1, u32::MAX)] {
        store.restore(&summary(torrent, given), &[], at(0));
        assert_eq!(store.scrape(&torrent), stats(5, 0, expected), "after a restore with {given}");
    }
}

pub(crate) fn restore_creates_no_swarm_without_living_peers_and_downloads(subject: &dyn Subject) {
    let store = build(subject);
    let age = LIFETIME + resolution(&store) + 1;
    let expired = [record(v4(1), Role::Seeder, at(0).saturating_sub(age))];
    assert_eq!(counts(store.restore(&summary(hash(1), 0), &expired, at(0))), [0, 0, 1, 0]);
    assert_eq!(counts(store.restore(&summary(hash(2), 0), &[], at(0))), [0, 0, 0, 0]);
    assert_eq!((store.totals().swarms, store.swarms().len()), (0, 0));
    store.restore(&summary(hash(1), 4), &expired, at(0));
    store.restore(&summary(hash(2), 5), &[], at(0));
    assert_eq!(store.totals().swarms, 2, "a download count is something to keep");
    assert_eq!((store.scrape(&hash(1)), store.scrape(&hash(2))), (stats(0, 0, 4), stats(0, 0, 5)));
    store.assert_consistent();
}

pub(crate) fn a_listing_restores_into_another_store_as_it_was(subject: &dyn Subject) {
    let (first, second, torrent) = (build(subject), build(subject), hash(1));
    for n in 0..200 {
        let family = if n % 3 == 0 { Family::V6 } else { Family::V4 };
        let announce = completed(torrent, peer(family, n)).left((n % 2).into()).peer_id(peer_id(n as u8));
        first.fill(u64::from(n), [announce.transferred(n.into(), u64::MAX)]);
    }
    for swarm in first.swarms() {
        second.restore(&swarm, &first.all_peers(&swarm.info_hash), at(300));
    }
    assert_eq!(second.summaries(), first.summaries());
    assert_eq!(second.totals(), first.totals());
    let (before, after) = (first.members(&torrent), second.members(&torrent));
    assert_same(after.keys().collect(), before.keys().collect(), "the endpoints listed");
    for (endpoint, before) in before {
        assert_eq!((after[&endpoint].role, after[&endpoint].details), (before.role, before.details));
        second.assert_time(&after[&endpoint], before.last_announce, at(300));
    }
    if first.capabilities().keeps_peer_details {
        let PeerDetails { peer_id, .. } = second.members(&torrent)[&v4(7)].details.expect("declared as kept");
        assert_eq!(peer_id, crate::kit::peer_id(7));
    }
}

pub(crate) fn add_downloads_adds_what_was_counted_earlier(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    assert!(!store.add_downloads(&torrent, 5), "there is no such swarm");
    assert_eq!((store.totals().swarms, store.scrape(&torrent)), (0, stats(0, 0, 0)), "nor was one made");
    store.fill(0, [completed(torrent, v4(1)), leecher(torrent, v4(2))]);
    assert!(store.add_downloads(&torrent, 5));
    assert_eq!(store.scrape(&torrent), stats(1, 1, 6));
    assert!(store.add_downloads(&torrent, 0));
    assert_eq!(store.tell(completed(torrent, v4(2))).stats, stats(2, 0, 7));
    assert!(store.add_downloads(&torrent, u32::MAX));
    assert_eq!(store.scrape(&torrent).downloaded, u32::MAX, "it saturates");
}
