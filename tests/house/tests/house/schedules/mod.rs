//! Stores under schedules of shuttle: the production code.
//!
//! The map stores have the locks of shuttle as their type parameters. The locks and atomics of the packed
//! store are those of shuttle in a build with `--cfg swarmkeep_shuttle --cfg swarmkeep_safe`.

#[cfg(swarmkeep_shuttle)]
mod packed;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use shuttle::thread;
use swarmkeep::{
    Announce, AnnounceEvent, Budget, Capabilities, Cursor, HashKey, InfoHash, LongestHold, PeerBuffer,
    RepositoryConfig, Retention, SplitMix64, Timestamp, TorrentRepository, TorrentRepositoryExt,
    btree_map::{BTreeMapOfLocks, BTreeMapRepository},
    implement::{
        lock::{Blocks, Lock, LockFamily},
        map::{BlockingSlots, LockedSlot, MapRepository, Order, SlotMap, Slots},
    },
};

/// Shuttle's mutex, which lets another thread run before it is taken.
enum ShuttleMutex {}

/// Shuttle's read-write lock.
enum ShuttleRwLock {}

struct Mutex<T>(shuttle::sync::Mutex<T>);
struct RwLock<T>(shuttle::sync::RwLock<T>);

impl LockFamily for ShuttleMutex {
    type Lock<T: Send + Sync> = Mutex<T>;
}

impl LockFamily for ShuttleRwLock {
    type Lock<T: Send + Sync> = RwLock<T>;
}

impl Blocks for ShuttleMutex {}
impl Blocks for ShuttleRwLock {}

impl<T: Send + Sync> Lock<T> for Mutex<T> {
    fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }
    async fn read<R: Send>(&self, section: impl FnOnce(&T) -> R + Send) -> R {
        section(&self.0.lock().unwrap())
    }
    async fn write<R: Send>(&self, section: impl FnOnce(&mut T) -> R + Send) -> R {
        section(&mut self.0.lock().unwrap())
    }
}

impl<T: Send + Sync> Lock<T> for RwLock<T> {
    fn new(value: T) -> Self {
        Self(shuttle::sync::RwLock::new(value))
    }
    async fn read<R: Send>(&self, section: impl FnOnce(&T) -> R + Send) -> R {
        section(&self.0.read().unwrap())
    }
    async fn write<R: Send>(&self, section: impl FnOnce(&mut T) -> R + Send) -> R {
        section(&mut self.0.write().unwrap())
    }
}

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const HASH: InfoHash = InfoHash::new([7; 20]);
const SCHEDULES: usize = 20_000;

fn config() -> RepositoryConfig {
    RepositoryConfig::new(HashKey::from_bytes([1; 16])).lifetime(Duration::from_secs(60))
}

fn announce(store: &dyn TorrentRepository, host: u8, event: AnnounceEvent) {
    let announce = Announce::new(HASH, format!("192.0.2.{host}:6881").parse().unwrap()).event(event);
    store.announce(&announce, NOW, &mut SplitMix64::new(1), &mut PeerBuffer::new(&mut [], &mut []));
}

/// One peer stays, one comes and goes, and everything that removes swarms runs beside them.
fn announces_against_removals<R: TorrentRepository + 'static>(store: R) {
    let store = Arc::new(store);
    let threads = [
        |store: &R| announce(store, 1, AnnounceEvent::Started),
        |store: &R| {
            announce(store, 2, AnnounceEvent::Started);
            announce(store, 2, AnnounceEvent::Stopped);
        },
        |store: &R| {
            store.sweep(NOW, Retention::DropEmpty, Budget::peers(8));
            store.sweep(NOW, Retention::DropEmpty, Budget::peers(8));
        },
    ];
    let threads = threads.map(|work| {
        let store = store.clone();
        thread::spawn(move || work(&store))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());

    let peers = store.all_peers(&HASH);
    assert_eq!(peers.len(), 1, "only the peer that stayed is there");
    assert_eq!(store.totals().peers(), 1);
    assert_eq!(store.totals().swarms, store.swarms().len() as u64);
    store.remove(&HASH).expect("it is there");
    assert_eq!((store.totals().swarms, store.totals().peers()), (0, 0));
}

/// A removal takes the peers that it finds; a later announce is in the swarm.
fn announces_against_remove<R: TorrentRepository + 'static>(store: R) {
    let store = Arc::new(store);
    let remover = {
        let store = store.clone();
        thread::spawn(move || u64::from(store.remove(&HASH).is_some_and(|gone| gone.incomplete > 0)))
    };
    let others = [1, 2].map(|host| {
        let store = store.clone();
        thread::spawn(move || announce(&*store, host, AnnounceEvent::Started))
    });
    others.into_iter().for_each(|thread| thread.join().unwrap());
    remover.join().unwrap();
    announce(&*store, 3, AnnounceEvent::Started);
    let left = store.scrape(&HASH).incomplete;
    assert!((1..=3).contains(&left));
    assert_eq!(store.all_peers(&HASH).len() as u32, left);
    assert_eq!(store.totals().peers(), u64::from(left));
    assert_eq!(store.totals().swarms, 1);
}

#[test]
fn slots_in_a_b_tree_lose_no_announce() {
    let store = || BTreeMapOfLocks::<ShuttleRwLock, ShuttleMutex>::new(&config()).unwrap();
    shuttle::check_random(move || announces_against_removals(store()), SCHEDULES);
    shuttle::check_pct(move || announces_against_removals(store()), SCHEDULES, 3);
    shuttle::check_random(move || announces_against_remove(store()), SCHEDULES);
}

#[test]
fn a_b_tree_behind_one_lock_loses_no_announce() {
    let store = || BTreeMapRepository::<ShuttleRwLock>::new(&config()).unwrap();
    shuttle::check_random(move || announces_against_removals(store()), SCHEDULES);
    shuttle::check_random(move || announces_against_remove(store()), SCHEDULES);
}

/// A map that removes any value under the key, as stores that lose announces do.
struct CarelessMap<T>(shuttle::sync::Mutex<BTreeMap<InfoHash, Arc<T>>>);

impl<T: Send + Sync> SlotMap<T> for CarelessMap<T> {
    async fn get(&self, info_hash: &InfoHash) -> Option<Arc<T>> {
        self.0.lock().unwrap().get(info_hash).cloned()
    }
    async fn get_or_insert(&self, info_hash: &InfoHash, make: fn() -> T) -> Arc<T> {
        self.0.lock().unwrap().entry(*info_hash).or_insert_with(|| Arc::new(make())).clone()
    }
    async fn discard(&self, info_hash: &InfoHash, _: &Arc<T>) {
        self.0.lock().unwrap().remove(info_hash);
    }
    async fn keys(&self, _: Order, after: Option<&InfoHash>, limit: usize, out: &mut Vec<InfoHash>) {
        let map = self.0.lock().unwrap();
        out.extend(map.keys().filter(|key| after.is_none_or(|after| *key > after)).take(limit));
    }
}

impl<T> BlockingSlots for CarelessMap<T> {}

#[test]
#[should_panic(expected = "assertion `left == right` failed")]
fn a_broken_map_that_discards_whatever_it_finds_is_caught() {
    type Map = CarelessMap<LockedSlot<ShuttleMutex>>;
    shuttle::check_random(
        || {
            let map: Slots<Map, ShuttleMutex> =
                Slots::new(CarelessMap(shuttle::sync::Mutex::new(BTreeMap::new())));
            let capabilities = Capabilities::new(LongestHold::Visits(1));
            announces_against_removals(MapRepository::over(map, &config(), capabilities, 0).unwrap());
        },
        SCHEDULES,
    );
}

fn two_sweepers_share_one_pass<R: TorrentRepository + 'static>(store: R) {
    let store = Arc::new(store);
    announce(&*store, 1, AnnounceEvent::Started);
    announce(&*store, 2, AnnounceEvent::Started);
    let sweepers = [0, 1].map(|_| {
        let store = store.clone();
        thread::spawn(move || store.sweep(NOW, Retention::DropEmpty, Budget::peers(1000)))
    });
    let steps = sweepers.map(|thread| thread.join().unwrap());
    let passes = steps.iter().filter(|step| step.pass_complete).count() as u64;
    assert!(passes >= 1, "one of them completed the pass");
    // Two peers and their swarm, once a pass.
    assert_eq!(steps.iter().map(|step| step.visited).sum::<u64>(), 3 * passes);
    assert_eq!(store.walk(Cursor::START, 10, &mut Vec::new()), Cursor::END);
}

#[test]
fn two_sweepers_of_a_b_tree_share_one_pass() {
    let store = || BTreeMapOfLocks::<ShuttleRwLock, ShuttleMutex>::new(&config()).unwrap();
    shuttle::check_random(move || two_sweepers_share_one_pass(store()), SCHEDULES);
}
