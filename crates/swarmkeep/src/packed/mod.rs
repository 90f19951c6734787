//! The sharded store of packed peers: 7 bytes an IPv4 peer, 19 an IPv6 one, 26 a torrent, and little else.
//!
//! - A **stripe** is what one lock guards: some leaves.
//! - A **leaf** is one run of bytes: some dozens of swarms, sorted by their info hashes under a keyed permutation. Strangers
//!   cannot choose where theirs go, and the info hash can be had back to list it. A swarm of one IPv4 peer needs no more than
//!   its slot; one of some dozens of peers has a block behind the slots.
//! - A **large** swarm has four tables of peers (family × role), in linear-hashed buckets, so that no announce in a swarm of a
//!   million moves more peers than in one of fifty.
//!
//! `docs/packed-store.md` gives the layout byte by byte, why it is so, and what was measured.

mod arena;
mod batch;
mod clock;
mod hash;
mod large;
mod leaf;
mod linear;
mod prefetch;
mod room;
mod select;
mod stripe;
mod table;

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

use parking_lot::{Mutex, MutexGuard};

use self::{
    clock::Clock,
    hash::{EndpointHash, Key, Permutation},
    leaf::Prefix,
    room::{Full, Most, Room, Shared},
    stripe::{Call, Position, Step, Stripe},
};
use crate::{
    Announce, Announced, BoundedBy, Budget, Capabilities, ConfigError, Cursor, InfoHash, LongestHold,
    MemoryUse, PageCost, PeerBuffer, PeerRecord, Random, Removed, RepositoryConfig, Request, Restored,
    Retention, SwarmStats, SwarmSummary, Swept, Timestamp, TorrentRepository, Totals,
    map::{AtomicTotals, VISITS_A_HOLD},
    sweep::{Next, Pass},
    time::LatestTime,
};

/// The packed store. Keeps endpoint, role and time of a peer, not its peer id and byte counts.
pub struct Packed {
    stripes: Box<[Locked]>,
    shared: Shared,
    lifetime_secs: u64,
    latest: LatestTime,
    pass: Pass<usize, Visit>,
}

/// A cache line of its own, so that neighbours' locks do not share one.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Locked(Mutex<Stripe>);

/// A stripe to sweep, from a position on.
#[derive(Debug, Clone, Copy)]
struct Visit {
    stripe: usize,
    from: Option<Position>,
}

/// Sixteen threads that each hold a stripe for half of the time meet once in five hundred announces.
const DEFAULT_STRIPES: usize = 4096;
const MOST_STRIPES: usize = 1 << 16;
/// A full stripe has enough swarms to choose from when one has to go.
const SWARMS_A_LIMITED_STRIPE: u64 = 256;
/// Stripes themselves are to be no more than a hundredth of the bytes.
const BYTES_A_LIMITED_STRIPE: u64 = 100 * size_of::<Locked>() as u64;
/// Stripes that one sweep claims at once.
const STRIPES_A_CLAIM: usize = 8;

impl Packed {
    /// An empty repository of 4,096 stripes, or as many as configured, or fewer where limits are small.
    ///
    /// Limits are kept exactly, by all threads together. Who has to go is chosen among 64 neighbours of who comes.
    ///
    /// # Errors
    /// [`ConfigError`] if the stripes (shards) are no power of two up to 65,536, the lifetime is not whole seconds, or a limit is
    /// below what the store can keep.
    pub fn new(config: &RepositoryConfig) -> Result<Self, ConfigError> {
        let limits = config.limits();
        let most = |limit: Option<usize>| limit.map_or(u64::MAX, |most| most as u64);
        let most = Most {
            swarms: most(limits.swarms),
            peers_per_swarm: most(limits.peers_per_swarm),
            bytes: most(limits.bytes),
        };
        let fitting = (most.swarms / SWARMS_A_LIMITED_STRIPE).min(most.bytes / BYTES_A_LIMITED_STRIPE);
        let fitting = usize::try_from(fitting).unwrap_or(DEFAULT_STRIPES).clamp(1, DEFAULT_STRIPES);
        let stripes = config.shard_count().unwrap_or(1 << fitting.ilog2());
        if !stripes.is_power_of_two() || stripes > MOST_STRIPES {
            return Err(ConfigError::Shards { given: stripes, least: 1, most: MOST_STRIPES });
        }
        let fixed = stripes * size_of::<Locked>();
        let least_bytes = fixed + stripe::LEAST_ROOM;
        for (what, limit, least) in [
            ("swarms", limits.swarms, 1),
            ("peers a swarm", limits.peers_per_swarm, 1),
            ("bytes", limits.bytes, least_bytes),
        ] {
            if let Some(given) = limit.filter(|&given| given < least) {
                return Err(ConfigError::Limit { what, given, least });
            }
        }
        let lifetime_secs = config.lifetime_secs(LONGEST_LIFETIME_SECS)?;
        let shared = Shared {
            permutation: Permutation::new(config.hash_key()),
            hash: EndpointHash::new(config.hash_key()),
            clock: Clock::new(lifetime_secs),
            totals: AtomicTotals::default(),
            bytes: AtomicU64::new(fixed as u64),
            most,
        };
        let stripes = (0..stripes).map(|_| Locked::default()).collect();
        Ok(Self { stripes, shared, lifetime_secs, latest: LatestTime::default(), pass: Pass::new(0) })
    }

    fn stripe_of(&self, key: &Key) -> usize {
        // The first bits of the key choose the stripe, so that the order of stripes is the order of keys.
        (key.head() >> 1 >> (63 - self.stripes.len().ilog2())) as usize
    }

    fn home(&self, stripe: usize) -> Prefix {
        let depth = self.stripes.len().ilog2();
        Prefix { bits: (stripe as u64) << 1 << (63 - depth), depth }
    }

    fn lock(&self, stripe: usize) -> MutexGuard<'_, Stripe> {
        self.stripes[stripe].0.lock()
    }

    /// Runs `work` on the stripe of an info hash.
    fn with<R>(
        &self,
        info_hash: &InfoHash,
        now: Timestamp,
        work: impl FnOnce(&mut Stripe, &Call<'_>) -> R,
    ) -> R {
        let key = self.shared.permutation.permute(info_hash);
        self.with_stripe(self.stripe_of(&key), &key, now, work)
    }

    fn with_stripe<R>(
        &self,
        stripe: usize,
        key: &Key,
        now: Timestamp,
        work: impl FnOnce(&mut Stripe, &Call<'_>) -> R,
    ) -> R {
        let call =
            Call { shared: &self.shared, home: self.home(stripe), key, now: self.shared.clock.tick(now) };
        let mut stripe = self.lock(stripe);
        let before = stripe.bytes();
        let result = work(&mut stripe, &call);
        Room::new(&self.shared).settle(before, stripe.bytes());
        result
    }

    fn announce_keyed(
        &self,
        key: &Key,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        let index = self.stripe_of(key);
        let call =
            Call { shared: &self.shared, home: self.home(index), key, now: self.shared.clock.tick(now) };
        peers.clear();
        let mut stripe = self.lock(index);
        if let Some(announced) = stripe.announce_only(&call, announce) {
            return announced;
        }
        // Dropped last: what had to go is freed when no lock is held.
        let mut room = Room::new(&self.shared);
        loop {
            let announced = self.announce_in(&mut stripe, &call, announce, &mut room, rng, peers);
            drop(stripe);
            if let Ok(announced) = announced {
                return announced;
            }
            self.evict_elsewhere(index, key, now, &mut room);
            stripe = self.lock(index);
        }
    }

    /// An announce to a stripe, which is locked.
    #[inline(never)]
    fn announce_in(
        &self,
        stripe: &mut Stripe,
        call: &Call<'_>,
        announce: &Announce,
        room: &mut Room<'_>,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Result<Announced, Full> {
        let before = stripe.bytes();
        let updated = stripe.announce(call, announce, room);
        room.settle(before, stripe.bytes());
        let (announced, selection) = updated?;
        // Nothing of the store changes any more: the caller's randomness may panic.
        stripe.select(selection, announce, rng, peers);
        Ok(announced.evicting(room.take_evicted()))
    }

    /// Makes room in the next stripe that has anything to drop.
    fn evict_elsewhere(&self, index: usize, key: &Key, now: Timestamp, room: &mut Room<'_>) {
        for other in (index + 1..self.stripes.len()).chain(0..index) {
            let evicted = self.with_stripe(other, key, now, |stripe, call| stripe.evict_any(call, room));
            if evicted.is_ok() {
                return;
            }
        }
    }

    /// Shows swarms behind `after` to `show`, a stripe's worth of at most `limit` at a time, until it has enough.
    fn list(&self, after: Option<Key>, mut limit: usize, out: &mut Vec<SwarmSummary>) -> bool {
        let mut after = after;
        for index in after.as_ref().map_or(0, |key| self.stripe_of(key))..self.stripes.len() {
            loop {
                if limit == 0 {
                    return true;
                }
                let (start, hold) = (out.len(), limit.min(VISITS_A_HOLD));
                let more = self.lock(index).list(&self.shared, self.home(index), after.as_ref(), hold, out);
                limit -= out.len() - start;
                match more {
                    Some(last) => after = Some(last),
                    None => break,
                }
            }
            after = None;
        }
        false
    }

    fn behind(out: &[SwarmSummary], more: bool) -> Cursor {
        match out.last() {
            Some(last) if more => Cursor::after(last.info_hash.as_bytes()),
            _ => Cursor::END,
        }
    }

    fn key_of(&self, cursor: Cursor) -> Option<Key> {
        Some(self.shared.permutation.permute(&InfoHash::new(cursor.bytes()?.try_into().ok()?)))
    }
}

/// Ticks are counted in 32 bits; half of them are room enough.
const LONGEST_LIFETIME_SECS: u64 = u32::MAX as u64 / 2;

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packed").field("totals", &self.totals()).finish_non_exhaustive()
    }
}

impl TorrentRepository for Packed {
    fn announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        let now = self.latest.advance(now);
        let key = self.shared.permutation.permute(&announce.info_hash);
        self.announce_keyed(&key, announce, now, rng, peers)
    }

    fn announce_batch(&self, batch: &mut [Request<'_>], now: Timestamp, rng: &mut dyn Random) {
        for group in batch.chunks_mut(batch::GROUP) {
            self.announce_group(group, self.latest.advance(now), rng);
        }
    }

    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        self.with(info_hash, Timestamp::default(), |stripe, call| stripe.scrape(call)).unwrap_or_default()
    }

    fn totals(&self) -> Totals {
        self.shared.totals.load()
    }

    fn walk(&self, from: Cursor, limit: usize, out: &mut Vec<SwarmSummary>) -> Cursor {
        if from.is_end() || limit == 0 {
            return from;
        }
        let more = self.list(self.key_of(from), limit, out);
        Self::behind(out, more)
    }

    fn page(&self, after: Option<&InfoHash>, limit: usize, out: &mut Vec<SwarmSummary>) {
        let (start, mut cursor, mut some) = (out.len(), Cursor::START, Vec::new());
        while !cursor.is_end() && limit > 0 {
            some.clear();
            cursor = self.walk(cursor, PAGE_LOOK, &mut some);
            out.extend(some.iter().filter(|swarm| after.is_none_or(|after| swarm.info_hash > *after)));
            if out.len() - start > limit {
                out[start..].select_nth_unstable_by_key(limit, |swarm| swarm.info_hash);
                out.truncate(start + limit);
            }
        }
        out[start..].sort_unstable_by_key(|swarm| swarm.info_hash);
    }

    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        let (start, limit) = (out.len(), limit.min(VISITS_A_HOLD));
        let latest = self.latest.advance(Timestamp::default());
        let next = self.with(info_hash, latest, |stripe, call| stripe.peers(call, from, limit, out));
        for peer in &mut out[start..] {
            // Rounded younger, but not into the future.
            peer.last_announce = peer.last_announce.min(latest);
        }
        next
    }

    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        let now = self.latest.advance(now);
        let oldest = self.shared.clock.tick(now.saturating_sub(self.lifetime_secs));
        let (mut swept, mut left) = (Swept::default(), budget.get());
        while left > 0 && !swept.pass_complete {
            let mut claim = match self.pass.next() {
                Next::Visit(claim) => claim,
                Next::LookFrom(from) => {
                    let populated =
                        (from..self.stripes.len()).filter(|&stripe| !self.lock(stripe).is_empty());
                    let found: Vec<usize> = populated.take(STRIPES_A_CLAIM).collect();
                    let next = found.last().filter(|_| found.len() == STRIPES_A_CLAIM).map(|last| last + 1);
                    let visits = found.into_iter().map(|stripe| Visit { stripe, from: None });
                    let Some(claim) = self.pass.claim(from, visits, next) else { continue };
                    claim
                }
                Next::Leave => break,
            };
            while left > 0
                && let Some(visit) = claim.current()
            {
                let mut step = Step::default();
                let hold = left.min(VISITS_A_HOLD);
                let home = self.home(visit.stripe);
                let from = visit.from;
                let next = self.with_stripe(visit.stripe, &home.first_key(), now, |stripe, call| {
                    stripe.expire(call, from, oldest, policy, hold, &mut step)
                });
                visit.from = next;
                if next.is_none() {
                    claim.done();
                } else {
                    // Announces wait for this stripe, and an unfair lock would let the sweep have it again at once.
                    thread::yield_now();
                }
                // A hold that found nobody has looked all the same.
                left = left.saturating_sub(step.visited.max(1));
                swept.visited += step.visited as u64;
                swept.expired += step.gone.peers();
                swept.swarms_removed += step.swarms_removed;
            }
            swept.pass_complete = claim.finish();
        }
        swept
    }

    fn remove(&self, info_hash: &InfoHash) -> Option<SwarmStats> {
        // The peers of a large swarm are freed when the lock is not held any more.
        let (stats, _large) =
            self.with(info_hash, Timestamp::default(), |stripe, call| stripe.remove(call))?;
        Some(stats)
    }

    fn remove_where(
        &self,
        forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Removed {
        if from.is_end() {
            return Removed::new(Vec::new(), Cursor::END);
        }
        let mut shown = Vec::new();
        let next = self.walk(from, budget.get(), &mut shown);
        let named = shown.into_iter().filter(|swarm| forbidden(&swarm.info_hash));
        let removed = named.filter_map(|SwarmSummary { info_hash, .. }| {
            self.remove(&info_hash).map(|stats| SwarmSummary { info_hash, stats })
        });
        Removed::new(removed.collect(), next)
    }

    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        let now = self.latest.advance(now);
        let oldest = now.saturating_sub(self.lifetime_secs);
        let alive: Vec<PeerRecord> = peers
            .iter()
            .filter(|peer| peer.last_announce >= oldest)
            .map(|peer| PeerRecord { last_announce: peer.last_announce.min(now), ..*peer })
            .collect();
        let expired = (peers.len() - alive.len()) as u64;
        let mut restored = Restored { expired, ..Restored::default() };
        let downloaded = swarm.stats.downloaded;
        if alive.is_empty() && downloaded == 0 {
            return restored;
        }
        // One lock hold for a bounded number of peers; an empty one still brings the download count.
        let key = self.shared.permutation.permute(&swarm.info_hash);
        let holds = alive.chunks(VISITS_A_HOLD).chain(alive.is_empty().then_some(&alive[..]));
        for hold in holds {
            let (index, mut room) = (self.stripe_of(&key), Room::new(&self.shared));
            let call = Call {
                shared: &self.shared,
                home: self.home(index),
                key: &key,
                now: self.shared.clock.tick(now),
            };
            self.lock(index).restore(&call, hold, downloaded, &mut room, &mut restored);
        }
        restored
    }

    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        self.with(info_hash, Timestamp::default(), |stripe, call| stripe.add_downloads(call, earlier))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(LongestHold::Visits(4 * VISITS_A_HOLD))
            .with_page_cost(PageCost::WholeStore)
            .with_bounds(BoundedBy::all())
            .with_clock(self.shared.clock.resolution_secs(), LONGEST_LIFETIME_SECS)
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse::exact(self.shared.bytes.load(Relaxed))
    }
}

/// Swarms that a page in info-hash order looks at before it keeps the first of them.
const PAGE_LOOK: usize = 8192;
