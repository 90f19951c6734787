//! A swarm store of one's own: a mutex around B-trees, and nothing kept of a peer but its role and its time.

use std::{
    collections::BTreeMap,
    ops::Bound::{self, Excluded, Unbounded},
    sync::{Mutex, MutexGuard, PoisonError},
};

use swarmkeep::{
    Announce, AnnounceEvent, Announced, Budget, Capabilities, Changes, ConfigError, Cursor, Endpoint,
    Families, Family, InfoHash, LongestHold, MemoryUse, PageCost, PeerBuffer, PeerRecord, Random, Removed,
    RepositoryConfig, Restored, Retention, Role, SwarmStats, SwarmSummary, Swept, Timestamp,
    TorrentRepository, Totals,
};

/// Visits before the lock is given to others.
const VISITS_A_HOLD: usize = 100;

/// The store.
#[derive(Debug)]
pub struct OwnStore {
    lifetime_secs: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    swarms: BTreeMap<InfoHash, Swarm>,
    totals: Totals,
    latest: Timestamp,
    /// What the sweep has visited last: a peer of a swarm, or all of it.
    swept: Option<(InfoHash, Option<Endpoint>)>,
}

#[derive(Debug, Default)]
struct Swarm {
    peers: BTreeMap<Endpoint, Peer>,
    /// The endpoints again by family and role, to draw from: leechers first.
    lists: [[Vec<Endpoint>; 2]; 2],
    downloaded: u32,
}

#[derive(Debug, Clone, Copy)]
struct Peer {
    role: Role,
    seen: Timestamp,
    place: usize,
}

impl OwnStore {
    /// An empty store.
    ///
    /// # Errors
    /// [`ConfigError`] if a limit is set, or the lifetime is not whole seconds.
    pub fn new(config: &RepositoryConfig) -> Result<Self, ConfigError> {
        config.refuse_limits()?;
        Ok(Self { lifetime_secs: config.lifetime_secs(u64::MAX)?, state: Mutex::default() })
    }

    /// The state; whole even if a caller's generator has panicked, since drawing comes last.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TorrentRepository for OwnStore {
    fn announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        peers.clear();
        let mut state = self.state();
        let now = state.advance(now);
        let known = state.swarms.contains_key(&announce.info_hash);
        let stopped = announce.event == AnnounceEvent::Stopped;
        if stopped && !known {
            return Announced::default();
        }
        let mut changes = state.change(announce.info_hash, |swarm| swarm.update(announce, now));
        changes.set(Changes::CREATED, !known);
        let swarm = &state.swarms[&announce.info_hash];
        if !stopped {
            swarm.select(announce, rng, peers);
        }
        Announced::new(swarm.stats(), changes)
    }

    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        self.state().swarms.get(info_hash).map(Swarm::stats).unwrap_or_default()
    }

    fn totals(&self) -> Totals {
        self.state().totals
    }

    fn walk(&self, from: Cursor, limit: usize, out: &mut Vec<SwarmSummary>) -> Cursor {
        if from.is_end() {
            return from;
        }
        let limit = limit.min(VISITS_A_HOLD);
        let (start, after) =
            (out.len(), from.bytes().map(|bytes| InfoHash::new(bytes.try_into().expect("from here"))));
        self.page(after.as_ref(), limit, out);
        if out.len() - start < limit {
            Cursor::END
        } else {
            Cursor::after(out[out.len() - 1].info_hash.as_bytes())
        }
    }

    fn page(&self, after: Option<&InfoHash>, limit: usize, out: &mut Vec<SwarmSummary>) {
        let state = self.state();
        let behind = state.swarms.range((after.map_or(Unbounded, Excluded), Unbounded)).take(limit);
        out.extend(behind.map(|(&info_hash, swarm)| SwarmSummary { info_hash, stats: swarm.stats() }));
    }

    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        let (state, limit) = (self.state(), limit.min(VISITS_A_HOLD));
        let Some(swarm) = state.swarms.get(info_hash).filter(|_| !from.is_end()) else { return Cursor::END };
        let after: Bound<Endpoint> = match from.bytes() {
            None => Unbounded,
            Some(bytes) => Excluded(match <[u8; 6]>::try_from(bytes) {
                Ok(v4) => v4.try_into().expect("a cursor of this store holds an endpoint"),
                Err(_) => <[u8; 18]>::try_from(bytes).expect("6 or 18 bytes").try_into().expect("as above"),
            }),
        };
        let start = out.len();
        out.extend(swarm.peers.range((after, Unbounded)).take(limit).map(|(&endpoint, peer)| PeerRecord {
            endpoint,
            role: peer.role,
            last_announce: peer.seen,
            details: None,
        }));
        if out.len() - start < limit {
            Cursor::END
        } else {
            Cursor::after(out[out.len() - 1].endpoint.as_bytes())
        }
    }

    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        let mut swept = Swept::default();
        while !swept.pass_complete && swept.visited < budget.get() as u64 {
            let visits = (budget.get() - swept.visited as usize).min(VISITS_A_HOLD);
            swept += self.state().sweep(now, policy, visits, self.lifetime_secs);
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
        asked.retain(|swarm| forbidden(&swarm.info_hash));
        let removed = asked.iter().filter_map(|&SwarmSummary { info_hash, .. }| {
            Some(SwarmSummary { info_hash, stats: self.remove(&info_hash)? })
        });
        Removed::new(removed.collect(), next)
    }

    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        let mut state = self.state();
        let now = state.advance(now);
        let oldest = now.saturating_sub(self.lifetime_secs);
        let mut restored = Restored::default();
        let alive: Vec<_> = peers.iter().filter(|peer| peer.last_announce >= oldest).collect();
        restored.expired = (peers.len() - alive.len()) as u64;
        if alive.is_empty() && swarm.stats.downloaded == 0 {
            return restored;
        }
        state.change(swarm.info_hash, |into| {
            into.downloaded = into.downloaded.max(swarm.stats.downloaded);
            for peer in alive {
                if into.peers.contains_key(&peer.endpoint) {
                    restored.known += 1;
                } else {
                    into.put(peer.endpoint, peer.role, peer.last_announce.min(now));
                    restored.added += 1;
                }
            }
        });
        restored
    }

    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        let mut state = self.state();
        let swarm = state.swarms.get_mut(info_hash);
        swarm.map(|swarm| swarm.downloaded = swarm.downloaded.saturating_add(earlier)).is_some()
    }

    fn capabilities(&self) -> Capabilities {
        let hold = LongestHold::Visits(VISITS_A_HOLD);
        Capabilities::new(hold).with_page_cost(PageCost::Ordered).with_clock(0, u64::MAX)
    }

    fn memory(&self) -> MemoryUse {
        let totals = self.totals();
        MemoryUse::estimated(totals.swarms * 250 + totals.peers() * 120)
    }
}

impl State {
    /// The time that counts: the latest one told.
    fn advance(&mut self, now: Timestamp) -> Timestamp {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Changes a swarm, which is made if there is none, and the totals with it.
    fn change<R>(&mut self, info_hash: InfoHash, change: impl FnOnce(&mut Swarm) -> R) -> R {
        let before = self.swarms.len();
        let swarm = self.swarms.entry(info_hash).or_default();
        swarm.count(&mut self.totals, u64::wrapping_sub);
        let result = change(swarm);
        swarm.count(&mut self.totals, u64::wrapping_add);
        self.totals.swarms += (self.swarms.len() - before) as u64;
        result
    }

    fn remove(&mut self, info_hash: &InfoHash) -> Option<SwarmStats> {
        let swarm = self.swarms.remove(info_hash)?;
        swarm.count(&mut self.totals, u64::wrapping_sub);
        self.totals.swarms -= 1;
        Some(swarm.stats())
    }

    fn sweep(&mut self, now: Timestamp, policy: Retention, visits: usize, lifetime_secs: u64) -> Swept {
        let oldest = self.advance(now).saturating_sub(lifetime_secs);
        let mut swept = Swept::default();
        while swept.visited < visits as u64 {
            let (info_hash, after) = match self.swept {
                Some((info_hash, Some(endpoint))) => (info_hash, Excluded(endpoint)),
                done => {
                    let behind = (done.map_or(Unbounded, |(info_hash, _)| Excluded(info_hash)), Unbounded);
                    let Some((&next, _)) = self.swarms.range(behind).next() else {
                        self.swept = None;
                        swept.pass_complete = true;
                        break;
                    };
                    swept.visited += 1;
                    (next, Unbounded)
                }
            };
            self.swept = Some((info_hash, None));
            let Some(swarm) = self.swarms.get(&info_hash) else { continue };
            let limit = visits.saturating_sub(swept.visited as usize).max(1);
            let seen: Vec<_> =
                swarm.peers.range((after, Unbounded)).take(limit).map(|(&at, &peer)| (at, peer)).collect();
            swept.visited += seen.len() as u64;
            for (endpoint, _) in seen.iter().filter(|(_, peer)| peer.seen < oldest) {
                self.change(info_hash, |swarm| swarm.remove(endpoint));
                swept.expired += 1;
            }
            let swarm = &self.swarms[&info_hash];
            if seen.len() == limit {
                self.swept = Some((info_hash, Some(seen[limit - 1].0)));
            } else if swarm.peers.is_empty() && (policy == Retention::DropEmpty || swarm.downloaded == 0) {
                self.remove(&info_hash);
                swept.swarms_removed += 1;
            }
        }
        swept
    }
}

impl Swarm {
    fn update(&mut self, announce: &Announce, now: Timestamp) -> Changes {
        let before = self.peers.get(&announce.endpoint).map(|peer| peer.role);
        if announce.event == AnnounceEvent::Stopped {
            return self.remove(&announce.endpoint).map_or(Changes::empty(), |_| Changes::LEFT);
        }
        self.put(announce.endpoint, announce.role(), now);
        let mut changes = match (before, announce.role()) {
            (None, _) => Changes::JOINED,
            (Some(Role::Leecher), Role::Seeder) => Changes::REFRESHED | Changes::PROMOTED,
            (Some(Role::Seeder), Role::Leecher) => Changes::REFRESHED | Changes::DEMOTED,
            _ => Changes::REFRESHED,
        };
        let finished = announce.event == AnnounceEvent::Completed && announce.role().is_seeder();
        if finished && before != Some(Role::Seeder) {
            self.downloaded = self.downloaded.saturating_add(1);
            changes |= Changes::COMPLETED;
        }
        changes
    }

    fn put(&mut self, endpoint: Endpoint, role: Role, seen: Timestamp) {
        if let Some(peer) = self.peers.get_mut(&endpoint)
            && peer.role == role
        {
            peer.seen = seen;
            return;
        }
        self.remove(&endpoint);
        let list = self.list_mut(endpoint, role);
        let place = list.len();
        list.push(endpoint);
        self.peers.insert(endpoint, Peer { role, seen, place });
    }

    fn remove(&mut self, endpoint: &Endpoint) -> Option<Peer> {
        let peer = self.peers.remove(endpoint)?;
        let list = self.list_mut(*endpoint, peer.role);
        list.swap_remove(peer.place);
        if let Some(moved) = list.get(peer.place).copied() {
            self.peers.get_mut(&moved).expect("what is listed is a peer").place = peer.place;
        }
        Some(peer)
    }

    fn list_mut(&mut self, endpoint: Endpoint, role: Role) -> &mut Vec<Endpoint> {
        &mut self.lists[usize::from(endpoint.family() == Family::V6)][usize::from(role.is_seeder())]
    }

    /// Hands out a window at a random place of each family's ring: leechers without the announcer, then
    /// seeders.
    fn select(&self, announce: &Announce, rng: &mut dyn Random, peers: &mut PeerBuffer<'_>) {
        let me = self.peers[&announce.endpoint];
        let rings = [(Families::V4, Family::V4), (Families::V6, Family::V6)].map(|(flag, family)| {
            let [leechers, seeders] = &self.lists[usize::from(family == Family::V6)];
            let mine = !me.role.is_seeder() && announce.endpoint.family() == family;
            let seeders_too = if me.role.is_seeder() { 0 } else { seeders.len() };
            let len = if announce.families.contains(flag) {
                leechers.len() - usize::from(mine) + seeders_too
            } else {
                0
            };
            let pick = move |at: usize| {
                let at = at + usize::from(mine && at >= me.place);
                leechers.get(at).copied().unwrap_or_else(|| seeders[at - leechers.len()])
            };
            (len, pick)
        });
        let room = [peers.v4.room(), peers.v6.room()];
        let fits = [rings[0].0.min(room[0]), rings[1].0.min(room[1])];
        // Half of what is wanted each, and what one leaves unused goes to the other.
        let v6 = fits[1].min((announce.want / 2).max(announce.want.saturating_sub(fits[0])));
        for ((len, pick), count) in rings.iter().zip([fits[0].min(announce.want - v6), v6]) {
            let start = if count < *len { rng.below(*len) } else { 0 };
            for offset in 0..count {
                match pick((start + offset) % len) {
                    Endpoint::V4(peer) => peers.v4.push(peer.as_bytes()),
                    Endpoint::V6(peer) => peers.v6.push(peer.as_bytes()),
                }
            }
        }
    }

    fn stats(&self) -> SwarmStats {
        let both = |role: usize| (self.lists[0][role].len() + self.lists[1][role].len()) as u32;
        SwarmStats { complete: both(1), incomplete: both(0), downloaded: self.downloaded }
    }

    /// Adds or takes the peers to or from the totals.
    fn count(&self, totals: &mut Totals, change: fn(u64, u64) -> u64) {
        for (counts, [leechers, seeders]) in [&mut totals.v4, &mut totals.v6].into_iter().zip(&self.lists) {
            counts.seeders = change(counts.seeders, seeders.len() as u64);
            counts.leechers = change(counts.leechers, leechers.len() as u64);
        }
    }
}
