//! The repository over any map of swarms: everything but finding and locking, written once.
//!
//! A map-backed store is a [`SwarmMap`]; [`MapRepository`] makes a [`TorrentRepository`] of it, and [`Awaited`] an
//! asynchronous one if its locks must be awaited. Maps whose entries have locks of their own implement [`SlotMap`], and [`Slots`] gives them
//! the protocol by which nobody's announce is lost when an empty swarm goes.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    mem,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    thread,
};

use crate::{
    Announce, AnnounceEvent, Announced, Budget, Capabilities, Changes, Cursor, Evicted, Family, InfoHash,
    LongestHold, MemoryUse, PeerBuffer, PeerRecord, Random, Removed, Request, Restored, Retention, Role,
    SwarmStats, SwarmSummary, Swept, Timestamp, TorrentRepository, Totals,
    asynchronous::async_repository,
    lock::{Blocks, Lock, LockFamily},
    swarm::{NotRestored, Population, Swarm, Update},
    sweep::{Next, Pass},
    time::LatestTime,
};

/// How many peers or swarms are visited while one lock is held: at about 100 ns a cold visit, some 25 µs.
pub(crate) const VISITS_A_HOLD: usize = 256;

/// A map from info hashes to swarms that many threads share. Sections run alone in their swarm (those of `read` may share
/// it) and never wait.
pub trait SwarmMap: Send + Sync {
    /// The peers of one torrent.
    type Swarm: Swarm;

    /// Runs `section` on a swarm, if there is one.
    fn read<R: Send>(
        &self,
        info_hash: &InfoHash,
        section: impl FnOnce(&Self::Swarm) -> R + Send,
    ) -> impl Future<Output = Option<R>> + Send;

    /// Runs `section` on a swarm that it may change, if there is one.
    fn write<R: Send>(
        &self,
        info_hash: &InfoHash,
        section: impl FnOnce(&mut Self::Swarm) -> R + Send,
    ) -> impl Future<Output = Option<R>> + Send;

    /// Runs `section` on a swarm, which is made if there is none; nothing happens if it cannot be.
    fn enter<R: Send>(
        &self,
        info_hash: &InfoHash,
        admission: Admission,
        section: impl FnOnce(Entered<'_, Self::Swarm>) -> R + Send,
    ) -> impl Future<Output = Option<R>> + Send;

    /// Removes a swarm if `condemn` gives something, and answers that. No announce that entered the swarm after `condemn`
    /// looked is lost.
    fn remove_if<R: Send>(
        &self,
        info_hash: &InfoHash,
        condemn: impl FnOnce(&mut Self::Swarm) -> Option<R> + Send,
    ) -> impl Future<Output = Option<R>> + Send;

    /// Appends the up to `limit` info hashes that follow `after`; fewer only at the end. Entries without a swarm may be
    /// among them.
    fn keys(
        &self,
        order: Order,
        after: Option<&InfoHash>,
        limit: usize,
        out: &mut Vec<InfoHash>,
    ) -> impl Future<Output = ()> + Send;

    /// How many keys a sweep should ask for at once: as many as one look at the map finds.
    fn keys_a_look(&self) -> usize {
        KEYS_A_CLAIM
    }

    /// Returns memory that the map itself holds for swarms long gone; called once a pass. Maps of nodes have none.
    fn give_back(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// A swarm that an announce enters.
#[derive(Debug)]
pub struct Entered<'a, S> {
    /// The swarm.
    pub swarm: &'a mut S,
    /// Whether it was made for this announce.
    pub created: bool,
    /// A swarm that had to go to make room; it is dropped when no lock is held.
    pub evicted: Option<&'a S>,
}

/// How a new swarm gets into a map that has reached its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Another swarm goes.
    MakeRoom,
    /// It stays out.
    IfRoom,
}

/// The order in which a map shows its swarms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The map's own, stable and cheapest.
    Own,
    /// Ascending info hashes.
    Ascending,
}

/// Maps whose sections never wait, so that their repository is a synchronous one.
pub trait BlockingMap: SwarmMap {}

/// A repository over a map of swarms.
pub struct MapRepository<M: SwarmMap> {
    map: M,
    settings: <M::Swarm as Swarm>::Settings,
    lifetime_secs: u64,
    capabilities: Capabilities,
    estimate: MemoryEstimate,
    totals: AtomicTotals,
    latest: LatestTime,
    pass: Pass<Cursor, SwarmVisit>,
}

/// What a map of swarms takes, in bytes and about: for [`memory`](TorrentRepository::memory), which must not walk.
#[derive(Debug, Clone, Copy)]
pub struct MemoryEstimate {
    /// A swarm, its place in the map included.
    pub swarm: usize,
    /// What a swarm takes besides if more than one IPv4 peer is in it.
    pub shared: usize,
    /// An IPv4 peer, and an IPv6 one.
    pub peers: [usize; 2],
}

impl<M: SwarmMap> MapRepository<M> {
    /// An empty repository over an empty `map`, that forgets peers after `lifetime_secs` and declares `capabilities`.
    pub fn over(
        map: M,
        settings: <M::Swarm as Swarm>::Settings,
        lifetime_secs: u64,
        capabilities: Capabilities,
        estimate: MemoryEstimate,
    ) -> Self {
        let (totals, latest, pass) =
            (AtomicTotals::default(), LatestTime::default(), Pass::new(Cursor::START));
        Self { map, settings, lifetime_secs, capabilities, estimate, totals, latest, pass }
    }

    async fn do_announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        let now = self.latest.advance(now);
        peers.clear();
        let stopped = announce.event == AnnounceEvent::Stopped;
        let mut section = |entered: Entered<'_, M::Swarm>| {
            let mut announced = Announced::default();
            entered.swarm.announce(&self.settings, announce, now, rng, peers, |update| {
                announced = self.commit(update, entered.created, entered.evicted);
            });
            announced
        };
        if stopped {
            let entered = |swarm: &mut M::Swarm| section(Entered { swarm, created: false, evicted: None });
            self.map.write(&announce.info_hash, entered).await.unwrap_or_default()
        } else {
            let entered = self.map.enter(&announce.info_hash, Admission::MakeRoom, section).await;
            entered.expect("room is made for an announce")
        }
    }

    async fn do_announce_batch(&self, batch: &mut [Request<'_>], now: Timestamp, rng: &mut dyn Random) {
        for Request { announce, peers, answer } in batch {
            *answer = Some(self.do_announce(announce, now, rng, peers).await);
        }
    }

    /// Brings the totals in line with a swarm that has changed, under that swarm's lock.
    fn commit(&self, update: &Update, created: bool, evicted_swarm: Option<&M::Swarm>) -> Announced {
        let mut evicted = update.evicted;
        self.totals.change(update.gained, update.lost);
        if created {
            self.totals.swarms.fetch_add(1, Relaxed);
        }
        if let Some(swarm) = evicted_swarm {
            let population = swarm.population();
            evicted.swarms += 1;
            evicted.peers += population.peers();
            self.totals.swarms.fetch_sub(1, Relaxed);
            self.totals.change(Population::default(), population);
        }
        self.totals.evict(evicted);
        let mut changes = update.changes;
        changes.set(Changes::CREATED, created);
        Announced::new(update.stats, changes).evicting(evicted)
    }

    async fn do_scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        self.map.read(info_hash, Swarm::stats).await.unwrap_or_default()
    }

    async fn do_walk(&self, from: Cursor, limit: usize, out: &mut Vec<SwarmSummary>) -> Cursor {
        if from.is_end() || limit == 0 {
            return from;
        }
        let mut keys = Vec::new();
        self.map.keys(Order::Own, cursor_info_hash(from).as_ref(), limit, &mut keys).await;
        self.summarize(&keys, out).await;
        behind(&keys, limit)
    }

    async fn do_page(&self, after: Option<&InfoHash>, limit: usize, out: &mut Vec<SwarmSummary>) {
        let (mut after, end, mut keys) = (after.copied(), out.len().saturating_add(limit), Vec::new());
        // Entries without a swarm show nothing, so a page may take more than one look.
        while out.len() < end {
            let missing = end - out.len();
            keys.clear();
            self.map.keys(Order::Ascending, after.as_ref(), missing, &mut keys).await;
            self.summarize(&keys, out).await;
            if keys.len() < missing {
                break;
            }
            after = keys.last().copied();
        }
    }

    async fn summarize(&self, keys: &[InfoHash], out: &mut Vec<SwarmSummary>) {
        for &info_hash in keys {
            let stats = self.map.read(&info_hash, Swarm::stats).await;
            out.extend(stats.map(|stats| SwarmSummary { info_hash, stats }));
        }
    }

    async fn do_peers(
        &self,
        info_hash: &InfoHash,
        from: Cursor,
        limit: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Cursor {
        let limit = limit.min(VISITS_A_HOLD);
        let section = |swarm: &M::Swarm| swarm.peers(&self.settings, from, limit, out);
        self.map.read(info_hash, section).await.unwrap_or(Cursor::END)
    }

    async fn do_sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        let oldest = self.latest.advance(now).saturating_sub(self.lifetime_secs);
        let (mut swept, mut left) = (Swept::default(), budget.get());
        while left > 0 && !swept.pass_complete {
            let mut claim = match self.pass.next() {
                Next::Visit(claim) => claim,
                Next::LookFrom(from) => {
                    let (size, mut keys) = (self.map.keys_a_look(), Vec::new());
                    self.map.keys(Order::Own, cursor_info_hash(from).as_ref(), size, &mut keys).await;
                    let visits = keys.iter().map(|&info_hash| SwarmVisit { info_hash, from: Cursor::START });
                    let next = behind(&keys, size);
                    let Some(claim) = self.pass.claim(from, visits, (!next.is_end()).then_some(next)) else {
                        continue;
                    };
                    claim
                }
                Next::Leave => break,
            };
            while left > 0
                && let Some(visit) = claim.current()
            {
                let (info_hash, from) = (visit.info_hash, visit.from);
                let hold = left.min(VISITS_A_HOLD);
                let section = |swarm: &mut M::Swarm| {
                    let expired = swarm.expire(&self.settings, oldest, from, hold);
                    self.totals.change(Population::default(), expired.gone);
                    (expired, idle(swarm, policy))
                };
                let mut visited = usize::from(from == Cursor::START);
                match self.map.write(&info_hash, section).await {
                    None => {
                        // Nobody is in: at most a slot that its announce was dropped in front of, which goes.
                        self.remove_idle(&info_hash, policy).await;
                        claim.done();
                    }
                    Some((expired, idle)) => {
                        visited += expired.visited;
                        swept.expired += expired.gone.peers();
                        if idle {
                            swept.swarms_removed += u64::from(self.remove_idle(&info_hash, policy).await);
                        }
                        visit.from = expired.next;
                        if expired.next.is_end() {
                            claim.done();
                        } else {
                            // Announces wait for this swarm, and an unfair lock would let the sweep have it again at once.
                            thread::yield_now();
                        }
                    }
                }
                // A hold that found nobody has looked all the same.
                left = left.saturating_sub(visited.max(1));
                swept.visited += visited as u64;
            }
            swept.pass_complete = claim.finish();
            if swept.pass_complete {
                self.map.give_back().await;
            }
        }
        swept
    }

    /// Removes a swarm that is still idle; somebody may have entered it since it was found so.
    async fn remove_idle(&self, info_hash: &InfoHash, policy: Retention) -> bool {
        let condemn = |swarm: &mut M::Swarm| {
            let idle = idle(swarm, policy);
            if idle {
                self.totals.swarms.fetch_sub(1, Relaxed);
            }
            idle.then_some(())
        };
        self.map.remove_if(info_hash, condemn).await.is_some()
    }

    async fn do_remove(&self, info_hash: &InfoHash) -> Option<SwarmStats> {
        let condemn = |swarm: &mut M::Swarm| {
            self.totals.swarms.fetch_sub(1, Relaxed);
            self.totals.change(Population::default(), swarm.population());
            Some(swarm.stats())
        };
        self.map.remove_if(info_hash, condemn).await
    }

    async fn do_remove_where(
        &self,
        forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Removed {
        if from.is_end() {
            return Removed::new(Vec::new(), Cursor::END);
        }
        let (mut removed, mut keys) = (Vec::new(), Vec::new());
        let limit = budget.get();
        self.map.keys(Order::Own, cursor_info_hash(from).as_ref(), limit, &mut keys).await;
        for &info_hash in &keys {
            if forbidden(&info_hash)
                && let Some(stats) = self.do_remove(&info_hash).await
            {
                removed.push(SwarmSummary { info_hash, stats });
            }
        }
        Removed::new(removed, behind(&keys, limit))
    }

    async fn do_restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        let now = self.latest.advance(now);
        let oldest = now.saturating_sub(self.lifetime_secs);
        let mut restored = Restored::default();
        let alive = |peer: &&PeerRecord| peer.last_announce >= oldest;
        restored.expired = peers.iter().filter(|peer| !alive(peer)).count() as u64;
        if restored.expired == peers.len() as u64 && swarm.stats.downloaded == 0 {
            return restored;
        }
        let alive: Vec<&PeerRecord> = peers.iter().filter(alive).collect();
        // One lock hold for a bounded number of peers; an empty batch still brings the download count.
        let holds = if alive.is_empty() { vec![&alive[..]] } else { alive.chunks(VISITS_A_HOLD).collect() };
        for hold in holds {
            let section = |entered: Entered<'_, M::Swarm>| {
                let mut gained = Population::default();
                for &peer in hold {
                    let peer = PeerRecord { last_announce: peer.last_announce.min(now), ..*peer };
                    match entered.swarm.restore(&self.settings, &peer) {
                        Ok(()) => {
                            restored.added += 1;
                            *gained.count_mut(peer.endpoint.family(), peer.role) += 1;
                        }
                        Err(NotRestored::Known) => restored.known += 1,
                        Err(NotRestored::Full) => restored.refused += 1,
                    }
                }
                let downloaded = entered.swarm.downloaded().max(swarm.stats.downloaded);
                entered.swarm.set_downloaded(downloaded);
                let update = Update { gained, ..Update::none() };
                self.commit(&update, entered.created, entered.evicted);
            };
            // What was is worth less than what is: nothing goes to make room for it.
            if self.map.enter(&swarm.info_hash, Admission::IfRoom, section).await.is_none() {
                restored.refused += hold.len() as u64;
            }
        }
        restored
    }

    async fn do_add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        let add = |swarm: &mut M::Swarm| swarm.set_downloaded(swarm.downloaded().saturating_add(earlier));
        self.map.write(info_hash, add).await.is_some()
    }

    fn estimate(&self) -> MemoryUse {
        let (Totals { swarms, v4, v6, .. }, each) = (self.totals.load(), self.estimate);
        // At most so many swarms have an IPv6 peer or a second one.
        let shared = swarms.min(v4.peers().saturating_sub(swarms) + v6.peers());
        let parts = [
            (swarms, each.swarm),
            (shared, each.shared),
            (v4.peers(), each.peers[0]),
            (v6.peers(), each.peers[1]),
        ];
        MemoryUse::estimated(parts.iter().map(|&(count, bytes)| count * bytes as u64).sum())
    }
}

impl<M: SwarmMap> fmt::Debug for MapRepository<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapRepository").field("totals", &self.totals.load()).finish_non_exhaustive()
    }
}

impl<M: BlockingMap> TorrentRepository for MapRepository<M> {
    fn announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        at_once(self.do_announce(announce, now, rng, peers))
    }
    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        at_once(self.do_scrape(info_hash))
    }
    fn totals(&self) -> Totals {
        self.totals.load()
    }
    fn walk(&self, from: Cursor, limit: usize, out: &mut Vec<SwarmSummary>) -> Cursor {
        at_once(self.do_walk(from, limit, out))
    }
    fn page(&self, after: Option<&InfoHash>, limit: usize, out: &mut Vec<SwarmSummary>) {
        at_once(self.do_page(after, limit, out));
    }
    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        at_once(self.do_peers(info_hash, from, limit, out))
    }
    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        at_once(self.do_sweep(now, policy, budget))
    }
    fn remove(&self, info_hash: &InfoHash) -> Option<SwarmStats> {
        at_once(self.do_remove(info_hash))
    }
    fn remove_where(
        &self,
        forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Removed {
        at_once(self.do_remove_where(forbidden, from, budget))
    }
    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        at_once(self.do_restore(swarm, peers, now))
    }
    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        at_once(self.do_add_downloads(info_hash, earlier))
    }
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
    fn memory(&self) -> MemoryUse {
        self.estimate()
    }
}

/// A repository over a map whose locks must be awaited: what makes it an [`AsyncTorrentRepository`](crate::AsyncTorrentRepository).
#[derive(Debug)]
pub struct Awaited<R>(pub R);

macro_rules! awaited {
    (@plain $this:ident, capabilities) => { $this.0.capabilities };
    (@of $this:ident, $method:ident $(, $argument:ident)*) => {
        Box::pin(async move { Ok($this.0.$method($($argument),*).await) })
    };
    ($this:ident, totals) => { Box::pin(async move { Ok($this.0.totals.load()) }) };
    ($this:ident, memory) => { Box::pin(async move { Ok($this.0.estimate()) }) };
    ($this:ident, announce $($arguments:tt)*) => { awaited!(@of $this, do_announce $($arguments)*) };
    ($this:ident, announce_batch $($arguments:tt)*) => { awaited!(@of $this, do_announce_batch $($arguments)*) };
    ($this:ident, scrape $($arguments:tt)*) => { awaited!(@of $this, do_scrape $($arguments)*) };
    ($this:ident, walk $($arguments:tt)*) => { awaited!(@of $this, do_walk $($arguments)*) };
    ($this:ident, page $($arguments:tt)*) => { awaited!(@of $this, do_page $($arguments)*) };
    ($this:ident, peers $($arguments:tt)*) => { awaited!(@of $this, do_peers $($arguments)*) };
    ($this:ident, sweep $($arguments:tt)*) => { awaited!(@of $this, do_sweep $($arguments)*) };
    ($this:ident, remove $($arguments:tt)*) => { awaited!(@of $this, do_remove $($arguments)*) };
    ($this:ident, remove_where $($arguments:tt)*) => { awaited!(@of $this, do_remove_where $($arguments)*) };
    ($this:ident, restore $($arguments:tt)*) => { awaited!(@of $this, do_restore $($arguments)*) };
    ($this:ident, add_downloads $($arguments:tt)*) => { awaited!(@of $this, do_add_downloads $($arguments)*) };
}

async_repository! { [M: SwarmMap] Awaited<MapRepository<M>>, awaited }

/// Runs a future of a [`BlockingMap`], which is ready when it is first polled.
fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("a blocking lock is taken within one poll"),
    }
}

/// A swarm to sweep, from this peer on.
#[derive(Debug, Clone, Copy)]
struct SwarmVisit {
    info_hash: InfoHash,
    from: Cursor,
}

/// How many swarms a sweep claims at once: enough to share the cost of finding them, few enough that a step dropped half-way
/// gives little back.
const KEYS_A_CLAIM: usize = 64;

fn idle(swarm: &impl Swarm, policy: Retention) -> bool {
    let keeps_count = policy == Retention::KeepDownloaded && swarm.downloaded() > 0;
    swarm.is_empty() && !keeps_count
}

fn cursor_info_hash(cursor: Cursor) -> Option<InfoHash> {
    Some(InfoHash::new(cursor.bytes()?.try_into().ok()?))
}

/// Where a listing that asked for `limit` keys and got these goes on.
fn behind(keys: &[InfoHash], limit: usize) -> Cursor {
    match keys.last() {
        Some(last) if keys.len() >= limit => Cursor::after(last.as_bytes()),
        _ => Cursor::END,
    }
}

/// Of the keys from `start` on keeps the `limit` smallest, in any order.
pub(crate) fn keep_smallest(keys: &mut Vec<InfoHash>, start: usize, limit: usize) {
    if keys.len() - start > limit {
        keys[start..].select_nth_unstable(limit);
        keys.truncate(start + limit);
    }
}

/// Totals that swarms bring up to date under their own locks: exact once nothing is in flight.
#[derive(Debug, Default)]
pub(crate) struct AtomicTotals {
    swarms: AtomicU64,
    peers: [AtomicU64; 4],
    evicted_swarms: AtomicU64,
    evicted_peers: AtomicU64,
}

impl AtomicTotals {
    /// A peer comes, goes, or changes its role.
    pub(crate) fn turn(&self, family: Family, before: Option<Role>, after: Option<Role>) {
        // A refresh, by far the most frequent announce, writes nothing that threads share.
        if before == after {
            return;
        }
        let of =
            |role| &self.peers[2 * usize::from(family == Family::V6) + usize::from(role == Role::Leecher)];
        if let Some(role) = after {
            of(role).fetch_add(1, Relaxed);
        }
        if let Some(role) = before {
            of(role).fetch_sub(1, Relaxed);
        }
    }

    /// Counts a swarm unless there are `most` already; whether it was.
    pub(crate) fn add_swarm(&self, most: u64) -> bool {
        if most == u64::MAX {
            self.swarms.fetch_add(1, Relaxed);
            return true;
        }
        self.swarms.try_update(Relaxed, Relaxed, |swarms| (swarms < most).then_some(swarms + 1)).is_ok()
    }

    /// A swarm goes, with the peers that are in it.
    pub(crate) fn remove_swarm(&self, population: Population) {
        self.swarms.fetch_sub(1, Relaxed);
        self.change(Population::default(), population);
    }

    pub(crate) fn change(&self, gained: Population, lost: Population) {
        let counts = |p: Population| [p.v4.seeders, p.v4.leechers, p.v6.seeders, p.v6.leechers];
        for ((total, gained), lost) in self.peers.iter().zip(counts(gained)).zip(counts(lost)) {
            // A refresh, by far the most frequent announce, writes nothing that threads share.
            if gained != lost {
                total.fetch_add(gained.wrapping_sub(lost), Relaxed);
            }
        }
    }

    pub(crate) fn evict(&self, evicted: Evicted) {
        if evicted != Evicted::default() {
            self.evicted_swarms.fetch_add(evicted.swarms, Relaxed);
            self.evicted_peers.fetch_add(evicted.peers, Relaxed);
        }
    }

    pub(crate) fn load(&self) -> Totals {
        let mut population = Population::default();
        let kinds = [
            (Family::V4, Role::Seeder),
            (Family::V4, Role::Leecher),
            (Family::V6, Role::Seeder),
            (Family::V6, Role::Leecher),
        ];
        for (total, (family, role)) in self.peers.iter().zip(kinds) {
            *population.count_mut(family, role) = total.load(Relaxed);
        }
        Totals {
            swarms: self.swarms.load(Relaxed),
            v4: population.v4,
            v6: population.v6,
            evicted: Evicted {
                swarms: self.evicted_swarms.load(Relaxed),
                peers: self.evicted_peers.load(Relaxed),
            },
        }
    }
}

/// A map from info hashes to slots, each of which has a lock of its own. It finds and nothing more.
pub trait SlotMap<T: Send + Sync>: Send + Sync {
    /// The slot of an info hash.
    fn get(&self, info_hash: &InfoHash) -> impl Future<Output = Option<Arc<T>>> + Send;

    /// The slot of an info hash, made by `make` if there is none; all who race for it get the same one.
    fn get_or_insert(&self, info_hash: &InfoHash, make: fn() -> T) -> impl Future<Output = Arc<T>> + Send;

    /// Removes the entry of an info hash if it still is this slot.
    fn discard(&self, info_hash: &InfoHash, slot: &Arc<T>) -> impl Future<Output = ()> + Send;

    /// See [`SwarmMap::keys`].
    fn keys(
        &self,
        order: Order,
        after: Option<&InfoHash>,
        limit: usize,
        out: &mut Vec<InfoHash>,
    ) -> impl Future<Output = ()> + Send;

    /// See [`SwarmMap::keys_a_look`].
    fn keys_a_look(&self) -> usize {
        KEYS_A_CLAIM
    }

    /// See [`SwarmMap::give_back`].
    fn give_back(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Swarms in slots, each behind a lock of family `L`, in a map that only finds them.
///
/// A swarm is removed in two steps: its slot is marked as retired under the slot's own lock, then taken out of the map.
/// Whoever finds a retired slot in between takes it out too and looks again, so an announce never lands in a swarm that is
/// no longer in the map. A slot nobody has entered yet, and a retired one, hold no swarm.
#[derive(Debug)]
pub struct Slots<M, S, L> {
    map: M,
    kind: PhantomData<fn() -> (S, L)>,
}

/// What a slot holds.
#[derive(Debug)]
pub enum Slot<S> {
    /// Nobody has entered yet.
    New,
    /// A swarm that the totals count.
    Live(S),
    /// Its swarm was removed; the slot is about to leave the map.
    Retired,
}

/// The locked slot of a family.
pub type LockedSlot<S, L> = <L as LockFamily>::Lock<Slot<S>>;

impl<M, S, L> Slots<M, S, L> {
    /// Slots in an empty map.
    pub const fn new(map: M) -> Self {
        Self { map, kind: PhantomData }
    }
}

impl<S> Slot<S> {
    fn live(&mut self) -> Option<&mut S> {
        if let Self::Live(swarm) = self { Some(swarm) } else { None }
    }
}

impl<M, S, L> SwarmMap for Slots<M, S, L>
where
    M: SlotMap<LockedSlot<S, L>>,
    S: Swarm,
    L: LockFamily,
{
    type Swarm = S;

    async fn read<R: Send>(&self, info_hash: &InfoHash, section: impl FnOnce(&S) -> R + Send) -> Option<R> {
        let slot = self.map.get(info_hash).await?;
        slot.read(|slot| if let Slot::Live(swarm) = slot { Some(section(swarm)) } else { None }).await
    }

    async fn write<R: Send>(
        &self,
        info_hash: &InfoHash,
        section: impl FnOnce(&mut S) -> R + Send,
    ) -> Option<R> {
        let slot = self.map.get(info_hash).await?;
        slot.write(|slot| slot.live().map(section)).await
    }

    async fn enter<R: Send>(
        &self,
        info_hash: &InfoHash,
        _: Admission,
        section: impl FnOnce(Entered<'_, S>) -> R + Send,
    ) -> Option<R> {
        let mut section = Some(section);
        loop {
            let slot = self.map.get_or_insert(info_hash, || Lock::new(Slot::New)).await;
            let entered = slot
                .write(|slot| {
                    let created = matches!(slot, Slot::New);
                    if created {
                        *slot = Slot::Live(S::default());
                    }
                    let section = section.take_if(|_| !matches!(slot, Slot::Retired))?;
                    Some(section(Entered { swarm: slot.live()?, created, evicted: None }))
                })
                .await;
            if entered.is_some() {
                return entered;
            }
            self.map.discard(info_hash, &slot).await;
        }
    }

    async fn remove_if<R: Send>(
        &self,
        info_hash: &InfoHash,
        condemn: impl FnOnce(&mut S) -> Option<R> + Send,
    ) -> Option<R> {
        let slot = self.map.get(info_hash).await?;
        let (result, retired) = slot
            .write(|slot| {
                let result = slot.live().map(condemn);
                // A live swarm that was not condemned stays; a slot that nobody has entered holds nothing to keep.
                let stays = matches!(result, Some(None));
                (!stays).then(|| (result.flatten(), mem::replace(slot, Slot::Retired)))
            })
            .await?;
        // A large swarm takes milliseconds to free: not under the lock.
        drop(retired);
        self.map.discard(info_hash, &slot).await;
        result
    }

    async fn keys(&self, order: Order, after: Option<&InfoHash>, limit: usize, out: &mut Vec<InfoHash>) {
        self.map.keys(order, after, limit, out).await;
    }

    fn keys_a_look(&self) -> usize {
        self.map.keys_a_look()
    }

    async fn give_back(&self) {
        self.map.give_back().await;
    }
}

/// Slots under blocking locks, in a map that blocks too.
impl<M, S, L> BlockingMap for Slots<M, S, L>
where
    M: SlotMap<LockedSlot<S, L>> + BlockingSlots,
    S: Swarm,
    L: Blocks,
{
}

/// Slot maps that never wait.
pub trait BlockingSlots {}

/// What a map-backed store of whole peer records declares.
pub(crate) const fn record_capabilities(longest_hold: LongestHold) -> Capabilities {
    Capabilities::new(longest_hold).with_peer_details().with_clock(0, u64::MAX)
}
