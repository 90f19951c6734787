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
mod bounds;
mod clock;
mod hash;
mod import;
mod large;
mod leaf;
mod linear;
mod place;
mod prefetch;
mod repository;
mod room;
mod select;
mod stripe;
mod table;
#[cfg(test)]
mod tests;

use std::{fmt, sync::atomic::AtomicU64};

use parking_lot::{Mutex, MutexGuard};

use self::{
    bounds::{LEAST_ROOM, Most},
    clock::{Clock, Tick},
    hash::EndpointHash,
    place::{Placed, Placement},
    room::{Room, Shared},
    stripe::{
        At, Call, Position, Stripe,
        evict::{EVICTION_SAMPLE, Full},
    },
};
use crate::{
    Announce, Announced, ConfigError, InfoHash, Limits, PeerBuffer, Random, RepositoryConfig, Timestamp,
    TorrentRepository, implement::Pass, time::LatestTime, totals::AtomicTotals,
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
        let least_bytes = config.shard_count().map_or(0, |_| fixed) + LEAST_ROOM;
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
}

/// Ticks are counted in 32 bits; half of them are room enough.
const LONGEST_LIFETIME_SECS: u64 = u32::MAX as u64 / 2;

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packed").field("totals", &self.totals()).finish_non_exhaustive()
    }
}
