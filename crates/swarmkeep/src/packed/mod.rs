//! The sharded store of packed peers: 10 bytes an IPv4 peer, 22 an IPv6 one, and nothing a tracker does not need.
//!
//! - A **shard** is a B-tree behind a lock of its own. Its keys are info hashes under a keyed permutation, so
//!   strangers cannot choose where theirs go, and the info hash can be had back to list it.
//! - A **swarm** is 16 bytes while one IPv4 peer is in it, and four tables of peers (family × role) once there are more.
//! - A **table** of peers is one small array, then linear hashing over many, so that no announce in a swarm of a million
//!   moves more peers than in one of fifty.

mod hash;
mod swarm;
mod table;

use std::{collections::BTreeMap, fmt, ops::Bound};

use parking_lot::Mutex;

use crate::{
    BoundedBy, Capabilities, ConfigError, InfoHash, LongestHold, PageCost, RepositoryConfig,
    map::{
        Admission, BlockingMap, Entered, MapRepository, MemoryEstimate, Order, SwarmMap, VISITS_A_HOLD,
        keep_smallest,
    },
    packed::{
        hash::{Key, Permutation},
        swarm::{Many, PackedSwarm, Settings, Worth},
    },
};

/// The packed store. Keeps endpoint, role and time of a peer, not its peer id and byte counts.
pub type Packed = MapRepository<Shards>;

/// The shards of a packed store.
pub struct Shards {
    shards: Box<[Shard]>,
    permutation: Permutation,
    most_swarms_a_shard: usize,
}

/// A cache line of its own, so that neighbours' locks do not share one.
#[derive(Default)]
#[repr(align(64))]
struct Shard(Mutex<BTreeMap<Key, PackedSwarm>>);

const DEFAULT_SHARDS: usize = 1024;
const MOST_SHARDS: usize = 1 << 16;

/// Limits are kept shard by shard. A share of so many swarms is rarely off by more than 10 % (three standard deviations).
const SWARMS_A_LIMITED_SHARD: usize = 1024;

/// Swarms looked at to find the one worth least: where a fifth of all are flood, none of 64 is one in a million times.
const EVICTION_SAMPLE: usize = 64;

impl Packed {
    /// An empty repository of 1,024 shards, or as many as configured, or fewer where `max_swarms` is small.
    ///
    /// A limit of swarms is kept shard by shard: keyed hashing spreads swarms evenly, so that swarms may have to go when the
    /// store is some percent below the limit. At a fifth below it, that is seven standard deviations away.
    ///
    /// # Errors
    /// [`ConfigError`] if the shards are no power of two up to 65,536, the lifetime is not whole seconds, a limit is zero,
    /// `max_swarms` is below 1,024 for each of several shards asked for, or `max_bytes` is set, which this store cannot keep.
    pub fn new(config: &RepositoryConfig) -> Result<Self, ConfigError> {
        let limits = config.limits();
        if limits.bytes.is_some() {
            return Err(ConfigError::UnsupportedLimit("bytes"));
        }
        let fitting = limits.swarms.map_or(DEFAULT_SHARDS, |most| {
            let shards = (most / SWARMS_A_LIMITED_SHARD).clamp(1, DEFAULT_SHARDS);
            1 << shards.ilog2()
        });
        let shards = config.shard_count().unwrap_or(fitting);
        if !shards.is_power_of_two() || shards > MOST_SHARDS {
            return Err(ConfigError::Shards { given: shards, least: 1, most: MOST_SHARDS });
        }
        let at_least = |what, limit: Option<usize>, least| match limit {
            Some(given) if given < least => Err(ConfigError::Limit { what, given, least }),
            _ => Ok(limit.unwrap_or(usize::MAX)),
        };
        let fewest_swarms = if shards == 1 { 1 } else { shards * SWARMS_A_LIMITED_SHARD };
        let most_swarms = at_least("swarms", limits.swarms, fewest_swarms)?;
        let most_peers = at_least("peers a swarm", limits.peers_per_swarm, 1)?;

        let capabilities = Capabilities::new(LongestHold::Visits(4 * VISITS_A_HOLD))
            .with_page_cost(PageCost::WholeStore)
            .with_bounds(BoundedBy::SWARMS | BoundedBy::PEERS_PER_SWARM);
        let lifetime = config.lifetime_secs(capabilities.longest_lifetime_secs)?;
        let map = Shards {
            shards: (0..shards).map(|_| Shard::default()).collect(),
            permutation: Permutation::new(config.hash_key()),
            most_swarms_a_shard: most_swarms / shards,
        };
        let settings = Settings::new(config.hash_key(), most_peers);
        // B-tree nodes are about 70 % full.
        let estimate = MemoryEstimate {
            swarm: size_of::<(Key, PackedSwarm)>() * 10 / 7,
            shared: size_of::<Many>() + 64,
            peers: [12, 32],
        };
        Ok(Self::over(map, settings, lifetime, capabilities, estimate))
    }
}

impl Shards {
    fn place(&self, info_hash: &InfoHash) -> (&Shard, Key) {
        let key = self.permutation.permute(info_hash);
        (&self.shards[self.shard_of(&key)], key)
    }

    /// The first bits of the key choose the shard, so that the order of shards is the order of keys.
    fn shard_of(&self, key: &Key) -> usize {
        ((u64::from(key[0]) * self.shards.len() as u64) >> 32) as usize
    }

    /// Appends up to `limit` info hashes of one shard behind `after`, in key order.
    fn shard_keys(&self, shard: usize, mut after: Option<Key>, limit: usize, out: &mut Vec<InfoHash>) {
        let end = out.len().saturating_add(limit);
        while out.len() < end {
            let hold = VISITS_A_HOLD.min(end - out.len());
            let behind = (after.as_ref().map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
            let mut last = None;
            let shown = out.len();
            for (key, _) in self.shards[shard].0.lock().range::<Key, _>(behind).take(hold) {
                out.push(self.permutation.invert(key));
                last = Some(*key);
            }
            if out.len() - shown < hold {
                break;
            }
            after = last;
        }
    }
}

/// Makes room in a full shard: of a sample, the swarm worth least goes.
fn evict(shard: &mut BTreeMap<Key, PackedSwarm>, from: &Key) -> Option<PackedSwarm> {
    let (behind, before) = (shard.range(*from..), shard.range(..*from));
    let sample = behind.chain(before).take(EVICTION_SAMPLE);
    let (key, _) = sample.min_by_key(|(_, swarm)| Worth::of(swarm))?;
    let key = *key;
    shard.remove(&key)
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shards({})", self.shards.len())
    }
}

impl SwarmMap for Shards {
    type Swarm = PackedSwarm;

    async fn read<R: Send>(
        &self,
        info_hash: &InfoHash,
        section: impl FnOnce(&PackedSwarm) -> R + Send,
    ) -> Option<R> {
        let (shard, key) = self.place(info_hash);
        shard.0.lock().get(&key).map(section)
    }

    async fn write<R: Send>(
        &self,
        info_hash: &InfoHash,
        section: impl FnOnce(&mut PackedSwarm) -> R + Send,
    ) -> Option<R> {
        let (shard, key) = self.place(info_hash);
        shard.0.lock().get_mut(&key).map(section)
    }

    async fn enter<R: Send>(
        &self,
        info_hash: &InfoHash,
        admission: Admission,
        section: impl FnOnce(Entered<'_, PackedSwarm>) -> R + Send,
    ) -> Option<R> {
        let (shard, key) = self.place(info_hash);
        let mut shard = shard.0.lock();
        if let Some(swarm) = shard.get_mut(&key) {
            return Some(section(Entered { swarm, created: false, evicted: None }));
        }
        let full = shard.len() >= self.most_swarms_a_shard;
        if full && admission == Admission::IfRoom {
            return None;
        }
        let evicted = if full { evict(&mut shard, &key) } else { None };
        let swarm = shard.entry(key).or_default();
        let result = section(Entered { swarm, created: true, evicted: evicted.as_ref() });
        drop(shard);
        drop(evicted);
        Some(result)
    }

    async fn remove_if<R: Send>(
        &self,
        info_hash: &InfoHash,
        condemn: impl FnOnce(&mut PackedSwarm) -> Option<R> + Send,
    ) -> Option<R> {
        let (shard, key) = self.place(info_hash);
        let mut shard = shard.0.lock();
        let result = condemn(shard.get_mut(&key)?)?;
        let condemned = shard.remove(&key);
        // A large swarm takes milliseconds to free: not under the lock.
        drop(shard);
        drop(condemned);
        Some(result)
    }

    async fn keys(&self, order: Order, after: Option<&InfoHash>, limit: usize, out: &mut Vec<InfoHash>) {
        let start = out.len();
        match order {
            Order::Own => {
                let after = after.map(|after| self.permutation.permute(after));
                let first = after.map_or(0, |after| self.shard_of(&after));
                for shard in first..self.shards.len() {
                    let missing = limit - (out.len() - start);
                    if missing == 0 {
                        break;
                    }
                    self.shard_keys(shard, after.filter(|_| shard == first), missing, out);
                }
            }
            Order::Ascending => {
                for shard in 0..self.shards.len() {
                    let unfiltered = out.len();
                    self.shard_keys(shard, None, usize::MAX, out);
                    if let Some(after) = after {
                        let behind = out.split_off(unfiltered).into_iter().filter(|key| key > after);
                        out.extend(behind);
                    }
                    keep_smallest(out, start, limit);
                }
                out[start..].sort_unstable();
            }
        }
    }
}

impl BlockingMap for Shards {}
