//! Swarms in the sharded hash map of the crate `dashmap`, each in a slot with its own lock.
#![expect(
    unsafe_code,
    reason = "DashMap shows its shards only as raw tables; without them each step of a sweep reads all"
)]

use std::{fmt, hash::BuildHasher, sync::Arc};

use dashmap::DashMap;
use siphasher::sip::SipHasher13;

use crate::{
    Capabilities, ConfigError, HashKey, InfoHash, LongestHold, RepositoryConfig,
    implement::{
        RecordSwarm,
        lock::LockFamily,
        map::{BlockingSlots, LockedSlot, MapRepository, Order, SlotMap, Slots},
    },
};

/// A DashMap of slots, each behind a lock of family `E`.
pub type DashMapRepository<E> = MapRepository<Slots<HashShards<LockedSlot<E>>, E>>;

/// A DashMap of slots. It shows them by shard, then by info hash.
pub struct HashShards<T>(DashMap<InfoHash, Arc<T>, KeyedHash>);

/// SipHash-1-3 under the repository's key.
#[derive(Debug, Clone)]
pub struct KeyedHash(HashKey);

const DEFAULT_SHARDS: usize = 256;
const MOST_SHARDS: usize = 1 << 16;

impl<E: LockFamily> DashMapRepository<E> {
    /// Returns an empty repository of 256 shards, or of the configured number. Each look of a sweep or walk
    /// reads the info hashes of one shard, and announces to that shard wait meanwhile.
    ///
    /// # Errors
    /// [`ConfigError`] if a limit other than that on the endpoints of an address is set, if the lifetime is
    /// not whole seconds, or if the number of shards is not a power of two above 1.
    pub fn new(config: &RepositoryConfig) -> Result<Self, ConfigError> {
        let shards = config.shard_count().unwrap_or(DEFAULT_SHARDS);
        if !shards.is_power_of_two() || !(2..=MOST_SHARDS).contains(&shards) {
            return Err(ConfigError::Shards { given: shards, least: 2, most: MOST_SHARDS });
        }
        let capabilities = Capabilities::new(LongestHold::ShareOfSwarms(1.0 / shards as f64));
        let map = DashMap::with_hasher_and_shard_amount(KeyedHash(config.hash_key()), shards);
        // Tables are between half and seven eighths full.
        let bytes_per_swarm = size_of::<(InfoHash, usize)>() * 3 / 2 + size_of::<RecordSwarm>() + 24;
        Self::over(Slots::new(HashShards(map)), config, capabilities, bytes_per_swarm)
    }
}

impl<T> HashShards<T> {
    /// Appends the info hashes of one shard that follow `after`, in no order.
    fn shard_keys(&self, shard: usize, after: Option<&InfoHash>, out: &mut Vec<InfoHash>) {
        let table = self.0.shards()[shard].read();
        // SAFETY: the read guard outlives the iterator, so the table is neither freed nor changed under it.
        let buckets = unsafe { table.iter() };
        // SAFETY: the iterator gives full buckets only, and the read guard keeps writers away from them.
        let keys = buckets.map(|bucket| unsafe { bucket.as_ref() }.0);
        out.extend(keys.filter(|key| after.is_none_or(|after| key > after)));
    }
}

impl<T> fmt::Debug for HashShards<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashShards")
    }
}

impl<T: Send + Sync> SlotMap<T> for HashShards<T> {
    async fn get(&self, info_hash: &InfoHash) -> Option<Arc<T>> {
        self.0.get(info_hash).map(|slot| slot.clone())
    }

    async fn get_or_insert(&self, info_hash: &InfoHash, make: fn() -> T) -> Arc<T> {
        if let Some(slot) = self.0.get(info_hash) {
            return slot.clone();
        }
        self.0.entry(*info_hash).or_insert_with(|| Arc::new(make())).clone()
    }

    async fn discard(&self, info_hash: &InfoHash, slot: &Arc<T>) {
        self.0.remove_if(info_hash, |_, found| Arc::ptr_eq(found, slot));
    }

    async fn keys(&self, order: Order, after: Option<&InfoHash>, limit: usize, out: &mut Vec<InfoHash>) {
        let (start, shards) = (out.len(), self.0.shards().len());
        match order {
            Order::Own => {
                let first = after.map_or(0, |after| self.0.determine_map(after));
                for shard in first..shards {
                    let unsorted = out.len();
                    self.shard_keys(shard, after.filter(|_| shard == first), out);
                    out[unsorted..].sort_unstable();
                    if out.len() - start >= limit {
                        break;
                    }
                }
                out.truncate(start.saturating_add(limit));
            }
            Order::Ascending => {
                for shard in 0..shards {
                    self.shard_keys(shard, after, out);
                    if out.len() - start > limit {
                        out[start..].select_nth_unstable(limit);
                        out.truncate(start + limit);
                    }
                }
                out[start..].sort_unstable();
            }
        }
    }

    fn keys_per_look(&self) -> usize {
        // About one shard: a look always reads a whole shard.
        (self.0.len() / self.0.shards().len()).max(64)
    }

    async fn give_back(&self) {
        // A table grows when it is seven eighths full, and doubles: below a quarter it is too large.
        if self.0.len() < self.0.capacity() / 4 {
            self.0.shrink_to_fit();
        }
    }
}

impl<T> BlockingSlots for HashShards<T> {}

impl BuildHasher for KeyedHash {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        let [k0, k1] = self.0.words();
        SipHasher13::new_with_keys(k0, k1)
    }
}
