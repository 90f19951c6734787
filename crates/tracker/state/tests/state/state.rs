//! A repository that is closed, killed and opened again in a folder.

use std::{sync::Arc, time::Duration};

use swarmkeep::{
    Announce, AnnounceEvent, HashKey, InfoHash, PeerBuffer, RepositoryConfig, SplitMix64, Timestamp,
    TorrentRepository, TorrentRepositoryExt as _, catalog,
};
use swarmkeep_state::{Directory, Loaded, Pace, State};

const NOW: u64 = 1_800_000_000;

fn hash(n: u64) -> InfoHash {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    InfoHash::new(bytes)
}

struct Open {
    state: State,
    loaded: Loaded,
}

fn open(path: &std::path::Path, name: &str, now: u64) -> Open {
    let config = RepositoryConfig::new(HashKey::from_os().unwrap()).lifetime(Duration::from_secs(1800));
    let state = State::new(catalog::find(name).unwrap().build(&config).unwrap(), Pace::default());
    let folder = Arc::new(Directory::open(path).unwrap());
    let loaded = state.open(folder, None, Arc::new(move || Timestamp::from_secs(now))).unwrap();
    Open { state, loaded }
}

impl Open {
    fn store(&self) -> Arc<dyn TorrentRepository> {
        self.state.repository().as_sync().cloned().expect("it is synchronous")
    }

    fn announce(&self, torrent: u64, peer: u32, event: AnnounceEvent, left: u64, now: u64) {
        let address = std::net::Ipv4Addr::from_bits(0x0a00_0000 + (peer << 8));
        let endpoint = swarmkeep::Endpoint::new(address.into(), 6881).unwrap();
        let announce = Announce::new(hash(torrent), endpoint).event(event).left(left).want(0);
        let mut rng = SplitMix64::new(1);
        self.store().announce(
            &announce,
            Timestamp::from_secs(now),
            &mut rng,
            &mut PeerBuffer::new(&mut [], &mut []),
        );
    }
}

#[test]
fn what_was_announced_is_there_when_it_is_opened_again() {
    for name in ["packed", "skipmap-mutex-std", "btreemap-rwlock-std"] {
        let folder = tempfile::tempdir().unwrap();
        let first = open(folder.path(), name, NOW);
        for torrent in 0..1000 {
            for peer in 0..=(torrent % 7) as u32 {
                first.announce(torrent, peer, AnnounceEvent::Completed, 0, NOW);
            }
        }
        let totals = first.store().totals();
        first.state.close().unwrap();
        drop(first);

        let second = open(folder.path(), "packed", NOW + 100);
        assert!(second.loaded.refused.is_empty() && second.loaded.snapshot.is_some(), "{:?}", second.loaded);
        assert_eq!(second.store().totals(), totals);
        second.state.settle().unwrap();
        for torrent in 0..1000 {
            assert_eq!(
                u64::from(second.store().scrape(&hash(torrent)).downloaded),
                1 + torrent % 7,
                "{name}"
            );
        }
        assert_eq!(second.store().swarms().len(), 1000);
    }
}

#[test]
fn a_swarm_that_comes_back_has_its_downloads_again() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), "packed", NOW);
    for torrent in 0..100 {
        (0..5).for_each(|peer| first.announce(torrent, peer, AnnounceEvent::Completed, 0, NOW));
    }
    first.state.settle().unwrap();
    first.state.abandon();
    drop(first);

    let second = open(folder.path(), "packed", NOW + 100);
    assert_eq!(second.store().totals().swarms, 0, "nothing is loaded that nobody asks for");
    second.state.settle().unwrap();
    for torrent in 0..100 {
        second.announce(torrent, 9, AnnounceEvent::Started, 7, NOW + 100);
        second.announce(torrent, 9, AnnounceEvent::Completed, 0, NOW + 100);
    }
    second.state.settle().unwrap();
    for torrent in 0..100 {
        assert_eq!(second.store().scrape(&hash(torrent)).downloaded, 6);
    }
    second.store().remove(&hash(7));
    second.announce(7, 9, AnnounceEvent::Started, 7, NOW + 100);
    second.state.settle().unwrap();
    assert_eq!(second.store().scrape(&hash(7)).downloaded, 0, "it was removed");
}

/// A clock that is a day ahead, once.
#[test]
fn a_snapshot_that_a_wrong_clock_has_expired_is_kept_whatever_is_taken_then() {
    const DAY: u64 = 86_400;
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), "packed", NOW);
    (0..100).for_each(|torrent| first.announce(torrent, 1, AnnounceEvent::Started, 0, NOW));
    first.state.close().unwrap();
    let good = std::fs::read(folder.path().join("swarms.snapshot")).unwrap();
    let wrong = open(folder.path(), "packed", NOW + DAY);
    assert_eq!(wrong.loaded.restored.expired, 100);
    for _ in 0..5 {
        wrong.state.snapshot().unwrap();
    }
    wrong.state.close().unwrap();
    let at = |name: &str| folder.path().join(name);
    assert!(std::fs::read(at("swarms.snapshot.kept-1")).expect("kept under a name of its own") == good);
    assert_eq!(wrong.loaded.kept.as_deref(), Some("swarms.snapshot.kept-1"));
    drop(wrong);
    // As the warning says.
    std::fs::copy(at("swarms.snapshot.kept-1"), at("swarms.snapshot")).unwrap();
    let right = open(folder.path(), "packed", NOW + 60);
    assert_eq!((right.loaded.restored.added, right.loaded.restored.expired), (100, 0));
    assert!(right.loaded.kept.is_none());
    right.state.close().unwrap();
    drop(right);
    // Each time anew, but not for ever.
    for day in 1..=4 {
        let wrong = open(folder.path(), "packed", NOW + day * DAY);
        wrong.announce(day, 1, AnnounceEvent::Started, 0, NOW + day * DAY);
        wrong.state.close().unwrap();
    }
    let kept = (1..10).filter(|n| at(&format!("swarms.snapshot.kept-{n}")).exists());
    assert_eq!(kept.collect::<Vec<_>>(), [4, 5]);
    let looked_at = swarmkeep_state::look_at_snapshots(&Directory::open(folder.path()).unwrap()).unwrap();
    assert_eq!(looked_at.last().map(|(name, _)| name.as_str()), Some("swarms.snapshot.kept-5"));
}
