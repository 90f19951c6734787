//! Download counts while the disk refuses, and when it takes them again.

use std::{net::Ipv4Addr, sync::Arc, thread, time::Duration};

use swarmkeep::{
    Announce, AnnounceEvent, Endpoint, HashKey, InfoHash, Packed, PeerBuffer, Random, RepositoryConfig,
    Request, Retention, SplitMix64, Timestamp, TorrentRepository, TorrentRepositoryExt as _,
};
use swarmkeep_state::{
    Downloads, Durable, Pace,
    simulated::{Refusal, Simulated},
};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn hash(n: u32) -> InfoHash {
    let mut bytes = [0; 20];
    bytes[..4].copy_from_slice(&n.wrapping_mul(0x9e37_79b9).to_be_bytes());
    InfoHash::new(bytes)
}

fn completed(torrent: u32, peer: u32) -> Announce {
    let endpoint = Endpoint::new(Ipv4Addr::from_bits(0x0a00_0000 + peer).into(), 6881).unwrap();
    Announce::new(hash(torrent), endpoint).event(AnnounceEvent::Completed).left(0).want(0)
}

fn store() -> Arc<dyn TorrentRepository> {
    Arc::new(Packed::new(&RepositoryConfig::new(HashKey::from_bytes([7; 16]))).unwrap())
}

fn durable(folder: &Simulated) -> Durable {
    let mut pace = Pace::default();
    pace.every = Duration::from_millis(5);
    let durable = Durable::new(store(), pace);
    durable.open(Downloads::open(Arc::new(folder.clone())).unwrap());
    durable
}

fn tell(store: &Durable, announce: &Announce) {
    store.announce(announce, NOW, &mut SplitMix64::new(1), &mut PeerBuffer::new(&mut [], &mut []));
}

/// What the folder holds of a torrent, for whoever opens it next.
fn stored(folder: &Simulated, torrent: u32) -> u32 {
    Downloads::open(Arc::new(folder.after_kill())).unwrap().get(&hash(torrent)).unwrap()
}

#[test]
fn a_disk_that_refuses_for_long_gets_all_counts_when_it_takes_them_again() {
    for refusal in [Refusal::Full, Refusal::ReadOnly, Refusal::Device] {
        let folder = Simulated::new(1);
        let store = durable(&folder);
        (0..50).for_each(|peer| tell(&store, &completed(1, peer)));
        store.settle().unwrap();
        folder.refuse(folder.operations().len(), usize::MAX, refusal);
        (50..80).for_each(|peer| tell(&store, &completed(1, peer)));
        (0..500).for_each(|torrent| tell(&store, &completed(1000 + torrent, 1)));
        assert!(store.settle().is_err(), "{refusal:?}");
        let status = store.status();
        assert!(status.is_refused && status.refusals > 0 && status.unsaved == 501, "{status:?}");
        assert_eq!(store.scrape(&hash(1)).downloaded, 80, "the tracker goes on");
        folder.heal();
        store.settle().unwrap();
        let status = store.status();
        assert!(!status.is_refused && status.unsaved == 0, "{status:?}");
        assert_eq!([stored(&folder, 1), stored(&folder, 1499)], [80, 1], "{refusal:?}");
    }
}

#[test]
fn a_disk_that_refuses_now_and_then_makes_nothing_count_twice() {
    let folder = Simulated::new(3);
    let store = durable(&folder);
    let mut rng = SplitMix64::new(5);
    for peer in 0..400 {
        tell(&store, &completed(peer % 7, peer));
        if below(&mut rng, 4) == 0 {
            folder.refuse(
                folder.operations().len() + below(&mut rng, 6),
                1 + below(&mut rng, 3),
                Refusal::Device,
            );
            let _ = store.settle();
            folder.heal();
        }
    }
    store.settle().unwrap();
    for torrent in 0..7 {
        let expected = (0..400).filter(|peer| peer % 7 == torrent).count() as u32;
        assert_eq!([stored(&folder, torrent), store.scrape(&hash(torrent)).downloaded], [expected; 2]);
    }
}

#[test]
fn counts_are_exact_while_swarms_go_and_come_back_in_all_threads() {
    let folder = Simulated::new(2);
    let (torrents, rounds, threads) = (40, 300, 4);
    for life in 1..=3 {
        let store = durable(&folder);
        thread::scope(|scope| {
            for thread in 0..threads {
                let store = &store;
                scope.spawn(move || {
                    let mut rng = SplitMix64::new(u64::from(thread));
                    for round in 0..rounds {
                        // A peer of its own each time, so that every announce counts a download.
                        let peer = (thread * rounds + round) << 8 | life;
                        for torrent in 0..torrents {
                            tell(store, &completed(torrent, peer << 6 | torrent));
                        }
                        if below(&mut rng, 8) == 0 {
                            let gone: Vec<_> = (0..torrents).map(hash).collect();
                            gone.iter().for_each(|torrent| leave(store, torrent));
                        }
                    }
                });
            }
        });
        store.settle().unwrap();
        for torrent in 0..torrents {
            let expected = rounds * threads * life;
            assert_eq!(stored(&folder, torrent), expected, "in life {life}");
            tell(&store, &completed(torrent, 1).event(AnnounceEvent::Started));
        }
        store.settle().unwrap();
        for torrent in 0..torrents {
            assert_eq!(store.scrape(&hash(torrent)).downloaded, rounds * threads * life, "in life {life}");
        }
    }
}

/// Everybody leaves a torrent, and its swarm goes.
fn leave(store: &Durable, torrent: &InfoHash) {
    for peer in store.all_peers(torrent) {
        let announce = Announce::new(*torrent, peer.endpoint).event(AnnounceEvent::Stopped);
        tell(store, &announce);
    }
    store.sweep_all(NOW, Retention::DropEmpty);
}

struct Panics;

impl Random for Panics {
    fn next_u64(&mut self) -> u64 {
        panic!("the caller's randomness has none")
    }
}

#[test]
fn a_panic_of_the_callers_leaves_a_count_that_is_right() {
    let folder = Simulated::new(4);
    let store = durable(&folder);
    for (torrent, batch) in [(1, false), (2, true)] {
        (0..200).for_each(|peer| tell(&store, &completed(torrent, peer)));
        store.settle().unwrap();
        for peer in 200..210 {
            let leecher = Announce::new(hash(torrent), completed(torrent, peer).endpoint).want(0);
            tell(&store, &leecher);
        }
        let mut bytes = [0; 30];
        let mut peers = PeerBuffer::new(&mut bytes, &mut []);
        let announce = completed(torrent, 1000).want(5);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if batch {
                store.announce_batch(&mut [Request::new(announce, peers)], NOW, &mut Panics);
            } else {
                store.announce(&announce, NOW, &mut Panics, &mut peers);
            }
        }));
        assert!(caught.is_err(), "there are more leechers than were wanted");
        store.settle().unwrap();
        let shown = store.scrape(&hash(torrent)).downloaded;
        assert_eq!((shown, stored(&folder, torrent)), (201, 201), "in a batch: {batch}");
    }
}

#[test]
fn what_was_counted_last_is_kept_when_it_is_closed() {
    let folder = Simulated::new(5);
    let store = durable(&folder);
    store.settle().unwrap();
    (0..30).for_each(|peer| tell(&store, &completed(1, peer)));
    store.close().unwrap();
    assert_eq!(stored(&folder, 1), 30);
    tell(&store, &completed(1, 31));
    assert!(store.settle().is_err(), "it has been given up");
}

fn below(rng: &mut SplitMix64, end: u64) -> usize {
    (rng.next_u64() % end) as usize
}
