//! A repository with durable download counts.

mod keeper;

use std::{
    collections::{HashMap, hash_map::Entry, hash_map::RandomState},
    fmt,
    hash::BuildHasher as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
    },
    thread::{self, JoinHandle, Thread},
    time::Duration,
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use swarmkeep::{
    Announce, AnnounceEvent, Announced, Changes, PeerBuffer, PeerRecord, Random, Records, Request, Restored,
    SwarmSummary, Timestamp, TorrentRepository, implement::forward_repository,
};

use self::keeper::Keeper;
use crate::{
    Change, Downloads, InfoHash,
    candidates::{PendingChange, Source},
};

/// A repository that stores the download counts of another repository in [`Downloads`], and restores the
/// count of each new swarm from there.
///
/// No announce waits for the disk. A thread writes new downloads every second, or when 10,000 torrents have
/// some, and reads the stored counts of new swarms. Once a day it checks the database, which takes about 2 s
/// per ten million torrents, and begins a copy, which another thread writes. Before a swarm's stored count is
/// read, scrapes show only the downloads since the swarm came; after that, the sum. A count never falls while
/// its swarm exists, and no download is counted twice.
///
/// Guarantees: a download that [`settle`](Self::settle) has confirmed survives every crash. A killed process
/// loses the downloads of its last second, or, during the daily check, those since the check began. While the
/// disk refuses writes, the repository works on and keeps the unsaved counts of
/// [up to a million torrents](Pace::most_unsaved) in memory; the counts of further torrents are saved later
/// if their swarms still exist.
///
/// A torrent that is not in the database enters when its downloads come from two prefixes (IPv4 /24, IPv6
/// /48), or when its first downloader announces again [later](Pace::again_after). Until then its
/// downloads are in memory, with those of the latest 65,536 such torrents, and in its swarm; a restart
/// loses them unless a snapshot has the swarm. So one address cannot fill the database. Downloads from
/// [`restore`](TorrentRepository::restore), `import` or `add_downloads` enter at once.
///
/// A swarm that expires or is evicted keeps its stored count. A swarm that is
/// [removed](TorrentRepository::remove) loses it, unless the process is killed and an older snapshot brings
/// it back.
pub struct Durable {
    core: Arc<Core>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// When counts are written to the disk, and how many are kept.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Pace {
    /// The longest time between two commits.
    pub every: Duration,
    /// The number of torrents with new downloads after which a commit happens earlier.
    pub torrents: usize,
    /// The most torrents with downloads in memory, at 64 bytes each, while the disk refuses writes.
    pub most_unsaved: usize,
    /// The most torrents in the database, about, at 60 bytes each on disk. The downloads of further torrents
    /// are not kept, because clients can make up any number of torrents.
    pub most_known: u64,
    /// The time after which the downloader of a torrent has to announce again for the torrent to enter the
    /// database, if no client of another prefix downloads it: most of an announce interval. It stays the same
    /// if the interval is reloaded.
    pub again_after: Duration,
    /// The time between two copies of the database.
    pub copy_every: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(1),
            torrents: 10_000,
            most_unsaved: 1 << 20,
            most_known: 100_000_000,
            again_after: Duration::from_secs(1350),
            copy_every: Duration::from_secs(86_400),
        }
    }
}

/// The state of the counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CountsStatus {
    /// Torrents with downloads that are not durable yet.
    pub unsaved: u64,
    /// Whether the last commit failed.
    pub is_refused: bool,
    /// Whether the stored counts of some swarms cannot be read.
    pub is_unreadable: bool,
    /// Torrents with downloads that wait in memory for a second downloader.
    pub candidates: u64,
    /// Whether the database is damaged. It is neither read nor written then.
    pub is_damaged: bool,
    /// Torrents with downloads that were not kept because the database was full.
    pub left_out: u64,
    /// The number of failed commits.
    pub refusals: u64,
    /// The number of successful commits.
    pub commits: u64,
    /// Lookups of the stored count of a swarm.
    pub looked_up: u64,
    /// The number of torrents in the database.
    pub entries: u64,
    /// Size of the database in bytes.
    pub bytes: u64,
}

/// Two cores rarely use the same shard, and a word has a bit per shard.
const SHARDS: usize = 64;
/// The most new swarms, and restored ones, that one shard notes. If there are more, all are looked up.
const MOST_CREATED: usize = 4096;
/// The most changes of one commit, which redb holds in memory.
const TOGETHER: usize = 1 << 16;
/// Swarms that are looked up together: neighbours in the database share its pages.
const LOOKED_AT: usize = 1 << 16;

struct Core {
    store: Arc<dyn TorrentRepository>,
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    pace: Pace,
    /// Torrents with changes.
    unsaved: AtomicUsize,
    /// Whether some swarms were not noted, so that all must be looked up.
    look_at_all: AtomicBool,
    /// Whether some swarms with counts from the operator were not noted.
    trusts_all: AtomicBool,
    /// Whether there is work before the next commit is due.
    is_urgent: AtomicBool,
    thread: Mutex<Option<Thread>>,
    orders: Mutex<KeeperOrders>,
    settled: Condvar,
    /// Without the number of unsaved torrents.
    status: Mutex<CountsStatus>,
}

/// The noted changes of some torrents, and their new swarms. A caller that counts a download locks the shard
/// before the store counts it and until it is noted, so that under the lock the store and the notes agree.
#[derive(Default)]
struct Shard {
    changes: HashMap<InfoHash, PendingChange>,
    created: Vec<InfoHash>,
    /// Swarms that the operator has restored.
    restored: Vec<InfoHash>,
}

/// The orders to the keeper, and its progress.
#[derive(Default)]
struct KeeperOrders {
    settle: u64,
    settled: u64,
    failed: Option<String>,
    is_ending: bool,
    ended: bool,
}

impl Durable {
    /// Wraps a store, which may contain swarms already. It keeps the counts in memory until
    /// [`open`](Self::open) gives it a database.
    pub fn new(store: Arc<dyn TorrentRepository>, pace: Pace) -> Self {
        let core = Core {
            store,
            hasher: RandomState::new(),
            shards: [(); SHARDS].map(|()| Mutex::default()),
            pace,
            unsaved: AtomicUsize::new(0),
            look_at_all: AtomicBool::new(true),
            trusts_all: AtomicBool::new(false),
            is_urgent: AtomicBool::new(false),
            thread: Mutex::default(),
            orders: Mutex::default(),
            settled: Condvar::new(),
            status: Mutex::default(),
        };
        Self { core: Arc::new(core), keeper: Mutex::default() }
    }

    /// Keeps the counts in this database from now on. Every existing swarm soon gets its stored count.
    ///
    /// # Panics
    /// If it already has a database, or no thread can be started.
    pub fn open(&self, downloads: Downloads) {
        let mut keeper = self.keeper.lock();
        assert!(keeper.is_none(), "it has a database");
        let core = Arc::clone(&self.core);
        core.note_size(&downloads);
        {
            let mut orders = core.orders.lock();
            (orders.failed, orders.is_ending, orders.ended) = (None, false, false);
        }
        core.look_at_all.store(true, SeqCst);
        let new = Keeper::new(core, downloads);
        let thread =
            thread::Builder::new().name("downloads".into()).spawn(|| new.run()).expect("there are threads");
        *self.core.thread.lock() = Some(thread.thread().clone());
        *keeper = Some(thread);
    }

    /// Waits until all downloads so far are durable, and every swarm so far has its stored count.
    ///
    /// # Errors
    /// The error of the disk. The counts are kept, and written later.
    pub fn settle(&self) -> Result<(), String> {
        if self.keeper.lock().is_none() {
            return Err("there is no database".into());
        }
        let mut orders = self.core.orders.lock();
        orders.settle += 1;
        let ticket = orders.settle;
        self.core.wake();
        while orders.settled < ticket && !orders.ended {
            self.core.settled.wait(&mut orders);
        }
        match &orders.failed {
            Some(reason) => Err(reason.clone()),
            None if orders.settled < ticket => Err("it was closed".into()),
            None => Ok(()),
        }
    }

    /// Writes all counts and closes the database. Later downloads are not kept.
    ///
    /// # Errors
    /// The error of the disk. The refused counts are lost.
    pub fn close(&self) -> Result<(), String> {
        let Some(thread) = self.keeper.lock().take() else { return Ok(()) };
        self.core.orders.lock().is_ending = true;
        self.core.wake();
        if thread.join().is_err() {
            return Err("the thread that keeps download counts has panicked".into());
        }
        self.core.orders.lock().failed.clone().map_or(Ok(()), Err)
    }

    /// The state of the counts.
    pub fn status(&self) -> CountsStatus {
        let unsaved = self.core.unsaved.load(Relaxed) as u64;
        CountsStatus { unsaved, ..*self.core.status.lock() }
    }
}

/// As [`close`](Durable::close), and ignores errors.
impl Drop for Durable {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable").field("store", &self.core.store).field("counts", &self.status()).finish()
    }
}

impl TorrentRepository for Durable {
    fn announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        let core = &*self.core;
        let is_counted = announce.event == AnnounceEvent::Completed;
        let shard = is_counted.then(|| core.shard(&announce.info_hash));
        let mut counting = CountingAnnounce { core, shard, unknown: Some(&announce.info_hash) };
        let announced = core.store.announce(announce, now, rng, peers);
        counting.unknown = None;
        if let Some(shard) = &mut counting.shard {
            core.note(shard, announce, &announced, now);
        } else if announced.changes.contains(Changes::CREATED) {
            core.note_created(&mut core.shard(&announce.info_hash), &announce.info_hash, false);
        }
        announced
    }

    fn announce_batch(&self, batch: &mut [Request<'_>], now: Timestamp, rng: &mut dyn Random) {
        let core = &*self.core;
        let completed = batch.iter().filter(|request| request.announce.event == AnnounceEvent::Completed);
        let bits =
            completed.fold(0_u64, |bits, request| bits | 1 << core.number(&request.announce.info_hash));
        let mut counting = CountingBatch { core, held: [const { None }; SHARDS], batch, now, is_done: false };
        // Locks all of them in ascending order, as every caller that locks several.
        let shards = counting.held.iter_mut().zip(&core.shards).enumerate();
        for (_, (held, shard)) in shards.filter(|(n, _)| bits >> n & 1 == 1) {
            *held = Some(shard.lock());
        }
        core.store.announce_batch(counting.batch, now, rng);
        counting.is_done = true;
    }

    fn remove(&self, info_hash: &InfoHash) -> Option<swarmkeep::SwarmStats> {
        let mut shard = self.core.shard(info_hash);
        let removed = self.core.store.remove(info_hash);
        self.core.change(&mut shard, info_hash, Change { forget: true, add: 0 }, Source::Several);
        removed
    }

    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        let mut shard = self.core.shard(&swarm.info_hash);
        let restored = self.core.store.restore(swarm, peers, now);
        self.core.note_created(&mut shard, &swarm.info_hash, true);
        restored
    }

    fn import(&self, records: &[Records], now: Timestamp) -> Restored {
        let mut restored = Restored::default();
        // In small parts: a caller that counts a download waits for the current part.
        for some in records.chunks(8) {
            let mut held = self.core.shards.each_ref().map(|shard| shard.lock());
            restored += self.core.store.import(some, now);
            for record in some.iter().flat_map(Records::iter) {
                let number = self.core.number(&record.info_hash);
                self.core.note_created(&mut held[number], &record.info_hash, true);
            }
        }
        restored
    }

    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        let mut shard = self.core.shard(info_hash);
        let added = self.core.store.add_downloads(info_hash, earlier);
        if added {
            let change = Change { forget: false, add: earlier.into() };
            self.core.change(&mut shard, info_hash, change, Source::Several);
        }
        added
    }

    forward_repository! {
        |durable| durable.core.store,
        except announce, announce_batch, remove, remove_where, restore, import, add_downloads
    }
}

/// An announce, and the shard of its torrent if it may count a download. If the caller's randomness panics
/// meanwhile, the swarm may be new, or the download may have been counted, and the swarm is noted.
struct CountingAnnounce<'a> {
    core: &'a Core,
    shard: Option<MutexGuard<'a, Shard>>,
    unknown: Option<&'a InfoHash>,
}

impl Drop for CountingAnnounce<'_> {
    fn drop(&mut self) {
        if let Some(info_hash) = self.unknown {
            let shard = self.shard.get_or_insert_with(|| self.core.shard(info_hash));
            self.core.note_created(shard, info_hash, false);
        }
    }
}

/// The same for a batch: `held` has the locked shards of all its downloads. Announces without an answer may
/// be done or not.
struct CountingBatch<'a, 'b, 'c> {
    core: &'a Core,
    held: [Option<MutexGuard<'a, Shard>>; SHARDS],
    batch: &'b mut [Request<'c>],
    now: Timestamp,
    is_done: bool,
}

impl Drop for CountingBatch<'_, '_, '_> {
    fn drop(&mut self) {
        let Self { core, ref batch, now, is_done, .. } = *self;
        let note = |shard: &mut Shard, Request { announce, answer, .. }: &Request<'_>| match answer {
            Some(announced) if is_done => core.note(shard, announce, announced, now),
            _ => core.note_created(shard, &announce.info_hash, false),
        };
        let notes = Changes::CREATED | Changes::COMPLETED;
        let is_noteworthy = |request: &&Request<'_>| {
            !is_done || request.answer.is_some_and(|answer| answer.changes.intersects(notes))
        };
        let mut others = Vec::new();
        for request in batch.iter().filter(is_noteworthy) {
            let number = core.number(&request.announce.info_hash);
            match &mut self.held[number] {
                Some(shard) => note(shard, request),
                None => others.push((number, request)),
            }
        }
        // The other shards come after these are released, since several may be locked in ascending order
        // only.
        self.held.fill_with(|| None);
        others.into_iter().for_each(|(number, request)| note(&mut core.shards[number].lock(), request));
    }
}

impl Core {
    fn number(&self, info_hash: &InfoHash) -> usize {
        self.hasher.hash_one(info_hash) as usize % SHARDS
    }

    fn shard(&self, info_hash: &InfoHash) -> MutexGuard<'_, Shard> {
        self.shards[self.number(info_hash)].lock()
    }

    /// Notes the changes of an announce.
    fn note(&self, shard: &mut Shard, announce: &Announce, announced: &Announced, now: Timestamp) {
        if announced.changes.contains(Changes::COMPLETED) {
            let source = Source::Prefix(announce.endpoint, now);
            self.change(shard, &announce.info_hash, Change { forget: false, add: 1 }, source);
        }
        if announced.changes.contains(Changes::CREATED) {
            self.note_created(shard, &announce.info_hash, false);
        }
    }

    /// Notes a swarm that is new, or must be looked up for another reason.
    fn note_created(&self, shard: &mut Shard, info_hash: &InfoHash, is_restored: bool) {
        let noted = if is_restored { &mut shard.restored } else { &mut shard.created };
        if noted.len() < MOST_CREATED {
            noted.push(*info_hash);
        } else {
            self.trusts_all.fetch_or(is_restored, SeqCst);
            self.look_at_all.store(true, SeqCst);
        }
        self.wake();
    }

    fn change(&self, shard: &mut Shard, info_hash: &InfoHash, change: Change, source: Source) {
        let newer = PendingChange { change, source };
        let note = shard.changes.get(info_hash).map_or(newer, |older| older.then(newer));
        self.put(shard, info_hash, note);
    }

    /// Stores the note of all changes of a torrent that are not durable.
    fn put(&self, shard: &mut Shard, info_hash: &InfoHash, note: PendingChange) {
        let is_full = shard.changes.len() >= self.pace.most_unsaved.div_ceil(SHARDS);
        match shard.changes.entry(*info_hash) {
            Entry::Occupied(mut known) => *known.get_mut() = note,
            // The downloads of an existing swarm can be found later. A removal cannot.
            Entry::Vacant(_) if is_full && !note.change.forget => self.look_at_all.store(true, SeqCst),
            Entry::Vacant(new) => {
                new.insert(note);
                if self.unsaved.fetch_add(1, Relaxed) + 1 == self.pace.torrents {
                    self.wake();
                }
            }
        }
    }

    /// Wakes the keeper before its time.
    fn wake(&self) {
        if !self.is_urgent.swap(true, SeqCst)
            && let Some(thread) = &*self.thread.lock()
        {
            thread.unpark();
        }
    }

    fn is_ending(&self) -> bool {
        let orders = self.orders.lock();
        orders.is_ending || orders.ended
    }

    fn note_size(&self, downloads: &Downloads) {
        let mut status = self.status.lock();
        (status.entries, status.bytes) = (downloads.entries(), downloads.size_bytes());
    }
}
