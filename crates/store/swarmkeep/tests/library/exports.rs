//! A swarm that is removed and made again while it is exported is shown in one of its two lives.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use swarmkeep::{
    Announce, AnnounceEvent, Budget, Capabilities, Cursor, Export, HashKey, InfoHash, LongestHold,
    PeerBuffer, PeerRecord, RepositoryConfig, Role, SplitMix64, SwarmStats, Timestamp, TorrentRepository,
    btree_map::BTreeMapRepository,
    implement::{
        forward_repository,
        lock::StdMutex,
        map::{BlockingSlots, LockedSlot, MapRepository, Order, SlotMap, Slots},
    },
};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const TORRENT: InfoHash = InfoHash::new([7; 20]);
const OTHER: InfoHash = InfoHash::new([8; 20]);

/// Peers of a life of a swarm: the last byte of an address, `left`, and an event.
type Life = &'static [(u8, u64, AnnounceEvent)];

/// Announces a seeder that has just finished, or a leecher.
fn tell(store: &dyn TorrentRepository, torrent: InfoHash, role: Role) {
    let announce = Announce::new(torrent, "192.0.2.1:6881".parse().unwrap());
    let announce = match role {
        Role::Seeder => announce.left(0).event(AnnounceEvent::Completed),
        Role::Leecher => announce.left(1),
    };
    store.announce(&announce, NOW, &mut SplitMix64::new(1), &mut PeerBuffer::new(&mut [], &mut []));
}

/// Asserts that an export shows the torrent as it was or as it is, with the download of its seeder or with
/// none.
fn assert_one_life(store: &dyn TorrentRepository, case: &str) {
    let mut export = Export::new();
    while !export.is_complete() {
        store.export(&mut export, NOW, Budget::peers(100));
        for record in export.records().iter().filter(|record| record.info_hash == TORRENT) {
            let roles: Vec<_> = record.peers().map(|peer| peer.role).collect();
            let counted = roles.iter().filter(|role| role.is_seeder()).count();
            assert_eq!(roles.len(), 1, "{case}");
            assert_eq!(record.downloaded as usize, counted, "downloads of {roles:?}, {case}");
        }
    }
}

/// A map that shows another swarm under the info hash of the torrent from one look on.
#[derive(Default)]
struct Changing {
    slots: Mutex<BTreeMap<InfoHash, Arc<LockedSlot<StdMutex>>>>,
    looks_left: Arc<AtomicUsize>,
    repeats: bool,
}

impl SlotMap<LockedSlot<StdMutex>> for Changing {
    async fn get(&self, info_hash: &InfoHash) -> Option<Arc<LockedSlot<StdMutex>>> {
        let last = self.looks_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) == Ok(1);
        let mut slots = self.slots.lock().unwrap();
        let found = slots.get(info_hash).cloned();
        if last && let Some(other) = slots.remove(&OTHER) {
            slots.insert(TORRENT, other);
        }
        found
    }
    async fn get_or_insert(
        &self,
        info_hash: &InfoHash,
        make: fn() -> LockedSlot<StdMutex>,
    ) -> Arc<LockedSlot<StdMutex>> {
        self.slots.lock().unwrap().entry(*info_hash).or_insert_with(|| Arc::new(make())).clone()
    }
    async fn discard(&self, info_hash: &InfoHash, _: &Arc<LockedSlot<StdMutex>>) {
        self.slots.lock().unwrap().remove(info_hash);
    }
    async fn keys(&self, _: Order, after: Option<&InfoHash>, limit: usize, out: &mut Vec<InfoHash>) {
        let slots = self.slots.lock().unwrap();
        for _ in 0..1 + usize::from(self.repeats) {
            out.extend(slots.keys().filter(|key| after.is_none_or(|after| *key > after)).take(limit));
        }
    }
}

impl BlockingSlots for Changing {}

impl Changing {
    fn into_store(self) -> impl TorrentRepository {
        let capabilities = Capabilities::new(LongestHold::Visits(256));
        MapRepository::over(Slots::<_, StdMutex>::new(self), &config(), capabilities, 0).unwrap()
    }
}

fn config() -> RepositoryConfig {
    RepositoryConfig::new(HashKey::from_bytes([1; 16]))
}

#[test]
fn a_map_reads_the_peers_of_a_swarm_and_its_downloads_at_once() {
    for (before, after) in [(Role::Seeder, Role::Leecher), (Role::Leecher, Role::Seeder)] {
        for look in 1..8 {
            let map = Changing::default();
            let looks_left = map.looks_left.clone();
            let store = map.into_store();
            tell(&store, TORRENT, before);
            tell(&store, OTHER, after);
            looks_left.store(look, Relaxed);
            assert_one_life(&store, &format!("made again after look {look}"));
        }
    }
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "SwarmMap::keys has returned an info hash twice")]
fn a_map_that_shows_an_info_hash_twice_is_named() {
    let store = Changing { repeats: true, ..Changing::default() }.into_store();
    tell(&store, TORRENT, Role::Seeder);
    store.walk(Cursor::START, 10, &mut Vec::new());
}

/// A store that knows only the default export, and in which the torrent begins its next life after one of the
/// reads.
#[derive(Debug)]
struct Lives {
    inner: BTreeMapRepository<StdMutex>,
    reads_left: AtomicUsize,
    next: Life,
}

impl Lives {
    fn begin(&self, life: Life) {
        self.inner.remove(&TORRENT);
        for &(n, left, event) in life {
            let announce = Announce::new(TORRENT, format!("192.0.2.{n}:6881").parse().unwrap());
            let mut nobody = PeerBuffer::new(&mut [], &mut []);
            self.inner.announce(&announce.left(left).event(event), NOW, &mut SplitMix64::new(1), &mut nobody);
        }
    }

    fn after_read(&self) {
        if self.reads_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) == Ok(1) {
            self.begin(self.next);
        }
    }
}

impl TorrentRepository for Lives {
    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        let next = self.inner.peers(info_hash, from, limit, out);
        self.after_read();
        next
    }

    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        let stats = self.inner.scrape(info_hash);
        self.after_read();
        stats
    }

    forward_repository! { |lives| lives.inner, except peers, scrape, export }
}

#[test]
fn the_default_export_shows_the_peers_of_one_life_with_its_downloads() {
    use AnnounceEvent::{Completed, None};
    let pairs: [(Life, Life); 5] = [
        (&[(1, 0, Completed)], &[(1, 1, None)]),
        (&[(1, 1, None)], &[(1, 0, Completed)]),
        (&[(1, 0, Completed)], &[(2, 0, None)]),
        (&[(1, 1, None)], &[(2, 0, Completed), (3, 1, None)]),
        (&[(1, 0, Completed)], &[]),
    ];
    for (first, next) in pairs {
        for read in 1..8 {
            let (inner, reads_left) = (BTreeMapRepository::new(&config()).unwrap(), AtomicUsize::new(read));
            let (store, mut export) = (Lives { inner, reads_left, next }, Export::new());
            store.begin(first);
            store.export(&mut export, NOW, Budget::peers(100));
            let shown = export.records().iter().map(|record| {
                let peers = record.peers().map(|peer| (peer.endpoint.to_string(), peer.role.is_seeder()));
                (peers.collect::<Vec<_>>(), record.downloaded)
            });
            let shown: Vec<_> = shown.collect();
            let is = |life: Life| {
                let peers = life.iter().map(|(n, left, _)| (format!("192.0.2.{n}:6881"), *left == 0));
                let downloaded = life.iter().filter(|(_, _, event)| *event == Completed).count() as u32;
                shown == if life.is_empty() { vec![] } else { vec![(peers.collect::<Vec<_>>(), downloaded)] }
            };
            assert!(is(first) || is(next), "{shown:?}, made again after read {read}: {first:?}, {next:?}");
        }
    }
}

/// A store in which the torrent lives only while its peers are read.
#[derive(Debug)]
struct Flickering(BTreeMapRepository<StdMutex>);

impl TorrentRepository for Flickering {
    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        tell(&self.0, TORRENT, Role::Seeder);
        let next = self.0.peers(info_hash, from, limit, out);
        self.0.remove(&TORRENT);
        next
    }

    forward_repository! { |flickering| flickering.0, except peers, export }
}

#[test]
fn the_default_export_shows_no_swarm_that_is_gone_after_each_read_of_its_peers() {
    let store = Flickering(BTreeMapRepository::new(&config()).unwrap());
    tell(&store, TORRENT, Role::Seeder);
    assert_one_life(&store, "gone after each read");
}
