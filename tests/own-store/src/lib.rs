//! A swarm store of your own: a mutex around a B-tree of swarms.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use swarmkeep::{
    Announce, AnnounceEvent, Announced, BoundedBy, Budget, Capabilities, Changes, ConfigError, Cursor,
    InfoHash, LongestHold, MemoryUse, PeerBuffer, PeerRecord, Random, RepositoryConfig, Restored, Retention,
    SwarmStats, SwarmSummary, Swept, Timestamp, TorrentRepository, Totals,
    catalog::{Build, Implementation},
    implement::{CursorExt as _, RecordSwarm, VISITS_PER_HOLD},
};

/// The row of the store, for programs that take rows.
pub const ROW: Implementation = Implementation::new(
    "own",
    "own",
    "A mutex around a B-tree of swarms.",
    BoundedBy::empty(),
    Build::Sync(|config| Ok(Arc::new(OwnStore::new(config)?))),
);

/// The store.
#[derive(Debug)]
pub struct OwnStore {
    lifetime_secs: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    swarms: BTreeMap<InfoHash, RecordSwarm>,
    totals: Totals,
    latest: Timestamp,
    /// The last swarm that the sweep has visited, and the position among its peers.
    swept: Option<(InfoHash, Cursor)>,
}

impl OwnStore {
    /// Returns an empty store.
    ///
    /// # Errors
    /// [`ConfigError`] if a limit is set, or the lifetime is not whole seconds.
    pub fn new(config: &RepositoryConfig) -> Result<Self, ConfigError> {
        config.refuse_limits()?;
        Ok(Self { lifetime_secs: config.lifetime_secs(u64::MAX)?, state: Mutex::default() })
    }

    /// Returns the state. It is consistent even after the generator of a caller has panicked, because
    /// selection comes last.
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
        let (now, known) = (state.advance(now), state.swarms.contains_key(&announce.info_hash));
        if announce.event == AnnounceEvent::Stopped && !known {
            return Announced::default();
        }
        let updated = state.change(announce.info_hash, |swarm| swarm.update(announce, now, usize::MAX));
        let mut changes = updated.transition.changes();
        changes.set(Changes::CREATED, !known);
        let swarm = &state.swarms[&announce.info_hash];
        if let Some(place) = updated.place {
            swarm.select(announce, place, rng, peers);
        }
        Announced::new(swarm.stats(), changes)
    }

    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        self.state().swarms.get(info_hash).map(RecordSwarm::stats).unwrap_or_default()
    }

    fn totals(&self) -> Totals {
        self.state().totals
    }

    fn walk(&self, from: Cursor, limit: usize, out: &mut Vec<SwarmSummary>) -> Cursor {
        if from.is_end() || limit == 0 {
            return from;
        }
        let (state, start, limit) = (self.state(), out.len(), limit.min(VISITS_PER_HOLD));
        let rest = state.swarms.range((from.info_hash().map_or(Unbounded, Excluded), Unbounded)).take(limit);
        out.extend(rest.map(|(&info_hash, swarm)| SwarmSummary { info_hash, stats: swarm.stats() }));
        out[start..].get(limit - 1).map_or(Cursor::END, |last| Cursor::after(last.info_hash.as_bytes()))
    }

    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        let state = self.state();
        let swarm = state.swarms.get(info_hash);
        swarm.map_or(Cursor::END, |swarm| swarm.peers(from, limit.min(VISITS_PER_HOLD), out))
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
            let visits = (budget.get() - swept.visited as usize).min(VISITS_PER_HOLD);
            let mut state = self.state();
            let oldest = state.advance(now).saturating_sub(self.lifetime_secs);
            state.sweep(oldest, policy, visits, &mut swept);
        }
        swept
    }

    fn remove(&self, info_hash: &InfoHash) -> Option<SwarmStats> {
        self.state().remove(info_hash)
    }

    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        let (mut state, mut restored) = (self.state(), Restored::default());
        let now = state.advance(now);
        let oldest = now.saturating_sub(self.lifetime_secs);
        let alive: Vec<_> = peers.iter().filter(|peer| peer.last_announce >= oldest).collect();
        restored.expired = (peers.len() - alive.len()) as u64;
        if !alive.is_empty() || swarm.stats.downloaded > 0 {
            state.change(swarm.info_hash, |into| {
                into.restore_downloads(swarm.stats.downloaded);
                for &&peer in &alive {
                    let peer = PeerRecord { last_announce: peer.last_announce.min(now), ..peer };
                    restored.count(into.restore(&peer, usize::MAX));
                }
            });
        }
        restored
    }

    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        let mut state = self.state();
        let is_known = state.swarms.contains_key(info_hash);
        if is_known {
            state.change(*info_hash, |swarm| swarm.add_downloads(earlier));
        }
        is_known
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(LongestHold::Visits(VISITS_PER_HOLD)).with_peer_details().with_clock(0, u64::MAX)
    }

    fn memory(&self) -> MemoryUse {
        let totals = self.totals();
        MemoryUse::estimated(totals.swarms * 250 + totals.peers() * 120)
    }
}

impl State {
    /// Updates and returns the latest time given.
    fn advance(&mut self, now: Timestamp) -> Timestamp {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Changes a swarm, which is created if there is none, and the totals with it.
    fn change<R>(&mut self, info_hash: InfoHash, change: impl FnOnce(&mut RecordSwarm) -> R) -> R {
        let swarm = self.swarms.entry(info_hash).or_insert_with(|| {
            self.totals.swarms += 1;
            RecordSwarm::default()
        });
        self.totals -= swarm.population();
        let result = change(swarm);
        self.totals += swarm.population();
        result
    }

    fn remove(&mut self, info_hash: &InfoHash) -> Option<SwarmStats> {
        let swarm = self.swarms.remove(info_hash)?;
        self.totals.swarms -= 1;
        self.totals -= swarm.population();
        Some(swarm.stats())
    }

    /// Visits about `visits` swarms and peers after the last visited ones.
    fn sweep(&mut self, oldest: Timestamp, policy: Retention, visits: usize, swept: &mut Swept) {
        let end = swept.visited + visits as u64;
        while swept.visited < end {
            let (info_hash, from) = match self.swept {
                Some((info_hash, from)) if !from.is_end() => (info_hash, from),
                last => {
                    let rest = (last.map_or(Unbounded, |(info_hash, _)| Excluded(info_hash)), Unbounded);
                    let Some((&next, _)) = self.swarms.range(rest).next() else {
                        (self.swept, swept.pass_complete) = (None, true);
                        return;
                    };
                    swept.visited += 1;
                    (next, Cursor::START)
                }
            };
            self.swept = Some((info_hash, Cursor::END));
            let Some(swarm) = self.swarms.get_mut(&info_hash) else { continue };
            let expired = swarm.expire(oldest, from, end.saturating_sub(swept.visited).max(1) as usize);
            self.totals -= expired.gone;
            self.swept = Some((info_hash, expired.next));
            swept.visited += expired.visited as u64;
            swept.expired += expired.gone.peers();
            if expired.next.is_end() && swarm.is_idle(policy) {
                self.remove(&info_hash);
                swept.swarms_removed += 1;
            }
        }
    }
}
