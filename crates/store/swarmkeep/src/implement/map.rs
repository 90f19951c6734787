//! A repository over any map of swarms. The map finds and locks swarms; everything else is written here once.
//!
//! A map-backed store implements [`SwarmMap`]. [`MapRepository`] makes it a [`TorrentRepository`], and
//! [`Awaited`] an asynchronous one if its locks must be awaited. A map of entries with their own locks
//! implements [`SlotMap`] instead; [`Slots`] adds the protocol that loses no announce when an empty swarm is
//! removed.

use std::{
    collections::BTreeSet, convert::Infallible, fmt, future::Future, marker::PhantomData, mem, sync::Arc,
    thread,
};

use super::{
    CursorExt as _, Next, Pass, VISITS_PER_HOLD, forward_asynchronous, forward_repository,
    lock::{Blocks, Lock, LockFamily},
    swarm::{RecordSwarm, Updated},
};
use crate::{
    Announce, AnnounceEvent, Announced, Answer, AsyncTorrentRepository, BoundedBy, Budget, Capabilities,
    Changes, ConfigError, Cursor, Evicted, Export, InfoHash, Limits, MemoryUse, PeerBuffer, PeerRecord,
    Random, RepositoryConfig, Request, Restored, Retention, SwarmStats, SwarmSummary, Swept, Timestamp,
    TorrentRepository, Totals,
    asynchronous::{answer, at_once, sweep_in_turns},
    export,
    time::LatestTime,
    totals::{AtomicTotals, Population},
};

/// A map from info hashes to swarms that many threads share. A section has its swarm for itself (sections of
/// `read` may share it) and never waits.
pub trait SwarmMap: Send + Sync {
    /// Runs `section` on a swarm; returns `None` if there is no such swarm.
    fn read<R: Send>(
        &self,
        info_hash: &InfoHash,
        section: impl FnOnce(&RecordSwarm) -> R + Send,
    ) -> impl Future<Output = Option<R>> + Send;

    /// Runs `section` on a swarm that it may change; returns `None` if there is no such swarm.
    fn write<R: Send>(
        &self,
        info_hash: &InfoHash,
        section: impl FnOnce(&mut RecordSwarm) -> R + Send,
    ) -> impl Future<Output = Option<R>> + Send;

    /// Runs `section` on a swarm, which is created if there is none. The second argument of `section` is
    /// whether the swarm was created.
    fn enter<R: Send>(
        &self,
        info_hash: &InfoHash,
        section: impl FnOnce(&mut RecordSwarm, bool) -> R + Send,
    ) -> impl Future<Output = R> + Send;

    /// Removes a swarm if `condemn` returns `Some`, and returns that value. No announce that enters the swarm
    /// after `condemn` has run is lost.
    fn remove_if<R: Send>(
        &self,
        info_hash: &InfoHash,
        condemn: impl FnOnce(&RecordSwarm) -> Option<R> + Send,
    ) -> impl Future<Output = Option<R>> + Send;

    /// Appends up to `limit` info hashes that follow `after` in `order`; fewer only at the end. Entries
    /// without a swarm may be among them, but no info hash twice, neither in one call, which debug builds
    /// assert, nor in a later one: a scan of a concurrent map that repeats entries has to leave them out.
    fn keys(
        &self,
        order: Order,
        after: Option<&InfoHash>,
        limit: usize,
        out: &mut Vec<InfoHash>,
    ) -> impl Future<Output = ()> + Send;

    /// Returns the number of keys that a sweep should ask for at once: the number that one look at the map
    /// finds.
    fn keys_per_look(&self) -> usize {
        KEYS_PER_CLAIM
    }

    /// Frees memory that the map itself keeps for removed swarms; called once per pass. A map of nodes keeps
    /// none.
    fn give_back(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// The order in which a map shows its swarms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The map's own order, which is stable and costs least.
    Own,
    /// Ascending info hashes.
    Ascending,
}

/// Maps with locks that block, so that their repository is a synchronous one.
pub trait BlockingMap: SwarmMap {}

/// A repository over a map of swarms.
pub struct MapRepository<M>(Calls<M>);

/// An asynchronous repository over a map with locks that must be awaited.
#[derive(Debug)]
pub struct Awaited<R>(pub R);

impl<M> MapRepository<M> {
    /// Returns an empty repository over an empty `map`.
    ///
    /// `capabilities` are the capabilities of the map: its longest hold, and the cost of a page.
    /// `bytes_per_swarm` is about the number of bytes that the map takes per swarm, without the peers of the
    /// swarm.
    ///
    /// # Errors
    /// [`ConfigError`] if a limit other than that on the endpoints of an address is set, if that limit is 0,
    /// or if the lifetime is not whole seconds.
    pub fn over(
        map: M,
        config: &RepositoryConfig,
        capabilities: Capabilities,
        bytes_per_swarm: usize,
    ) -> Result<Self, ConfigError> {
        config.refuse_limits_but(BoundedBy::ENDPOINTS_PER_ADDRESS)?;
        let most_per_address = config.limits().endpoints_per_address.unwrap_or(usize::MAX);
        if most_per_address == 0 {
            return Err(ConfigError::Limit { what: Limits::ENDPOINTS_PER_ADDRESS, given: 0, least: 1 });
        }
        let capabilities = capabilities
            .with_peer_details()
            .with_clock(0, u64::MAX)
            .with_bounds(BoundedBy::ENDPOINTS_PER_ADDRESS);
        Ok(Self(Calls {
            map,
            lifetime_secs: config.lifetime_secs(capabilities.longest_lifetime_secs)?,
            most_per_address,
            capabilities,
            bytes_per_swarm: bytes_per_swarm as u64,
            totals: AtomicTotals::default(),
            latest: LatestTime::default(),
            pass: Pass::new(Cursor::START),
        }))
    }
}

impl<M> fmt::Debug for MapRepository<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapRepository").field("totals", &self.0.totals.load()).finish_non_exhaustive()
    }
}

impl<M: BlockingMap> TorrentRepository for MapRepository<M> {
    forward_repository! { |store| store.0 => at_once, except scrape_batch, capabilities, remove_where, import }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }
}

macro_rules! answer_of {
    ($store:ident, $method:expr, $call:expr) => {
        answer($call)
    };
}

impl<M: SwarmMap> AsyncTorrentRepository for Awaited<MapRepository<M>> {
    fn announce<'a>(
        &'a self,
        announce: &'a Announce,
        now: Timestamp,
        rng: &'a mut dyn Random,
        peers: &'a mut PeerBuffer<'_>,
    ) -> Answer<'a, Announced> {
        Box::pin(async move { Ok(self.0.0.announce(announce, now, rng, peers).await) })
    }

    fn scrape<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, SwarmStats> {
        Box::pin(async move { Ok(self.0.0.scrape(info_hash).await) })
    }

    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Answer<'_, Swept> {
        answer(sweep_in_turns(budget, move |budget| self.0.0.sweep(now, policy, budget)))
    }

    fn capabilities(&self) -> Capabilities {
        self.0.0.capabilities
    }

    forward_asynchronous! { |store| store.0.0 => answer_of!, except announce, scrape, sweep, remove_where, import }
}

/// The methods of a repository over a map, as futures. Over a [`BlockingMap`] each of them is ready when it
/// is first polled.
struct Calls<M> {
    map: M,
    lifetime_secs: u64,
    /// The maximum number of endpoints of one address in one swarm.
    most_per_address: usize,
    capabilities: Capabilities,
    bytes_per_swarm: u64,
    totals: AtomicTotals,
    latest: LatestTime,
    pass: Pass<Cursor, SwarmVisit>,
}

/// A swarm to sweep, from the peer at `from` on.
#[derive(Debug, Clone, Copy)]
struct SwarmVisit {
    info_hash: InfoHash,
    from: Cursor,
}

/// The number of swarms that a sweep claims at once: enough to share the cost of finding them, and few enough
/// that a dropped step returns little.
const KEYS_PER_CLAIM: usize = 64;

impl<M: SwarmMap> Calls<M> {
    async fn announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        let now = self.latest.advance(now);
        peers.clear();
        let mut section = |swarm: &mut RecordSwarm, created| {
            let update = |swarm: &mut RecordSwarm| swarm.update(announce, now, self.most_per_address);
            let Updated { transition, place, evicted } = self.counting(swarm, update);
            let family = announce.endpoint.family();
            self.totals.turn(family, transition.before, transition.after);
            let gone = evicted.map_or_else(Population::default, |role| Population::one(family, role));
            let evicted = Evicted::peers(gone.peers());
            self.totals.remove_population(gone);
            self.totals.evict(evicted);
            if created {
                self.totals.add_swarm(u64::MAX);
            }
            let mut changes = transition.changes();
            changes.set(Changes::CREATED, created);
            // The store does not change after this point: the randomness of the caller may panic.
            if let Some(place) = place {
                swarm.select(announce, place, rng, peers);
            }
            Announced::new(swarm.stats(), changes).evicting(evicted)
        };
        if announce.event == AnnounceEvent::Stopped {
            let known = self.map.write(&announce.info_hash, |swarm| section(swarm, false)).await;
            known.unwrap_or_default()
        } else {
            self.map.enter(&announce.info_hash, section).await
        }
    }

    async fn announce_batch(&self, batch: &mut [Request<'_>], now: Timestamp, rng: &mut dyn Random) {
        batch.iter_mut().for_each(Request::clear);
        for Request { announce, peers, answer } in batch {
            *answer = Some(self.announce(announce, now, rng, peers).await);
        }
    }

    async fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        self.map.read(info_hash, RecordSwarm::stats).await.unwrap_or_default()
    }

    async fn totals(&self) -> Totals {
        self.totals.load()
    }

    async fn walk(&self, from: Cursor, limit: usize, out: &mut Vec<SwarmSummary>) -> Cursor {
        if from.is_end() || limit == 0 {
            return from;
        }
        let keys = self.keys(Order::Own, from.info_hash().as_ref(), limit).await;
        self.summarize(&keys, out).await;
        behind(&keys, limit)
    }

    async fn page(&self, after: Option<&InfoHash>, limit: usize, out: &mut Vec<SwarmSummary>) {
        let (mut after, end) = (after.copied(), out.len().saturating_add(limit));
        // Entries without a swarm are not shown, so a page may take more than one look.
        while out.len() < end {
            let missing = end - out.len();
            let keys = self.keys(Order::Ascending, after.as_ref(), missing).await;
            self.summarize(&keys, out).await;
            if keys.len() < missing {
                break;
            }
            after = keys.last().copied();
        }
    }

    async fn keys(&self, order: Order, after: Option<&InfoHash>, limit: usize) -> Vec<InfoHash> {
        let mut keys = Vec::new();
        self.map.keys(order, after, limit, &mut keys).await;
        debug_assert_eq!(
            keys.iter().collect::<BTreeSet<_>>().len(),
            keys.len(),
            "SwarmMap::keys has returned an info hash twice"
        );
        keys
    }

    async fn summarize(&self, keys: &[InfoHash], out: &mut Vec<SwarmSummary>) {
        for &info_hash in keys {
            let stats = self.map.read(&info_hash, RecordSwarm::stats).await;
            out.extend(stats.map(|stats| SwarmSummary { info_hash, stats }));
        }
    }

    async fn peers(
        &self,
        info_hash: &InfoHash,
        from: Cursor,
        limit: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Cursor {
        let section = |swarm: &RecordSwarm| swarm.peers(from, limit.min(VISITS_PER_HOLD), out);
        self.map.read(info_hash, section).await.unwrap_or(Cursor::END)
    }

    async fn advance(&self, now: Timestamp) -> Timestamp {
        self.latest.advance(now)
    }

    async fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        let oldest = self.latest.advance(now).saturating_sub(self.lifetime_secs);
        let (mut swept, mut left) = (Swept::default(), budget.get());
        while left > 0 && !swept.pass_complete {
            let mut claim = match self.pass.next() {
                Next::Visit(claim) => claim,
                Next::LookFrom(from) => {
                    let size = self.map.keys_per_look();
                    let keys = self.keys(Order::Own, from.info_hash().as_ref(), size).await;
                    let visits = keys.iter().map(|&info_hash| SwarmVisit { info_hash, from: Cursor::START });
                    let next = behind(&keys, size);
                    let Some(claim) = self.pass.claim(from, visits, (!next.is_end()).then_some(next)) else {
                        continue;
                    };
                    claim
                }
                Next::Leave => break,
            };
            while left > 0 {
                let Some(visit) = claim.current() else { break };
                let (info_hash, from) = (visit.info_hash, visit.from);
                let hold = left.min(VISITS_PER_HOLD);
                let section = |swarm: &mut RecordSwarm| {
                    let expired = swarm.expire(oldest, from, hold);
                    self.totals.remove_population(expired.gone);
                    (expired, swarm.is_idle(policy))
                };
                let mut visited = usize::from(from == Cursor::START);
                match self.map.write(&info_hash, section).await {
                    None => {
                        // There is no swarm: at most an empty slot, left by a dropped announce. It is
                        // removed.
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
                            // Announces may wait for this swarm, and an unfair lock would give it to the
                            // sweep again at once.
                            thread::yield_now();
                        }
                    }
                }
                // A hold that found no peer counts as one visit.
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

    /// Removes a swarm if it is still idle; a peer may have entered it since it was found idle.
    async fn remove_idle(&self, info_hash: &InfoHash, policy: Retention) -> bool {
        let condemn =
            |swarm: &RecordSwarm| swarm.is_idle(policy).then(|| self.totals.remove(1, swarm.population()));
        self.map.remove_if(info_hash, condemn).await.is_some()
    }

    async fn remove(&self, info_hash: &InfoHash) -> Option<SwarmStats> {
        let condemn = |swarm: &RecordSwarm| {
            self.totals.remove(1, swarm.population());
            Some(swarm.stats())
        };
        self.map.remove_if(info_hash, condemn).await
    }

    async fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        let now = self.latest.advance(now);
        let oldest = now.saturating_sub(self.lifetime_secs);
        let mut restored = Restored::default();
        let alive: Vec<&PeerRecord> = peers.iter().filter(|peer| peer.last_announce >= oldest).collect();
        restored.expired = (peers.len() - alive.len()) as u64;
        if alive.is_empty() && swarm.stats.downloaded == 0 {
            return restored;
        }
        // Each lock hold inserts a bounded number of peers. Without peers one hold still restores the
        // download count.
        let holds = if alive.is_empty() { vec![&alive[..]] } else { alive.chunks(VISITS_PER_HOLD).collect() };
        for hold in holds {
            let section = |entered: &mut RecordSwarm, created| {
                if created {
                    self.totals.add_swarm(u64::MAX);
                }
                self.counting(entered, |entered| entered.restore_downloads(swarm.stats.downloaded));
                for &peer in hold {
                    let peer = PeerRecord { last_announce: peer.last_announce.min(now), ..*peer };
                    let result = entered.restore(&peer, self.most_per_address);
                    if result.is_ok() {
                        self.totals.turn(peer.endpoint.family(), None, Some(peer.role));
                    }
                    restored.count(result);
                }
            };
            self.map.enter(&swarm.info_hash, section).await;
        }
        restored
    }

    async fn export(&self, export: &mut Export, now: Timestamp, budget: Budget) {
        let Ok(()) = export::step(self, export, self.latest.advance(now), budget).await;
    }

    async fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        let section = |swarm: &mut RecordSwarm| self.counting(swarm, |swarm| swarm.add_downloads(earlier));
        self.map.write(info_hash, section).await.is_some()
    }

    /// Changes a swarm, and adds the downloads that it counts to the totals.
    fn counting<R>(&self, swarm: &mut RecordSwarm, change: impl FnOnce(&mut RecordSwarm) -> R) -> R {
        let before = swarm.stats().downloaded;
        let result = change(swarm);
        let counted = swarm.stats().downloaded - before;
        if counted > 0 {
            self.totals.add(0, Population::downloads(counted));
        }
        result
    }

    async fn memory(&self) -> MemoryUse {
        let (Totals { swarms, v4, v6, .. }, [v4_bytes, v6_bytes]) =
            (self.totals.load(), RecordSwarm::BYTES_PER_PEER);
        MemoryUse::estimated(swarms * self.bytes_per_swarm + v4.peers() * v4_bytes + v6.peers() * v6_bytes)
    }
}

impl<M: SwarmMap> export::Source for Calls<M> {
    type Error = Infallible;

    async fn list(
        &self,
        from: Cursor,
        limit: usize,
        out: &mut Vec<SwarmSummary>,
    ) -> Result<Cursor, Infallible> {
        Ok(self.walk(from, limit, out).await)
    }

    async fn part(
        &self,
        listed: &SwarmSummary,
        from: Cursor,
        limit: usize,
        peers: &mut Vec<PeerRecord>,
    ) -> Result<(Cursor, u32), Infallible> {
        let section = |swarm: &RecordSwarm| {
            (swarm.peers(from, limit.min(VISITS_PER_HOLD), peers), swarm.stats().downloaded)
        };
        Ok(self.map.read(&listed.info_hash, section).await.unwrap_or((Cursor::END, 0)))
    }
}

/// Returns the cursor after `keys`, the result of a listing that asked for `limit` keys.
fn behind(keys: &[InfoHash], limit: usize) -> Cursor {
    match keys.last() {
        Some(last) if keys.len() >= limit => Cursor::after(last.as_bytes()),
        _ => Cursor::END,
    }
}

/// A map from info hashes to slots, each with its own lock. The map only finds slots.
pub trait SlotMap<T: Send + Sync>: Send + Sync {
    /// Returns the slot of an info hash.
    fn get(&self, info_hash: &InfoHash) -> impl Future<Output = Option<Arc<T>>> + Send;

    /// Returns the slot of an info hash, created by `make` if there is none. All callers that race get the
    /// same slot.
    fn get_or_insert(&self, info_hash: &InfoHash, make: fn() -> T) -> impl Future<Output = Arc<T>> + Send;

    /// Removes the entry of an info hash if it is still this slot.
    fn discard(&self, info_hash: &InfoHash, slot: &Arc<T>) -> impl Future<Output = ()> + Send;

    /// See [`SwarmMap::keys`].
    fn keys(
        &self,
        order: Order,
        after: Option<&InfoHash>,
        limit: usize,
        out: &mut Vec<InfoHash>,
    ) -> impl Future<Output = ()> + Send;

    /// See [`SwarmMap::keys_per_look`].
    fn keys_per_look(&self) -> usize {
        KEYS_PER_CLAIM
    }

    /// See [`SwarmMap::give_back`].
    fn give_back(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Swarms in slots, each behind a lock of family `L`, in a map that finds the slots.
///
/// A swarm is removed in two steps: its slot is marked as retired under the lock of the slot, then the slot
/// is removed from the map. A caller that finds a retired slot between the two steps removes it too and looks
/// again, so no announce enters a swarm that is no longer in the map. A slot that no call has entered, and a
/// retired slot, contain no swarm.
#[derive(Debug)]
pub struct Slots<M, L> {
    map: M,
    locks: PhantomData<fn() -> L>,
}

/// The contents of a slot.
#[derive(Debug)]
#[non_exhaustive]
pub enum Slot {
    /// No call has entered the slot yet.
    New,
    /// A swarm, which the totals count.
    Live(RecordSwarm),
    /// The swarm was removed; the slot is about to be removed from the map.
    Retired,
}

/// A slot behind a lock of family `L`.
pub type LockedSlot<L> = <L as LockFamily>::Lock<Slot>;

impl<M, L> Slots<M, L> {
    /// Returns slots in an empty map.
    pub const fn new(map: M) -> Self {
        Self { map, locks: PhantomData }
    }
}

impl Slot {
    const fn live(&mut self) -> Option<&mut RecordSwarm> {
        if let Self::Live(swarm) = self { Some(swarm) } else { None }
    }
}

impl<M: SlotMap<LockedSlot<L>>, L: LockFamily> SwarmMap for Slots<M, L> {
    async fn read<R: Send>(
        &self,
        info_hash: &InfoHash,
        section: impl FnOnce(&RecordSwarm) -> R + Send,
    ) -> Option<R> {
        let slot = self.map.get(info_hash).await?;
        slot.read(|slot| if let Slot::Live(swarm) = slot { Some(section(swarm)) } else { None }).await
    }

    async fn write<R: Send>(
        &self,
        info_hash: &InfoHash,
        section: impl FnOnce(&mut RecordSwarm) -> R + Send,
    ) -> Option<R> {
        let slot = self.map.get(info_hash).await?;
        slot.write(|slot| slot.live().map(section)).await
    }

    async fn enter<R: Send>(
        &self,
        info_hash: &InfoHash,
        section: impl FnOnce(&mut RecordSwarm, bool) -> R + Send,
    ) -> R {
        let mut section = Some(section);
        loop {
            let slot = self.map.get_or_insert(info_hash, || Lock::new(Slot::New)).await;
            let entered = slot
                .write(|slot| {
                    let created = matches!(slot, Slot::New);
                    if created {
                        *slot = Slot::Live(RecordSwarm::default());
                    }
                    let swarm = slot.live()?;
                    Some(section.take()?(swarm, created))
                })
                .await;
            if let Some(result) = entered {
                return result;
            }
            self.map.discard(info_hash, &slot).await;
        }
    }

    async fn remove_if<R: Send>(
        &self,
        info_hash: &InfoHash,
        condemn: impl FnOnce(&RecordSwarm) -> Option<R> + Send,
    ) -> Option<R> {
        let slot = self.map.get(info_hash).await?;
        let (result, retired) = slot
            .write(|slot| {
                let result = slot.live().map(|swarm| condemn(swarm));
                // A live swarm for which `condemn` returned `None` stays. A slot that no call has entered can
                // go.
                let stays = matches!(result, Some(None));
                (!stays).then(|| (result.flatten(), mem::replace(slot, Slot::Retired)))
            })
            .await?;
        // Freed after the lock is released: a large swarm takes milliseconds.
        drop(retired);
        self.map.discard(info_hash, &slot).await;
        result
    }

    async fn keys(&self, order: Order, after: Option<&InfoHash>, limit: usize, out: &mut Vec<InfoHash>) {
        self.map.keys(order, after, limit, out).await;
    }

    fn keys_per_look(&self) -> usize {
        self.map.keys_per_look()
    }

    async fn give_back(&self) {
        self.map.give_back().await;
    }
}

/// Slots with blocking locks, in a map that blocks too.
impl<M: SlotMap<LockedSlot<L>> + BlockingSlots, L: Blocks> BlockingMap for Slots<M, L> {}

/// Slot maps with methods that block instead of waiting: their futures are ready at the first poll.
pub trait BlockingSlots {}
