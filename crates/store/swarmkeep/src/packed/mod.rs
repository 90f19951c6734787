//! The sharded store of packed peers: 7 bytes per IPv4 peer, 19 per IPv6 peer, 26 per torrent of one IPv4
//! peer. With the room to grow, 8 to 12 bytes per IPv4 peer and 28 to 31 per torrent of one are resident.
//!
//! - A **shard** contains some leaves. One lock guards it.
//! - A **leaf** is one run of bytes: a *slot* for each of some dozens of swarms, and blocks after the slots.
//!   Slots are sorted by a keyed permutation of the info hash: remote peers cannot choose the place of a
//!   swarm, and the inverse permutation gives the info hash. A swarm of one IPv4 peer is only a slot. A swarm
//!   of up to 146 IPv4 peers (53 of IPv6) has a block.
//! - A **large** swarm has four tables of peers (family × role) of linear-hashed buckets. No announce moves
//!   more than twenty buckets of some dozens of peers, however many peers the swarm has.
//!
//! `docs/design/packed-store.md` of the repository gives the layout byte by byte, its reasons, and figures.

#[cfg_attr(swarmkeep_safe, path = "boxed.rs")]
mod arena;
mod batch;
mod bounds;
mod clock;
mod context;
mod crowd;
mod hash;
mod hints;
mod import;
mod large;
mod leaf;
mod linear;
mod lock;
mod place;
mod prefetch;
mod repository;
mod reservation;
mod room;
mod select;
mod shard;
mod table;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Mutex};

use self::{
    batch::CallerRng,
    bounds::{Bounds, MIN_BYTES},
    clock::{Clock, Tick},
    context::StoreContext,
    hash::EndpointHash,
    hints::Hints,
    lock::{ExclusiveGuard, Lock},
    place::{Placed, Placement},
    reservation::Reservation,
    shard::{Operation, ResumePoint, Shard},
};
use crate::{
    Announce, AnnounceEvent, Announced, ConfigError, InfoHash, Limits, PeerBuffer, Random, RepositoryConfig,
    Timestamp, TorrentRepository, implement::Pass, sync::atomic::AtomicU64, time::LatestTime,
    totals::AtomicTotals,
};

/// Lets all packed stores of this process take their memory from the global allocator, in pieces of 32 KiB,
/// and not from the system: for a process whose allocator counts and limits memory, as that of a database
/// server for its modules.
///
/// Call it before the first store takes memory. Returns `false`, and changes nothing, if it is too late.
#[cfg(feature = "global-alloc")]
pub fn use_global_allocator() -> bool {
    arena::take_global()
}

/// The packed store. Keeps endpoint, role and time of a peer, not its peer id and byte counts.
pub struct Packed {
    shards: Box<[ShardLock]>,
    context: StoreContext,
    lifetime_secs: u64,
    latest: LatestTime,
    pass: Pass<usize, Visit>,
}

/// A shard and its lock, in a cache line of its own, so that neighbours do not share one.
#[derive(Debug, Default)]
#[repr(align(64))]
struct ShardLock(Lock<Shard>);

/// A shard that a sweep has to visit, from `from` on.
#[derive(Debug, Clone, Copy)]
struct Visit {
    shard: usize,
    from: Option<ResumePoint>,
}

/// Of sixteen threads that each hold a shard half of the time, two meet in one of 130 announces. With 4,096
/// shards, each of 10,000 swarms would take 25 bytes more.
const DEFAULT_SHARDS: usize = 1024;
const MAX_SHARDS: usize = 1 << 16;
/// A limit on swarms leaves room for this number in each shard, so that a full one has enough to choose from.
const SWARMS_PER_LIMITED_SHARD: u64 = 256;
/// The same, for a limit on bytes.
const BYTES_PER_LIMITED_SHARD: u64 = 1 << 14;

impl Packed {
    /// An empty store of the configured number of shards: by default 1,024, or fewer if limits are small.
    ///
    /// Limits are exact over all threads. An eviction takes a whole swarm of up to 64 peers, or some peers of
    /// a larger one, from a sample of 64 swarms. If no more swarms are allowed and all of 256 are larger, or
    /// the small ones are worth more than the new swarm and than a larger one, the new swarm has no room: its
    /// announce changes nothing, except that a large swarm of one network may become smaller.
    ///
    /// Also without limits, a bucket of a large swarm has at most some 512 peers: then a newcomer replaces
    /// a peer of the network with most peers in it. Chance makes no bucket so full, only peers that choose
    /// their endpoints by the peers in answers.
    ///
    /// # Errors
    /// [`ConfigError`] if the number of shards is no power of two up to 65,536, or the lifetime or a limit is
    /// one that the store does not support.
    pub fn new(config: &RepositoryConfig) -> Result<Self, ConfigError> {
        let limits = config.limits();
        let bound = |limit: Option<usize>| limit.map_or(u64::MAX, |limit| limit as u64);
        let bounds = Bounds {
            swarms: bound(limits.swarms),
            peers_per_swarm: bound(limits.peers_per_swarm),
            endpoints_per_address: bound(limits.endpoints_per_address),
            bytes: bound(limits.bytes),
        };
        let fitting = (bounds.swarms / SWARMS_PER_LIMITED_SHARD).min(bounds.bytes / BYTES_PER_LIMITED_SHARD);
        let fitting = usize::try_from(fitting).unwrap_or(DEFAULT_SHARDS).clamp(1, DEFAULT_SHARDS);
        let shards = config.shard_count().unwrap_or(1 << fitting.ilog2());
        if !shards.is_power_of_two() || shards > MAX_SHARDS {
            return Err(ConfigError::Shards { given: shards, least: 1, most: MAX_SHARDS });
        }
        let fixed = Self::fixed_bytes(shards);
        let least_bytes = config.shard_count().map_or(0, |_| fixed) + MIN_BYTES;
        for (what, limit, least) in [
            ("swarms", limits.swarms, 1),
            ("peers per swarm", limits.peers_per_swarm, 1),
            (Limits::ENDPOINTS_PER_ADDRESS, limits.endpoints_per_address, 1),
            ("bytes", limits.bytes, least_bytes),
        ] {
            if let Some(given) = limit.filter(|&given| given < least) {
                return Err(ConfigError::Limit { what, given, least });
            }
        }
        let lifetime_secs = config.lifetime_secs(LONGEST_LIFETIME_SECS)?;
        let context = StoreContext {
            placement: Placement::new(config.hash_key(), shards),
            hash: EndpointHash::new(config.hash_key(), limits.endpoints_per_address),
            clock: Clock::new(lifetime_secs),
            hints: Hints::new(shards),
            making_room: Mutex::default(),
            totals: AtomicTotals::default(),
            bytes: AtomicU64::new(fixed as u64),
            bounds,
        };
        let shards = (0..shards).map(|_| ShardLock::default()).collect();
        Ok(Self { shards, context, lifetime_secs, latest: LatestTime::default(), pass: Pass::new(0) })
    }

    /// The bytes of a store without swarms.
    const fn fixed_bytes(shards: usize) -> usize {
        shards * size_of::<ShardLock>() + Hints::fixed_bytes(shards)
    }

    fn lock(&self, shard: usize) -> ExclusiveGuard<'_, Shard> {
        self.shards[shard].0.write()
    }

    /// Runs `work` on the shard of an info hash.
    fn with<R>(&self, info_hash: &InfoHash, work: impl FnOnce(&mut Shard, &Operation<'_>) -> R) -> R {
        self.with_shard(&self.context.placement.place(info_hash), Tick::EARLIEST, work)
    }

    fn with_shard<R>(
        &self,
        placed: &Placed,
        now: Tick,
        work: impl FnOnce(&mut Shard, &Operation<'_>) -> R,
    ) -> R {
        self.with_reservation(placed, now, &mut Reservation::new(&self.context), |shard, op, _| {
            work(shard, op)
        })
    }

    fn with_reservation<R>(
        &self,
        placed: &Placed,
        now: Tick,
        reservation: &mut Reservation<'_>,
        work: impl FnOnce(&mut Shard, &Operation<'_>, &mut Reservation<'_>) -> R,
    ) -> R {
        let op = self.operation(placed, now);
        let mut shard = self.lock(placed.shard);
        let result = work(&mut shard, &op, reservation);
        shard.settle(reservation);
        result
    }

    /// The parameters that all methods of a shard share.
    #[inline]
    fn operation<'a>(&'a self, placed: &'a Placed, now: Tick) -> Operation<'a> {
        Operation { context: &self.context, home: self.context.placement.home(), placed, now }
    }

    fn announce_at(
        &self,
        placed: &Placed,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        let op = self.operation(placed, self.context.clock.tick(now));
        let seen = self.look_ahead(&op);
        seen.prefetch_slots(&placed.key);
        peers.clear();
        let mut rng = CallerRng::new(rng);
        let lock = &self.shards[placed.shard].0;
        // Refreshes in a large swarm share the lock: if it is in use, a thread waits for it in shared mode;
        // otherwise it takes the lock alone, and downgrades it. All other announces need it alone.
        let mut refresh = |shard: &Shard, at| {
            let large = shard.large_at(at).filter(|_| announce.event != AnnounceEvent::Stopped)?;
            let ahead = large.look_now(&self.context.hash, announce, rng.draw_now()?);
            shard.refresh_large(&op, at, announce, &ahead, peers)
        };
        let (mut shard, mut found);
        if let Some(alone) = lock.try_write() {
            shard = alone;
            found = shard.find_from(&op, &seen.leaf);
            shard.correct(&op, &seen);
            if let Some(at) = found {
                if let Some(announced) = shard.refresh_only(&op, at, announce) {
                    return announced;
                }
                if shard.prefetch_swarm(at) {
                    let shared = ExclusiveGuard::downgrade(shard);
                    if let Some(announced) = refresh(&shared, at) {
                        return announced;
                    }
                    drop(shared);
                    shard = lock.write();
                    found = shard.find_again(&op, &seen.leaf, found);
                }
            }
        } else {
            let shared = lock.read();
            let at = shared.find_from(&op, &seen.leaf);
            shared.correct(&op, &seen);
            if let Some(announced) = at.and_then(|at| refresh(&shared, at)) {
                return announced;
            }
            drop(shared);
            shard = lock.write();
            found = shard.find_again(&op, &seen.leaf, at);
        }
        let mut reservation = Reservation::new(&self.context);
        loop {
            let updated = shard.announce(&op, found, announce, &mut reservation);
            shard.settle(&mut reservation);
            let (done, full) = match updated {
                Ok((announced, selection)) => {
                    // The randomness of the caller may panic: from here on, only evictions change the store.
                    shard.select(selection, announce, &mut rng, peers);
                    rng.raise();
                    match reservation.debt(announced.changes) {
                        None => {
                            // Evicted swarms are freed after the lock is released.
                            drop(shard);
                            return announced.evicting(reservation.take_evicted());
                        }
                        Some(full) => (Some(announced), full),
                    }
                }
                Err(full) => (None, full),
            };
            let newcomer = shard.newcomer(&op, Some(announce.endpoint), full);
            drop(shard);
            if let Some(announced) = self.conclude(&newcomer, done, &mut reservation) {
                return announced;
            }
            shard = self.lock(placed.shard);
            found = shard.find(&op);
        }
    }
}

/// Ticks are counted in 32 bits. A lifetime may take half of them.
const LONGEST_LIFETIME_SECS: u64 = u32::MAX as u64 / 2;

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packed").field("totals", &self.totals()).finish_non_exhaustive()
    }
}
