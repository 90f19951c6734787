//! The move of living peers from torrust's repository, as `docs/operate/from-torrust.md` shows it.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use aquatic_udp_protocol::{AnnounceEvent, NumberOfBytes, PeerId};
use swarmkeep::{
    Announce, Endpoint, Families, HashKey, Packed, PeerCounts, PeerRecord, RepositoryConfig, Restored, Role,
    SplitMix64, SwarmStats, SwarmSummary, Timestamp, TorrentRepository, TorrentRepositoryExt, Totals,
};
use swarmkeep_workload::Workload;
use torrust_tracker_primitives::{info_hash::InfoHash, pagination::Pagination, peer::Peer};
use torrust_tracker_torrent_repository::{TorrentsSkipMapMutexStd, entry::EntrySync, repository::Repository};

const JOINED: u64 = 1_800_000_000;
const NOW: Timestamp = Timestamp::from_secs(JOINED + 60);

/// A store without limits that has the peers.
fn moved(torrents: &TorrentsSkipMapMutexStd) -> (Packed, Restored) {
    let store = Packed::new(&RepositoryConfig::new(HashKey::from_bytes([7; 16]))).expect("no limits");
    let mut restored = Restored::default();
    for (info_hash, entry) in torrents.get_paginated(None) {
        let record = |peer: &Arc<Peer>| {
            let endpoint = Endpoint::try_from(peer.peer_addr).ok()?;
            let role = if peer.is_seeder() { Role::Seeder } else { Role::Leecher };
            let last_announce = Timestamp::from_secs(peer.updated.as_secs());
            Some(PeerRecord { endpoint, role, last_announce, details: None })
        };
        let peers: Vec<_> = entry.get_peers(None).iter().filter_map(record).collect();
        let stats = SwarmStats { downloaded: entry.get_swarm_metadata().downloaded, ..SwarmStats::default() };
        restored += store.restore(&SwarmSummary { info_hash: info_hash.bytes().into(), stats }, &peers, NOW);
    }
    (store, restored)
}

/// Torrust's form of an announce.
fn peer(announce: &Announce, event: AnnounceEvent) -> Peer {
    let bytes = |number: u64| NumberOfBytes::new(number.try_into().expect("less than 2^63"));
    Peer {
        peer_id: PeerId(announce.peer_id.into()),
        peer_addr: announce.endpoint.into(),
        updated: Duration::from_secs(JOINED),
        uploaded: bytes(announce.uploaded),
        downloaded: bytes(announce.downloaded),
        left: bytes(announce.left),
        event,
    }
}

#[test]
fn every_answer_is_the_same_after_the_move() {
    const PEERS: u64 = 2000;
    let torrents = TorrentsSkipMapMutexStd::default();
    for announce in Workload::zipf(1, 300, PEERS).fill() {
        let info_hash = InfoHash::from_bytes(announce.info_hash.as_bytes());
        torrents.upsert_peer(&info_hash, &peer(&announce, AnnounceEvent::Started));
        if announce.left == 0 {
            torrents.upsert_peer(&info_hash, &peer(&announce, AnnounceEvent::Completed));
        }
    }
    let (store, restored) = moved(&torrents);
    assert_eq!(restored.added, PEERS);

    let (all, metrics) = (torrents.get_paginated(None), torrents.get_metrics());
    let mut counts = [PeerCounts::default(); 2];
    for peer in all.iter().flat_map(|(_, entry)| entry.get_peers(None)) {
        let PeerCounts { seeders, leechers } = &mut counts[usize::from(peer.peer_addr.is_ipv6())];
        *(if peer.is_seeder() { seeders } else { leechers }) += 1;
    }
    assert!(metrics.downloaded > 0 && counts.iter().all(|of| of.seeders > 0 && of.leechers > 0));
    let Totals { swarms, v4, v6, downloaded, .. } = store.totals();
    assert_eq!(([v4, v6], swarms, downloaded), (counts, metrics.torrents, metrics.downloaded));
    assert_eq!([v4.seeders + v6.seeders, v4.leechers + v6.leechers], [metrics.complete, metrics.incomplete]);
    let stats = |info_hash: &InfoHash| {
        let theirs = torrents.get_swarm_metadata(info_hash).expect("a torrent");
        SwarmStats { complete: theirs.complete, incomplete: theirs.incomplete, downloaded: theirs.downloaded }
    };
    let mut paged = Vec::new();
    for offset in (0..all.len()).step_by(7) {
        let after = paged.last().map(|swarm: &SwarmSummary| swarm.info_hash);
        store.page(after.as_ref(), 7, &mut paged);
        let there = torrents.get_paginated(Some(&Pagination::new(offset as u32, 7)));
        let there = there.iter().map(|(info_hash, _)| info_hash.bytes());
        assert!(paged[offset..].iter().map(|swarm| *swarm.info_hash.as_bytes()).eq(there), "from {offset}");
    }
    for (info_hash, entry) in all {
        let own = info_hash.bytes().into();
        assert_eq!(store.scrape(&own), stats(&info_hash), "{own}");
        let here = store.all_peers(&own);
        let resolution = store.capabilities().clock_resolution_secs;
        assert!(here.iter().all(|peer| peer.last_announce.as_secs().abs_diff(JOINED) <= resolution), "{own}");
        let here: BTreeSet<(SocketAddr, bool)> =
            here.iter().map(|peer| (peer.endpoint.into(), peer.role.is_seeder())).collect();
        let there = entry.get_peers(None);
        let there: BTreeSet<_> = there.iter().map(|peer| (peer.peer_addr, peer.is_seeder())).collect();
        assert_eq!(here, there, "{own}");

        let endpoint = "203.0.113.1:1".parse().expect("an endpoint");
        let announce = Announce::new(own, endpoint).left(1).want(PEERS as usize).families(Families::all());
        let (answer, selected) = store.announce_vec(&announce, NOW, &mut SplitMix64::new(1));
        torrents.upsert_peer(&info_hash, &peer(&announce, AnnounceEvent::Started));
        assert_eq!(answer.stats, stats(&info_hash), "{own}");
        let there = entry.get_peers_for_client(&endpoint.into(), None);
        let there: BTreeSet<SocketAddr> = there.iter().map(|peer| peer.peer_addr).collect();
        assert_eq!(selected.into_iter().map(SocketAddr::from).collect::<BTreeSet<_>>(), there, "{own}");
    }
}

#[test]
fn peers_at_port_0_second_ids_and_expired_peers_stay_behind() {
    let (torrents, own) = (TorrentsSkipMapMutexStd::default(), swarmkeep::InfoHash::new([7; 20]));
    let announce = Announce::new(own, "192.0.2.1:1".parse().expect("an endpoint")).left(1);
    let addresses = ["192.0.2.1:1", "192.0.2.1:1", "192.0.2.2:0", "192.0.2.3:1", "[2001:db8::1]:1"];
    let addresses = addresses.map(|text| text.parse::<SocketAddr>().expect("an address"));
    // An hour is longer than the lifetime.
    for ((id, peer_addr), age) in (0..).zip(addresses).zip([60, 0, 0, 3600, 0]) {
        let (peer_id, updated) = (PeerId([id; 20]), Duration::from_secs(JOINED - age));
        let peer = Peer { peer_id, peer_addr, updated, ..peer(&announce, AnnounceEvent::Started) };
        torrents.upsert_peer(&InfoHash::from_bytes(&[7; 20]), &peer);
    }
    let (store, Restored { added, known, expired, refused, .. }) = moved(&torrents);
    assert_eq!((torrents.get_metrics().incomplete, added, known, expired, refused), (5, 2, 1, 1, 0));
    let here: BTreeSet<SocketAddr> = store.all_peers(&own).iter().map(|peer| peer.endpoint.into()).collect();
    assert_eq!(here, BTreeSet::from([addresses[0], addresses[4]]));
}
