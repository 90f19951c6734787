//! Download counts while the disk refuses, and when it takes them again.

use std::{net::Ipv4Addr, sync::Arc, thread, time::Duration};

use swarmkeep::{
    Announce, AnnounceEvent, Endpoint, HashKey, Immediate, InfoHash, Packed, PeerBuffer, Random,
    RepositoryConfig, Request, Retention, SplitMix64, Timestamp, TorrentRepository,
    TorrentRepositoryExt as _, catalog::Repository,
};
use swarmkeep_kit::folder::{Operation, Refusal, Simulated};
use swarmkeep_state::{Downloads, Durable, Pace, State, look_at_downloads};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn hash(n: u32) -> InfoHash {
    let mut bytes = [0; 20];
    bytes[..4].copy_from_slice(&n.wrapping_mul(0x9e37_79b9).to_be_bytes());
    InfoHash::new(bytes)
}

fn completed(torrent: u32, peer: u32) -> Announce {
    // Each in a /24 of its own.
    let endpoint = Endpoint::new(Ipv4Addr::from_bits(peer.rotate_left(8)).into(), 6881).unwrap();
    Announce::new(hash(torrent), endpoint).event(AnnounceEvent::Completed).left(0).want(0)
}

fn store() -> Arc<dyn TorrentRepository> {
    Arc::new(Packed::new(&RepositoryConfig::new(HashKey::from_bytes([7; 16]))).unwrap())
}

fn durable(folder: &Simulated) -> Durable {
    durable_at(folder, |_| {})
}

fn durable_at(folder: &Simulated, change: impl FnOnce(&mut Pace)) -> Durable {
    let mut pace = Pace::default();
    pace.every = Duration::from_millis(5);
    change(&mut pace);
    let durable = Durable::new(store(), pace);
    durable.open(Downloads::open(Arc::new(folder.clone())).unwrap());
    durable
}

/// Two peers of two prefixes finish.
fn twice(store: &Durable, torrent: u32) {
    (1..=2).for_each(|peer| tell(store, &completed(torrent, peer)));
}

fn tell(store: &dyn TorrentRepository, announce: &Announce) {
    store.announce(announce, NOW, &mut SplitMix64::new(1), &mut PeerBuffer::new(&mut [], &mut []));
}

/// The count of a torrent in the folder, for the next process.
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
        (0..500).for_each(|torrent| twice(&store, 1000 + torrent));
        assert!(store.settle().is_err(), "{refusal:?}");
        let status = store.status();
        assert!(status.is_refused && status.refusals > 0 && status.unsaved == 501, "{status:?}");
        assert_eq!(store.scrape(&hash(1)).downloaded, 80, "the tracker goes on");
        folder.heal();
        store.settle().unwrap();
        let status = store.status();
        assert!(!status.is_refused && status.unsaved == 0, "{status:?}");
        assert_eq!([stored(&folder, 1), stored(&folder, 1499)], [80, 2], "{refusal:?}");
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

/// All peers leave a torrent, and its swarm goes.
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
fn the_latest_downloads_are_kept_when_it_is_closed_and_no_copy_is_begun() {
    let folder = Simulated::new(5);
    let store = durable_at(&folder, |pace| {
        pace.every = Duration::from_secs(3600);
        pace.copy_every = Duration::ZERO;
    });
    let began = folder.operations().len();
    (0..30).for_each(|peer| tell(&store, &completed(1, peer)));
    store.close().unwrap();
    assert!(!folder.operations()[began..].contains(&Operation::Create));
    assert_eq!(stored(&folder, 1), 30);
    tell(&store, &completed(1, 31));
    assert!(store.settle().is_err(), "it has been given up");
}

#[test]
fn one_that_is_abandoned_writes_nothing_more() {
    let folder = Simulated::new(18);
    let store = durable(&folder);
    twice(&store, 1);
    store.settle().unwrap();
    let before = folder.operations().len();
    store.abandon();
    assert!(!folder.operations()[before..].iter().any(|operation| operation.changes()));
    assert_eq!(stored(&folder, 1), 2);
}

#[test]
fn one_that_is_closed_and_opened_again_gives_all_swarms_their_counts() {
    let (first, second) = (Simulated::new(6), Simulated::new(7));
    for folder in [&first, &second] {
        let store = durable(folder);
        (0..30).for_each(|peer| tell(&store, &completed(1, peer)));
    }
    let store = durable(&first);
    tell(&store, &completed(1, 99));
    store.close().unwrap();
    assert_eq!(stored(&first, 1), 31);
    store.remove(&hash(1));
    tell(&store, &completed(1, 99).event(AnnounceEvent::Started));
    store.open(Downloads::open(Arc::new(second.clone())).unwrap());
    store.settle().unwrap();
    assert_eq!(store.scrape(&hash(1)).downloaded, 0, "it was removed meanwhile");
    tell(&store, &completed(2, 1).event(AnnounceEvent::Started));
    store.close().unwrap();
    store.open(Downloads::open(Arc::new(first.clone())).unwrap());
    store.settle().unwrap();
    assert_eq!(store.scrape(&hash(1)).downloaded, 31, "as the other folder has it");
}

#[test]
fn while_the_disk_refuses_the_unsaved_counts_are_bounded_and_existing_swarms_lose_nothing() {
    let folder = Simulated::new(8);
    let store = durable_at(&folder, |pace| pace.most_unsaved = 640);
    store.settle().unwrap();
    folder.refuse(folder.operations().len(), usize::MAX, Refusal::Full);
    for torrent in 0..5000 {
        twice(&store, torrent);
        if torrent % 500 == 0 {
            assert!(store.settle().is_err());
        }
    }
    assert!(store.settle().is_err());
    assert!(store.status().unsaved <= 640, "{:?}", store.status());
    let looked_up = store.status().looked_up;
    thread::sleep(Duration::from_millis(100));
    assert_eq!(store.status().looked_up, looked_up, "nothing is looked for again until there is room");
    folder.heal();
    for _ in 0..20 {
        store.settle().unwrap();
    }
    let mut kept = Downloads::open(Arc::new(folder.after_kill())).unwrap();
    let kept = (0..5000).filter(|&torrent| kept.get(&hash(torrent)).unwrap() == 2).count();
    assert_eq!(kept, 5000, "all of them are there still");
}

#[test]
fn where_as_many_torrents_are_known_as_may_be_others_are_left_out() {
    let folder = Simulated::new(10);
    let store = durable_at(&folder, |pace| pace.most_known = 100);
    (0..100).for_each(|torrent| twice(&store, torrent));
    store.settle().unwrap();
    (50..150).for_each(|torrent| (3..=4).for_each(|peer| tell(&store, &completed(torrent, peer))));
    store.settle().unwrap();
    assert_eq!([0, 99, 100, 149].map(|torrent| stored(&folder, torrent)), [2, 4, 0, 0]);
    assert_eq!(store.scrape(&hash(149)).downloaded, 2, "for as long as its swarm is there");
    assert!(store.status().left_out >= 50, "{:?}", store.status());
}

fn below(rng: &mut SplitMix64, end: u64) -> usize {
    (rng.next_u64() % end) as usize
}

/// A tracker's state over the folder.
fn opened(folder: &Simulated) -> (Arc<dyn TorrentRepository>, State) {
    let mut pace = Pace::default();
    pace.every = Duration::from_millis(5);
    let state = State::new(Repository::Sync(Immediate(store())), pace);
    state.open(Arc::new(folder.clone()), None, Arc::new(|| NOW)).expect("it serves");
    (state.repository().as_sync().cloned().expect("it is synchronous"), state)
}

#[test]
fn counts_that_are_damaged_or_unreadable_are_told_of_and_announces_go_on_without_them() {
    let folder = Simulated::new(12);
    let store = durable(&folder);
    (0..1000).for_each(|torrent| twice(&store, torrent));
    store.close().unwrap();
    let whole = folder.contents("downloads.redb").unwrap();
    let cut = &whole[..whole.len() / 2];
    folder.put("downloads.redb", cut);
    let (store, state) = opened(&folder);
    tell(&*store, &completed(1, 3));
    assert!(state.settle().is_err());
    let status = state.status().counts.unwrap();
    assert!(status.is_damaged && status.is_unreadable && status.is_refused, "{status:?}");
    assert_eq!(store.scrape(&hash(1)).downloaded, 1, "since the start");
    assert!(state.close().unwrap_err().contains("--restore"));
    assert!(folder.contents("downloads.redb").unwrap() == cut, "it is left as it was");

    folder.put("downloads.redb", &whole);
    folder.refuse_to_read("downloads.redb", 0..512);
    let (store, state) = opened(&folder);
    tell(&*store, &completed(1, 4));
    assert!(state.settle().is_err());
    // After a refused commit, all counts are read again.
    (2..300).for_each(|torrent| tell(&*store, &completed(torrent, 2).event(AnnounceEvent::Started)));
    assert!(state.settle().is_err());
    let status = state.status().counts.unwrap();
    assert!(!status.is_damaged && status.is_unreadable && status.is_refused, "{status:?}");
    folder.heal();
    state.settle().unwrap();
    assert!(!state.status().counts.unwrap().is_unreadable);
    // The snapshot has a download that the counts have not, and the new one.
    assert_eq!(store.scrape(&hash(1)).downloaded, 3);
    assert!((2..300).all(|torrent| store.scrape(&hash(torrent)).downloaded == 2));
    state.close().unwrap();
    assert_eq!(stored(&folder, 1), 3);
}

#[test]
fn a_copy_is_made_at_its_time_while_downloads_are_counted() {
    let folder = Simulated::new(17);
    let store = durable_at(&folder, |pace| pace.copy_every = Duration::from_millis(24));
    let mut torrent = 0;
    let began = std::time::Instant::now();
    let copied = || look_at_downloads(&folder.after_kill()).unwrap().into_iter().nth(1);
    while copied().is_none_or(|(_, copy)| copy.unwrap().entries < 100) {
        assert!(began.elapsed() < Duration::from_secs(60));
        twice(&store, torrent);
        store.settle().unwrap();
        torrent += 1;
    }
    store.close().unwrap();
}

#[test]
fn a_failed_copy_is_tried_again_sooner_than_the_next_one() {
    // Waits for a copy, and returns the numbers of the operations that created a file.
    let creates = |folder: &Simulated, copy_every| {
        let _store = durable_at(folder, |pace| pace.copy_every = Duration::from_secs(copy_every));
        let began = std::time::Instant::now();
        while folder.contents("downloads.redb.copy").is_none() {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", folder.operations());
            thread::sleep(Duration::from_millis(20));
        }
        let operations = folder.operations().into_iter().enumerate();
        operations.filter(|(_, it)| *it == Operation::Create).map(|(at, _)| at).collect::<Vec<_>>()
    };
    let folder = Simulated::new(19);
    // The first one is that of the counts.
    folder.refuse(creates(&Simulated::new(19), 0)[1], 1, Refusal::Full);
    // The copy is due after 3 s, again after 3 s more, and otherwise after 72 s more.
    assert_eq!(creates(&folder, 72).len(), 3, "the first copy failed");
}

/// A peer of a prefix that finishes: a port of one of two hosts.
fn of_prefix(torrent: u32, prefix: u32, port: u16) -> Announce {
    let address = Ipv4Addr::from_bits(0x0a00_0000 + (prefix << 8) + u32::from(port) % 2);
    let endpoint = Endpoint::new(address.into(), port).unwrap();
    Announce::new(hash(torrent), endpoint).event(AnnounceEvent::Completed).left(0).want(0)
}

#[test]
fn a_flood_of_made_up_downloads_from_one_prefix_adds_no_entry() {
    let folder = Simulated::new(11);
    let store = durable(&folder);
    for torrent in 0..20_000 {
        // Several ports, and several hosts of one /24.
        (1..=4).for_each(|port| tell(&store, &of_prefix(torrent, 7, port)));
    }
    store.settle().unwrap();
    assert_eq!(store.status().entries, 0, "{:?}", store.status());
    // The snapshot of a tracker that was killed holds them; they do not come in by that way either.
    store.close().unwrap();
    store.open(Downloads::open(Arc::new(folder.clone())).unwrap());
    store.settle().unwrap();
    assert_eq!(store.status().entries, 0, "{:?}", store.status());
    assert_eq!(store.scrape(&hash(1)).downloaded, 4, "for as long as its swarm is there");
}

#[test]
fn a_torrent_with_downloaders_of_two_prefixes_enters_the_counts() {
    let folder = Simulated::new(13);
    let store = durable(&folder);
    for (torrent, prefix) in [(1, 1), (2, 1), (2, 2), (3, 1)] {
        tell(&store, &of_prefix(torrent, prefix, 1));
        store.settle().unwrap();
    }
    assert_eq!([1, 2, 3].map(|torrent| stored(&folder, torrent)), [0, 2, 0]);
    assert_eq!((store.status().entries, store.status().candidates), (1, 2));
    // Its swarm has gone meanwhile: the waiting download counts with the second.
    leave(&store, &hash(1));
    assert_eq!(store.scrape(&hash(1)).downloaded, 0);
    tell(&store, &of_prefix(1, 9, 1));
    store.settle().unwrap();
    assert_eq!((stored(&folder, 1), store.scrape(&hash(1)).downloaded), (2, 2));
    // From then on, every peer counts.
    (10..20).for_each(|port| tell(&store, &of_prefix(1, 9, port)));
    store.settle().unwrap();
    assert_eq!(stored(&folder, 1), 12);
    store.close().unwrap();
    let store = durable(&folder);
    tell(&store, &completed(1, 1).event(AnnounceEvent::Started));
    store.settle().unwrap();
    assert_eq!(store.scrape(&hash(1)).downloaded, 12, "after a restart");
}

#[test]
fn a_torrent_whose_downloader_announces_again_later_enters_the_counts() {
    let folder = Simulated::new(14);
    let store = durable_at(&folder, |pace| {
        pace.every = Duration::from_millis(1);
        pace.again_after = Duration::from_secs(900);
    });
    let again = |torrent, port, after| {
        let announce = of_prefix(torrent, 1, port).event(AnnounceEvent::None);
        let later = Timestamp::from_secs(NOW.as_secs() + after);
        store.announce(&announce, later, &mut SplitMix64::new(1), &mut PeerBuffer::new(&mut [], &mut []));
    };
    (1..=4).for_each(|torrent| tell(&store, &of_prefix(torrent, 1, 1)));
    again(1, 1, 60);
    store.settle().unwrap();
    // The downloader; another of its prefix; and of a torrent that was removed.
    again(2, 1, 1000);
    again(3, 2, 1000);
    store.remove(&hash(4));
    again(4, 1, 1000);
    let began = std::time::Instant::now();
    while stored(&folder, 2) == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", store.status());
        thread::sleep(Duration::from_millis(5));
    }
    store.settle().unwrap();
    assert_eq!([1, 2, 3, 4].map(|torrent| stored(&folder, torrent)), [0, 1, 0, 0]);
    assert_eq!(store.scrape(&hash(2)).downloaded, 1);
    store.close().unwrap();
    let store = durable(&folder);
    tell(&store, &completed(2, 1).event(AnnounceEvent::Started));
    store.settle().unwrap();
    assert_eq!(store.scrape(&hash(2)).downloaded, 1, "after a restart");
}
