//! The oracle: a store that is written as simply as possible, under one lock.

mod ranks;
mod swarm;

use std::{
    collections::BTreeMap,
    fmt,
    ops::Bound::{Excluded, Unbounded},
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    thread,
};

use swarmkeep::{
    Announce, AnnounceEvent, Announced, BoundedBy, Budget, Capabilities, Changes, ConfigError, Cursor,
    Endpoint, Evicted, Family, InfoHash, Limits, LongestHold, MemoryUse, PageCost, PeerBuffer, PeerRecord,
    Random, RepositoryConfig, Restored, Retention, SwarmStats, SwarmSummary, Swept, Timestamp,
    TorrentRepository, Totals,
    implement::{CursorExt as _, SectionExt as _},
};

pub(crate) use self::{
    ranks::{Ranks, endpoint_as_network},
    swarm::{LimitedNetwork, NETWORKS, Peer, Swarm},
};

/// A store that is correct rather than fast: everything is in maps of the standard library, under one mutex.
/// The suite compares the results of other stores with its results.
///
/// It supports every limit. It counts 64 bytes per swarm and 32 per peer, which is not the real memory of its
/// maps.
pub struct Model {
    state: Mutex<ModelState>,
    capabilities: Capabilities,
}

impl Model {
    /// The number of peers or swarms that are visited before the lock is released.
    const VISITS_PER_HOLD: usize = 256;

    /// Returns an empty store.
    ///
    /// # Errors
    /// [`ConfigError`] if the lifetime is not whole seconds, or if a limit leaves no room for a single peer.
    pub fn new(config: &RepositoryConfig) -> Result<Self, ConfigError> {
        Self::with_clock(config, |_| Clock::OF_SECONDS)
    }

    /// Returns the same store with a clock that ticks in hundredths of the lifetime. The suite must accept
    /// such a clock from a store that packs its times.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    #[doc(hidden)]
    pub fn coarse(config: &RepositoryConfig) -> Result<Self, ConfigError> {
        Self::with_clock(config, |lifetime_secs| Clock::new(lifetime_secs.div_ceil(100)))
    }

    fn with_clock(config: &RepositoryConfig, clock: impl Fn(u64) -> Clock) -> Result<Self, ConfigError> {
        let limits = config.limits();
        let (swarms, peers) = (("swarms", limits.swarms, 1), ("peers per swarm", limits.peers_per_swarm, 1));
        let endpoints = ("endpoints per address", limits.endpoints_per_address, 1);
        let bytes = ("bytes", limits.bytes, (ModelState::SWARM_BYTES + ModelState::PEER_BYTES) as usize);
        for (what, limit, least) in [swarms, peers, endpoints, bytes] {
            if let Some(given) = limit.filter(|given| *given < least) {
                return Err(ConfigError::Limit { what, given, least });
            }
        }
        let lifetime_secs = config.lifetime_secs(u64::MAX)?;
        let clock = clock(lifetime_secs);
        let capabilities = Capabilities::new(LongestHold::Visits(Self::VISITS_PER_HOLD))
            .with_peer_details()
            .with_page_cost(PageCost::Ordered)
            .with_bounds(BoundedBy::all())
            .with_clock(clock.resolution_secs(), u64::MAX);
        Ok(Self { state: Mutex::new(ModelState::new(lifetime_secs, clock, limits)), capabilities })
    }

    /// Returns the state, also after the generator of a caller has panicked during an announce. Random
    /// numbers are drawn after all updates, so the state is consistent.
    pub(crate) fn state(&self) -> MutexGuard<'_, ModelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the lock is held.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.state.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Returns whether a panic has poisoned the lock.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.state.is_poisoned()
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("totals", &self.totals()).finish_non_exhaustive()
    }
}

impl TorrentRepository for Model {
    fn announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        let mut state = self.state();
        let announced = state.update(announce, now);
        state.select(announce, rng, peers);
        announced
    }

    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        self.state().swarms.get(info_hash).map(Swarm::stats).unwrap_or_default()
    }

    fn totals(&self) -> Totals {
        self.state().totals
    }

    fn walk(&self, from: Cursor, limit: usize, out: &mut Vec<SwarmSummary>) -> Cursor {
        if from.is_end() || limit == 0 {
            return from;
        }
        let end = out.len() + limit.min(Self::VISITS_PER_HOLD);
        self.page(from.info_hash().as_ref(), end - out.len(), out);
        if out.len() < end { Cursor::END } else { Cursor::after(out[end - 1].info_hash.as_bytes()) }
    }

    fn page(&self, after: Option<&InfoHash>, limit: usize, out: &mut Vec<SwarmSummary>) {
        let state = self.state();
        let behind = state.swarms.range((after.map_or(Unbounded, Excluded), Unbounded));
        out.extend(
            behind.take(limit).map(|(&info_hash, swarm)| SwarmSummary { info_hash, stats: swarm.stats() }),
        );
    }

    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        if from.is_end() || limit == 0 {
            return from;
        }
        let end = out.len() + limit.min(Self::VISITS_PER_HOLD);
        let state = self.state();
        if let Some(swarm) = state.swarms.get(info_hash) {
            let behind = swarm.behind(from.endpoint()).take(end - out.len());
            out.extend(behind.map(|(&endpoint, peer)| peer.record(endpoint, state.latest)));
        }
        match out.last() {
            Some(last) if out.len() == end => Cursor::after(last.endpoint.as_bytes()),
            _ => Cursor::END,
        }
    }

    fn advance(&self, now: Timestamp) -> Timestamp {
        self.state().advance(now)
    }

    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        let mut swept = Swept::default();
        while !swept.pass_complete && swept.visited < budget.get() as u64 {
            if swept.visited > 0 {
                // The lock is not fair: a thread that waits for it gets it only if it runs now.
                thread::yield_now();
            }
            let visits = (budget.get() - swept.visited as usize).min(Self::VISITS_PER_HOLD);
            swept += self.state().sweep(now, policy, visits);
        }
        swept
    }

    fn remove(&self, info_hash: &InfoHash) -> Option<SwarmStats> {
        self.state().remove(info_hash)
    }

    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        self.state().restore(swarm, peers, now)
    }

    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        self.state().add_downloads(info_hash, earlier)
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse::estimated(self.state().bytes())
    }
}

/// The clock to which the times of peers are rounded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    tick_secs: u64,
}

impl Clock {
    const OF_SECONDS: Self = Self::new(1);
    /// The position of the epoch within a tick, in seconds, so that a story that begins at a round number
    /// does not begin with a tick.
    const PHASE: u64 = 5;

    const fn new(tick_secs: u64) -> Self {
        Self { tick_secs }
    }

    const fn resolution_secs(self) -> u64 {
        self.tick_secs - 1
    }

    /// Returns the number of seconds since the tick of `time` began.
    const fn into_tick(self, time: Timestamp) -> u64 {
        (time.as_secs() % self.tick_secs + Self::PHASE) % self.tick_secs
    }

    pub(crate) const fn begin(self, time: Timestamp) -> Timestamp {
        time.saturating_sub(self.into_tick(time))
    }

    /// Returns the last second of the tick of `time`: a peer may look younger than it is, never older.
    pub(crate) const fn end(self, time: Timestamp) -> Timestamp {
        time.saturating_add(self.tick_secs - 1 - self.into_tick(time))
    }
}

/// The state under the lock. Each method is one atomic step.
#[derive(Clone)]
pub(crate) struct ModelState {
    pub(crate) lifetime_secs: u64,
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
    pub(crate) latest: Timestamp,
    pub(crate) swarms: BTreeMap<InfoHash, Swarm>,
    /// Kept only if swarms or bytes are limited.
    pub(crate) ranks: Ranks,
    pub(crate) networks: &'static [LimitedNetwork],
    /// A swarm of up to this number of peers is evicted as a whole.
    pub(crate) whole: usize,
    pub(crate) totals: Totals,
    pub(crate) sweep: Position,
}

/// The position of a sweep: after this peer of this swarm, or after the whole swarm. `None` is the start of a
/// pass.
pub(crate) type Position = Option<(InfoHash, Option<Endpoint>)>;

impl ModelState {
    /// The number of bytes counted per swarm.
    const SWARM_BYTES: u64 = 64;
    /// The number of bytes counted per peer.
    const PEER_BYTES: u64 = 32;

    fn new(lifetime_secs: u64, clock: Clock, limits: Limits) -> Self {
        Self {
            lifetime_secs,
            clock,
            limits,
            latest: Timestamp::default(),
            swarms: BTreeMap::new(),
            ranks: Ranks::new(),
            networks: NETWORKS,
            whole: 64,
            totals: Totals::default(),
            sweep: None,
        }
    }

    /// The first half of an announce: changes the announcing peer, and counts.
    pub(crate) fn update(&mut self, announce: &Announce, now: Timestamp) -> Announced {
        let (now, info_hash, limits) = (self.advance(now), announce.info_hash, self.limits);
        let seen = self.clock.end(now);
        let known = self.swarms.contains_key(&info_hash);
        let mut evicted = Evicted::default();
        if announce.event == AnnounceEvent::Stopped {
            if !known {
                return Announced::default();
            }
        } else if !known {
            match self.make_room() {
                Ok(room) => evicted = room,
                Err(refused) => {
                    self.totals.evicted += refused;
                    let changes = Changes::JOINED | Changes::CREATED;
                    return Announced::new(SwarmStats::default(), changes).evicting(refused);
                }
            }
        }
        let back = self.lifetime_secs / 4;
        let networks = self.networks;
        let (mut changes, dropped) = self.change(info_hash, |swarm| {
            let before = swarm.peers.get(&announce.endpoint);
            swarm.populated |= before.is_some_and(|before| seen.secs_since(before.last_announce) >= back);
            let changes = swarm.announce(announce, seen);
            let own = limits
                .endpoints_per_address
                .map_or(0, |most| swarm.drop_stalest_of_networks_but(announce.endpoint, most, networks));
            (changes, own + swarm.drop_least_but(Some(announce.endpoint), limits.peers_per_swarm))
        });
        changes.set(Changes::CREATED, !known);
        evicted.peers += dropped;
        evicted += self.shed_bytes(info_hash, announce.endpoint);
        self.totals.evicted += evicted;
        Announced::new(self.swarms[&info_hash].stats(), changes).evicting(evicted)
    }

    /// The second half of an announce: selects other peers.
    pub(crate) fn select(&self, announce: &Announce, rng: &mut dyn Random, peers: &mut PeerBuffer<'_>) {
        peers.clear();
        if announce.event == AnnounceEvent::Stopped {
            return;
        }
        // A newcomer may have had no room.
        let Some(swarm) = self.swarms.get(&announce.info_hash) else { return };
        let (v4, v6) = (swarm.eligible(announce, Family::V4), swarm.eligible(announce, Family::V6));
        let (v4_count, v6_count) =
            share(announce.want, v4.len().min(peers.v4.room()), v6.len().min(peers.v6.room()));
        v4.draw(v4_count, rng, |endpoint| hand_out(endpoint, peers));
        v6.draw(v6_count, rng, |endpoint| hand_out(endpoint, peers));
    }

    /// The peers that may be handed out for an announce.
    pub(crate) fn eligible(&self, announce: &Announce) -> Vec<Endpoint> {
        let swarm = self.swarms.get(&announce.info_hash).filter(|_| announce.event != AnnounceEvent::Stopped);
        let of_family = |family| {
            let eligible = swarm.map(|swarm| swarm.eligible(announce, family)).unwrap_or_default();
            (0..eligible.len()).map(move |n| eligible.get(n))
        };
        of_family(Family::V4).chain(of_family(Family::V6)).collect()
    }

    /// Visits up to `visits` peers and swarms after the position of the last step.
    pub(crate) fn sweep(&mut self, now: Timestamp, policy: Retention, visits: usize) -> Swept {
        let oldest = self.oldest(now);
        let mut swept = Swept::default();
        while swept.visited < visits as u64 {
            let (info_hash, after) = match self.sweep {
                Some((info_hash, Some(after))) => (info_hash, Some(after)),
                position => {
                    let behind = position.map_or(Unbounded, |(info_hash, _)| Excluded(info_hash));
                    let Some((&next, _)) = self.swarms.range((behind, Unbounded)).next() else {
                        self.sweep = None;
                        swept.pass_complete = true;
                        return swept;
                    };
                    swept.visited += 1;
                    (next, None)
                }
            };
            self.sweep = Some((info_hash, None));
            let Some(swarm) = self.swarms.get(&info_hash) else { continue };
            let limit = (visits - swept.visited as usize).max(1);
            let seen: Vec<_> =
                swarm.behind(after).take(limit).map(|(&at, peer)| (at, peer.last_announce)).collect();
            swept.visited += seen.len() as u64;
            for (endpoint, _) in seen.iter().filter(|(_, last_announce)| *last_announce < oldest) {
                self.change(info_hash, |swarm| swarm.remove(endpoint));
                swept.expired += 1;
            }
            if seen.len() == limit {
                self.sweep = Some((info_hash, seen.last().map(|(endpoint, _)| *endpoint)));
            } else if self.swarms[&info_hash].is_idle(policy) {
                self.remove(&info_hash);
                swept.swarms_removed += 1;
            }
        }
        swept
    }

    pub(crate) fn remove(&mut self, info_hash: &InfoHash) -> Option<SwarmStats> {
        let swarm = self.swarms.remove(info_hash)?;
        self.ranks.remove(info_hash);
        self.totals.swarms -= 1;
        self.totals = swarm.counted(self.totals, |total, peers| total - peers);
        Some(swarm.stats())
    }

    pub(crate) fn add_downloads(&mut self, info_hash: &InfoHash, earlier: u32) -> bool {
        let is_known = self.swarms.contains_key(info_hash);
        if is_known {
            self.change(*info_hash, |swarm| swarm.downloaded = swarm.downloaded.saturating_add(earlier));
        }
        is_known
    }

    pub(crate) fn restore(&mut self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        let (now, oldest) = (self.advance(now), self.oldest(now));
        let mut restored = Restored::default();
        let (alive, expired): (Vec<_>, Vec<&PeerRecord>) =
            peers.iter().partition(|peer| peer.last_announce >= oldest);
        restored.expired = expired.len() as u64;
        if alive.is_empty() && swarm.stats.downloaded == 0 {
            return restored;
        }
        let known = self.swarms.contains_key(&swarm.info_hash);
        let full = self.limits.swarms.is_some_and(|most| self.swarms.len() >= most);
        let needed = if known { 0 } else { Self::SWARM_BYTES };
        let left = self.limits.bytes.map_or(u64::MAX, |most| (most as u64).saturating_sub(self.bytes()));
        if !known && (full || left < needed) {
            restored.refused = alive.len() as u64;
            return restored;
        }
        let (most, room) =
            (self.limits.peers_per_swarm.unwrap_or(usize::MAX), (left - needed) / Self::PEER_BYTES);
        let (clock, networks) = (self.clock, self.networks);
        let most_per_address = self.limits.endpoints_per_address.unwrap_or(usize::MAX);
        self.change(swarm.info_hash, |into| {
            into.downloaded = into.downloaded.max(swarm.stats.downloaded);
            for peer in alive {
                if into.peers.contains_key(&peer.endpoint) {
                    restored.known += 1;
                } else if into.peers.len() >= most
                    || restored.added >= room
                    || into.is_crowded(peer.endpoint, most_per_address, networks)
                {
                    restored.refused += 1;
                } else {
                    restored.added += 1;
                    let seen = clock.end(peer.last_announce.min(now));
                    into.put(peer.endpoint, peer.role, seen, peer.details);
                    // It lived long enough to be in a snapshot, unlike the swarms of a flood.
                    into.populated = true;
                }
            }
        });
        restored
    }

    /// Updates the latest time with `now`, and returns the latest time.
    pub(crate) fn advance(&mut self, now: Timestamp) -> Timestamp {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Returns the earliest announce of a peer that has not expired.
    fn oldest(&mut self, now: Timestamp) -> Timestamp {
        let oldest = self.advance(now).saturating_sub(self.lifetime_secs);
        self.clock.begin(oldest)
    }

    /// Changes one swarm, which is created if there is none, and updates the totals and ranks with it.
    pub(crate) fn change<R>(&mut self, info_hash: InfoHash, change: impl FnOnce(&mut Swarm) -> R) -> R {
        let swarms_before = self.swarms.len();
        let swarm = self.swarms.entry(info_hash).or_default();
        self.totals = swarm.counted(self.totals, |total, peers| total - peers);
        let result = change(swarm);
        if self.limits.swarms.is_some() || self.limits.bytes.is_some() {
            self.ranks.set(info_hash, swarm);
        }
        self.totals = swarm.counted(self.totals, |total, peers| total + peers);
        self.totals.swarms += (self.swarms.len() - swarms_before) as u64;
        result
    }

    /// Evicts the swarm that is worth least if there is no room for another one. A swarm of more than
    /// `whole` peers gives up as many if it is worth no more than a new swarm, which then is not kept.
    fn make_room(&mut self) -> Result<Evicted, Evicted> {
        let mut evicted = Evicted::default();
        if self.limits.swarms.is_none_or(|most| self.swarms.len() < most) {
            return Ok(evicted);
        }
        let whole = self.whole;
        let is_large = |info_hash: &InfoHash| self.swarms[info_hash].peers.len() > whole;
        let mut refused = Evicted::peers(1);
        refused.swarms = 1;
        let least = self.ranks.iter().find(|(info_hash, is_less)| *is_less || !is_large(info_hash));
        match least.map(|(info_hash, _)| (info_hash, is_large(&info_hash))) {
            Some((info_hash, true)) => {
                let left = self.swarms[&info_hash].peers.len() - self.whole;
                refused.peers += self.change(info_hash, |swarm| swarm.drop_least_but(None, Some(left)));
                Err(refused)
            }
            Some((info_hash, _)) => {
                self.evict(&info_hash, &mut evicted);
                Ok(evicted)
            }
            None => Err(refused),
        }
    }

    /// Evicts while too many bytes are taken: the swarms that are worth least, except the swarm of the
    /// announcing peer, or some of their peers. If that swarm takes more than half of all bytes, evicts other
    /// peers of it instead.
    fn shed_bytes(&mut self, info_hash: InfoHash, announcer: Endpoint) -> Evicted {
        let mut evicted = Evicted::default();
        while let Some(most) = self.limits.bytes.filter(|most| self.bytes() > *most as u64) {
            let other = self.ranks.iter().map(|(other, _)| other).find(|other| *other != info_hash);
            let own = self.swarms[&info_hash].peers.len() as u64;
            match other {
                Some(other) if own <= 1 || 2 * own * Self::PEER_BYTES <= most as u64 => {
                    match self.swarms[&other].peers.len() {
                        peers if peers > self.whole => {
                            let drop = |swarm: &mut Swarm| swarm.drop_least_but(None, Some(peers - 1));
                            evicted.peers += self.change(other, drop);
                        }
                        _ => self.evict(&other, &mut evicted),
                    }
                }
                _ if own > 1 => {
                    let drop =
                        |swarm: &mut Swarm| swarm.drop_least_but(Some(announcer), Some(own as usize - 1));
                    evicted.peers += self.change(info_hash, drop);
                }
                _ => break,
            }
        }
        evicted
    }

    pub(crate) fn evict(&mut self, info_hash: &InfoHash, evicted: &mut Evicted) {
        if let Some(stats) = self.remove(info_hash) {
            evicted.swarms += 1;
            evicted.peers += stats.peers();
        }
    }

    /// Returns the number of bytes counted for all swarms and peers.
    pub(crate) const fn bytes(&self) -> u64 {
        self.totals.swarms * Self::SWARM_BYTES + self.totals.peers() * Self::PEER_BYTES
    }
}

/// Returns the number of peers of each family: half of `want` each, and the part that one family does not use
/// goes to the other.
pub(crate) fn share(want: usize, v4: usize, v6: usize) -> (usize, usize) {
    let v4_half = v4.min(want - want / 2);
    let v6 = v6.min(want - v4_half);
    (v4.min(want - v6), v6)
}

pub(crate) fn hand_out(endpoint: Endpoint, peers: &mut PeerBuffer<'_>) {
    match endpoint {
        Endpoint::V4(compact) => peers.v4.push(compact.as_bytes()),
        Endpoint::V6(compact) => peers.v6.push(compact.as_bytes()),
    }
}
