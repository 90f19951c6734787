//! The oracle: a store as plainly written as possible, under one lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Bound::{Excluded, Unbounded},
    sync::{Mutex, MutexGuard, PoisonError},
};

use swarmkeep::{
    Announce, AnnounceEvent, Announced, BoundedBy, Budget, Capabilities, Changes, ConfigError, Cursor,
    Endpoint, Evicted, Families, Family, InfoHash, Limits, LongestHold, MemoryUse, PageCost, PeerBuffer,
    PeerDetails, PeerRecord, Random, Removed, RepositoryConfig, Restored, Retention, Role, SwarmStats,
    SwarmSummary, Swept, Timestamp, TorrentRepository, Totals,
};

/// A store that is right rather than fast: everything under one mutex, in maps of the standard library. What any other
/// store answers is compared with what this one answers.
///
/// It keeps limits on swarms and on peers a swarm, and refuses one on bytes.
pub struct Model {
    state: Mutex<State>,
}

impl Model {
    /// How many peers or swarms are visited before the lock is given to others.
    const VISITS_A_HOLD: usize = 256;

    /// An empty store.
    ///
    /// # Errors
    /// [`ConfigError`] if bytes are limited, or the lifetime is not whole seconds.
    pub fn new(config: &RepositoryConfig) -> Result<Self, ConfigError> {
        let limits = config.limits();
        if limits.bytes.is_some() {
            return Err(ConfigError::UnsupportedLimit("bytes"));
        }
        let lifetime_secs = config.lifetime_secs(Self::CAPABILITIES.longest_lifetime_secs)?;
        Ok(Self { state: Mutex::new(State::new(lifetime_secs, limits)) })
    }

    pub(crate) const CAPABILITIES: Capabilities = Capabilities::new(LongestHold::Visits(Self::VISITS_A_HOLD))
        .with_peer_details()
        .with_page_cost(PageCost::Ordered)
        .with_bounds(BoundedBy::SWARMS.union(BoundedBy::PEERS_PER_SWARM))
        .with_clock(0, u64::MAX);

    /// The state, also after a caller's generator has panicked in the middle of an announce: nothing is drawn before
    /// all is updated, so it is whole.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a panic has left the lock poisoned.
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
        let end = out.len() + limit.min(Self::VISITS_A_HOLD);
        self.page(info_hash_of(from).as_ref(), end - out.len(), out);
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
        let end = out.len() + limit.min(Self::VISITS_A_HOLD);
        if let Some(swarm) = self.state().swarms.get(info_hash) {
            out.extend(
                swarm
                    .behind(endpoint_of(from))
                    .take(end - out.len())
                    .map(|(&endpoint, peer)| peer.record(endpoint)),
            );
        }
        match out.last() {
            Some(last) if out.len() == end => Cursor::after(last.endpoint.as_bytes()),
            _ => Cursor::END,
        }
    }

    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        let mut swept = Swept::default();
        while !swept.pass_complete && swept.visited < budget.get() as u64 {
            let visits = (budget.get() - swept.visited as usize).min(Self::VISITS_A_HOLD);
            swept += self.state().sweep(now, policy, visits);
        }
        swept
    }

    fn remove(&self, info_hash: &InfoHash) -> Option<SwarmStats> {
        self.state().remove(info_hash)
    }

    fn remove_where(
        &self,
        forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Removed {
        let mut asked = Vec::new();
        let next = self.walk(from, budget.get(), &mut asked);
        let named = asked.iter().map(|swarm| swarm.info_hash).filter(|info_hash| forbidden(info_hash));
        let summary = |info_hash| Some(SwarmSummary { info_hash, stats: self.remove(&info_hash)? });
        Removed::new(named.filter_map(summary).collect(), next)
    }

    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        self.state().restore(swarm, peers, now)
    }

    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        match self.state().swarms.get_mut(info_hash) {
            Some(swarm) => {
                swarm.downloaded = swarm.downloaded.saturating_add(earlier);
                true
            }
            None => false,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Self::CAPABILITIES
    }

    fn memory(&self) -> MemoryUse {
        let totals = self.totals();
        MemoryUse::estimated(totals.swarms * 400 + totals.peers() * 300)
    }
}

/// What the lock protects. Each method is one atomic step.
pub(crate) struct State {
    pub(crate) lifetime_secs: u64,
    pub(crate) limits: Limits,
    pub(crate) latest: Timestamp,
    pub(crate) swarms: BTreeMap<InfoHash, Swarm>,
    /// The swarms with what they are worth, the one to drop first in front. Kept only where swarms are limited.
    ranks: BTreeSet<(Worth, InfoHash)>,
    pub(crate) totals: Totals,
    pub(crate) sweep: Position,
}

/// Where a sweep stands: behind this peer of this swarm, or behind the whole swarm. `None` is the start of a pass.
pub(crate) type Position = Option<(InfoHash, Option<Endpoint>)>;

/// What a swarm is worth to a store that is full: one that a second peer has joined, the first has come back to, or a
/// snapshot has held, before one announced just once, then the fresher one.
type Worth = (bool, Timestamp);

impl State {
    pub(crate) fn new(lifetime_secs: u64, limits: Limits) -> Self {
        Self {
            lifetime_secs,
            limits,
            latest: Timestamp::default(),
            swarms: BTreeMap::new(),
            ranks: BTreeSet::new(),
            totals: Totals::default(),
            sweep: None,
        }
    }

    /// The first half of an announce: changes the announcing peer, and counts.
    pub(crate) fn update(&mut self, announce: &Announce, now: Timestamp) -> Announced {
        let (now, info_hash, limits) = (self.advance(now), announce.info_hash, self.limits);
        let known = self.swarms.contains_key(&info_hash);
        let mut evicted = Evicted::default();
        if announce.event == AnnounceEvent::Stopped {
            if !known {
                return Announced::default();
            }
        } else if !known {
            evicted = self.make_room();
        }
        let (mut changes, dropped) = self.change(info_hash, |swarm| {
            let changes = swarm.announce(announce, now);
            (changes, swarm.drop_stalest_but(announce.endpoint, limits.peers_per_swarm))
        });
        changes.set(Changes::CREATED, !known);
        evicted.peers += dropped;
        self.totals.evicted.swarms += evicted.swarms;
        self.totals.evicted.peers += evicted.peers;
        Announced::new(self.swarms[&info_hash].stats(), changes).evicting(evicted)
    }

    /// The second half of an announce: selects others.
    pub(crate) fn select(&self, announce: &Announce, rng: &mut dyn Random, peers: &mut PeerBuffer<'_>) {
        peers.clear();
        if announce.event == AnnounceEvent::Stopped {
            return;
        }
        let swarm = &self.swarms[&announce.info_hash];
        let (v4, v6) = (swarm.eligible(announce, Family::V4), swarm.eligible(announce, Family::V6));
        let (v4_count, v6_count) =
            share(announce.want, v4.len().min(peers.v4.room()), v6.len().min(peers.v6.room()));
        v4.draw(v4_count, rng, |endpoint| hand_out(endpoint, peers));
        v6.draw(v6_count, rng, |endpoint| hand_out(endpoint, peers));
    }

    /// Visits up to `visits` peers and swarms from where the last step stopped.
    pub(crate) fn sweep(&mut self, now: Timestamp, policy: Retention, visits: usize) -> Swept {
        let oldest = self.advance(now).saturating_sub(self.lifetime_secs);
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
        self.ranks.remove(&(swarm.worth(), *info_hash));
        self.totals.swarms -= 1;
        self.totals = swarm.counted(self.totals, |total, peers| total - peers);
        Some(swarm.stats())
    }

    fn restore(&mut self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        let now = self.advance(now);
        let oldest = now.saturating_sub(self.lifetime_secs);
        let mut restored = Restored::default();
        let (alive, expired): (Vec<_>, Vec<&PeerRecord>) =
            peers.iter().partition(|peer| peer.last_announce >= oldest);
        restored.expired = expired.len() as u64;
        if alive.is_empty() && swarm.stats.downloaded == 0 {
            return restored;
        }
        let full = self.limits.swarms.is_some_and(|most| self.swarms.len() >= most);
        if full && !self.swarms.contains_key(&swarm.info_hash) {
            restored.refused = alive.len() as u64;
            return restored;
        }
        let most = self.limits.peers_per_swarm.unwrap_or(usize::MAX);
        self.change(swarm.info_hash, |into| {
            into.downloaded = into.downloaded.max(swarm.stats.downloaded);
            for peer in alive {
                if into.peers.contains_key(&peer.endpoint) {
                    restored.known += 1;
                } else if into.peers.len() >= most {
                    restored.refused += 1;
                } else {
                    restored.added += 1;
                    into.put(peer.endpoint, peer.role, peer.last_announce.min(now), peer.details);
                    // It lived long enough to be in a snapshot, which a flood is not meant to.
                    into.populated = true;
                }
            }
        });
        restored
    }

    /// Takes `now` in, and answers the latest time told.
    pub(crate) fn advance(&mut self, now: Timestamp) -> Timestamp {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Changes one swarm, which is made if there is none, and with it what is kept beside it.
    pub(crate) fn change<R>(&mut self, info_hash: InfoHash, change: impl FnOnce(&mut Swarm) -> R) -> R {
        let swarms_before = self.swarms.len();
        let swarm = self.swarms.entry(info_hash).or_default();
        self.totals = swarm.counted(self.totals, |total, peers| total - peers);
        self.ranks.remove(&(swarm.worth(), info_hash));
        let result = change(swarm);
        if self.limits.swarms.is_some() {
            self.ranks.insert((swarm.worth(), info_hash));
        }
        self.totals = swarm.counted(self.totals, |total, peers| total + peers);
        self.totals.swarms += (self.swarms.len() - swarms_before) as u64;
        result
    }

    /// Drops the swarm that is worth least if there is no room for another one.
    fn make_room(&mut self) -> Evicted {
        let mut evicted = Evicted::default();
        while self.limits.swarms.is_some_and(|most| self.swarms.len() >= most) {
            let Some(&(_, info_hash)) = self.ranks.first() else { break };
            evicted.swarms += 1;
            evicted.peers += self.swarms[&info_hash].peers.len() as u64;
            self.remove(&info_hash);
        }
        evicted
    }
}

/// The peers of one info hash.
#[derive(Debug, Default)]
pub(crate) struct Swarm {
    pub(crate) peers: BTreeMap<Endpoint, Peer>,
    /// The same endpoints by family and role, in no order: what selection draws from.
    lists: BTreeMap<(Family, Role), Vec<Endpoint>>,
    /// The same endpoints, the stalest first.
    by_age: BTreeSet<(Timestamp, Endpoint)>,
    pub(crate) downloaded: u32,
    latest: Timestamp,
    populated: bool,
}

/// One peer of a swarm.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) role: Role,
    pub(crate) last_announce: Timestamp,
    details: Option<PeerDetails>,
    /// Where it stands in the list of its family and role.
    place: usize,
}

impl Peer {
    fn record(&self, endpoint: Endpoint) -> PeerRecord {
        PeerRecord { endpoint, role: self.role, last_announce: self.last_announce, details: self.details }
    }
}

impl Swarm {
    fn announce(&mut self, announce: &Announce, now: Timestamp) -> Changes {
        if announce.event == AnnounceEvent::Stopped {
            return if self.remove(&announce.endpoint).is_some() { Changes::LEFT } else { Changes::empty() };
        }
        let details = PeerDetails {
            peer_id: announce.peer_id,
            uploaded: announce.uploaded,
            downloaded: announce.downloaded,
            left: announce.left,
        };
        let before = self.put(announce.endpoint, announce.role(), now, Some(details));
        let mut changes = match (before, announce.role()) {
            (None, _) => Changes::JOINED,
            (Some(Role::Leecher), Role::Seeder) => Changes::REFRESHED | Changes::PROMOTED,
            (Some(Role::Seeder), Role::Leecher) => Changes::REFRESHED | Changes::DEMOTED,
            _ => Changes::REFRESHED,
        };
        let finished = announce.event == AnnounceEvent::Completed && announce.left == 0;
        if finished && before != Some(Role::Seeder) {
            self.downloaded = self.downloaded.saturating_add(1);
            changes |= Changes::COMPLETED;
        }
        changes
    }

    /// Inserts or refreshes a peer; answers what it was before.
    pub(crate) fn put(
        &mut self,
        endpoint: Endpoint,
        role: Role,
        last_announce: Timestamp,
        details: Option<PeerDetails>,
    ) -> Option<Role> {
        self.latest = self.latest.max(last_announce);
        self.populated |= !self.peers.is_empty();
        self.by_age.insert((last_announce, endpoint));
        let mut before = None;
        if let Some(peer) = self.peers.get_mut(&endpoint) {
            if peer.last_announce != last_announce {
                self.by_age.remove(&(peer.last_announce, endpoint));
            }
            if peer.role == role {
                *peer = Peer { role, last_announce, details, place: peer.place };
                return Some(role);
            }
            before = Some(peer.role);
            self.unlist(&endpoint);
        }
        let list = self.lists.entry((endpoint.family(), role)).or_default();
        self.peers.insert(endpoint, Peer { role, last_announce, details, place: list.len() });
        list.push(endpoint);
        before
    }

    pub(crate) fn remove(&mut self, endpoint: &Endpoint) -> Option<Role> {
        self.by_age.remove(&(self.peers.get(endpoint)?.last_announce, *endpoint));
        self.unlist(endpoint);
        self.peers.remove(endpoint).map(|peer| peer.role)
    }

    /// Takes a peer out of its list; the last of that list moves to its place.
    fn unlist(&mut self, endpoint: &Endpoint) {
        let Peer { role, place, .. } = self.peers[endpoint];
        let list = self.lists.entry((endpoint.family(), role)).or_default();
        list.swap_remove(place);
        if let Some(moved) = list.get(place) {
            self.peers.get_mut(moved).expect("what is listed is a peer").place = place;
        }
    }

    /// Drops the stalest peers but `announcer` until at most `most` are left; answers how many.
    fn drop_stalest_but(&mut self, announcer: Endpoint, most: Option<usize>) -> u64 {
        let mut dropped = 0;
        while most.is_some_and(|most| self.peers.len() > most) {
            let Some(&(_, stalest)) = self.by_age.iter().find(|(_, endpoint)| *endpoint != announcer) else {
                break;
            };
            self.remove(&stalest);
            dropped += 1;
        }
        dropped
    }

    pub(crate) fn count(&self, family: Family, role: Role) -> u64 {
        self.list(family, role).len() as u64
    }

    pub(crate) fn list(&self, family: Family, role: Role) -> &[Endpoint] {
        self.lists.get(&(family, role)).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn stats(&self) -> SwarmStats {
        let both = |role| {
            (self.count(Family::V4, role) + self.count(Family::V6, role)).try_into().unwrap_or(u32::MAX)
        };
        SwarmStats {
            complete: both(Role::Seeder),
            incomplete: both(Role::Leecher),
            downloaded: self.downloaded,
        }
    }

    /// `totals` after `change` was done to each with the number of such peers here.
    fn counted(&self, mut totals: Totals, change: impl Fn(u64, u64) -> u64) -> Totals {
        for (family, counts) in [(Family::V4, &mut totals.v4), (Family::V6, &mut totals.v6)] {
            counts.seeders = change(counts.seeders, self.count(family, Role::Seeder));
            counts.leechers = change(counts.leechers, self.count(family, Role::Leecher));
        }
        totals
    }

    fn is_idle(&self, policy: Retention) -> bool {
        let kept = policy == Retention::KeepDownloaded && self.downloaded > 0;
        self.peers.is_empty() && !kept
    }

    const fn worth(&self) -> Worth {
        (self.populated, self.latest)
    }

    /// The peers behind one endpoint, in ascending order.
    fn behind(&self, after: Option<Endpoint>) -> impl Iterator<Item = (&Endpoint, &Peer)> {
        self.peers.range((after.map_or(Unbounded, Excluded), Unbounded))
    }

    /// The peers of one family that may be handed to the announcer.
    pub(crate) fn eligible(&self, announce: &Announce, family: Family) -> Eligible<'_> {
        let asked = match family {
            Family::V4 => Families::V4,
            Family::V6 => Families::V6,
        };
        if !announce.families.contains(asked) {
            return Eligible::default();
        }
        let leechers = self.list(family, Role::Leecher);
        let seeders = if announce.role().is_seeder() { &[] } else { self.list(family, Role::Seeder) };
        let announcer = self.peers.get(&announce.endpoint).filter(|_| announce.endpoint.family() == family);
        let announcer = announcer.and_then(|peer| match peer.role {
            Role::Seeder => None,
            Role::Leecher => Some(peer.place),
        });
        Eligible { leechers, seeders, announcer }
    }
}

/// Peers that may be handed out, as one row: the leechers but the announcer, then the seeders.
///
/// A seeder is handed no seeders, so an announcer that stands in the row is a leecher.
#[derive(Debug, Default)]
pub(crate) struct Eligible<'a> {
    pub(crate) leechers: &'a [Endpoint],
    pub(crate) seeders: &'a [Endpoint],
    pub(crate) announcer: Option<usize>,
}

impl Eligible<'_> {
    pub(crate) fn len(&self) -> usize {
        self.leechers.len() + self.seeders.len() - usize::from(self.announcer.is_some())
    }

    pub(crate) fn get(&self, index: usize) -> Endpoint {
        let index = index + usize::from(self.announcer.is_some_and(|announcer| index >= announcer));
        *self.leechers.get(index).unwrap_or_else(|| &self.seeders[index - self.leechers.len()])
    }

    /// `count` of them: all, or a window at a random place of the row, closed to a ring.
    fn draw(&self, count: usize, rng: &mut dyn Random, mut take: impl FnMut(Endpoint)) {
        let start = if count < self.len() { rng.below(self.len()) } else { 0 };
        for offset in 0..count {
            take(self.get((start + offset) % self.len()));
        }
    }
}

/// How many of each family: half of `want` each, and what one leaves unused goes to the other.
fn share(want: usize, v4: usize, v6: usize) -> (usize, usize) {
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

fn info_hash_of(cursor: Cursor) -> Option<InfoHash> {
    cursor.bytes().and_then(|bytes| <[u8; InfoHash::LEN]>::try_from(bytes).ok()).map(InfoHash::new)
}

fn endpoint_of(cursor: Cursor) -> Option<Endpoint> {
    let bytes = cursor.bytes()?;
    match bytes.len() {
        6 => Endpoint::try_from(<[u8; 6]>::try_from(bytes).ok()?).ok(),
        _ => Endpoint::try_from(<[u8; 18]>::try_from(bytes).ok()?).ok(),
    }
}
