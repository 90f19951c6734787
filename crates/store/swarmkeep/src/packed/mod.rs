//! The sharded store of packed peers: 7 bytes an IPv4 peer, 19 an IPv6 one, 26 a torrent, and little else.
//!
//! - A **stripe** is what one lock guards: some leaves.
//! - A **leaf** is one run of bytes: some dozens of swarms, sorted by their info hashes under a keyed
//!   permutation. Strangers cannot choose where theirs go, and the info hash can be had back to list it. A
//!   swarm of one IPv4 peer needs no more than its slot; one of some dozens of peers has a block behind the
//!   slots.
//! - A **large** swarm has four tables of peers (family × role), in linear-hashed buckets, so that no
//!   announce in a swarm of a million moves more peers than in one of fifty.
//!
//! `docs/design/packed-store.md` gives the layout byte by byte, why it is so, and what was measured.

#[cfg_attr(swarmkeep_safe, path = "boxed.rs")]
mod arena;
mod batch;
mod clock;
mod hash;
mod import;
mod large;
mod leaf;
mod linear;
mod place;
mod prefetch;
mod room;
mod select;
mod stripe;
mod table;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

use parking_lot::{Mutex, MutexGuard};

use self::{
    clock::{Clock, Tick},
    hash::{EndpointHash, Key},
    import::holds,
    place::{Placed, Placement},
    room::{Most, Room, Shared},
    stripe::{
        At, Call, Position, Stripe,
        evict::{EVICTION_SAMPLE, Full},
        expire::Step,
    },
};
use crate::{
    Announce, Announced, BoundedBy, Budget, Capabilities, ConfigError, Cursor, Export, InfoHash, Limits,
    LongestHold, MemoryUse, PageCost, PeerBuffer, PeerRecord, Random, Records, RepositoryConfig, Request,
    Restored, Retention, SwarmStats, SwarmSummary, Swept, Timestamp, TorrentRepository, Totals,
    implement::{CursorExt as _, Next, Pass, VISITS_PER_HOLD},
    time::LatestTime,
    totals::AtomicTotals,
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
/// The same for bytes.
const BYTES_A_LIMITED_STRIPE: u64 = 1 << 14;
/// Stripes that are searched for what is worth least when there is nothing in the one that needs room.
const STRIPES_SEARCHED: usize = 4;
/// Stripes that one sweep claims at once.
const STRIPES_A_CLAIM: usize = 8;

impl Packed {
    /// An empty repository of 4,096 stripes, or as many as configured, or fewer where limits are small.
    ///
    /// Limits are exact over all threads. The swarm to evict is chosen among 64 neighbours of the newcomer.
    ///
    /// # Errors
    /// [`ConfigError`] if the stripes (shards) are no power of two up to 65,536, the lifetime is not whole
    /// seconds, or a limit is below what the store can keep.
    pub fn new(config: &RepositoryConfig) -> Result<Self, ConfigError> {
        let limits = config.limits();
        let most = |limit: Option<usize>| limit.map_or(u64::MAX, |most| most as u64);
        let most = Most {
            swarms: most(limits.swarms),
            peers_per_swarm: most(limits.peers_per_swarm),
            endpoints_per_address: most(limits.endpoints_per_address),
            bytes: most(limits.bytes),
        };
        let fitting = (most.swarms / SWARMS_A_LIMITED_STRIPE).min(most.bytes / BYTES_A_LIMITED_STRIPE);
        let fitting = usize::try_from(fitting).unwrap_or(DEFAULT_STRIPES).clamp(1, DEFAULT_STRIPES);
        let stripes = config.shard_count().unwrap_or(1 << fitting.ilog2());
        if !stripes.is_power_of_two() || stripes > MOST_STRIPES {
            return Err(ConfigError::Shards { given: stripes, least: 1, most: MOST_STRIPES });
        }
        let fixed = stripes * size_of::<Locked>();
        let least_bytes = config.shard_count().map_or(0, |_| fixed) + stripe::LEAST_ROOM;
        for (what, limit, least) in [
            ("swarms", limits.swarms, 1),
            ("peers a swarm", limits.peers_per_swarm, 1),
            (Limits::ENDPOINTS_PER_ADDRESS, limits.endpoints_per_address, 1),
            ("bytes", limits.bytes, least_bytes),
        ] {
            if let Some(given) = limit.filter(|&given| given < least) {
                return Err(ConfigError::Limit { what, given, least });
            }
        }
        let lifetime_secs = config.lifetime_secs(LONGEST_LIFETIME_SECS)?;
        let shared = Shared {
            placement: Placement::new(config.hash_key(), stripes),
            hash: EndpointHash::new(config.hash_key(), limits.endpoints_per_address),
            clock: Clock::new(lifetime_secs),
            totals: AtomicTotals::default(),
            bytes: AtomicU64::new(fixed as u64),
            most,
        };
        let stripes = (0..stripes).map(|_| Locked::default()).collect();
        Ok(Self { stripes, shared, lifetime_secs, latest: LatestTime::default(), pass: Pass::new(0) })
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
        self.with_stripe(&self.shared.placement.place(info_hash), now, work)
    }

    fn with_stripe<R>(
        &self,
        at: &Placed,
        now: Timestamp,
        work: impl FnOnce(&mut Stripe, &Call<'_>) -> R,
    ) -> R {
        let call = self.call(at, now);
        let mut stripe = self.lock(at.stripe);
        let result = work(&mut stripe, &call);
        stripe.settle(&mut Room::new(&self.shared));
        result
    }

    /// The arguments that all calls of a stripe share: the swarm's place and the time.
    fn call<'a>(&'a self, at: &'a Placed, now: Timestamp) -> Call<'a> {
        self.call_at(at, self.shared.clock.tick(now))
    }

    #[inline]
    fn call_at<'a>(&'a self, at: &'a Placed, now: Tick) -> Call<'a> {
        Call { shared: &self.shared, home: self.shared.placement.home(), key: &at.key, now }
    }

    fn announce_at(
        &self,
        at: &Placed,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        let call = self.call(at, now);
        peers.clear();
        let mut stripe = self.lock(at.stripe);
        let mut found = stripe.find(&call);
        if let Some(announced) = found.and_then(|at| stripe.announce_only(&call, at, announce)) {
            return announced;
        }
        // Dropped last: what had to go is freed when no lock is held.
        let mut room = Room::new(&self.shared);
        loop {
            let announced = self.announce_in(&mut stripe, &call, found, announce, &mut room, rng, peers);
            drop(stripe);
            match announced {
                Ok(announced) => return announced,
                Err(full) => self.evict_elsewhere(at, now, &full, &mut room),
            }
            stripe = self.lock(at.stripe);
            found = stripe.find(&call);
        }
    }

    /// An announce to a stripe, which is locked, and to a swarm there that was looked for.
    #[expect(clippy::too_many_arguments, reason = "those of an announce, and what is at hand")]
    #[inline(never)]
    fn announce_in(
        &self,
        stripe: &mut Stripe,
        call: &Call<'_>,
        found: Option<At>,
        announce: &Announce,
        room: &mut Room<'_>,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Result<Announced, Full> {
        let updated = stripe.announce(call, found, announce, room);
        stripe.settle(room);
        let (announced, selection) = updated?;
        // Nothing of the store changes any more: the caller's randomness may panic.
        stripe.select(selection, announce, rng, peers);
        Ok(announced.evicting(room.take_evicted()))
    }

    /// Makes room for the announce of a swarm that has found none in its own stripe: in a sample that spans
    /// as many stripes as it takes, the least goes if it is worth less; else some peers of the swarm itself;
    /// else that least one all the same.
    fn evict_elsewhere(&self, at: &Placed, now: Timestamp, Full(own): &Full, room: &mut Room<'_>) {
        let in_stripe = |stripe| Placed { stripe, ..*at };
        let (mut sampled, mut least) = (0, None);
        for (nth, stripe) in (at.stripe..self.stripes.len()).chain(0..at.stripe).enumerate() {
            if nth >= STRIPES_SEARCHED && sampled >= EVICTION_SAMPLE {
                break;
            }
            let (some, worth) = self.with_stripe(&in_stripe(stripe), now, |stripe, call| stripe.least(call));
            sampled += some;
            least =
                least.into_iter().chain(worth.map(|worth| (worth, stripe))).min_by_key(|(worth, _)| *worth);
        }
        let is_less = least.is_some_and(|(worth, _)| worth < *own);
        if !is_less && self.with_stripe(at, now, |stripe, call| stripe.evict_own_peers(call, room)) {
            return;
        }
        if let Some((_, stripe)) = least {
            let below = is_less.then_some(*own);
            self.with_stripe(&in_stripe(stripe), now, |stripe, call| stripe.evict_swarms(call, room, below));
        }
    }

    /// Appends up to `limit` swarms behind `after`, in the order of stripes and keys; whether there may be
    /// more.
    fn list(&self, after: Option<Placed>, mut limit: usize, out: &mut Vec<SwarmSummary>) -> bool {
        let placement = &self.shared.placement;
        let mut after = after.map(|at| (at.stripe, at.key));
        for stripe in after.map_or(0, |(stripe, _)| stripe)..self.stripes.len() {
            loop {
                if limit == 0 {
                    return true;
                }
                let (start, hold) = (out.len(), limit.min(VISITS_PER_HOLD));
                // Not while others wait for the lock: what is there may have to move.
                out.reserve(hold);
                let behind = after.as_ref().map(|(_, key)| key);
                let of_stripe = placement.of_stripe(stripe);
                let more = self.lock(stripe).list(placement.home(), behind, hold, |key, stats| {
                    out.push(SwarmSummary { info_hash: of_stripe.info_hash(&key), stats });
                });
                limit -= out.len() - start;
                match more {
                    Some(last) => after = Some((stripe, last)),
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

    fn place_of(&self, cursor: Cursor) -> Option<Placed> {
        cursor.info_hash().map(|info_hash| self.shared.placement.place(&info_hash))
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
        self.announce_at(&self.shared.placement.place(&announce.info_hash), announce, now, rng, peers)
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
        let more = self.list(self.place_of(from), limit, out);
        Self::behind(out, more)
    }

    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        let (start, limit) = (out.len(), limit.min(VISITS_PER_HOLD));
        let latest = self.latest.advance(Timestamp::default());
        out.reserve(limit);
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
                let hold = left.min(VISITS_PER_HOLD);
                let (at, from) = (Placed { stripe: visit.stripe, key: Key::default() }, visit.from);
                let next = self.with_stripe(&at, now, |stripe, call| {
                    stripe.expire(call, from, oldest, policy, hold, &mut step)
                });
                visit.from = next;
                if next.is_none() {
                    claim.done();
                } else {
                    // Announces wait for this stripe, and an unfair lock would let the sweep have it again at
                    // once.
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

    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        let now = self.latest.advance(now);
        let (mut restored, mut living) = (Restored::default(), Vec::new());
        self.living(peers.iter().copied(), now, &mut living, &mut restored);
        let (at, downloaded) = (self.shared.placement.place(&swarm.info_hash), swarm.stats.downloaded);
        for hold in holds(&living, downloaded) {
            let mut room = Room::new(&self.shared);
            self.lock(at.stripe).restore(&self.call(&at, now), hold, downloaded, &mut room, &mut restored);
        }
        restored
    }

    fn export(&self, export: &mut Export, now: Timestamp, budget: Budget) {
        let (placement, mut left, within) = (&self.shared.placement, budget.get(), export.within);
        let (at, records) = export.begin(self.latest.advance(now));
        let begun = at.bytes().and_then(Placed::from_bytes);
        let mut from = begun.map(|Placed { key, .. }| Position { key, within });
        let first = begun.map_or(0, |begun| begun.stripe);
        let stripes = if at.is_end() { 0..0 } else { first..self.stripes.len() };
        for stripe in stripes {
            loop {
                if left == 0 {
                    let Position { key, within } = from.unwrap_or(Position::first(placement.home()));
                    export.within = within;
                    return export.go_on_at(Cursor::after(&Placed { stripe, key }.to_bytes()));
                }
                let hold = left.min(VISITS_PER_HOLD);
                // Not while others wait for the lock: what is there may have to move.
                records.reserve(hold);
                let locked = self.lock(stripe);
                // Of all who are in it.
                let latest = self.latest.advance(Timestamp::default());
                let visited;
                (visited, from) = locked.export(&self.shared, stripe, from, hold, latest, records);
                drop(locked);
                left = left.saturating_sub(visited.max(1));
                match from {
                    None => break,
                    // All who announce to a large swarm wait for this lock: whoever reads it out says how
                    // often.
                    Some(Position { within, .. }) if within != Cursor::START => left = 0,
                    Some(_) => {}
                }
            }
        }
        export.within = Cursor::START;
        export.go_on_at(Cursor::END);
    }

    fn import(&self, records: &[Records], now: Timestamp) -> Restored {
        self.import_records(records, self.latest.advance(now))
    }

    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        let now = self.latest.advance(Timestamp::default());
        let (at, mut room) = (self.shared.placement.place(info_hash), Room::new(&self.shared));
        loop {
            let call = self.call(&at, now);
            let mut stripe = self.lock(at.stripe);
            let added = stripe.add_downloads(&call, earlier, &mut room);
            stripe.settle(&mut room);
            drop(stripe);
            match added {
                Ok(added) => return added,
                Err(full) => self.evict_elsewhere(&at, now, &full, &mut room),
            }
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(LongestHold::Visits(4 * VISITS_PER_HOLD))
            .with_page_cost(PageCost::WholeStore)
            .with_bounds(BoundedBy::all())
            .with_clock(self.shared.clock.resolution_secs(), LONGEST_LIFETIME_SECS)
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse::exact(self.shared.bytes.load(Relaxed))
    }
}
