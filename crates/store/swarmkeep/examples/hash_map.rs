//! A store of your own: the hash map of the standard library, in shards, with a lock around each swarm.
//!
//! Run with `cargo run -p swarmkeep --example hash_map`.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, RwLock},
    time::SystemTime,
};

use swarmkeep::{
    Announce, Capabilities, ConfigError, HashKey, InfoHash, LongestHold, OsRandom, PeerBuffer,
    RepositoryConfig, Timestamp, TorrentRepository,
    implement::{
        lock::StdMutex,
        map::{BlockingSlots, LockedSlot, MapRepository, Order, SlotMap, Slots},
    },
};

/// The store. Its map finds swarms; the library adds everything else.
pub(crate) type HashMapRepository = MapRepository<Slots<Shards<LockedSlot<StdMutex>>, StdMutex>>;

type Shard<T> = RwLock<HashMap<InfoHash, Arc<T>>>;

/// A hash map in shards, so that a look at some swarms locks one shard. Its own order is by shard, then by
/// info hash.
pub(crate) struct Shards<T> {
    hasher: RandomState,
    shards: Vec<Shard<T>>,
}

const SHARDS: usize = 256;

impl<T> Shards<T> {
    fn new() -> Self {
        Self { hasher: RandomState::new(), shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    fn index(&self, info_hash: &InfoHash) -> usize {
        self.hasher.hash_one(info_hash) as usize % SHARDS
    }

    fn shard(&self, info_hash: &InfoHash) -> &Shard<T> {
        &self.shards[self.index(info_hash)]
    }

    /// Appends the info hashes of one shard that follow `after`, in no order.
    fn keys_of(shard: &Shard<T>, after: Option<&InfoHash>, out: &mut Vec<InfoHash>) {
        let shard = shard.read().unwrap();
        out.extend(shard.keys().filter(|key| after.is_none_or(|after| *key > after)));
    }
}

impl<T: Send + Sync> SlotMap<T> for Shards<T> {
    async fn get(&self, info_hash: &InfoHash) -> Option<Arc<T>> {
        self.shard(info_hash).read().unwrap().get(info_hash).cloned()
    }

    async fn get_or_insert(&self, info_hash: &InfoHash, make: fn() -> T) -> Arc<T> {
        if let Some(slot) = self.get(info_hash).await {
            return slot;
        }
        let mut shard = self.shard(info_hash).write().unwrap();
        Arc::clone(shard.entry(*info_hash).or_insert_with(|| Arc::new(make())))
    }

    async fn discard(&self, info_hash: &InfoHash, slot: &Arc<T>) {
        let mut shard = self.shard(info_hash).write().unwrap();
        if shard.get(info_hash).is_some_and(|found| Arc::ptr_eq(found, slot)) {
            shard.remove(info_hash);
        }
    }

    async fn keys(&self, order: Order, after: Option<&InfoHash>, limit: usize, out: &mut Vec<InfoHash>) {
        let start = out.len();
        match order {
            Order::Own => {
                let first = after.map_or(0, |after| self.index(after));
                for (index, shard) in self.shards.iter().enumerate().skip(first) {
                    let of_shard = out.len();
                    Self::keys_of(shard, after.filter(|_| index == first), out);
                    out[of_shard..].sort_unstable();
                    if out.len() - start >= limit {
                        break;
                    }
                }
            }
            Order::Ascending => {
                self.shards.iter().for_each(|shard| Self::keys_of(shard, after, out));
                out[start..].sort_unstable();
            }
        }
        out.truncate(start.saturating_add(limit));
    }

    /// About the number of swarms in one shard, because a look reads a whole shard.
    fn keys_per_look(&self) -> usize {
        self.shards[0].read().unwrap().len().max(64)
    }
}

/// The map waits for locks of the standard library only, which block.
impl<T> BlockingSlots for Shards<T> {}

pub(crate) fn hash_map(config: &RepositoryConfig) -> Result<HashMapRepository, ConfigError> {
    let capabilities = Capabilities::new(LongestHold::ShareOfSwarms(1.0 / SHARDS as f64));
    let bytes_per_swarm = 200;
    MapRepository::over(Slots::new(Shards::new()), config, capabilities, bytes_per_swarm)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = hash_map(&RepositoryConfig::new(HashKey::from_os()?))?;
    let (now, mut rng) = (Timestamp::try_from(SystemTime::now())?, OsRandom::new()?);
    let announce = Announce::new(InfoHash::new([7; 20]), "192.0.2.1:6881".parse()?);
    let answer = store.announce(&announce, now, &mut rng, &mut PeerBuffer::new(&mut [], &mut []));
    assert_eq!(answer.stats.incomplete, 1);
    println!("{:?}", store.totals());
    Ok(())
}
