//! Cases of restores: swarms of a snapshot, and downloads that were counted earlier.

use std::{collections::BTreeMap, time::Duration};

use swarmkeep::{
    Announce, Budget, Endpoint, Export, Family, InfoHash, PeerDetails, PeerRecord, Restored, Retention, Role,
    SwarmSummary, Timestamp, TorrentRepositoryExt,
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
    let answer = store.tell(completed(torrent, thousand()[0].endpoint));
    assert_eq!(answer.stats.downloaded, 77, "it was a seeder");
}

pub(crate) fn restored_peers_are_swept_when_their_time_has_come(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.restore(&summary(torrent, 0), &thousand(), at(0));
    store.restore(&summary(hash(2), 0), &[record(v4(1), Role::Leecher, at(10 * LIFETIME))], at(0));
    // Each second one more peer expires.
    for beyond in (0..40).chain([300, 999, 1000, 1000 + resolution(&store)]) {
        let now = LIFETIME - 999 + beyond;
        store.sweep_all(at(now), Retention::DropEmpty);
        let alive = store.scrape(&torrent).peers();
        let outlived = |beyond: u64| 1000 - beyond.min(1000);
        let (least, most) = (outlived(beyond), outlived(beyond.saturating_sub(resolution(&store))));
        assert!((least..=most).contains(&alive), "{alive} are alive {beyond} s after the first has expired");
    }
    assert_eq!(store.scrape(&hash(2)).peers(), 0, "a time ahead is that of the restore");
}

pub(crate) fn restore_may_be_done_in_several_calls(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    for (n, some) in thousand().chunks(170).enumerate() {
        let restored = store.restore(&summary(torrent, 77), some, at(n as u64));
        assert_eq!(counts(restored), [some.len() as u64, 0, 0, 0]);
        assert_eq!(store.scrape(&torrent).downloaded, 77, "the download count is not added up");
    }
    assert_eq!(store.scrape(&torrent), stats(500, 500, 77));
    let restored = store.restore(&summary(torrent, 77), &thousand(), at(9));
    assert_eq!(counts(restored), [0, 1000, 0, 0], "all over again");
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

/// There is no sweep for many lifetimes, while other peers announce in the same swarms and in their
/// neighbours. Every peer is listed and exported as old as it is, or older if it has expired, and another
/// store in which peers live longer imports no peer that is too old for it.
pub(crate) fn peers_that_no_sweep_removes_grow_old_and_are_not_imported(subject: &dyn Subject) {
    const LONGER: u64 = 10 * LIFETIME;
    for stride in [LIFETIME / 2, 3 * LIFETIME] {
        let (store, mut told, mut now) = (build(subject), BTreeMap::new(), 0);
        let tell = |told: &mut BTreeMap<_, _>, now, announce: Announce| {
            store.fill(now, [announce]);
            told.insert((announce.info_hash, announce.endpoint), now);
        };
        let assert_age = |record: &PeerRecord, torrent, told: &BTreeMap<_, u64>, now| {
            let joined = told[&(torrent, record.endpoint)];
            if now - joined <= LIFETIME {
                return store.assert_time(record, at(joined), at(now));
            }
            let age = at(now).secs_since(record.last_announce);
            assert!(
                age > LIFETIME && age + resolution(&store) >= now - joined,
                "{} is {} s old and is shown as {age} s old",
                record.endpoint,
                now - joined
            );
        };
        // A swarm in each form that a store may have, and some that grow into it.
        let crowds = [1, 7, 80, 400].map(|size| (hash(size.into()), size));
        let families = |n: u32| if n.is_multiple_of(5) { Family::V6 } else { Family::V4 };
        for (torrent, n) in
            crowds.into_iter().flat_map(|(torrent, size)| (0..size).map(move |n| (torrent, n)))
        {
            tell(&mut told, 0, leecher(torrent, peer(families(n), n)).left((n % 2).into()));
        }
        for turn in 0..12 * LIFETIME / stride {
            now += stride;
            for (torrent, size) in crowds {
                tell(&mut told, now, leecher(torrent, v4(5000)));
                tell(
                    &mut told,
                    now,
                    leecher(torrent, peer(families(turn as u32), 6000 + turn as u32 % size)),
                );
            }
            (0..40).for_each(|n| tell(&mut told, now, leecher(hash(1000 + 40 * turn + n), v4(1))));
            for (torrent, _) in crowds {
                let members = store.members(&torrent);
                let alive = store.scrape(&torrent).peers();
                assert_eq!(members.len() as u64, alive, "alive until they are swept");
                members.values().for_each(|record| assert_age(record, torrent, &told, now));
            }
        }
        assert_eq!(store.totals().peers(), told.len() as u64);
        let (mut export, mut records) = (Export::new(), Vec::new());
        while !export.is_complete() {
            store.export(&mut export, at(now), Budget::peers(1000));
            records.push(export.records().clone());
        }
        let exported = records
            .iter()
            .flat_map(|some| some.iter())
            .flat_map(|swarm| swarm.peers().map(|peer| (swarm.info_hash, peer)).collect::<Vec<_>>());
        assert_eq!(
            exported.map(|(torrent, peer)| assert_age(&peer, torrent, &told, now)).count(),
            told.len()
        );
        let other = build_with(subject, &config().lifetime(Duration::from_secs(LONGER)));
        let restored = other.import(&records, at(now));
        assert_eq!(restored.added + restored.expired, told.len() as u64);
        for swarm in other.swarms() {
            for endpoint in other.members(&swarm.info_hash).into_keys() {
                let age = now - told[&(swarm.info_hash, endpoint)];
                assert!(age <= LONGER + resolution(&store), "{endpoint} is {age} s old and was imported");
            }
        }
        let young = told.values().filter(|&&joined| now - joined <= LIFETIME).count();
        assert!(restored.added >= young as u64, "{restored:?}, where {young} peers are alive");
    }
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
