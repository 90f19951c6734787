//! If the future of an announce is dropped, the whole step is done or nothing of it, and no slot stays for
//! ever.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use swarmkeep::{
    Announce, AsyncTorrentRepository, Budget, Capabilities, Cursor, HashKey, InfoHash, LongestHold,
    PeerBuffer, RepositoryConfig, Retention, SplitMix64, Timestamp,
    implement::{
        lock::{Lock, LockFamily},
        map::{Awaited, LockedSlot, MapRepository, Order, SlotMap, Slots},
    },
};

/// A lock that makes each caller wait for one poll, like a lock of tokio when a task has used up its budget.
#[derive(Debug)]
enum Reluctant {}

struct ReluctantLock<T>(Mutex<T>);

impl LockFamily for Reluctant {
    type Lock<T: Send + Sync> = ReluctantLock<T>;
}

async fn wait_once() {
    let waited = AtomicBool::new(false);
    poll_fn(|_| if waited.swap(true, Relaxed) { Poll::Ready(()) } else { Poll::Pending }).await;
}

impl<T: Send + Sync> Lock<T> for ReluctantLock<T> {
    fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }
    async fn read<R: Send>(&self, section: impl FnOnce(&T) -> R + Send) -> R {
        wait_once().await;
        section(&self.0.lock().unwrap())
    }
    async fn write<R: Send>(&self, section: impl FnOnce(&mut T) -> R + Send) -> R {
        wait_once().await;
        section(&mut self.0.lock().unwrap())
    }
}

type ReluctantSlot = LockedSlot<Reluctant>;
type Entries = Arc<Mutex<BTreeMap<InfoHash, Arc<ReluctantSlot>>>>;

/// A map with entries that the test can count.
struct WatchedMap(Entries);

impl SlotMap<ReluctantSlot> for WatchedMap {
    async fn get(&self, info_hash: &InfoHash) -> Option<Arc<ReluctantSlot>> {
        self.0.lock().unwrap().get(info_hash).cloned()
    }
    async fn get_or_insert(&self, info_hash: &InfoHash, make: fn() -> ReluctantSlot) -> Arc<ReluctantSlot> {
        self.0.lock().unwrap().entry(*info_hash).or_insert_with(|| Arc::new(make())).clone()
    }
    async fn discard(&self, info_hash: &InfoHash, slot: &Arc<ReluctantSlot>) {
        wait_once().await;
        let mut entries = self.0.lock().unwrap();
        if entries.get(info_hash).is_some_and(|found| Arc::ptr_eq(found, slot)) {
            entries.remove(info_hash);
        }
    }
    async fn keys(&self, _: Order, after: Option<&InfoHash>, limit: usize, out: &mut Vec<InfoHash>) {
        let entries = self.0.lock().unwrap();
        out.extend(entries.keys().filter(|key| after.is_none_or(|after| *key > after)).take(limit));
    }
}

type WatchedRepository = MapRepository<Slots<WatchedMap, Reluctant>>;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const HASH: InfoHash = InfoHash::new([7; 20]);

fn store() -> (Awaited<WatchedRepository>, Entries, Announce) {
    let entries = Entries::default();
    let announce = Announce::new(HASH, "192.0.2.1:6881".parse().unwrap());
    let config = RepositoryConfig::new(HashKey::from_bytes([1; 16]));
    let capabilities = Capabilities::new(LongestHold::Visits(256));
    let map = Slots::new(WatchedMap(entries.clone()));
    (Awaited(MapRepository::over(map, &config, capabilities, 0).unwrap()), entries, announce)
}

/// Polls a future `polls` times, then drops it. Returns its output if it became ready.
fn poll_and_drop<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    (0..polls).find_map(|_| match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    })
}

fn finish<F: Future>(future: F) -> F::Output {
    poll_and_drop(future, 1000).expect("waits once for each lock")
}

#[test]
fn a_dropped_announce_is_done_or_was_not_begun_and_leaves_no_slot() {
    for polls in 0..4 {
        let (store, entries, announce) = store();
        let (mut rng, mut nowhere) = (SplitMix64::new(1), PeerBuffer::new(&mut [], &mut []));
        let answer = poll_and_drop(store.announce(&announce, NOW, &mut rng, &mut nowhere), polls);
        let done = u64::from(answer.is_some());

        let totals = finish(store.totals()).unwrap();
        assert_eq!((totals.swarms, totals.peers()), (done, done), "after {polls} polls");
        assert_eq!(u64::from(finish(store.scrape(&HASH)).unwrap().incomplete), done);
        finish(store.sweep(NOW, Retention::DropEmpty, Budget::peers(10))).unwrap();
        assert_eq!(entries.lock().unwrap().len() as u64, done, "a slot that no call has entered is gone");
    }
}

#[test]
fn a_dropped_removal_is_done_or_was_not_begun() {
    for polls in 0..4 {
        let (store, entries, announce) = store();
        let (mut rng, mut nowhere) = (SplitMix64::new(1), PeerBuffer::new(&mut [], &mut []));
        finish(store.announce(&announce, NOW, &mut rng, &mut nowhere)).unwrap();
        poll_and_drop(store.remove(&HASH), polls);

        let (totals, mut shown) = (finish(store.totals()).unwrap(), Vec::new());
        finish(store.walk(Cursor::START, 10, &mut shown)).unwrap();
        let shown = shown.len() as u64;
        assert_eq!((totals.swarms, totals.peers()), (shown, shown), "after {polls} polls");
        // The next announce succeeds, whether a retired slot is left or not.
        finish(store.announce(&announce, NOW, &mut rng, &mut nowhere)).unwrap();
        assert_eq!(finish(store.scrape(&HASH)).unwrap().incomplete, 1);
        assert_eq!((finish(store.totals()).unwrap().swarms, entries.lock().unwrap().len()), (1, 1));
    }
}
